"""A block between steps: what a share keeps of it, and how that is where it stays in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import Block, Buffers, Coupling, MemoryVectors, Vector
from slrt_dask.engine.scratch import Room
from slrt_dask.engine.sections import GatheredVectors, SectionOrder, order_of, section_arrays
from slrt_dask.kernels.blocks import BlockIndex, IndexColumns


class RestingBlock(Protocol):
    """What a share keeps of a block between steps."""

    partition: int
    position: int
    entries: int
    slices: tuple[int, int]
    coupling: Coupling | None

    @property
    def found(self) -> IndexColumns | None:
        """What the last step wants to have among the entries."""

    def contents(self) -> Contents:
        """Everything that is needed to make the block anew."""

    def columns(self) -> IndexColumns:
        """The entries' indices."""

    def extra(self) -> NDArray[np.bool_]:
        """Which entries are not the store's, (entries,)."""

    def open(
        self,
        room: Room | None,
        buffers: Buffers,
        names: frozenset[str],
        section: int | None = None,
    ) -> Block:
        """The block for one step, or one section of it.

        names : vectors it will most likely read
        """

    def close(self, block: Block) -> None:
        """Keep what the step changed."""

    def vector(self, name: str) -> Vector:
        """A copy of one vector."""

    def put(self, name: str, values: NDArray[Any]) -> None:
        """Set one vector from outside."""

    def drop(self, names: tuple[str, ...]) -> None:
        """Forget vectors."""

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""


@dataclass(frozen=True)
class Contents:
    """A block's entries and vectors, and which entries are not the store's.

    extra : (entries,) bool
    """

    block: Block
    vectors: dict[str, Vector]
    extra: NDArray[np.bool_]


class MemoryBlock:
    """A block that stays in memory: opening and closing it does nothing, but for its sections.

    sections : how many there are
    """

    def __init__(
        self, block: Block, extra: NDArray[np.bool_] | None = None, sections: int = 1
    ) -> None:
        self.block, self._sections = block, sections
        self._order: tuple[BlockIndex, SectionOrder] | None = None
        self.partition, self.position, self.entries = block.partition, block.position, block.entries
        self.slices = block.slices
        self._extra = extra

    @property
    def found(self) -> IndexColumns | None:
        return self.block.found

    @property
    def coupling(self) -> Coupling | None:
        return self.block.coupling

    @coupling.setter
    def coupling(self, coupling: Coupling | None) -> None:
        self.block.coupling = coupling

    def contents(self) -> Contents:
        names = self._vectors.names
        vectors = {name: self.block.vector(name) for name in names}
        return Contents(self.block, vectors, self.extra())

    def columns(self) -> IndexColumns:
        return self.block.columns

    def extra(self) -> NDArray[np.bool_]:
        return np.zeros(self.entries, dtype=np.bool_) if self._extra is None else self._extra

    def open(
        self,
        room: Room | None,
        buffers: Buffers,
        names: frozenset[str],
        section: int | None = None,
    ) -> Block:
        self.block.buffers = buffers
        return self.block if section is None else self._section(section)

    def _section(self, section: int) -> Block:
        block, order = self.block, self._ordered()
        first, stop = order.range_of(section)
        places = order.places[first:stop]
        arrays = section_arrays(order, section, block.index, places)
        vectors = GatheredVectors(block.vector, block.fresh, places)
        index = order.index(section, block.index, *arrays)
        return replace(
            block, columns=(), vectors=vectors, numbered=(index, block.numbering),
            _strips=None, _query_index=None,
        )  # fmt: skip

    def _ordered(self) -> SectionOrder:
        index = self.block.index
        if self._order is None or self._order[0] is not index:
            order = order_of(self.block.numbered, self._sections)
            assert order is not None
            self._order = index, order
        return self._order[1]

    def close(self, block: Block) -> None:
        if isinstance(block.vectors, GatheredVectors):
            block.vectors.put_back()

    def vector(self, name: str) -> Vector:
        return self.block.vector(name).copy()

    def put(self, name: str, values: NDArray[Any]) -> None:
        self.block.fresh(name)[:] = values

    def drop(self, names: tuple[str, ...]) -> None:
        self._vectors.drop(names)

    @property
    def _vectors(self) -> MemoryVectors:
        vectors = self.block.vectors
        assert isinstance(vectors, MemoryVectors)
        return vectors

    @property
    def nbytes(self) -> int:
        arrays: list[Any] = list(self.block.columns)
        if self.block.numbered is not None:
            arrays += list(self.block.numbered[0].fibres)
        if self._extra is not None:
            arrays.append(self._extra)
        if self._order is not None:
            arrays += [self._order[1].bounds, self._order[1].places]
        held = {id(array): int(array.nbytes) for array in arrays}
        coupling = self.coupling.nbytes if self.coupling else 0
        return sum(held.values()) + self._vectors.nbytes + coupling
