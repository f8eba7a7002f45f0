"""All charts and pictures, for `slrt_dask.plot`, reports and notebooks alike.

matplotlib is imported where a figure is made. Figures belong to the caller: there is no pyplot, no
global state and no display. Everything that users name stays out of what this module draws by
itself, so that it needs no glyphs beyond those of the default font.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slrt_dask.data.libraries import load
from slrt_dask.errors import InvalidInput
from slrt_dask.optim.records import IterationRecord, stages_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from slrt_dask.tuning.search import Tried

VALUE_COLOURS, ERROR_COLOURS = "viridis", "PuOr"
MISSING_COLOUR = "0.88"
MISSING_IN_FRAMES = (0.78, 0.87, 0.95)
"""A pale blue, in pictures in which grey is a value."""
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
"""Of the Okabe–Ito palette, which all common kinds of colour blindness can tell apart."""
MUCH = 4.0
"""Errors that span more than this factor are drawn over a logarithmic axis."""
MOST_GROUPS = 10
MOST_TICKS = 6
FEW = 100


# ---- figures and files -----------------------------------------------------------------------


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file whose ending says the format, such as .png or .pdf."""
    figure.savefig(path, dpi=150, facecolor="white")


def data_uri(figure: Figure) -> str:
    """A figure as the address of an SVG image that holds it."""
    drawn = io.BytesIO()
    with load("matplotlib").rc_context({"svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")


def check_can_draw(path: str | os.PathLike[str] = "") -> None:
    """Refuse a picture that cannot be made, before what it is to show is computed."""
    kinds = load("matplotlib.figure", extra="plot").FigureCanvasBase.get_supported_filetypes()
    ending = os.path.splitext(path)[1]
    if ending and ending[1:].lower() not in kinds:
        raise InvalidInput(f"{path} ends in {ending}, which no picture does; give a .png or .pdf")


def _figure(width: float, height: float, title: str | None = None) -> Figure:
    figure: Figure = load("matplotlib.figure", extra="plot").Figure(
        figsize=(width, height), layout="constrained"
    )
    if title is not None:
        figure.suptitle(title, fontsize=11)
    return figure


def _image_size(panels: int, shape: Sequence[int]) -> tuple[float, float]:
    """Panels 2.7 inches wide, as high as the proportions of a slice ask for, within reason."""
    return 2.7 * panels + 0.9, 2.7 * min(2.0, max(0.4, shape[0] / shape[1])) + 0.6


def _draw_image(
    axis: Axes, panel: NDArray[np.float64], name: str, colours: str, low: float, high: float
) -> Any:
    axis.set_facecolor(MISSING_COLOUR)
    axis.set_title(name, fontsize=10)
    axis.set(xticks=[], yticks=[])
    values = np.ma.masked_invalid(panel)
    return axis.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")


def _colour_bar(axis: Axes, drawn: Any) -> None:
    """A scale to the right of a panel, as high as the panel is."""
    axis.figure.colorbar(drawn, cax=axis.inset_axes((1.03, 0.0, 0.05, 1.0)))


def _tidy(axis: Axes, x_name: str, y_name: str = "") -> None:
    axis.set_xlabel(x_name, fontsize=9)
    axis.set_ylabel(y_name, fontsize=9)
    axis.tick_params(labelsize=8, which="both")
    axis.spines[["top", "right"]].set_visible(False)


def _largest(error: NDArray[np.float64]) -> float:
    """A limit that a few outliers do not decide."""
    known = np.abs(error[np.isfinite(error)])
    return float(np.quantile(known, 0.995)) or 1.0 if known.size else 1.0


def _rms(error: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.nanmean(error**2))) if np.isfinite(error).any() else 0.0


def _same_shape(arrays: Sequence[tuple[str, NDArray[np.float64]]]) -> None:
    """Refuse arrays that do not have the shape of the last one."""
    last, wanted = arrays[-1][0], arrays[-1][1].shape
    for name, array in arrays:
        if array.shape != wanted:
            raise InvalidInput(f"{name} has shape {array.shape}, {last} has {wanted}")


# ---- slices and series -----------------------------------------------------------------------


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
    given = {"truth": truth, "observed": observed, "completed": completed}
    panels = [(name, _slice(name, part)) for name, part in given.items() if part is not None]
    _same_shape(panels)
    error = panels[-1][1] - panels[0][1]
    name = f"{'misfit' if truth is None else 'error'} (RMSE {_rms(error):.3g})"
    limit = _largest(error) if error_limit is None else error_limit
    return _slice_figure(panels, (name, error, limit), title)


