"""What a page has to know of the observations, found in one pass, a partition at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.constraints import Bounds
from slrt_dask.data.store import ObservationStore
from slrt_dask.kernels.blocks import fibre_keys
from slrt_dask.reporting.planes import Plane
from slrt_dask.support import unobserved

DRAWN = 4096
"""Entries drawn at random, of which it is asked whether anything was observed about them."""
LARGEST_KEY = 2**62


@dataclass(frozen=True)
class Observed:
    """What one pass through a store found.

    cells : for every plane, the means of the values observed in its cells; NaN where there are none
    lowest, highest : of all values
    outside : observations that miss the bounds of the fit
    empty : for every mode, how many of its indices have no observation
    unseen : of the entries drawn, those that nothing was observed about, as in `rests_on_nothing`
        of a completion; None where that was not asked
    """

    cells: tuple[NDArray[np.float64], ...]
    lowest: float
    highest: float
    outside: int
    empty: tuple[int, ...]
    unseen: int | None


def look_through(
    store: ObservationStore, planes: tuple[Plane, ...], bounds: Bounds | None, *, fibres: bool
) -> Observed:
    """fibres : whether to ask for entries that nothing was observed about"""
    sums = [np.zeros(math.prod(plane.cells)) for plane in planes]
    counts = [np.zeros(math.prod(plane.cells)) for plane in planes]
    seen = [np.zeros(length, dtype=np.bool_) for length in store.shape]
    drawn = DrawnFibres(store.shape) if fibres and _can_be_keyed(store.shape) else None
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
        if drawn is not None:
            drawn.look_at(columns)
    cells = tuple(
        _mean(total, count).reshape(plane.cells)
        for plane, total, count in zip(planes, sums, counts, strict=True)
    )
    empty = tuple(int(np.count_nonzero(~marks)) for marks in seen)
    unseen = None if drawn is None else drawn.unseen(seen)
    return Observed(cells, lowest, highest, outside, empty, unseen)


class DrawnFibres:
    """Entries drawn at random, and on which of their fibres something was observed."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(0)
        self.places = tuple(random.integers(0, length, DRAWN) for length in shape)
        self._shape = shape
        self._seen = np.zeros((len(shape), DRAWN), dtype=np.bool_)
        self._order = []
        self._keys = []
        for mode in range(len(shape)):
            keys = fibre_keys(self.places, shape, (mode,))
            self._order.append(np.argsort(keys, kind="stable"))
            self._keys.append(keys[self._order[-1]])

    def look_at(self, columns: tuple[NDArray[Any], ...]) -> None:
        for mode, (order, keys) in enumerate(zip(self._order, self._keys, strict=True)):
            present = np.unique(fibre_keys(columns, self._shape, (mode,)))
            places = np.minimum(np.searchsorted(present, keys), len(present) - 1)
            self._seen[mode, order[present[places] == keys]] = True

    def unseen(self, slices: Sequence[NDArray[np.bool_]]) -> int:
        """slices : in which of each mode's slices something was observed, K arrays (n_k,)"""
        return int(np.count_nonzero(unobserved(self.places, self._seen, slices)))


def _can_be_keyed(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) // min(shape) < LARGEST_KEY


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
