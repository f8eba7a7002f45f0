"""Whether products are made on dense tiles (`kernels.tiles`): a measured rule, asked by the plan.

It looks at the whole tensor, never at a partition or a worker, so that the choice, and with it
every rounding, is the same however the observations are divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slrt_dask.data.header import StoreHeader
from slrt_dask.engine.prepare import numbers_every_fibre

LARGEST_TILE = 2**22
"""Entries of the largest tile: 67 MB a thread with what is made of it. Not measured beyond."""

FEWEST_ENTRIES = 2**17
"""Observations below which tiles are not worth loading a BLAS and its kernels: a fifth of a second
in every process, which they gain back in some 200 sweeps of so many."""


@dataclass(frozen=True)
class Tiling:
    """Whether products are made on dense tiles, and why.

    observed : which part of the tensor is observed
    needed : the part from which on tiles pay; None if they never do in slices of this shape, or
        for so few observations
    """

    observed: float
    needed: float | None
    used: bool

    @classmethod
    def of(cls, header: StoreHeader) -> Tiling:
        """The choice for a fit of these observations."""
        observed = header.nnz / math.prod(header.shape)
        needed = enough_for_tiles(slice_lengths(header)) if header.nnz >= FEWEST_ENTRIES else None
        # An entry's place in a tile is the number of its fibre, if fibres are numbered so.
        numbered = numbers_every_fibre(header.shape, header.slab_mode, header.nnz)
        return cls(observed, needed, needed is not None and observed >= needed and numbered)

    def __str__(self) -> str:
        observed = f"slices are {self._percent(self.observed)} observed"
        if self.used:
            return f"on dense tiles: {observed}"
        if self.needed is None:
            return f"entry by entry: {observed}; too few or too thin for dense tiles"
        return f"entry by entry: {observed}; dense tiles pay from {self._percent(self.needed)}"

    @staticmethod
    def _percent(part: float) -> str:
        return f"{100 * part:.2g} %" if part < 0.995 else "100 %"


def slice_lengths(header: StoreHeader) -> tuple[int, ...]:
    """The shape of a slice of the slab mode."""
    return tuple(length for mode, length in enumerate(header.shape) if mode != header.slab_mode)


def enough_for_tiles(lengths: tuple[int, ...]) -> float | None:
    """The observed part from which on tiles of this shape pay; None if they never do.

    Measured on one core, slices of 30×30 to 1000×300 and of three and four modes, ranks 1 to 60:
    where just enough is observed by this, tiles were 1.03 to 1.9 times as fast, and in three cases
    of 75 not (0.88, 0.93, 0.95). What a tile costs does not depend on how much of it is observed.
    Short modes make small matrices, on which BLAS is slow. Ranks cost both ways about alike. A
    slice of one mode leaves nothing to share between modes.
    """
    if len(lengths) < 2 or math.prod(lengths) > LARGEST_TILE:
        return None
    shortest, next_shortest = sorted(lengths)[:2]
    needed = 0.35 + 2.0 * (1.0 / shortest + 1.0 / next_shortest)
    return needed if needed <= 1.0 else None