def part_figure(observed: ArrayLike | None, completed: ArrayLike | None) -> Figure:
    """The same of a run that has only one of them: no error is known then."""
    if observed is not None and completed is not None:
        return completion_figure(None, observed, completed)
    given = {"observed": observed, "completed": completed}
    panels = [(name, _slice(name, part)) for name, part in given.items() if part is not None]
    return _slice_figure(panels, None, None)


def _slice(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)
    if array.ndim != 2 or array.size == 0:
        raise InvalidInput(f"{name} has shape {array.shape}; give a slice with two dimensions")
    return np.asarray(array)


def _slice_figure(
    panels: Sequence[tuple[str, NDArray[np.float64]]],
    error: tuple[str, NDArray[np.float64], float] | None,
    title: str | None,
) -> Figure:
    """Panels of one scale of colours, and one of the error."""
    count = len(panels) + (error is not None)
    figure = _figure(*_image_size(count, panels[0][1].shape), title)
    axes = figure.subplots(1, count, squeeze=False)[0]
    known = np.concatenate([panel[np.isfinite(panel)] for _, panel in panels])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    for axis, (name, panel) in zip(axes, panels, strict=False):
        share = 100 * np.isfinite(panel).mean()
        shown = f"{name} ({share:.3g} %)" if name == "observed" else name
        drawn = _draw_image(axis, panel, shown, VALUE_COLOURS, low, high)
    _colour_bar(axes[len(panels) - 1], drawn)
    if error is not None:
        name, values, limit = error
        _colour_bar(axes[-1], _draw_image(axes[-1], values, name, ERROR_COLOURS, -limit, limit))
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
    figure = _figure(9.0, 3.2)
    axes = figure.subplots()
    missing = np.isnan(series[0])
    axes.plot(series[0], color=BLUE, linewidth=1.2, label="known")
    if truth is not None:
        # Wide and pale, so that a line on top of it hides nothing and is not hidden.
        hidden = np.where(missing, np.asarray(truth), np.nan)
        axes.plot(hidden, color="0.75", linewidth=4.0, label="truth")
    filled = np.where(missing, series[1], np.nan)
    dots = "." if missing.sum() < FEW else ""  # single samples would not show as a line
    axes.plot(filled, dots + "-", color=ORANGE, linewidth=1.2, markersize=4, label="filled in")
    _tidy(axes, "sample")
    axes.margins(x=0.01)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    if title:
        axes.set_title(title)
    return figure


def stretch(figure: Figure, step: int) -> None:
    """Have the axis of a series of which one in `step` samples is shown count all of them."""
    figure.axes[0].xaxis.set_major_formatter(lambda x, _: f"{x * step:,.0f}")


# ---- how a fit or a search went --------------------------------------------------------------


def convergence_figure(
    records: Sequence[IterationRecord],
    *,
    title: str | None = None,
    only: Sequence[str] | None = None,
    gap_tolerance: float | None = None,
    error_name: str = "RMSE",
) -> Figure:
    """Cost, gradient norm, certified gap and, where measured, validation error by iteration.

    only : of their titles, those to draw, such as "gradient norm"
    gap_tolerance : a gap to be marked;  error_name : what the validation error is

    The cost falls fast and then hardly at all, so its distance to the lowest value is drawn. A fit
    with Hankel structure goes through stages, each with an objective of its own: they are marked,
    and costs are compared within a stage. Ranks are drawn, a line a mode, if they grew.
    """
    ends = [0, *accumulate(len(stage) for stage in stages_of(records))]
    stages = [slice(begin, end) for begin, end in pairwise(ends)]
    lowest = [min(row.cost for row in records[stage]) for stage in stages for _ in records[stage]]
    columns: dict[str, tuple[str, list[Any]]] = {
        "cost above its lowest": (
            BLUE,
            [
                row.cost - low if row.cost > low else None
                for row, low in zip(records, lowest, strict=True)
            ],
        ),
        "gradient norm": (ORANGE, [row.gradient_norm for row in records]),
        "certified relative gap": (GREEN, [row.relative_gap for row in records]),
        f"validation {error_name}": (PURPLE, [row.validation_rmse for row in records]),
        "ranks": ("", [row.ranks for row in records] if _have_grown(records) else []),
    }
    for name in only or ():
        if name not in columns:
            raise InvalidInput(f"there is no curve {name!r}; choose of {', '.join(columns)}")
    columns = {
        name: (colour, values)
        for name, (colour, values) in columns.items()
        if any(value is not None for value in values) and (only is None or name in only)
    }
    if not columns:
        raise InvalidInput("there are no records to draw; give those of a fit")
    iterations = np.array([row.iteration for row in records])
    figure = _figure(3.3 * len(columns), 2.9 + 0.2 * (len(stages) > 1), title)
    axes = figure.subplots(1, len(columns), squeeze=False)[0]
    for axis, (name, (colour, values)) in zip(axes, columns.items(), strict=True):
        if name == "ranks":
            for mode, ranks in enumerate(zip(*values, strict=True)):
                axis.step(iterations, ranks, where="post", label=f"mode {mode}")
            axis.legend(fontsize="small", frameon=False)
        else:
            _draw_column(axis, iterations, values, colour, stages)
        if name == "certified relative gap" and gap_tolerance:
            axis.axhline(gap_tolerance, color="0.5", linewidth=0.8, linestyle="--")
        axis.set_title(name, fontsize=10)
        axis.set_xlim(iterations.min(), max(iterations.max(), iterations.min() + 1))
        axis.grid(visible=True, color="0.9", linewidth=0.8)
        axis.locator_params(axis="x", nbins=MOST_TICKS, integer=True)
        _tidy(axis, "iteration")
        for number, stage in enumerate(stages[1:]):
            line = "" if number else "another stage begins, with another objective"
            axis.axvline(
                iterations[stage.start], color="0.5", linewidth=0.8, linestyle=":", label=line
            )
    if len(stages) > 1:
        handles = [axes[0].lines[-(len(stages) - 1)]]
        figure.legend(handles=handles, loc="outside lower center", fontsize="small", frameon=False)
    return figure


