"""Pictures of data of a kind: frames of a video or colour images, spectra, single predictions.

Each shows what was completed beside what was known of it. This changes when another kind of data
is to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slrt_dask.errors import InvalidInput
from slrt_dask.plot_panels import (
    BLUE,
    ERROR_COLOURS,
    ORANGE,
    colour_bar,
    draw_image,
    largest,
    new_figure,
    panel_size,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_GROUPS = 10
MISSING_COLOUR = (0.78, 0.87, 0.95)
"""Of pictures, in which grey is a value: a pale blue."""


def frames_figure(
    truth: ArrayLike | None,
    observed: ArrayLike,
    completed: ArrayLike,
    *,
    names: Sequence[str] | None = None,
    peak: float | None = None,
    title: str | None = None,
) -> Figure:
    """Frames beside each other: a row each of truth, observed (NaN is missing), completed, error.

    All are (rows, columns, frames), or with colours (rows, columns, 3, frames). A single frame is
    drawn as one row. Without a truth the error is left out.

    names : titles of the frames;  peak : what is white, the largest value if None
    """
    seen, filled = _frames("observed", observed), _frames("completed", completed)
    rows = [("observed", seen), ("completed", filled)]
    if truth is not None:
        rows.insert(0, ("truth", _frames("truth", truth)))
    for name, frames in rows:
        if frames.shape != filled.shape:
            raise InvalidInput(f"{name} has shape {frames.shape}, completed has {filled.shape}")
    white = float(np.nanmax(rows[0][1])) if peak is None else peak
    count, across = filled.shape[-1], filled.shape[-1] == 1
    height = len(rows) + (truth is not None)
    layout = (1, height) if across else (height, count)
    width, one = panel_size(layout[1], filled.shape[:2])
    figure = new_figure((width, one + (layout[0] - 1) * (one - 0.5)))
    axes = np.reshape(figure.subplots(*layout, squeeze=False), (height, count))
    for row, (name, frames) in enumerate(rows):
        for axis, frame in zip(axes[row], np.moveaxis(frames, -1, 0), strict=True):
            drawn = _frame(axis, frame, white)
        _row_name(axes[row, 0], name, across)
        if filled.ndim == 3 and (row == len(rows) - 1 or not across):
            colour_bar(axes[row, -1], drawn)
    if truth is not None:
        _errors(axes[-1], filled - rows[0][1], across)
    for axis, text in zip(axes[0], names or (), strict=False):
        axis.set_title(text, fontsize=10)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def spectra_figure(
    truth: ArrayLike | None,
    observed: ArrayLike,
    completed: ArrayLike,
    *,
    names: Sequence[str] | None = None,
    across: str = "band",
    unit: str = "value",
    title: str | None = None,
) -> Figure:
    """Curves, a panel each: truth, completed, and dots at what was observed (NaN is missing).

    All are (curves, length).  names : titles of the panels;  across, unit : of their axes
    """
    seen, filled = (np.asarray(part, dtype=np.float64) for part in (observed, completed))
    if filled.ndim != 2 or seen.shape != filled.shape:
        raise InvalidInput(
            f"the curves have shapes {seen.shape} and {filled.shape}; give two of the same shape "
            "(curves, length)"
        )
    figure = new_figure((3.3 * len(filled), 2.9))
    panels = figure.subplots(1, len(filled), squeeze=False, sharey=True)[0]
    for number, axis in enumerate(panels):
        if truth is not None:
            axis.plot(np.asarray(truth)[number], color="0.6", linewidth=1.2, label="truth")
        axis.plot(filled[number], color=ORANGE, linewidth=1.2, label="completed")
        axis.plot(seen[number], ".", color=BLUE, markersize=5, label="observed")
        axis.set_xlabel(across, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        if names is not None:
            axis.set_title(names[number], fontsize=10)
    panels[0].set_ylabel(unit, fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  fontsize="small", frameon=False)  # fmt: skip
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def prediction_figure(
    observed: ArrayLike,
    predicted: ArrayLike,
    *,
    unit: str = "value",
    title: str | None = None,
) -> Figure:
    """Predictions of entries that a fit did not see: by what they are, and how far they miss it.

    observed, predicted : (m,). Boxes hold the middle half of the predictions, whiskers 90 %.
    """
    true, found = (np.asarray(part, dtype=np.float64) for part in (observed, predicted))
    if true.ndim != 1 or true.shape != found.shape or true.size == 0:
        raise InvalidInput(
            f"observed has shape {true.shape} and predicted {found.shape}; give as many of both, "
            "in one dimension"
        )
    centres, groups = _groups(true, found)
    figure = new_figure((8.4, 3.3))
    left, right = figure.subplots(1, 2)
    apart = float(np.min(np.diff(centres))) if len(centres) > 1 else 1.0
    left.boxplot(
        groups, positions=centres, widths=0.6 * apart, whis=(5, 95), showfliers=False,
        manage_ticks=False, patch_artist=True, boxprops={"facecolor": "#cfe3f1", "edgecolor": BLUE},
        medianprops={"color": ORANGE, "linewidth": 1.6},
    )  # fmt: skip
    ends = [centres[0], centres[-1]]
    left.plot(ends, ends, color="0.6", linewidth=0.8, linestyle="--", label="as it should be")
    left.set(xlabel=f"{unit} held out", ylabel=f"{unit} predicted")
    left.legend(fontsize="small", frameon=False, loc="upper left")
    error = found - true
    right.hist(error, bins=60, color=BLUE, alpha=0.8)
    right.axvline(0.0, color="0.4", linewidth=0.8)
    right.set(xlabel="error", ylabel="entries")
    right.set_title(f"RMSE {np.sqrt(np.mean(error**2)):.4g}", fontsize=10)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def _frames(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    colours = array.ndim == 4 and array.shape[2] == 3
    if not (array.ndim == 3 or colours) or array.size == 0:
        raise InvalidInput(
            f"{name} has shape {array.shape}; give (rows, columns, frames), or with colours "
            "(rows, columns, 3, frames)"
        )
    return array


def _frame(axis: Axes, frame: NDArray[np.float64], white: float) -> Any:
    if frame.ndim == 2:
        drawn = draw_image(axis, frame, "", "gray", 0.0, white)
        axis.set_facecolor(MISSING_COLOUR)
        return drawn
    missing = np.isnan(frame)
    # A place with some of its colours is drawn with those.
    shown = np.where(missing, 0.0, np.clip(frame / white, 0.0, 1.0))
    shown[missing.all(axis=-1)] = MISSING_COLOUR
    axis.set_xticks([])
    axis.set_yticks([])
    return axis.imshow(shown, interpolation="nearest")


def _errors(axes: Any, error: NDArray[np.float64], across: bool) -> None:
    """A row of errors, all with one scale; of colours the mean."""
    flat = error.mean(axis=2) if error.ndim == 4 else error
    limit = largest(flat)
    for axis, frame in zip(axes, np.moveaxis(flat, -1, 0), strict=True):
        drawn = draw_image(axis, frame, "", ERROR_COLOURS, -limit, limit)
    _row_name(axes[0], f"error (RMSE {np.sqrt(np.nanmean(error**2)):.3g})", across)
    colour_bar(axes[-1], drawn)


def _row_name(axis: Axes, name: str, across: bool) -> None:
    if across:
        axis.set_title(name, fontsize=10)
    else:
        axis.set_ylabel(name, fontsize=10)


def _groups(
    true: NDArray[np.float64], found: NDArray[np.float64]
) -> tuple[list[float], list[NDArray[np.float64]]]:
    """Predictions by what they should be: by value where there are few, else by quantiles."""
    values = np.unique(true)
    if len(values) > MOST_GROUPS:
        edges = np.quantile(true, np.linspace(0.0, 1.0, MOST_GROUPS + 1)[1:-1])
        place = np.searchsorted(edges, true, side="right")
    else:
        place = np.searchsorted(values, true)
    numbers = [number for number in range(MOST_GROUPS) if (place == number).any()]
    centres = [float(np.mean(true[place == number])) for number in numbers]
    return centres, [found[place == number] for number in numbers]
