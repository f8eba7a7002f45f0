"""Curves as inline SVG: of a fit, of a search, and of anything else, in notebooks and reports.

Looks are attributes, so that a notebook needs no style sheet; that of a report overrides them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slrt_dask.data.html import Markup, joined, tag
from slrt_dask.optim.records import IterationRecord
from slrt_dask.optim.stages import above_lowest, stage_begins
from slrt_dask.reporting.wording import plain
from slrt_dask.tuning.search import Tried

WIDTH, HEIGHT = 360, 210
SMALL = 270, 150
"""Of a curve in a notebook, where several are redrawn while a fit runs."""
COLOURS = ("#0a84c1", "#e06c1f", "#009e73", "#cc79a7")
"""Of the Okabe–Ito palette; all four can be told apart on light and on dark."""
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 34
MUCH = 4.0
"""Values that span more than this factor are better drawn over a logarithmic axis."""
MOST_POINTS = 400
"""Of a curve: more cannot be told apart on a screen."""
MOST_TICKS = 5
DECADES = 18
"""A logarithmic axis shows so many below its largest value, so that zeros do not flatten it."""


@dataclass(frozen=True)
class Line:
    """A curve: its name, its colour's number, and points (x, y)."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]
    stepped: bool = False
    broken_after: float = math.inf
    """Points further apart than this are not joined."""


