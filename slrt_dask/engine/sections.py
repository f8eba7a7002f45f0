"""Sections of a block: what a step sees of it when fibre sums are made a range of fibres at a time.

Files hold the vectors of such a block section by section, so that one section is one piece of
every file; whoever wants the whole block gets it slice by slice, as always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import Vector
from slrt_dask.kernels.blocks import BlockIndex, FibreNumbering
from slrt_dask.kernels.crossing import fill_bounds
from slrt_dask.kernels.sections import by_section, by_slice, section_borders, section_length


@dataclass(frozen=True)
class SectionOrder:
    """How the entries of a block lie when they are put section by section.

    borders : (sections + 1,) fibre numbers
    bounds : (sections + 1, slices) where in every slice each section begins
    offsets : (sections + 1,) where each section begins in the new order
    """

    borders: tuple[int, ...]
    bounds: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, index: BlockIndex, fibres: int, sections: int) -> SectionOrder:
        """The order of a numbered block; fibres : how many the slab mode has."""
        borders = section_borders(fibres, sections)
        # There may be many slices, and their bounds stay in memory.
        kind = np.int32 if index.entries < 2**31 else np.int64
        bounds = np.empty((len(borders), index.slices), dtype=kind)
        numbers = index.fibres[index.slab_mode]
        if not fill_bounds(index.starts, numbers, np.array(borders), bounds):
            raise AssertionError("entries of a slice are not sorted; this is a bug of slrt-dask")
        offsets = bounds.sum(axis=1, dtype=np.int64) - index.starts[:-1].sum()
        return cls(borders, bounds, offsets)

    def range_of(self, section: int) -> tuple[int, int]:
        """Where a section begins and ends in the new order."""
        return int(self.offsets[section]), int(self.offsets[section + 1])

    def by_section(self, values: NDArray[Any], room: NDArray[Any]) -> NDArray[Any]:
        """Entries that lie slice by slice, put section by section."""
        by_section(self.bounds, values, room)
        return room

    def by_slice(self, values: NDArray[Any], room: NDArray[Any]) -> NDArray[Any]:
        """The way back."""
        by_slice(self.bounds, values, room)
        return room

    def index(
        self, section: int, block: BlockIndex, rows: NDArray[Any], fibres: NDArray[Any]
    ) -> BlockIndex:
        """A section's index, of which only the slab mode can be used.

        rows, fibres : of its entries, fibres being numbered from its first one
        """
        # Nobody asks where slices begin here, and to tell would take as long as they are many.
        starts = np.array([0, len(rows)], dtype=np.int64)
        order, slab = len(block.shape), block.slab_mode
        nothing = np.empty(0, dtype=rows.dtype)
        length = section_length(self.borders[-1], len(self.borders) - 1)
        return BlockIndex(
            block.shape, slab, starts,
            tuple(rows if mode == slab else nothing for mode in range(order)),
            tuple(fibres if mode == slab else nothing for mode in range(order)),
            tuple(length if mode == slab else 0 for mode in range(order)),
        )  # fmt: skip

    @cached_property
    def places(self) -> NDArray[Any]:
        """The entries' positions, slice by slice, in the new order."""
        positions = np.arange(self.offsets[-1], dtype=self.bounds.dtype)
        return self.by_section(positions, np.empty_like(positions))


class GatheredVectors:
    """The vectors of one section of a block in memory: copies, put back when the step is over."""

    def __init__(
        self,
        read: Callable[[str], Vector],
        fresh: Callable[[str], Vector],
        places: NDArray[Any],
    ) -> None:
        self._read, self._fresh, self._places = read, fresh, places
        self._held: dict[str, Vector] = {}
        self._changed: set[str] = set()

    def read(self, name: str) -> Vector:
        if name not in self._held:
            self._held[name] = self._read(name)[self._places]
        return self._held[name]

    def change(self, name: str) -> Vector:
        self._changed.add(name)
        return self.read(name)

    def fresh(self, name: str) -> Vector:
        if name not in self._held:
            kind = self._fresh(name).dtype
            self._held[name] = np.empty(len(self._places), dtype=kind)
        self._changed.add(name)
        return self._held[name]

    def put_back(self) -> None:
        for name in self._changed:
            self._fresh(name)[self._places] = self._held[name]


def section_arrays(
    order: SectionOrder, section: int, index: BlockIndex, places: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and fibres of the entries at some places, for `SectionOrder.index`."""
    slab = index.slab_mode
    first = index.fibres[slab].dtype.type(order.borders[section])
    return index.rows[slab][places], index.fibres[slab][places] - first


def order_of(
    numbered: tuple[BlockIndex, FibreNumbering] | None, sections: int
) -> SectionOrder | None:
    """The order of a block, if it is numbered and there are sections."""
    if numbered is None or sections == 1:
        return None
    index, numbering = numbered
    return SectionOrder.of(index, numbering.count, sections)
