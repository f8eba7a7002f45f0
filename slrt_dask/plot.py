"""Pictures of a completion. Figures belong to the caller: no global state.

Those of frames, spectra and single predictions are in `plot_views`, those of how a fit or a search
went in `plot_runs`; all can be had from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from slrt_dask.errors import InvalidInput
from slrt_dask.plot_panels import (
    BLUE,
    ERROR_COLOURS,
    ORANGE,
    VALUE_COLOURS,
    as_slice,
    colour_bar,
    draw_image,
    largest,
    new_figure,
    panel_size,
    save_figure,
)
from slrt_dask.plot_runs import convergence_figure, tuning_figure
from slrt_dask.plot_views import frames_figure, prediction_figure, spectra_figure

if TYPE_CHECKING:
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
    colour_bar(axes[-2], drawn)
    limit = largest(error) if error_limit is None else error_limit
    root_mean_square = float(np.sqrt(np.nanmean(error**2))) if np.isfinite(error).any() else 0.0
    name = f"{'error' if true is not None else 'misfit'} (RMSE {root_mean_square:.3g})"
    drawn = draw_image(axes[-1], error, name, ERROR_COLOURS, -limit, limit)
    colour_bar(axes[-1], drawn)
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
    if truth is not None:
        # Wide and pale, so that a line on top of it hides nothing and is not hidden.
        hidden = np.where(missing, np.asarray(truth), np.nan)
        axes.plot(hidden, color="0.75", linewidth=4.0, label="truth")
    axes.plot(np.where(missing, series[1], np.nan), color=ORANGE, linewidth=1.2, label="filled in")
    axes.set_xlabel("sample")
    axes.margins(x=0.01)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    if title:
        axes.set_title(title)
    return figure
