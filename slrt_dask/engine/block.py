"""One block of observations with the vectors that belong to it, as a worker holds it.

A block is a run of whole slices of one partition, the unit of work of one thread. Vectors are kept
by name; a step that asks for a name that is not there learns that the state was lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import StateLost
from slrt_dask.kernels.blocks import BlockIndex, FibreNumbering, IndexColumns, QueryIndex

Vector = NDArray[np.floating[Any]]


@dataclass
class Block:
    """Observations of some whole slices, their numbering, and named vectors of their length.

    columns : K index arrays, sorted by the slab mode
    values : the observed values, less the offset of the fit, in the working precision
    partition, position : which partition of the store, and where in it the block begins
    queries, query_values : places held out for validation that lie in these slices, if any
    """

    columns: IndexColumns
    values: Vector
    partition: int
    position: int
    queries: IndexColumns | None = None
    query_values: Vector | None = None
    _index: BlockIndex | None = None
    _numbering: FibreNumbering | None = None
    _query_index: QueryIndex | None = None
    _vectors: dict[str, Vector] = field(default_factory=dict)
    _scratch: dict[str, Vector] = field(default_factory=dict)
    _buffers: dict[tuple[int, str], NDArray[np.float64]] = field(default_factory=dict)

    @property
    def entries(self) -> int:
        return len(self.values)

    @property
    def index(self) -> BlockIndex:
        if self._index is None:
            raise StateLost("this block was loaded but not numbered; the fit has to be restarted")
        return self._index

    @property
    def numbering(self) -> FibreNumbering:
        if self._numbering is None:
            raise StateLost("this block was loaded but not numbered; the fit has to be restarted")
        return self._numbering

    @property
    def query_index(self) -> QueryIndex | None:
        return self._query_index

    def set_index(
        self, index: BlockIndex, numbering: FibreNumbering, queries: QueryIndex | None
    ) -> None:
        self._index, self._numbering, self._query_index = index, numbering, queries

    def vector(self, name: str) -> Vector:
        """A named vector that an earlier step left here."""
        try:
            return self._vectors[name]
        except KeyError:
            raise StateLost(f"the vector {name!r} is not held here any more") from None

    def keep(self, name: str, vector: Vector) -> None:
        self._vectors[name] = vector

    def discard(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._vectors.pop(name, None)

    def scratch(self, name: str) -> Vector:
        """A work vector of the block's length; allocated once, its content not kept."""
        if name not in self._scratch:
            self._scratch[name] = np.zeros(self.entries, dtype=self.values.dtype)
        return self._scratch[name]

    def buffer(self, mode: int, width: int, name: str = "sums") -> NDArray[np.float64]:
        """Room for the fibre sums of one slice of a local mode; its content not kept."""
        rows = self.index.buffer_rows[mode]
        if self._query_index is not None:
            rows = max(rows, self._query_index.buffer_rows[mode])
        room = self._buffers.get((mode, name))
        if room is None or room.size < rows * width:
            room = self._buffers[mode, name] = np.zeros(rows * width)
        return room[: rows * width].reshape(rows, width)

    @property
    def nbytes(self) -> int:
        """Bytes held now, by numpy's count."""
        arrays: list[Any] = [*self.columns, self.values]
        arrays += [*self._vectors.values(), *self._scratch.values(), *self._buffers.values()]
        if self._index is not None:
            arrays += list(self._index.fibres)
        return sum({id(array): array.nbytes for array in arrays}.values())
