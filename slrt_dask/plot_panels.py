"""What pictures are made of: figures without global state, panels of values, and their colours.

matplotlib is optional and imported inside functions only; no display is needed. This changes when
the look of all pictures does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slrt_dask.data.libraries import load
from slrt_dask.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VALUE_COLOURS = "viridis"
ERROR_COLOURS = "PuOr"
MISSING_COLOUR = "0.88"
# Of the Okabe–Ito palette, which all common kinds of colour blindness can tell apart.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file whose ending says the format, such as .png or .pdf."""
    figure.savefig(path, dpi=150, facecolor="white")


def check_can_draw(path: str | os.PathLike[str]) -> None:
    """Refuse a picture that cannot be made, before what it is to show is computed."""
    kinds = load("matplotlib.figure", extra="plot").FigureCanvasBase.get_supported_filetypes()
    ending = os.path.splitext(path)[1]
    if ending and ending[1:].lower() not in kinds:
        raise InvalidInput(f"{path} ends in {ending}, which no picture does; give a .png or .pdf")


def new_figure(size: tuple[float, float]) -> Figure:
    figure: Figure = load("matplotlib.figure", extra="plot").Figure(
        figsize=size, layout="constrained"
    )
    return figure


def as_slice(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)
    if array.ndim != 2 or array.size == 0:
        raise InvalidInput(f"{name} has shape {array.shape}; give a slice with two dimensions")
    return np.asarray(array)


def panel_size(panels: int, shape: tuple[int, ...]) -> tuple[float, float]:
    """Panels 2.7 inches wide, as high as the slice's proportions ask for, within reason."""
    height = 2.7 * min(2.0, max(0.4, shape[0] / shape[1]))
    return 2.7 * panels + 0.9, height + 0.6


def largest(error: NDArray[np.float64]) -> float:
    """A limit that a few outliers do not decide."""
    known = np.abs(error[np.isfinite(error)])
    return float(np.quantile(known, 0.995)) or 1.0 if known.size else 1.0


def draw_image(
    axis: Axes, panel: NDArray[np.float64], name: str, colours: str, low: float, high: float
) -> Any:
    axis.set_facecolor(MISSING_COLOUR)
    axis.set_title(name, fontsize=10)
    axis.set_xticks([])
    axis.set_yticks([])
    return axis.imshow(
        np.ma.masked_invalid(panel),
        cmap=colours,
        vmin=low,
        vmax=high,
        interpolation="nearest",
        aspect="equal",
    )


def colour_bar(axis: Axes, drawn: Any) -> None:
    """A scale to the right of a panel, as high as the panel is, whatever the proportions of it."""
    axis.figure.colorbar(drawn, cax=axis.inset_axes((1.03, 0.0, 0.05, 1.0)))
