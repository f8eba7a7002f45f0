"""Pictures of a completion and of how a fit went. Figures belong to the caller: no global state.

Those of frames, spectra and single predictions are in `plot_views`, and can be had from here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from slrt_dask.errors import InvalidInput
from slrt_dask.optim.records import IterationRecord
from slrt_dask.plot_panels import (
    BLUE,
    ERROR_COLOURS,
    GREEN,
    ORANGE,
    PURPLE,
    VALUE_COLOURS,
    as_slice,
    draw_image,
    largest,
    new_figure,
    panel_size,
    save_figure,
)
from slrt_dask.plot_views import frames_figure, prediction_figure, spectra_figure
from slrt_dask.tuning.search import Tried

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "completion_figure",
    "convergence_figure",
    "frames_figure",
    "prediction_figure",
    "save_figure",
    "series_figure",
    "spectra_figure",
    "tuning_figure",
]


def completion_figure(
    truth: ArrayLike | None,
    observed: ArrayLike,
    completed: ArrayLike,
    *,
    title: str | None = None,
    error_limit: float | None = None,
) -> Figure:
    """Panels of one slice: truth, observed (NaN is missing), completed, error.

    Without a truth there are three, and the error is the misfit at the observed entries. The
    panels share one scale of colours, the error has its own, from −error_limit to error_limit.
    """
    seen, filled = as_slice("observed", observed), as_slice("completed", completed)
    true = None if truth is None else as_slice("truth", truth)
    for name, array in (("observed", seen), ("truth", true)):
        if array is not None and array.shape != filled.shape:
            raise InvalidInput(f"{name} has shape {array.shape}, completed has {filled.shape}")
    share = 100 * np.count_nonzero(np.isfinite(seen)) / seen.size
    panels = [(f"observed ({share:.3g} %)", seen), ("completed", filled)]
    reference = seen
    if true is not None:
        panels, reference = [("truth", true), *panels], true
    error = filled - reference
    figure = new_figure(panel_size(len(panels) + 1, filled.shape))
    axes = figure.subplots(1, len(panels) + 1, squeeze=False)[0]
    known = np.concatenate([panel[np.isfinite(panel)] for _, panel in panels])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    for axis, (name, panel) in zip(axes, panels, strict=False):
        drawn = draw_image(axis, panel, name, VALUE_COLOURS, low, high)
    figure.colorbar(drawn, ax=list(axes[:-1]), pad=0.01, aspect=25)
    limit = largest(error) if error_limit is None else error_limit
    root_mean_square = float(np.sqrt(np.nanmean(error**2))) if np.isfinite(error).any() else 0.0
    name = f"{'error' if true is not None else 'misfit'} (RMSE {root_mean_square:.3g})"
    drawn = draw_image(axes[-1], error, name, ERROR_COLOURS, -limit, limit)
    figure.colorbar(drawn, ax=axes[-1], pad=0.03, aspect=25)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def convergence_figure(
    records: Sequence[IterationRecord],
    *,
    title: str | None = None,
    only: Sequence[str] | None = None,
) -> Figure:
    """Cost, gradient norm, certified gap and, where measured, validation error by iteration.

    only : of their titles, those to draw, such as "gradient norm"

    The cost falls fast and then hardly at all, so its distance to the lowest value is drawn.
    """
    curves: list[tuple[str, str, bool, list[float | None]]] = [
        ("cost above its lowest", BLUE, True, _above_lowest([row.cost for row in records])),
        ("gradient norm", ORANGE, True, [row.gradient_norm for row in records]),
        ("certified relative gap", GREEN, True, [row.relative_gap for row in records]),
        ("validation RMSE", PURPLE, False, [row.validation_rmse for row in records]),
    ]
    _check_names(only or (), [curve[0] for curve in curves])
    curves = [
        curve
        for curve in curves
        if any(value is not None for value in curve[3]) and (only is None or curve[0] in only)
    ]
    if not curves:
        raise InvalidInput("there are no records to draw; give those of a fit")
    iterations = [row.iteration for row in records]
    figure = new_figure((3.3 * len(curves), 2.9))
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (name, colour, logarithmic, values) in zip(axes, curves, strict=True):
        _curve(axis, iterations, values, name, colour, logarithmic)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def tuning_figure(history: Sequence[Tried], *, title: str | None = None) -> Figure:
    """The error of every setting that a search tried, over its largest C·λ and in their order."""
    if not history:
        raise InvalidInput("there are no settings to draw; give the history of a search")
    errors = [tried.error for tried in history]
    lowest = np.minimum.accumulate(errors)
    figure = new_figure((8.0, 3.2))
    by_strength, by_order = figure.subplots(1, 2, sharey=True)
    strengths = [max(tried.candidate.strengths) for tried in history]
    by_strength.scatter(strengths, errors, color=BLUE, s=16)
    by_strength.scatter(strengths[int(np.argmin(errors))], lowest[-1], color=ORANGE, s=40)
    by_strength.set_xscale("log")
    by_strength.set_xlabel("largest C·λ", fontsize=9)
    by_strength.set_ylabel("RMSE on held-out observations", fontsize=9)
    by_order.plot(errors, color="0.6", marker=".", linewidth=0.8, label="tried")
    by_order.step(range(len(lowest)), lowest, color=ORANGE, where="post", label="best so far")
    by_order.set_xlabel("setting", fontsize=9)
    by_order.legend(fontsize="small")
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def series_figure(
    known: ArrayLike,
    completed: ArrayLike,
    truth: ArrayLike | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """A series: what was known of it (NaN is missing), and what was filled in or forecast."""
    series = [np.asarray(part, dtype=np.float64) for part in (known, completed)]
    if series[0].ndim != 1 or series[0].shape != series[1].shape:
        raise InvalidInput(
            f"the series have shapes {series[0].shape} and {series[1].shape}; give two of one "
            f"dimension and the same length"
        )
    figure = new_figure((9.0, 3.2))
    axes = figure.subplots()
    missing = np.isnan(series[0])
    axes.plot(series[0], color=BLUE, linewidth=1.2, label="known")
    axes.plot(np.where(missing, series[1], np.nan), color=ORANGE, linewidth=1.8, label="filled in")
    if truth is not None:
        hidden = np.where(missing, np.asarray(truth), np.nan)
        axes.plot(hidden, color="0.15", linewidth=0.8, label="truth")
    axes.set_xlabel("sample")
    axes.legend(loc="upper right", ncols=3, fontsize="small")
    if title:
        axes.set_title(title)
    return figure


def _check_names(wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            raise InvalidInput(f"there is no curve {name!r}; choose of {', '.join(known)}")


def _above_lowest(costs: list[float]) -> list[float | None]:
    lowest = min(costs, default=0.0)
    return [cost - lowest if cost > lowest else None for cost in costs]


def _curve(
    axis: Axes,
    iterations: list[int],
    values: list[float | None],
    name: str,
    colour: str,
    logarithmic: bool,
) -> None:
    pairs = [(i, v) for i, v in zip(iterations, values, strict=True) if v is not None]
    marker = "o" if 2 * len(pairs) < len(iterations) or len(pairs) < 3 else ""
    axis.plot(*zip(*pairs, strict=True), color=colour, marker=marker, markersize=4, clip_on=False)
    if logarithmic and all(value > 0.0 for _, value in pairs):
        axis.set_yscale("log")
    axis.set_title(name, fontsize=10)
    axis.set_xlabel("iteration", fontsize=9)
    axis.set_xlim(min(iterations), max(max(iterations), min(iterations) + 1))
    axis.tick_params(labelsize=8, which="both")
    axis.locator_params(axis="x", nbins=6, integer=True)
    axis.grid(visible=True, color="0.9", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
