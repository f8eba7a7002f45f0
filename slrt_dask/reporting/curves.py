"""Curves as inline SVG, small and crisp; their colours are those of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slrt_dask.reporting.markup import Markup, joined, tag
from slrt_dask.reporting.wording import plain

WIDTH, HEIGHT = 360, 210
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
    drawn = [_thinned(line) for line in lines if line.points]
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
        parts.append(tag("text", level[0], x=width - RIGHT, y=f"{float(y) - 4:.1f}", class_="end"))
    places = [f"{across.at(begin):.1f}" for begin in begins]
    parts += [_line("level", x, TOP, x, height - BOTTOM) for x in places]
    parts += [_path(line, across, up, lift, begins) for lift, line in enumerate(drawn)]
    label = f"{title}. {_described(drawn)}"
    return tag(
        "svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=label,
        class_="chart",
    )  # fmt: skip


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
        parts.append(tag("text", plain(value), x=LEFT - 6, y=y, dy="0.32em", class_="end"))
    bottom = height - BOTTOM
    for value in across.ticks():
        x = f"{across.at(value):.1f}"
        parts.append(tag("text", plain(value), x=x, y=bottom + 14, class_="middle"))
    parts.append(_line("axis", LEFT, bottom, width - RIGHT, bottom))
    parts.append(
        tag("text", x_name, x=(LEFT + width - RIGHT) / 2, y=height - 4, class_="middle name")
    )
    return tag("g", *parts, aria_hidden="true")


def keys(lines: Sequence[Line]) -> Markup:
    """Which colour is which curve's."""
    return joined(tag("span", line.name, class_=f"key colour{line.colour}") for line in lines)


def _path(line: Line, across: Scale, up: Scale, lift: int, begins: Sequence[float]) -> Markup:
    commands, before = [], None
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
            tag("circle", cx=f"{across.at(x):.1f}", cy=f"{up.at(y):.1f}", r=2.2)
            for x, y in line.points
        )
    path = tag("path", d="".join(commands))
    # Steps often coincide; a little apart, all of them can be seen.
    apart = f"translate(0 {-2.5 * lift})" if line.stepped and lift else None
    return tag("g", path, Markup(dots), class_=f"line colour{line.colour}", transform=apart)


def _line(kind: str, x1: object, y1: object, x2: object, y2: object) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _thinned(line: Line) -> Line:
    """So many points that they can be told apart, the last one among them."""
    count = len(line.points)
    if count <= MOST_POINTS or line.broken_after < math.inf:
        return line
    step = -(-count // MOST_POINTS)
    points = [*line.points[:-1:step], line.points[-1]]
    return Line(line.name, line.colour, points, line.stepped)


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
