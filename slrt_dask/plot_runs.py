"""Pictures of how work went: the iterations of a fit, the settings that a search tried.

This changes when other numbers of a run are to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from slrt_dask.errors import InvalidInput
from slrt_dask.optim.records import IterationRecord
from slrt_dask.optim.stages import stages_of
from slrt_dask.plot_panels import BLUE, GREEN, ORANGE, PURPLE, new_figure
from slrt_dask.tuning.search import Tried

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """Numbers by iteration, None where they are not known."""

    name: str
    colour: str
    logarithmic: bool
    values: list[float | None]


def convergence_figure(
    records: Sequence[IterationRecord],
    *,
    title: str | None = None,
    only: Sequence[str] | None = None,
) -> Figure:
    """Cost, gradient norm, certified gap and, where measured, validation error by iteration.

    only : of their titles, those to draw, such as "gradient norm"

    The cost falls fast and then hardly at all, so its distance to the lowest value is drawn. A fit
    with Hankel structure goes through stages, each with an objective of its own: they are marked,
    and costs are compared within a stage.
    """
    stages = _stages(records)
    curves = [
        Curve("cost above its lowest", BLUE, True, _above_lowest(records, stages)),
        Curve("gradient norm", ORANGE, True, [row.gradient_norm for row in records]),
        Curve("certified relative gap", GREEN, True, [row.relative_gap for row in records]),
        Curve("validation RMSE", PURPLE, False, [row.validation_rmse for row in records]),
    ]
    _check_names(only or (), [curve.name for curve in curves])
    curves = [
        curve
        for curve in curves
        if any(value is not None for value in curve.values) and (only is None or curve.name in only)
    ]
    if not curves:
        raise InvalidInput("there are no records to draw; give those of a fit")
    iterations = [row.iteration for row in records]
    figure = new_figure((3.3 * len(curves), 2.9 + 0.2 * (len(stages) > 1)))
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, curve in zip(axes, curves, strict=True):
        _draw(axis, iterations, curve, stages)
    if len(stages) > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center",
                      fontsize="small", frameon=False)  # fmt: skip
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def tuning_figure(
    history: Sequence[Tried], *, others: Sequence[Tried] = (), title: str | None = None
) -> Figure:
    """The error of every setting that a search tried, over its largest C·λ and in their order.

    others : settings that were tried with the centring that was not chosen, drawn first and pale
    """
    if not history:
        raise InvalidInput("there are no settings to draw; give the history of a search")
    errors = [tried.error for tried in (*others, *history)]
    lowest = np.minimum.accumulate(errors)
    figure = new_figure((8.0, 3.2))
    by_strength, by_order = figure.subplots(1, 2, sharey=True)
    parts = [("tried", BLUE, history), ("tried with the other centring", "0.7", others)]
    for name, colour, part in parts:
        if part:
            by_strength.scatter(
                [max(tried.candidate.strengths) for tried in part],
                [tried.error for tried in part],
                color=colour, s=16, label=name,
            )  # fmt: skip
    best = min((*others, *history), key=lambda tried: tried.error)
    by_strength.scatter(
        max(best.candidate.strengths), best.error, color=ORANGE, s=40, label="the best"
    )
    by_strength.set_xscale("log")
    by_strength.set_xlabel("largest C·λ", fontsize=9)
    by_strength.set_ylabel("RMSE on held-out observations", fontsize=9)
    by_order.plot(
        range(1, len(errors) + 1), errors, color="0.6", marker=".", linewidth=0.8, label="tried"
    )
    by_order.step(
        range(1, len(lowest) + 1), lowest, color=ORANGE, where="post", label="best so far"
    )
    by_order.set_xlabel("setting", fontsize=9)
    for axis in (by_strength, by_order):
        axis.legend(fontsize="small")
        axis.spines[["top", "right"]].set_visible(False)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def _stages(records: Sequence[IterationRecord]) -> list[tuple[int, int]]:
    """Rows, from and to, of one objective each."""
    ends = [0, *accumulate(len(stage) for stage in stages_of(records))]
    return list(pairwise(ends))


def _check_names(wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            raise InvalidInput(f"there is no curve {name!r}; choose of {', '.join(known)}")


def _above_lowest(
    records: Sequence[IterationRecord], stages: list[tuple[int, int]]
) -> list[float | None]:
    """The cost of every row above the lowest of its stage; None where it is that."""
    above: list[float | None] = []
    for begin, end in stages:
        costs = [row.cost for row in records[begin:end]]
        lowest = min(costs, default=0.0)
        above += [cost - lowest if cost > lowest else None for cost in costs]
    return above


def _draw(axis: Axes, iterations: list[int], curve: Curve, stages: list[tuple[int, int]]) -> None:
    """A line for every stage, as one has no part in the next."""
    count = sum(value is not None for value in curve.values)
    for begin, end in stages:
        rows = zip(iterations[begin:end], curve.values[begin:end], strict=True)
        pairs = [(i, v) for i, v in rows if v is not None]
        if not pairs:
            continue
        few = 2 * count < len(iterations) or len(pairs) < 3
        axis.plot(*zip(*pairs, strict=True), color=curve.colour, marker="o" if few else "",
                  markersize=4, clip_on=False)  # fmt: skip
    for number, (begin, _) in enumerate(stages[1:]):
        name = None if number else "another stage begins, with another objective"
        axis.axvline(iterations[begin], color="0.5", linewidth=0.8, linestyle=":", label=name)
    if curve.logarithmic and all(value > 0.0 for value in curve.values if value is not None):
        axis.set_yscale("log")
    axis.set_title(curve.name, fontsize=10)
    axis.set_xlabel("iteration", fontsize=9)
    axis.set_xlim(min(iterations), max(max(iterations), min(iterations) + 1))
    axis.tick_params(labelsize=8, which="both")
    axis.locator_params(axis="x", nbins=6, integer=True)
    axis.grid(visible=True, color="0.9", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
