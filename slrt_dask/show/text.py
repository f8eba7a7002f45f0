"""Amounts, iterations, trials, completions and plans as plain text."""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slrt_dask.optim.stopping import StopReason

if TYPE_CHECKING:
    from slrt_dask.completion import Completion
    from slrt_dask.engine.plan import Plan
    from slrt_dask.optim.records import IterationRecord
    from slrt_dask.tuning.search import Tried

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
CHOSEN_AMONG = "chosen among "
"""So begins what a search for settings says of itself, in the first row of the history."""
OPEN_BY_CHOICE = (
    "An open gap is to be expected here: the factors are those that predicted held-out "
    "observations best, after few iterations, and not those of the optimum."
)
STREAMED = 1.5
"""How much longer a sweep takes over blocks in files."""
SWEEPS = 25
"""About so many are in an outer iteration: line search, gradient, part of a certificate."""


# ---- numbers ---------------------------------------------------------------------------------


def plain(value: float, digits: int = 4) -> str:
    """A number with a few digits; far from 1 as a power of ten."""
    if not math.isfinite(value):
        return str(value)
    if 1e4 <= abs(value) < 1e6:
        return f"{value:,.0f}".replace("-", "−")
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    mantissa = mantissa.replace("-", "−")
    if not exponent:
        return mantissa
    power = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    return {"1": power, "−1": f"−{power}"}.get(mantissa, f"{mantissa}·{power}")


def percent(part: float) -> str:
    return f"{plain(100 * part, 3)} %"


def duration(seconds: float) -> str:
    """A time in the units that a person would choose."""
    if seconds < 0.1:
        return f"{1e3 * seconds:.2g} ms"
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 10 else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def counted(count: int, what: str) -> str:
    """A number of things: 1 entry, 2 entries."""
    several = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{count:,} {what if count == 1 else several}"


def lengths(shape: tuple[int, ...] | list[int]) -> str:
    return " × ".join(f"{length:,}" for length in shape)


def listed(numbers: tuple[float, ...] | list[float]) -> str:
    return ", ".join(plain(number) for number in numbers)


def label(value: Any) -> str:
    """A coordinate: numbers as they are, dates as precise as they are."""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    if isinstance(value, np.floating):
        return plain(float(value), 6)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# ---- iterations and trials -------------------------------------------------------------------


def describe(record: IterationRecord, known: tuple[int, ...] | None = None) -> str:
    """One line about an iteration: cost, gradient norm, gap, error on held-out data, time.

    known : the ranks that were shown last; others are part of the line
    """
    gap = "" if record.relative_gap is None else f"  gap {100 * record.relative_gap:7.3f} %"
    error = "" if record.validation_rmse is None else f"  rmse {record.validation_rmse:.5g}"
    ranks = "" if known in (None, record.ranks) else f"  ranks {record.ranks}"
    capped = "" if record.inner_converged else "  (an inner solve hit its limit)"
    return (
        f"iteration {record.iteration:4d}  cost {record.cost:.6e}  gradient "
        f"{record.gradient_norm:.2e}{gap}{error}{ranks}  {record.seconds:.1f} s{capped}"
    )


def describe_trial(tried: Tried) -> str:
    """One line about settings that were tried: which trial, its error, what it subtracted."""
    number = f"trial {tried.number:2d}  " if tried.number else ""
    centring = f", {tried.centring}" if tried.centring else ""
    strengths = ", ".join(f"{strength:.4g}" for strength in tried.candidate.strengths)
    return (
        f"{number}ranks {tried.candidate.ranks}  C·λ ({strengths})  rmse {tried.error:.5g} ± "
        f"{tried.standard_error:.2g}  "
        f"{tried.sweeps} sweeps  {tried.seconds:.1f} s{centring}"
    )


# ---- completions -----------------------------------------------------------------------------


def is_chosen(done: Completion) -> bool:
    """Whether the factors are those that a search chose, and not those of an optimum."""
    return done.stop_reason is StopReason.CHOSEN


def searched(done: Completion) -> str:
    """What a search tried, what it chose and its error; empty if there was none."""
    event = done.records[0].event if done.records else ""
    return event[event.index(CHOSEN_AMONG) :] if CHOSEN_AMONG in event else ""


def completion_text(done: Completion) -> str:
    """Some lines about a completion."""
    shape = " × ".join(str(length) for length in done.shape)
    loss = "" if done.loss is None else f"Huber's loss from {done.loss.delta:.4g}, "
    iterations = f"{max(0, len(done.records) - 1)} iterations"
    found = searched(done)
    capped = sum(not record.inner_converged for record in done.records)
    lines = [
        f"Completion({shape}, ranks {done.ranks}, {loss}"
        f"{'settings searched for' if is_chosen(done) else iterations})",
        *([found] if found else []),
        str(done.certificate),
        *([OPEN_BY_CHOICE] if is_chosen(done) else []),
        done.stop_reason.value,
        *([f"{capped} iterations had inner solves that hit their limit."] if capped else []),
    ]
    return "\n  ".join(lines)


