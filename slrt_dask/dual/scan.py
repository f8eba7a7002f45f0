"""The whole tensor looked through for entries that miss their bounds, a few slices at a time.

Each box of W is a matrix product per mode, held only while it is looked at. What is found stays
with the blocks; only how much was found goes to the driver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.entries import MARKS, BoundVectors
from slrt_dask.dual.operator import Operator, Sums
from slrt_dask.dual.sampling import Model, dense_chunk, sums_from, with_empty_row
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Program, Rounds, Sweep, add_into
from slrt_dask.kernels.entries import BOUNDED

BOX_ENTRIES = 2**19
"""Entries of W that a thread has before it at once."""


@dataclass(frozen=True)
class ScanOutcome:
    """How many entries beside the working set miss their bounds, and by how much any entry does."""

    found: int
    violation: float


@dataclass(frozen=True)
class Scan(Program):
    """Find entries that miss their bounds by more than a tolerance and are not looked after yet."""

    operator: Operator
    dual: str
    bounds: BoundVectors
    tolerance: float

    def rounds(self) -> Rounds:
        sums, _ = yield Sweep(Scan._sums)
        found, worst = yield Sweep(Scan._look, (with_empty_row(sums),))
        return ScanOutcome(int(found), float(worst))

    def _sums(self, block: Block, total: Any) -> tuple[Sums, float]:
        x = block.vector(self.dual)
        return self.operator.crossing_sums(block, x, total and total[0]), 0.0

    def _look(self, block: Block, total: Any, sums: Sums) -> tuple[int, float]:
        pieces, worst = [], 0.0
        for ranges in boxes(block.index.shape, block.index.slab_mode, block.slices):
            missed = self._missed(block, sums, ranges)
            worst = max(worst, float(missed.max(initial=0.0)))
            missed[self._looked_after(block, ranges)] = 0.0
            places = np.nonzero(missed > self.tolerance)
            first = [box.start for box in ranges]
            pieces.append([place + start for place, start in zip(places, first, strict=True)])
        block.found = tuple(np.concatenate(columns) for columns in zip(*pieces, strict=True))
        part = (len(block.found[0]), worst)
        return part if total is None else self.combine(total, part)

    def combine(self, left: Any, right: Any) -> Any:
        return add_into(left[0], right[0]), max(left[1], right[1])

    def _missed(self, block: Block, sums: Sums, ranges: tuple[range, ...]) -> NDArray[np.float64]:
        """By how much each entry of a box is outside its bounds."""
        index = block.index
        inside = _in_slices(block, ranges[index.slab_mode])
        columns = tuple(column[inside] for column in block.columns)
        model = Model(index.shape, self.operator, sums_from(sums), block.numbering)
        values = dense_chunk(model, columns, block.vector(self.dual)[inside], ranges)
        along = [1] * len(ranges)
        along[self.bounds.mode] = -1
        box = slice(ranges[self.bounds.mode].start, ranges[self.bounds.mode].stop)
        lower = self.bounds.lower[box].reshape(along)
        upper = self.bounds.upper[box].reshape(along)
        missed: NDArray[np.float64] = np.maximum(lower - values, values - upper)
        return missed

    def _looked_after(self, block: Block, ranges: tuple[range, ...]) -> tuple[Any, ...]:
        """Where in a box the block has bounded entries."""
        inside = _in_slices(block, ranges[block.index.slab_mode])
        bounded = (block.vector(MARKS)[inside].astype(np.int64) & BOUNDED) > 0
        for column, box in zip(block.columns, ranges, strict=True):
            bounded &= (column[inside] >= box.start) & (column[inside] < box.stop)
        return tuple(
            column[inside][bounded] - box.start
            for column, box in zip(block.columns, ranges, strict=True)
        )


def boxes(
    shape: tuple[int, ...], slab_mode: int, slices: tuple[int, int]
) -> list[tuple[range, ...]]:
    """Boxes of about BOX_ENTRIES at most that together are some slices; whole ones if possible."""
    sizes = list(shape)
    sizes[slab_mode] = 1
    by_length = sorted(range(len(shape)), key=lambda mode: -sizes[mode])
    for mode in by_length:
        others = math.prod(sizes) // sizes[mode]
        sizes[mode] = min(sizes[mode], max(1, BOX_ENTRIES // others))
    sizes[slab_mode] = max(1, BOX_ENTRIES // math.prod(sizes))
    cuts = []
    for mode, length in enumerate(shape):
        first, stop = slices if mode == slab_mode else (0, length)
        cuts.append(
            [range(low, min(low + sizes[mode], stop)) for low in range(first, stop, sizes[mode])]
        )
    grid: list[tuple[range, ...]] = [()]
    for ranges in cuts:
        grid = [(*box, piece) for box in grid for piece in ranges]
    return grid


def _in_slices(block: Block, slices: range) -> slice:
    slab = block.columns[block.index.slab_mode]
    low, high = np.searchsorted(slab, [slices.start, slices.stop])
    return slice(int(low), int(high))
