"""A completion as it is printed: what was fitted, its certificate, and why the fit stopped.

What a notebook shows in its place is in `notebook.py`. This changes when the words do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slrt_dask.optim.stopping import StopReason

if TYPE_CHECKING:
    from slrt_dask.completion import Completion

CHOSEN_AMONG = "chosen among "
"""So begins what a search for settings says of itself, with the first row of the history."""
OPEN_BY_CHOICE = (
    "An open gap is to be expected here: the factors are those that predicted held-out "
    "observations best, after few iterations, and not those of the optimum."
)


def completion_text(done: Completion) -> str:
    """Some lines about a completion."""
    lengths = " × ".join(str(length) for length in done.shape)
    loss = "" if done.loss is None else f"Huber's loss from {done.loss.delta:.4g}, "
    made = "settings searched for" if is_chosen(done) else f"{_iterations(done)} iterations"
    found = searched(done)
    capped = sum(not record.inner_converged for record in done.records)
    lines = [
        f"Completion({lengths}, ranks {done.ranks}, {loss}{made})",
        *([found] if found else []),
        str(done.certificate),
        *([OPEN_BY_CHOICE] if is_chosen(done) else []),
        done.stop_reason.value,
        *([f"{capped} iterations had inner solves that hit their limit."] if capped else []),
    ]
    return "\n  ".join(lines)


def searched(done: Completion) -> str:
    """What a search tried, what it chose and how well that predicts; empty if there was none."""
    told = done.records[0].event if done.records else ""
    return told[told.index(CHOSEN_AMONG) :] if CHOSEN_AMONG in told else ""


def is_chosen(done: Completion) -> bool:
    """Whether the factors are those that a search chose, and not of an optimum."""
    return done.stop_reason is StopReason.CHOSEN


def _iterations(done: Completion) -> int:
    return max(0, len(done.records) - 1)