def outcome(done: Completion, run: str) -> str:
    """The result of a fit in a run directory, and commands that go on from it."""
    from slrt_dask.losses import error_name
    from slrt_dask.runs import open_run
    from slrt_dask.usage import read_usage

    records, kept = done.records, open_run(run)
    usage, start = read_usage(kept.path), kept.read_start()
    first = records[0].ranks if records else done.ranks
    errors = [row.validation_rmse for row in records if row.validation_rmse is not None]
    sweeps, found = sum(row.sweeps for row in records), searched(done)
    took = f"{records[-1].seconds if usage is None else usage.wall:.1f} s"
    if start is not None:
        took += f" after a search of {sum(float(row['seconds']) for row in start.tried):.1f} s"
    name = shlex.quote(run)
    further = f"resume {name} to go on, " if done.stop_reason is StopReason.INTERRUPTED else ""
    grown = "" if done.ranks == first else f", grown from {first}"
    rows = [
        ("settings", records[0].event if found else ""),
        # a line about a search names the ranks already
        ("ranks", f"{done.ranks}{grown}" if grown or not found else ""),
        ("loss", "" if done.loss is None else f"Huber's, delta {done.loss.delta:.6g}"),
        ("certificate", str(done.certificate)),
        ("stop", done.stop_reason.value),
        ("effort", f"{counted(max(0, len(records) - 1), 'iteration')}, {sweeps:,} sweeps, {took}"),
        ("validation", f"{error_name(done.header.huber)} {errors[-1]:.6g}" if errors else ""),
        ("completion", done.path),
        (
            "next",
            f"slrt-dask {further}report {name}, evaluate {name} STORE, "
            f"predict {name} INDICES -o OUT, or export {name} OUT.zarr",
        ),
    ]
    return "\n".join(f"{title:<13}{text}" for title, text in rows if text)


def remaining(run: str) -> str:
    """What is kept of a run without a result, and the command that goes on with it."""
    from slrt_dask.errors import SlrtError
    from slrt_dask.runs import SEARCHING, open_run
    from slrt_dask.tuning.journal import what_goes_on

    resuming = f"slrt-dask resume {shlex.quote(run)}"
    with suppress(SlrtError):
        begun = open_run(run).read_records()
        what = "the run has no result yet, but its checkpoints" if begun else "the run has begun"
        return f"{what}: {resuming} goes on"
    with suppress(SlrtError):
        command = what_goes_on(Path(run, SEARCHING))
        command = resuming if command in resuming else command
        return f"the settings tried so far are kept: {command} goes on"
    return "nothing was computed yet, and nothing is kept"


# ---- plans -----------------------------------------------------------------------------------


def plan_text(plan: Plan) -> str:
    """The whole plan, an amount or a decision in each line."""
    from slrt_dask.spending import readable

    needed, cut = plan.largest, plan.slab_mode
    threads = sum(worker.place.threads for worker in plan.workers)
    why = "the least crosses along it"
    if plan.better_slab_mode is not None:
        why = f"stored so; along mode {plan.better_slab_mode} less would cross"
    rows = [
        ("workers", f"{_occupied(plan)}, threads {threads}"),
        ("chunks", f"{plan.partitions} of offsets") if cut is None else
        ("slab mode", f"{cut} ({why})"),
        ("observations", f"{readable(needed.observations)} on the fullest worker"),
        ("solver state", readable(needed.state)),
        ("working set", "" if plan.extra is None else
         f"up to {plan.extra:,} entries besides the observed ones"),
        ("tensor sums" if cut is None else "fibre sums", readable(needed.fibre_sums)),
        ("linear rows", f"{readable(needed.rows)}, {plan.rows:,} rows" * bool(plan.rows)),
        ("buffers", readable(needed.buffers)),
        ("runtime", readable(needed.runtime)),
        ("total per worker", readable(needed.total)),
        ("driver", readable(plan.driver) * (plan.workers[0].place.address is not None)),
        ("network", f"{readable(plan.exchange_bytes)} a round"),
        ("blocks", _blocks(plan)),
        *timing(plan),
    ]  # fmt: skip
    return "\n".join(f"{name:<18}{value}" for name, value in rows if value)


def timing(plan: Plan) -> list[tuple[str, str]]:
    """How long a sweep and an outer iteration will take, and whether a cluster pays."""
    rates, workers = plan.rates, plan.workers
    if rates is None:
        return []
    slowest = max(
        worker.entries / worker.place.threads * (STREAMED if worker.block_entries else 1.0)
        for worker in workers
    )
    sweep = slowest * rates.entry + rates.round + rates.byte * plan.exchange_bytes
    iteration = duration(SWEEPS * sweep)
    rows = [("time", f"about {duration(sweep)} a sweep, {iteration} an outer iteration")]
    alone = sum(worker.entries for worker in workers) / max(1, rates.threads) * rates.entry
    if rates.threads and alone < sweep:
        threads = counted(rates.threads, "thread")
        advice = f"one process with {threads} will be faster: {duration(alone)} a sweep"
        rows.append(("advice", advice))
    return rows


def _occupied(plan: Plan) -> str:
    small = f"; {plan.left_out} more too small for a share" if plan.left_out else ""
    if len(plan.workers) == plan.available:
        return f"{plan.available}{small}"
    why = "there is one for each chunk of offsets"
    if plan.slab_mode is not None:
        why = (
            f"the store has {counted(plan.partitions, 'partition')}; ingest with smaller ones "
            "to occupy more"
        )
    return f"{len(plan.workers)} of {plan.available}{small} ({why})"


def _blocks(plan: Plan) -> str:
    from slrt_dask.spending import readable

    streamed = [worker for worker in plan.workers if worker.block_entries is not None]
    if not streamed:
        return "in memory"
    scratch = max(worker.needed.scratch for worker in streamed)
    entries = min(worker.block_entries or 0 for worker in streamed)
    resident = max(worker.resident for worker in streamed)
    return (
        f"streamed from disk on {len(streamed)} of {len(plan.workers)} workers: "
        f"{readable(scratch)} of scratch a worker, blocks of {entries:,} entries; in memory "
        f"they would need {readable(resident)} a worker, and be faster"
    )