@dataclass(frozen=True)
class Scale:
    """From values to positions between two ends."""

    low: float
    high: float
    first: float
    last: float
    logarithmic: bool = False
    whole: bool = False
    """Whether there is nothing between whole numbers."""

    def at(self, value: float) -> float:
        low, high, here = self.low, self.high, value
        if self.logarithmic:
            low, high, here = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.first + (self.last - self.first) * (here - low) / (high - low)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            steps = _round_steps(self.low, self.high)
            return [step for step in steps if step == int(step)] if self.whole else steps
        decades = [10.0**power for power in _powers(self.low, self.high)]
        if len(decades) < 2:  # too few to read a curve by
            return _round_steps(self.low, self.high)
        return decades[:: -(-len(decades) // MOST_TICKS)]


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_name: str = "iteration",
    logarithmic: bool = False,
    level: tuple[str, float] | None = None,
    last: float | None = None,
    begins: Sequence[float] = (),
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> Markup:
    """Curves over one axis, with a description for those who do not see them.

    level : a name and a height to be marked, such as a tolerance
    last : where the axis ends at least
    begins : where something else begins: marked, and curves do not go on across it
    """
    width, height = size
    drawn = [shown for line in lines if (shown := _drawable(line)).points]
    if not drawn:
        return Markup("")
    xs = [x for line in drawn for x, _ in line.points] + ([0.0, last] if last else [])
    ys = [y for line in drawn for _, y in line.points] + ([level[1]] if level else [])
    if logarithmic and min(ys) <= 0.0:
        positive = [y for y in ys if y > 0.0]
        logarithmic = bool(positive)
        ys = positive or ys
    across = Scale(min(xs), max(max(xs), min(xs) + 1), LEFT, width - RIGHT, whole=True)
    up = _upwards(ys, logarithmic, height)
    parts = [_grid(across, up, x_name, size)]
    if level is not None and level[1] > 0.0:
        y = f"{up.at(level[1]):.1f}"
        parts.append(_line("level", LEFT, y, width - RIGHT, y))
        parts.append(_text(level[0], width - RIGHT, f"{float(y) - 4:.1f}", "end"))
    places = [f"{across.at(begin):.1f}" for begin in begins]
    parts += [_line("level", x, TOP, x, height - BOTTOM) for x in places]
    parts += [_path(line, across, up, lift, begins) for lift, line in enumerate(drawn)]
    label = f"{title}. {_described(drawn)}"
    return tag(
        "svg", *parts, width=width, height=height,
        viewBox=f"0 0 {width} {height}", role="img", aria_label=label, class_="chart",
    )  # fmt: skip


def fit_charts(
    records: Sequence[IterationRecord],
    error_name: str = "RMSE",
    gap_tolerance: float = 0.0,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> list[tuple[object, Markup]]:
    """Cost, gradient norm, certified gap and, where measured, validation error by iteration.

    Every chart with its caption.
    """
    begins = stage_begins(records)
    cost = "cost above the lowest of its stage" if begins else "cost above its lowest"
    gaps = [(row.iteration, row.relative_gap) for row in records if row.relative_gap is not None]
    errors = [
        (row.iteration, row.validation_rmse) for row in records if row.validation_rmse is not None
    ]
    asked = ("asked for", gap_tolerance) if gap_tolerance else None
    charts = [
        (
            name,
            chart(
                name, [Line(name, colour, points)], logarithmic=colour < 3 or spans_much(errors),
                level=asked if points is gaps else None, last=records[-1].iteration,
                begins=begins, size=size,
            ),
        )
        for colour, (name, points) in enumerate(
            (
                (cost, above_lowest(records)),
                ("gradient norm", [(row.iteration, row.gradient_norm) for row in records]),
                ("certified relative gap", gaps),
                (f"{error_name} on held-out observations", errors),
            )
        )
        if points
    ]  # fmt: skip
    return [(name, drawing) for name, drawing in charts if drawing]


def search_chart(
    errors: Sequence[float], size: tuple[int, int] = (WIDTH, HEIGHT)
) -> tuple[Markup, Markup]:
    """The held-out error of every setting tried, and the lowest so far: keys and chart."""
    tried = list(enumerate(errors, start=1))
    lowest = list(enumerate(itertools.accumulate(errors, min), start=1))
    lines = [Line("tried", 0, tried), Line("best so far", 1, lowest, stepped=True)]
    drawing = chart(
        "Error of every setting tried", lines, x_name="setting", logarithmic=spans_much(tried),
        size=size,
    )  # fmt: skip
    return keys(lines), drawing


def fit_curves(records: Sequence[IterationRecord]) -> str:
    """The charts of a fit for a notebook."""
    return _row_of_charts(fit_charts(records, size=SMALL) if records else [])


def search_curves(history: Sequence[Tried]) -> str:
    """The chart of a search for a notebook."""
    _, drawing = search_chart([tried.error for tried in history], SMALL)
    name = "held-out error of each setting, and the lowest so far"
    return _row_of_charts([(name, drawing)] if drawing else [])


def _row_of_charts(charts: Sequence[tuple[object, Markup]]) -> str:
    if not charts:
        return ""
    drawn = [tag("div", tag("div", name, style="font-size:0.9em"), svg) for name, svg in charts]
    return tag("div", *drawn, style="display:flex;flex-wrap:wrap;gap:0.6em;margin:0.4em 0")


def bar(share: float) -> str:
    """How much of something is done, as a bar."""
    done = f"width:{100.0 * min(1.0, max(0.0, share)):.1f}%;height:100%;background:{COLOURS[0]}"
    around = "width:24em;max-width:100%;height:0.6em;background:rgba(128,128,128,0.3)"
    return tag("div", tag("div", style=done), style=around)


def spans_much(points: Sequence[tuple[float, float]]) -> bool:
    """Whether a logarithmic axis shows more of a curve."""
    heights = [height for _, height in points]
    return bool(heights) and max(heights) > MUCH * min(heights) > 0.0


def _upwards(ys: list[float], logarithmic: bool, height: int) -> Scale:
    low, high = min(ys), max(ys)
    if logarithmic:
        low = max(low, high * 10.0**-DECADES)
        room = (high / low) ** 0.06 if high > low else 2.0
        low, high = low / room, high * room
    else:
        room = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
        low, high = low - room, high + room
    whole = all(isinstance(y, int) for y in ys)
    return Scale(low, high, height - BOTTOM, TOP, logarithmic, whole)


def _grid(across: Scale, up: Scale, x_name: str, size: tuple[int, int]) -> Markup:
    width, height = size
    parts = []
    for value in up.ticks():
        y = f"{up.at(value):.1f}"
        parts.append(_line("grid", LEFT, y, width - RIGHT, y))
        parts.append(_text(plain(value), LEFT - 6, f"{up.at(value) + 4:.1f}", "end"))
    bottom = height - BOTTOM
    for value in across.ticks():
        x = f"{across.at(value):.1f}"
        parts.append(_text(plain(value), x, bottom + 14, "middle"))
    parts.append(_line("axis", LEFT, bottom, width - RIGHT, bottom))
    parts.append(_text(x_name, (LEFT + width - RIGHT) / 2, height - 4, "middle"))
    return tag("g", *parts, aria_hidden="true")


def keys(lines: Sequence[Line]) -> Markup:
    """Which colour is which curve's."""
    return joined(tag("span", line.name, class_=f"key colour{line.colour}") for line in lines)


def _path(line: Line, across: Scale, up: Scale, lift: int, begins: Sequence[float]) -> Markup:
    commands, before, colour = [], None, COLOURS[line.colour]
    for x, y in line.points:
        here = f"{across.at(x):.1f} {up.at(y):.1f}"
        if (
            before is None
            or x - before[0] > line.broken_after
            or any(before[0] < begin <= x for begin in begins)
        ):
            commands.append(f"M{here}")
        elif line.stepped:
            commands.append(f"H{across.at(x):.1f}V{up.at(y):.1f}")
        else:
            commands.append(f"L{here}")
        before = (x, y)
    # Where there are few points, or single ones, a line alone would not show them.
    dots = ""
    if len(line.points) <= 40 and not line.stepped:
        dots = "".join(
            tag("circle", cx=f"{across.at(x):.1f}", cy=f"{up.at(y):.1f}", r=2.2, fill=colour)
            for x, y in line.points
        )
    path = tag("path", d="".join(commands), fill="none", stroke=colour, stroke_width=1.8)
    # Steps often coincide; a little apart, all of them can be seen.
    apart = f"translate(0 {-2.5 * lift})" if line.stepped and lift else None
    return tag("g", path, Markup(dots), class_=f"line colour{line.colour}", transform=apart)


def _line(kind: str, x1: object, y1: object, x2: object, y2: object) -> Markup:
    opacity = {"grid": 0.15, "axis": 0.6, "level": 0.4}[kind]
    dashes = "3 4" if kind == "level" else None
    return tag(
        "line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind, stroke="currentColor",
        stroke_opacity=opacity, stroke_dasharray=dashes,
    )  # fmt: skip


def _text(content: str, x: object, y: object, anchor: str) -> Markup:
    return tag("text", content, x=x, y=y, text_anchor=anchor, font_size=11, fill="currentColor")


def _drawable(line: Line) -> Line:
    """The finite points, so many that they can be told apart, the last one among them."""
    points = [point for point in line.points if math.isfinite(point[1])]
    if len(points) > MOST_POINTS and line.broken_after == math.inf:
        points = [*points[: -1 : -(-len(points) // MOST_POINTS)], points[-1]]
    return replace(line, points=points)


def _described(lines: Sequence[Line]) -> str:
    return "; ".join(
        f"{line.name}: from {plain(line.points[0][1])} to {plain(line.points[-1][1])}, lowest "
        f"{plain(min(y for _, y in line.points))}"
        for line in lines
    )


def _round_steps(low: float, high: float) -> list[float]:
    """A few round numbers between two ends."""
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def _powers(low: float, high: float) -> range:
    """Powers of ten between two ends."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return range(first, last + 1)
