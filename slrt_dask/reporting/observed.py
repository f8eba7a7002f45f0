"""What a page has to know of the observations, found in one pass, a partition at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.constraints import Bounds
from slrt_dask.data.store import ObservationStore
from slrt_dask.reporting.planes import Plane


@dataclass(frozen=True)
class Observed:
    """What one pass through a store found.

    cells : for every plane, the means of the values observed in its cells; NaN where there are none
    lowest, highest : of all values
    outside : observations that miss the bounds of the fit
    empty : for every mode, how many of its indices have no observation
    """

    cells: tuple[NDArray[np.float64], ...]
    lowest: float
    highest: float
    outside: int
    empty: tuple[int, ...]


def look_through(
    store: ObservationStore, planes: tuple[Plane, ...], bounds: Bounds | None
) -> Observed:
    """bounds : those of the fit, if it has some that can be compared with observations"""
    sums = [np.zeros(math.prod(plane.cells)) for plane in planes]
    counts = [np.zeros(math.prod(plane.cells)) for plane in planes]
    seen = [np.zeros(length, dtype=np.bool_) for length in store.shape]
    lowest, highest, outside = math.inf, -math.inf, 0
    for number in range(len(store.partitions)):
        columns, values = store.read_partition(number)
        if not len(values):
            continue
        lowest, highest = min(lowest, float(values.min())), max(highest, float(values.max()))
        for marks, column in zip(seen, columns, strict=True):
            marks[column] = True
        for plane, total, count in zip(planes, sums, counts, strict=True):
            _add(plane, columns, values, total, count)
        if bounds is not None:
            outside += _count_outside(bounds, store.shape, columns, values)
    cells = tuple(
        _mean(total, count).reshape(plane.cells)
        for plane, total, count in zip(planes, sums, counts, strict=True)
    )
    empty = tuple(int(np.count_nonzero(~marks)) for marks in seen)
    return Observed(cells, lowest, highest, outside, empty)


def _add(
    plane: Plane,
    columns: tuple[NDArray[Any], ...],
    values: NDArray[Any],
    total: NDArray[np.float64],
    count: NDArray[np.float64],
) -> None:
    on_plane = np.ones(len(values), dtype=np.bool_)
    for mode, index in plane.fixed:
        on_plane &= columns[mode] == index
    cells = np.zeros(int(np.count_nonzero(on_plane)), dtype=np.int64)
    for axis in plane.axes:
        cells = cells * axis.cells + columns[axis.mode][on_plane] // axis.step
    total += np.bincount(cells, weights=values[on_plane], minlength=len(total))
    count += np.bincount(cells, minlength=len(count))


def _mean(total: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
    mean = np.full(len(total), np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def _count_outside(
    bounds: Bounds,
    shape: tuple[int, ...],
    columns: tuple[NDArray[Any], ...],
    values: NDArray[Any],
) -> int:
    mode, lower, upper = bounds.vectors(shape)
    places = columns[mode]
    return int(np.count_nonzero((values < lower[places]) | (values > upper[places])))
