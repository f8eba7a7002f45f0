"""What came of it: the certificate in words, how the fit converged, and slices of the answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from slrt_dask.curves import HEIGHT, Line, chart, fit_charts, keys
from slrt_dask.data.html import Markup, joined, tag
from slrt_dask.dual.certificate import Certificate
from slrt_dask.optim.records import IterationRecord
from slrt_dask.optim.stages import stage_begins
from slrt_dask.reporting.facts import Facts, Picture, Standing
from slrt_dask.reporting.images import VIRIDIS, colour_range, data_url
from slrt_dask.reporting.markup import facts_table, folded, number, table
from slrt_dask.reporting.wording import duration, lengths, percent, plain

MOST_ROWS = 60
"""Of the history in its table; of a longer one every so many iterations are shown."""
WIDE = 760


def certificate_section(facts: Facts) -> Markup:
    certificate = facts.certificate
    if certificate is None:
        return tag(
            "p", "No certificate was computed yet: the first one comes after some iterations."
        )
    gap = certificate.relative_gap
    ended = facts.standing is Standing.ENDED
    whose = "that of this answer" if ended else f"that at iteration {facts.certified_at}"
    promise = joined(
        [
            "Whatever its ranks, no tensor has an objective that is more than ",
            tag("strong", number(gap, percent(gap), "relative_gap")),
            f" below {whose}, for the C, λ and constraints of this fit.",
        ]
    )
    silent = (
        "It does not say how well missing entries are predicted: only held-out observations tell "
        "that, and a fit with an open gap may well predict better than the optimum. It does not "
        "judge the choice of C, λ and constraints either. It holds however loosely inner problems "
        "were solved, but for a chance of one in a million of an unlucky random start vector."
    )
    return joined(
        [
            tag("p", promise, class_="lead"),
            facts_table("The certificate", _bounds(facts, certificate)),
            tag("p", tag("strong", "What it does not say. "), silent, class_="soft"),
        ]
    )


def _bounds(facts: Facts, certificate: Certificate) -> Iterator[tuple[object, object]]:
    primal, dual, gap = certificate.primal, certificate.dual, certificate.gap
    yield "objective of the answer", number(primal, plain(primal, 7), "primal")
    yield "no answer is below", number(dual, plain(dual, 7), "dual")
    yield "gap between them", number(gap, plain(gap), "gap")
    if facts.model.constraints:
        hankel, missed = facts.model.constraints.hankel, certificate.violation
        name = "relative deviation from Hankel" if hankel else "constraints are missed by"
        yield name, number(missed, plain(missed), "violation")


# ---- convergence -----------------------------------------------------------------------------


def convergence_section(facts: Facts) -> Markup:
    records = facts.records
    if not records:
        return tag("p", "There is no iteration yet.")
    reason = facts.stop_reason.value if facts.stop_reason else "It has not ended."
    charts = _charts(facts) if len(records) > 1 else []
    figures = [
        tag("figure", tag("figcaption", caption), drawing, class_="plot")
        for caption, drawing in charts
    ]
    return joined(
        [
            tag("p", reason, class_="lead"),
            _stages(facts),
            tag("div", *figures, class_="charts"),
            folded("The history in numbers", _history(records, facts.error_name)),
        ]
    )


def _stages(facts: Facts) -> Markup:
    """A word about a fit that went through several problems."""
    begins = stage_begins(facts.records)
    if not begins:
        return Markup("")
    return tag(
        "p",
        f"The fit went through {len(begins) + 1} stages, in which the deviation from the Hankel "
        f"structure becomes dearer. Each has an objective of its own, so that costs and gaps are "
        f"to be compared within a stage. They begin at the dotted lines, the last one at iteration "
        f"{begins[-1]:,}.",
        class_="soft",
    )


def _charts(facts: Facts) -> list[tuple[object, Markup]]:
    tolerance = 0.0 if facts.settings is None else facts.settings.gap_tolerance
    found = fit_charts(facts.records, facts.error_name, tolerance)
    if len({record.ranks for record in facts.records}) > 1:
        found.append(_ranks(facts))
    return found


def _ranks(facts: Facts) -> tuple[object, Markup]:
    """The ranks as they grew, a curve for each mode."""
    modes = range(len(facts.records[0].ranks))
    lines = [
        Line(
            facts.mode_name(mode), mode % 4,
            [(record.iteration, record.ranks[mode]) for record in facts.records], stepped=True,
        )
        for mode in modes
    ]  # fmt: skip
    return joined(["ranks ", keys(lines)]), chart("Ranks as they grew", lines)


def _history(records: tuple[IterationRecord, ...], error_name: str) -> Markup:
    step = -(-len(records) // MOST_ROWS)
    chosen = [*records[:-1:step], records[-1]]
    rows = [
        (
            f"{record.iteration:,}",
            number(record.cost, plain(record.cost, 6)),
            number(record.gradient_norm, plain(record.gradient_norm, 3)),
            "" if record.relative_gap is None else percent(record.relative_gap),
            "" if record.validation_rmse is None else plain(record.validation_rmse),
            lengths(record.ranks),
            f"{record.sweeps:,}",
            duration(record.seconds),
        )
        for record in chosen
    ]
    headers = (
        "iteration", "cost", "gradient norm", "gap", f"held-out {error_name}", "ranks", "sweeps",
        "time",
    )  # fmt: skip
    return table("The history", headers, rows, numeric=(0, 1, 2, 3, 4, 6, 7))


# ---- the answer ------------------------------------------------------------------------------


def answer_section(facts: Facts) -> Markup:
    if not facts.pictures:
        return tag("p", "Neither observations nor a result can be shown.")
    if len(facts.pictures[0].plane.axes) == 1:
        return joined([_which_answer(facts), _series(facts.pictures[0])])
    arrays = [a for picture in facts.pictures for a in (picture.observed, picture.completed)]
    low, high = colour_range(*arrays)
    figures = [_slice(picture, facts, low, high) for picture in facts.pictures]
    kind = "slices single" if len(figures) == 1 else "slices"
    shown = tag("div", *figures, class_=kind), _colour_bar(low, high), _cells(facts)
    return joined([_which_answer(facts), *shown])


def _which_answer(facts: Facts) -> Markup:
    """A word about a run that has no result, or only that of an earlier part."""
    if facts.standing is Standing.ENDED:
        return Markup("")
    if facts.pictures[0].completed is None:
        return tag("p", "There is no result yet: these are the observations.")
    return tag("p", "The run has gone on since: this is the result of an earlier part of it.")


def _slice(picture: Picture, facts: Facts, low: float, high: float) -> Markup:
    fixed = ", ".join(facts.place_name(mode, index) for mode, index in picture.plane.fixed)
    what = f"Slice {fixed}" if fixed else "The matrix"
    rows, columns = (axis.length for axis in picture.plane.axes)
    panels = [
        _panel(name, values, f"{what}, {name}: {rows:,} × {columns:,} entries", low, high)
        for name, values in (("observed", picture.observed), ("completed", picture.completed))
        if values is not None
    ]
    names = " × ".join(facts.mode_name(axis.mode) for axis in picture.plane.axes)
    caption = tag("figcaption", what, tag("span", f" ({names})", class_="soft"))
    return tag("figure", caption, tag("div", *panels, class_="panels"), class_="plot")


def _panel(
    name: str, values: NDArray[np.float64], description: str, low: float, high: float
) -> Markup:
    rows, columns = values.shape
    picture = tag(
        "img", src=data_url(values, low, high), alt=description, width=columns, height=rows,
    ).removesuffix("</img>")  # fmt: skip
    seen = np.count_nonzero(np.isfinite(values)) / values.size
    shown = f"{name} ({percent(seen)})" if seen < 1.0 else name
    return tag("div", Markup(picture), tag("span", shown), class_="panel")


def _colour_bar(low: float, high: float) -> Markup:
    shades = f"background: linear-gradient(to right, {', '.join(VIRIDIS)})"
    bar = tag("span", class_="shades", style=shades, role="img", aria_label="from dark to light")
    return tag("p", plain(low), bar, plain(high), class_="colourbar")


def _cells(facts: Facts) -> Markup:
    steps = tuple(axis.step for axis in facts.pictures[0].plane.axes)
    if max(steps) == 1:
        return tag(
            "p", "A pixel is an entry; those without an observation are left blank.", class_="soft"
        )
    return tag(
        "p",
        f"A pixel stands for {lengths(steps)} entries: for the mean of those observed, and for the "
        f"completed entry in their middle.",
        class_="soft",
    )


def _series(picture: Picture) -> Markup:
    """What is known of a series, and what was filled in."""
    (axis,) = picture.plane.axes
    lines = []
    for name, colour, values in _series_parts(picture):
        points = [
            (float(x), float(y))
            for x, y in zip(axis.middles, values, strict=True)
            if np.isfinite(y)
        ]
        if points:
            lines.append(Line(name, colour, points, broken_after=1.5 * axis.step))
    drawing = chart("The series", lines, x_name="sample", size=(WIDE, HEIGHT + 50))
    note = "" if axis.step == 1 else f"One of {axis.step} samples is shown."
    figure = tag("figure", tag("figcaption", keys(lines)), drawing, class_="plot wide")
    return joined([figure, tag("p", note, class_="soft") if note else ""])


def _series_parts(picture: Picture) -> list[tuple[str, int, NDArray[np.float64]]]:
    observed, completed = picture.observed, picture.completed
    if observed is None:
        return [] if completed is None else [("completed", 1, completed)]
    if completed is None:
        return [("observed", 0, observed)]
    return [
        ("observed", 0, observed),
        ("filled in", 1, np.where(np.isnan(observed), completed, np.nan)),
    ]
