"""One block of observations as a sweep sees it: some whole slices, and named vectors of entries.

A sweep asks for vectors by name and says what it does with them: read, change, or write anew. Where
they are between sweeps, in memory or in files (`spill.py`), is the business of the arrays behind
the block.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import StateLost
from slrt_dask.kernels.blocks import (
    BlockIndex,
    FibreNumbering,
    IndexColumns,
    QueryIndex,
    build_queries,
)
from slrt_dask.kernels.crossing import strips_of

if TYPE_CHECKING:
    from slrt_dask.engine.spill import FileArrays

Vector = NDArray[np.floating[Any]]
NUMBERING = threading.Lock()
"""Numbering held-out places takes several times their memory for a moment: one block at a time."""
VALUES, WEIGHTS, EXTRA = "values", "weights", "extra"
"""The observed values, less the offset of the fit; their weights where they have some,
divided by the mean weight; and which entries are not the store's."""
ROWS, FIBRES = "rows ", "fibres "
"""Followed by a mode: the entries' indices in it, and the numbers of their fibres."""


class MemoryArrays:
    """Arrays of a block by name, in memory: index columns, fibre numbers, and vectors."""

    def __init__(self, held: dict[str, NDArray[Any]]) -> None:
        self.held = held

    def read(self, name: str) -> NDArray[Any]:
        """An array that is there; StateLost if it is not."""
        try:
            return self.held[name]
        except KeyError:
            raise StateLost(f"the vector {name!r} is not held here any more") from None

    change = read

    def fresh(self, name: str) -> NDArray[Any]:
        """Room for a vector whose every entry will be written; its content is undefined."""
        if name not in self.held:
            self.held[name] = np.zeros_like(self.held[VALUES])
        return self.held[name]

    def put(self, name: str, values: NDArray[Any]) -> None:
        self.held[name] = values

    def drop(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.held.pop(name, None)

    @property
    def nbytes(self) -> int:
        return sum({id(array): array.nbytes for array in self.held.values()}.values())


class Buffers:
    """A thread's working memory, used again from block to block and from sweep to sweep."""

    def __init__(self) -> None:
        self._held: dict[Hashable, NDArray[Any]] = {}

    def array(self, key: Hashable, shape: tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
        """Room for an array, the same memory for the same key; its content is undefined."""
        size, held = math.prod(shape), self._held.get(key)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._held[key] = np.empty(size, dtype=dtype)
        return held[:size].reshape(shape)

    def sums(
        self, shape: tuple[int, ...], in_use: Any = None, number: int = 0
    ) -> NDArray[np.float64]:
        """Zeros for some fibre sums, in one of two rooms: the one that is not `in_use`."""
        room = self.array(("sums", number, 0), shape)
        if in_use is not None and np.may_share_memory(room, in_use):
            room = self.array(("sums", number, 1), shape)
        room.fill(0.0)
        return room

    @property
    def nbytes(self) -> int:
        return sum(room.nbytes for room in self._held.values())


@dataclass
class Block:
    """Entries of some whole slices, their numbering, and named vectors of their length.

    order : how many index columns there are, sorted by the slab mode; 0 for a part of an embedded
        tensor, whose `position` is that of its first entry in the flattened tensor
    slices : the first of the slices that the block is responsible for, and one after the last
    found : places that a sweep wants to have among the entries from the next change of support on
    queries, query_values : places held out for validation that lie in these slices, if any; with
        query_weights where these have some
    coupling : the block's part of a linear constraint, if there is one; it has `nbytes`
    """

    arrays: MemoryArrays | FileArrays
    entries: int
    order: int
    slices: tuple[int, int]
    position: int = 0
    buffers: Buffers = field(default_factory=Buffers)
    found: IndexColumns | None = None
    queries: IndexColumns | None = None
    query_values: Vector | None = None
    query_weights: Vector | None = None
    coupling: Any = None
    _numbered: tuple[BlockIndex, FibreNumbering, tuple[str, ...]] | None = None
    _index: BlockIndex | None = None
    _query_index: QueryIndex | None = None
    _strips: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def columns(self) -> IndexColumns:
        """K index arrays (entries,)."""
        return tuple(self.arrays.read(f"{ROWS}{mode}") for mode in range(self.order))

    @property
    def values(self) -> Vector:
        return self.arrays.read(VALUES)

    def vector(self, name: str) -> Vector:
        return self.arrays.read(name)

    def changing(self, name: str) -> Vector:
        return self.arrays.change(name)

    def fresh(self, name: str) -> Vector:
        return self.arrays.fresh(name)

    @property
    def extra(self) -> NDArray[np.bool_]:
        """Which entries are not the store's, (entries,)."""
        try:
            return self.arrays.read(EXTRA)
        except StateLost:
            return np.zeros(self.entries, dtype=np.bool_)

    # ---- fibres -----------------------------------------------------------------------------

    def number(self, index: BlockIndex, numbering: FibreNumbering) -> None:
        """Have an index from here on; fibre numbers that are an index column are not kept twice."""
        columns = {id(column): f"{ROWS}{mode}" for mode, column in enumerate(index.rows)}
        names = []
        for mode, fibres in enumerate(index.fibres):
            names.append(columns.get(id(fibres), f"{FIBRES}{mode}"))
            if names[-1].startswith(FIBRES):
                self.arrays.put(names[-1], fibres)
        self._numbered = replace(index, rows=(), fibres=()), numbering, tuple(names)
        self._index = self._query_index = self._strips = None

    @property
    def index(self) -> BlockIndex:
        if self._index is None:
            index, _, names = self._known
            fibres = tuple(self.arrays.read(name) for name in names)
            self._index = replace(index, rows=self.columns, fibres=fibres)
        return self._index

    @property
    def numbering(self) -> FibreNumbering:
        return self._known[1]

    @property
    def _known(self) -> tuple[BlockIndex, FibreNumbering, tuple[str, ...]]:
        if self._numbered is None:
            raise StateLost("this block was loaded but not numbered; the fit has to be restarted")
        return self._numbered

    @property
    def query_index(self) -> QueryIndex | None:
        """The held-out places, numbered like the entries; None where there are none."""
        if self._query_index is None and self.queries is not None and len(self.queries[0]):
            with NUMBERING:
                self._query_index = build_queries(self.index, self.queries, self.numbering)
        return self._query_index

    def strips(self, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Strips of the slab mode's fibres for sums of a width: see `kernels.crossing`."""
        if self._strips is None or self._strips[0] != width:
            self._strips = width, *strips_of(self.index, width)
        return self._strips[1:]

    def buffer(self, mode: int, width: int, name: str = "sums") -> NDArray[np.float64]:
        """Room for the fibre sums of one slice of a local mode; its content is undefined."""
        return self.buffers.array((mode, name), (self.index.buffer_rows[mode], width))

    # ---- between sweeps, in memory ----------------------------------------------------------

    def open(self, buffers: Buffers | None = None) -> Block:
        """The block for a sweep by the thread that has these buffers."""
        if buffers is not None:
            self.buffers = buffers
        return self

    def close(self, block: Block) -> None:
        """After a sweep: what is in memory has been changed in place."""

    def drop(self, names: tuple[str, ...]) -> None:
        assert isinstance(self.arrays, MemoryArrays)
        self.arrays.drop(names)

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        assert isinstance(self.arrays, MemoryArrays)
        return self.arrays.nbytes + (self.coupling.nbytes if self.coupling else 0)
