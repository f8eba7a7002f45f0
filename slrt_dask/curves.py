"""Curves as inline SVG, drawn by hand: light enough to be redrawn while a fit runs.

Text and axes have the colour of the page, so that they can be read on light and dark ones. This
changes when curves are to look different; pictures for papers are in `plot.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from slrt_dask.data.html import escaped
from slrt_dask.optim.records import IterationRecord
from slrt_dask.optim.stages import above_lowest, stage_begins
from slrt_dask.tuning.search import Tried

WIDTH, HEIGHT = 230, 130
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 20, 18
MOST_POINTS = 240
"""Of a curve; one with more is thinned, its ends kept."""
NEAR = 1e-6
"""Of a pixel: places nearer than this are the same."""
# Of the Okabe–Ito palette, as in pictures; all four can be told apart on light and on dark.
BLUE, ORANGE, GREEN, PURPLE = "#0a84c1", "#e06c1f", "#009e73", "#cc79a7"


@dataclass(frozen=True)
class Curve:
    """Numbers to draw: (where, value) pairs, on a logarithmic scale if that can be.

    begins : where something else begins: marked, and the line does not go on across it
    """

    title: str
    points: tuple[tuple[float, float], ...]
    colour: str
    logarithmic: bool = True
    dots: bool = False
    begins: tuple[float, ...] = ()

    def to_svg(self) -> str:
        """A small chart; empty if there is nothing to draw."""
        finite = [point for point in self.points if math.isfinite(point[1])]
        if not finite:
            return ""
        is_log = self.logarithmic and all(value > 0.0 for _, value in finite)
        xs = [where for where, _ in finite]
        ys = [math.log10(value) if is_log else value for _, value in finite]
        across, up = _Scale.of(xs), _Scale.of(ys)
        pairs = [
            (LEFT + across(x) * _DRAWN_WIDTH, HEIGHT - BOTTOM - up(y) * _DRAWN_HEIGHT)
            for x, y in _thinned(list(zip(xs, ys, strict=True)))
        ]
        inside = [where for where in self.begins if across.low < where <= across.high]
        marks = [LEFT + across(where) * _DRAWN_WIDTH for where in inside]
        shown = [_number(10.0**y if is_log else y) for y in (up.low, up.high)]
        return _chart(self, pairs, marks, shown, [_number(across.low), _number(across.high)])


def fit_curves(records: Sequence[IterationRecord]) -> str:
    """Cost, gradient norm, certified gap and, where measured, validation error by iteration."""
    begins = stage_begins(records)
    cost = "cost above the lowest of its stage" if begins else "cost above its lowest"
    gradients = tuple((row.iteration, row.gradient_norm) for row in records)
    errors = _known(records, "validation_rmse")
    curves = (
        Curve(cost, tuple(above_lowest(records)), BLUE, begins=begins),
        Curve("gradient norm", gradients, ORANGE, begins=begins),
        Curve(
            "certified relative gap", _known(records, "relative_gap"), GREEN, dots=True,
            begins=begins,
        ),
        Curve("validation RMSE", errors, PURPLE, False, dots=True, begins=begins),
    )  # fmt: skip
    return row_of_charts(curves)


def search_curves(history: Sequence[Tried]) -> str:
    """The held-out error of every setting tried, and the lowest so far."""
    errors = [(number, tried.error) for number, tried in enumerate(history, 1)]
    lowest = [(number, min(e for _, e in errors[:number])) for number, _ in errors]
    return row_of_charts(
        (
            Curve("held-out error of each setting", tuple(errors), BLUE, dots=True),
            Curve("lowest so far", tuple(lowest), ORANGE),
        )
    )


def row_of_charts(curves: Sequence[Curve]) -> str:
    charts = "".join(curve.to_svg() for curve in curves)
    if not charts:
        return ""
    return f'<div style="display:flex;flex-wrap:wrap;gap:0.6em;margin:0.4em 0">{charts}</div>'


def bar(share: float) -> str:
    """How much of something is done, as a bar."""
    percent = 100.0 * min(1.0, max(0.0, share))
    return (
        '<div style="width:24em;max-width:100%;height:0.6em;border-radius:0.3em;margin:0.3em 0;'
        'background:rgba(128,128,128,0.3)">'
        f'<div style="width:{percent:.1f}%;height:100%;border-radius:0.3em;background:{BLUE}">'
        "</div></div>"
    )


_DRAWN_WIDTH, _DRAWN_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


@dataclass(frozen=True)
class _Scale:
    """From numbers to the part of an axis: 0 at the lowest, 1 at the highest."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _Scale:
        return cls(min(values), max(values))

    def __call__(self, value: float) -> float:
        if self.high == self.low:
            return 0.5
        return (value - self.low) / (self.high - self.low)


def _known(records: Sequence[IterationRecord], name: str) -> tuple[tuple[float, float], ...]:
    values = [(row.iteration, getattr(row, name)) for row in records]
    return tuple((where, value) for where, value in values if value is not None)


def _thinned(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(pairs) // MOST_POINTS)
    kept = pairs[::step]
    return kept if kept[-1] == pairs[-1] else [*kept, pairs[-1]]


def _number(value: float) -> str:
    return f"{value:.3g}"


def _chart(
    curve: Curve,
    pairs: list[tuple[float, float]],
    marks: list[float],
    vertical: list[str],
    horizontal: list[str],
) -> str:
    lines = "".join(
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in part)}" fill="none" '
        f'stroke="{curve.colour}" stroke-width="1.6"/>'
        for part in _parts(pairs, marks)
    )
    with_dots = curve.dots or len(pairs) == 1
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{curve.colour}"/>'
        for x, y in (pairs if with_dots else [])
    )
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    labels = (
        _text(LEFT, TOP - 8, curve.title, "start", 11),
        _text(LEFT - 4, base, vertical[0], "end"),
        _text(LEFT - 4, TOP + 6, vertical[1], "end"),
        _text(LEFT, HEIGHT - 5, horizontal[0], "start"),
        _text(right, HEIGHT - 5, horizontal[1], "end"),
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" style="color:inherit">'
        f"<title>{escaped(curve.title)}</title>"
        f'<path d="M{LEFT} {TOP}V{base}H{right}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.35"/>'
        f"{_marked(marks)}{lines}{dots}{''.join(labels)}</svg>"
    )


def _parts(pairs: list[tuple[float, float]], marks: list[float]) -> list[list[tuple[float, float]]]:
    """What lies between two marks, a mark being where the next part begins."""
    ends = [-math.inf, *marks, math.inf]
    parts = [
        [pair for pair in pairs if low - NEAR <= pair[0] < high - NEAR]
        for low, high in itertools.pairwise(ends)
    ]
    return [part for part in parts if part]


def _marked(marks: list[float]) -> str:
    if not marks:
        return ""
    path = "".join(f"M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" for x in marks)
    return f'<path d="{path}" stroke="currentColor" stroke-opacity="0.35" stroke-dasharray="2 3"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 9) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-family="sans-serif" fill="currentColor" '
        f'fill-opacity="0.85" text-anchor="{anchor}">{escaped(text)}</text>'
    )
