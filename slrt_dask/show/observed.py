"""What a report needs of the observations: slices in cells, extremes, empty slices; in one pass.

A slice is shown in a limited number of cells, however large it is: a cell then stands for several
entries, of which those that were observed are averaged, and the middle one is predicted.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.constraints import Bounds
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import InvalidInput

MOST_CELLS = 192
"""Of a slice, along each side."""
MOST_SAMPLES = 1200
"""Of a series."""
SHOWN_SLICES = 3
LARGE_ENOUGH = 0.1
"""Slices whose area is less than this part of the largest one's are not shown."""


@dataclass(frozen=True)
class Plane:
    """A slice, a whole matrix or a series of a tensor: one or two modes, and the others fixed.

    fixed : (mode, index) of every other mode;  steps : entries in a cell, along each axis
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]

    @classmethod
    def of(
        cls, shape: tuple[int, ...], axes: tuple[int, ...], fixed: tuple[tuple[int, int], ...] = ()
    ) -> Plane:
        most = MOST_CELLS if len(axes) == 2 else MOST_SAMPLES
        return cls(shape, axes, fixed, tuple(-(-shape[mode] // most) for mode in axes))

    @property
    def cells(self) -> tuple[int, ...]:
        pairs = zip(self.axes, self.steps, strict=True)
        return tuple(-(-self.shape[mode] // step) for mode, step in pairs)

    def places(self) -> NDArray[np.int64]:
        """(K, cells) the entries in the middles of the cells, row by row."""
        middles = []
        for mode, step, count in zip(self.axes, self.steps, self.cells, strict=True):
            firsts = step * np.arange(count)
            middles.append((firsts + np.minimum(firsts + step, self.shape[mode]) - 1) // 2)
        grid = np.meshgrid(*middles, indexing="ij")
        places = np.empty((len(self.shape), grid[0].size), dtype=np.int64)
        for mode, part in zip(self.axes, grid, strict=True):
            places[mode] = part.ravel()
        for mode, index in self.fixed:
            places[mode] = index
        return places

    def add(
        self, columns: tuple[NDArray[Any], ...], values: NDArray[Any], sums: NDArray[np.float64]
    ) -> None:
        """Add observations to the totals and counts of the cells they are in, (2, cells)."""
        here = np.ones(len(values), dtype=np.bool_)
        for mode, index in self.fixed:
            here &= columns[mode] == index
        cells = np.zeros(int(np.count_nonzero(here)), dtype=np.int64)
        for mode, step, count in zip(self.axes, self.steps, self.cells, strict=True):
            cells = cells * count + columns[mode][here] // step
        sums[0] += np.bincount(cells, weights=values[here], minlength=sums.shape[1])
        sums[1] += np.bincount(cells, minlength=sums.shape[1])


def planes_of(shape: tuple[int, ...], modes: tuple[int, int] | None = None) -> tuple[Plane, ...]:
    """What to show of a tensor: its series, its matrix, or some slices about its middle.

    modes : the two modes that slices show; those of the most similar lengths if None
    """
    order = len(shape)
    if modes is not None and (len({*modes} & {*range(order)}) != 2 or len(modes) != 2):
        raise InvalidInput(f"modes is {modes}; give two different ones from 0 to {order - 1}")
    if order == 1:
        return (Plane.of(shape, (0,)),)
    chosen = _similar(shape) if modes is None else (modes[0], modes[1])
    others = [mode for mode in range(order) if mode not in chosen]
    if not others:
        return (Plane.of(shape, chosen),)
    along = max(others, key=lambda mode: shape[mode])
    length = shape[along]
    shown = [length * part // (SHOWN_SLICES + 1) for part in range(1, SHOWN_SLICES + 1)]
    if length <= SHOWN_SLICES:
        shown = list(range(length))
    return tuple(
        Plane.of(
            shape,
            chosen,
            tuple((mode, index if mode == along else shape[mode] // 2) for mode in others),
        )
        for index in shown
    )


def _similar(shape: tuple[int, ...]) -> tuple[int, int]:
    """Two modes of similar lengths: a picture is mostly about as wide as it is high."""
    areas = {
        (one, other): shape[one] * shape[other]
        for one, other in itertools.combinations(range(len(shape)), 2)
    }
    large = [pair for pair, area in areas.items() if area >= LARGE_ENOUGH * max(areas.values())]
    return max(large, key=lambda pair: min(shape[m] for m in pair) / max(shape[m] for m in pair))


@dataclass(frozen=True)
class Observed:
    """What one pass through a store found.

    cells : for every plane, the means of the values observed in its cells; NaN where there are none
    lowest, highest : of all values;  outside : observations that miss the bounds of the fit
    empty : for every mode, how many of its indices have no observation
    """

    cells: tuple[NDArray[np.float64], ...]
    lowest: float
    highest: float
    outside: int
    empty: tuple[int, ...]


def look_through(
    store: ObservationStore, planes: tuple[Plane, ...], bounds: Bounds | None = None
) -> Observed:
    """Read a store once, a partition at a time."""
    sums = [np.zeros((2, math.prod(plane.cells))) for plane in planes]
    seen = [np.zeros(length, dtype=np.bool_) for length in store.shape]
    limits = None if bounds is None else bounds.vectors(store.shape)
    lowest, highest, outside = math.inf, -math.inf, 0
    for number in range(len(store.partitions)):
        columns, values = store.read_partition(number)
        lowest = min(lowest, float(values.min(initial=math.inf)))
        highest = max(highest, float(values.max(initial=-math.inf)))
        for marks, column in zip(seen, columns, strict=True):
            marks[column] = True
        for plane, part in zip(planes, sums, strict=True):
            plane.add(columns, values, part)
        if limits is not None:
            mode, lower, upper = limits
            here = columns[mode]
            outside += int(np.count_nonzero((values < lower[here]) | (values > upper[here])))
    cells = []
    for plane, (total, count) in zip(planes, sums, strict=True):
        mean = np.full(len(total), np.nan)
        np.divide(total, count, out=mean, where=count > 0)
        cells.append(mean.reshape(plane.cells))
    empty = tuple(int(np.count_nonzero(~marks)) for marks in seen)
    return Observed(tuple(cells), lowest, highest, outside, empty)