def _have_grown(records: Sequence[IterationRecord]) -> bool:
    return len({row.ranks for row in records}) > 1


def _draw_column(
    axis: Axes,
    iterations: NDArray[np.int64],
    values: Sequence[float | None],
    colour: str,
    stages: Sequence[slice],
) -> None:
    """A line for every stage; over a logarithmic axis if that shows more."""
    numbers = np.array(values, dtype=np.float64)  # None becomes NaN
    known = np.isfinite(numbers)
    for stage in stages:
        here = known[stage]
        if here.any():
            few = 2 * known.sum() < len(numbers) or here.sum() < 3
            axis.plot(iterations[stage][here], numbers[stage][here], color=colour,
                      marker="o" if few else "", markersize=4, clip_on=False)  # fmt: skip
    drawn = numbers[known]
    if drawn.size and drawn.min() > 0.0 and (colour != PURPLE or drawn.max() > MUCH * drawn.min()):
        axis.set_yscale("log")


def tuning_figure(
    history: Sequence[Tried], *, others: Sequence[Tried] = (), title: str | None = None
) -> Figure:
    """The error of every setting that a search tried, over its largest C·λ and in their order.

    others : settings that were tried with the centring that was not chosen, drawn first and pale
    """
    if not history:
        raise InvalidInput("there are no settings to draw; give the history of a search")
    tried = [*others, *history]
    strengths = np.array([max(one.candidate.strengths) for one in tried])
    errors = np.array([one.error for one in tried])
    numbers, best, pale = np.arange(1, len(tried) + 1), int(errors.argmin()), len(others)
    figure = _figure(8.0, 3.2, title)
    by_strength, by_order = figure.subplots(1, 2, sharey=True)
    by_strength.scatter(strengths[pale:], errors[pale:], color=BLUE, s=16, label="tried")
    if pale:
        name = "tried with the other centring"
        by_strength.scatter(strengths[:pale], errors[:pale], color="0.7", s=16, label=name)
    by_strength.scatter(strengths[best], errors[best], color=ORANGE, s=40, label="the best")
    by_strength.set_xscale("log")
    by_order.plot(numbers, errors, color="0.6", marker=".", linewidth=0.8, label="tried")
    lowest = np.minimum.accumulate(errors)
    by_order.step(numbers, lowest, color=ORANGE, where="post", label="best so far")
    _tidy(by_strength, "largest C·λ", "RMSE on held-out observations")
    _tidy(by_order, "setting")
    for axis in (by_strength, by_order):
        axis.legend(fontsize="small")
    return figure


# ---- data of a kind: frames, spectra, single predictions -------------------------------------


