"""Results as a notebook shows them: a completion with its certificate, a search with its trials.

Tables and curves are made in `data.html` and `curves`; this says what is in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slrt_dask.curves import fit_curves, search_curves
from slrt_dask.data import html
from slrt_dask.losses import error_name
from slrt_dask.printing import OPEN_BY_CHOICE, is_chosen, searched

if TYPE_CHECKING:
    from slrt_dask.completion import Completion
    from slrt_dask.tuning.tuning import Tuning

MOST_TRIALS = 12
"""Rows of a search that are shown, the best first."""


def completion_html(done: Completion) -> str:
    """What was fitted, how good it is, and how it got there."""
    lengths = " × ".join(map(str, done.shape))
    names = done.header.names or tuple(f"mode {mode}" for mode in range(len(done.shape)))
    modes = [
        (name, f"{length:,}", rank, f"{weight:.4g}")
        for name, length, rank, weight in zip(
            names, done.shape, done.ranks, done.lambdas, strict=True
        )
    ]
    certificate, found = done.certificate, searched(done)
    rows: list[tuple[str, object]] = [("settings", found)] if found else []
    rows += [
        ("certified gap", f"{100 * certificate.relative_gap:.3g} % of the objective at most"),
        ("objective (primal)", f"{certificate.primal:.6g}"),
        ("none is below (dual)", f"{certificate.dual:.6g}"),
    ]
    if certificate.violation:
        rows.append(("constraints missed by", f"{certificate.violation:.2g}"))
    rows.append(("C", f"{done.C:.6g}"))
    if done.loss is not None:
        rows.append(("loss", f"Huber's, delta {done.loss.delta:.6g}"))
    rows += [*_effort(done), ("ended", done.stop_reason.value)]
    return html.panel(
        "Completion",
        f"{done.header.about['name'] or ''} {lengths}",
        html.facts(rows),
        html.note(OPEN_BY_CHOICE, faint=True) if is_chosen(done) else "",
        html.table(("dimension", "length", "rank", "λ"), modes),
        fit_curves(done.records) if len(done.records) > 1 else "",
        _events(done),
    )


def tuning_html(found: Tuning) -> str:
    """What a search found, and the best of what it tried."""
    best = sorted(found.history, key=lambda tried: tried.error)
    rows = [
        (
            ", ".join(map(str, tried.candidate.ranks)),
            ", ".join(f"{strength:.3g}" for strength in tried.candidate.strengths),
            f"{tried.error:.5g}",
            f"{tried.sweeps:,}",
            f"{tried.seconds:.1f}",
        )
        for tried in best[:MOST_TRIALS]
    ]
    left_out = len(best) - len(rows)
    return html.panel(
        "Tuning",
        f"{len(best)} settings tried",
        html.note(found),
        html.table(
            ("ranks", "C·λ", f"held-out {error_name(found.settings.huber)}", "sweeps", "seconds"),
            rows,
        ),
        html.note(f"and {left_out} worse ones", faint=True) if left_out else "",
        search_curves(found.history),
    )


def _effort(done: Completion) -> list[tuple[str, object]]:
    if not done.records:
        return []
    sweeps = sum(record.sweeps for record in done.records)
    rows: list[tuple[str, object]] = [
        (
            "effort",
            f"{max(0, len(done.records) - 1):,} iterations, {sweeps:,} sweeps, "
            f"{done.records[-1].seconds:.1f} s" + (", after the search" if searched(done) else ""),
        )
    ]
    errors = [row.validation_rmse for row in done.records if row.validation_rmse is not None]
    if errors:
        rows.append((f"validation {error_name(done.header.huber)}", f"{errors[-1]:.6g}"))
    capped = sum(not record.inner_converged for record in done.records)
    if capped:
        rows.append(("inner solves", f"those of {capped} iterations hit their limit"))
    return rows


def _events(done: Completion) -> str:
    found = searched(done)
    told = [record for record in done.records if record.event and record.event != found]
    return html.joined(
        html.note(f"iteration {record.iteration}: {record.event}", faint=True) for record in told
    )