def frames_figure(
    truth: ArrayLike | None,
    observed: ArrayLike,
    completed: ArrayLike,
    *,
    names: Sequence[str] | None = None,
    peak: float | None = None,
    title: str | None = None,
) -> Figure:
    """Frames next to each other: a row each of truth, observed (NaN is missing), completed, error.

    All are (rows, columns, frames), or with colours (rows, columns, 3, frames). A single frame is
    drawn as one row. Without a truth the error is left out.

    names : titles of the frames;  peak : what is white, the largest value if None
    """
    given = {"truth": truth, "observed": observed, "completed": completed}
    rows = [(name, _frames(name, part)) for name, part in given.items() if part is not None]
    _same_shape(rows)
    filled, count = rows[-1][1], rows[-1][1].shape[-1]
    white = float(np.nanmax(rows[0][1])) if peak is None else peak
    if truth is not None:
        error = filled - rows[0][1]
        flat = error if error.ndim == 3 else error.mean(axis=2)
        limit = _largest(flat)
        rows.append((f"error (RMSE {_rms(error):.3g})", flat))
    across = count == 1
    layout = (1, len(rows)) if across else (len(rows), count)
    width, one = _image_size(layout[1], filled.shape)
    figure = _figure(width, one + (layout[0] - 1) * (one - 0.5), title)
    axes = np.reshape(figure.subplots(*layout, squeeze=False), (len(rows), count))
    for panels, (name, frames) in zip(axes, rows, strict=True):
        is_error = name not in given
        for axis, frame in zip(panels, np.moveaxis(frames, -1, 0), strict=True):
            if is_error:
                drawn = _draw_image(axis, frame, "", ERROR_COLOURS, -limit, limit)
            else:
                drawn = _draw_frame(axis, frame, white)
        if across:
            panels[0].set_title(name, fontsize=10)
        else:
            panels[0].set_ylabel(name, fontsize=10)
        if is_error or (filled.ndim == 3 and (name == "completed" or not across)):
            _colour_bar(panels[-1], drawn)
    for axis, text in zip(axes[0], names or (), strict=False):
        axis.set_title(text, fontsize=10)
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


def _draw_frame(axis: Axes, frame: NDArray[np.float64], white: float) -> Any:
    if frame.ndim == 2:
        drawn = _draw_image(axis, frame, "", "gray", 0.0, white)
        axis.set_facecolor(MISSING_IN_FRAMES)
        return drawn
    missing = np.isnan(frame)
    # A place with some of its colours is drawn with those.
    shown = np.where(missing, 0.0, np.clip(frame / white, 0.0, 1.0))
    shown[missing.all(axis=-1)] = MISSING_IN_FRAMES
    axis.set(xticks=[], yticks=[])
    return axis.imshow(shown, interpolation="nearest")


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
    figure = _figure(3.3 * len(filled), 2.9, title)
    panels = figure.subplots(1, len(filled), squeeze=False, sharey=True)[0]
    for number, axis in enumerate(panels):
        if truth is not None:
            axis.plot(np.asarray(truth)[number], color="0.6", linewidth=1.2, label="truth")
        axis.plot(filled[number], color=ORANGE, linewidth=1.2, label="completed")
        axis.plot(seen[number], ".", color=BLUE, markersize=5, label="observed")
        _tidy(axis, across, "" if number else unit)
        if names is not None:
            axis.set_title(names[number], fontsize=10)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  fontsize="small", frameon=False)  # fmt: skip
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
    place = _groups(true)
    numbers = np.unique(place)
    centres = [float(np.mean(true[place == number])) for number in numbers]
    figure = _figure(8.4, 3.3, title)
    left, right = figure.subplots(1, 2)
    left.boxplot(
        [found[place == number] for number in numbers], positions=centres, whis=(5, 95),
        widths=0.6 * min(np.diff(centres), default=1.0), showfliers=False, manage_ticks=False,
        patch_artist=True, boxprops={"facecolor": "#cfe3f1", "edgecolor": BLUE},
        medianprops={"color": ORANGE, "linewidth": 1.6},
    )  # fmt: skip
    ends = [centres[0], centres[-1]]
    left.plot(ends, ends, color="0.6", linewidth=0.8, linestyle="--", label="as it should be")
    left.legend(fontsize="small", frameon=False, loc="upper left")
    right.hist(found - true, bins=60, color=BLUE, alpha=0.8)
    right.axvline(0.0, color="0.4", linewidth=0.8)
    right.set_title(f"RMSE {_rms(found - true):.4g}", fontsize=10)
    _tidy(left, f"{unit} held out", f"{unit} predicted")
    _tidy(right, "error", "entries")
    return figure


def _groups(true: NDArray[np.float64]) -> NDArray[np.int64]:
    """A group for each of some values: by value where there are few, else by quantiles."""
    values = np.unique(true)
    if len(values) > MOST_GROUPS:
        values = np.quantile(true, np.linspace(0.0, 1.0, MOST_GROUPS + 1)[1:-1])
        return np.searchsorted(values, true, side="right")
    return np.searchsorted(values, true)
