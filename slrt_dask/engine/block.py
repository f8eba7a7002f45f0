"""One block of observations with its named vectors, as a step of a program sees it.

A block is a run of whole slices of one partition. A step asks for vectors by name and says what it
will do with them: read, change, or write anew. Where they are between steps, in memory or in files,
is the business of the `Vectors` behind it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.helping import Helping
from slrt_dask.errors import StateLost
from slrt_dask.kernels.blocks import (
    BlockIndex,
    FibreNumbering,
    IndexColumns,
    QueryIndex,
    build_queries,
)
from slrt_dask.kernels.crossing import strip_bounds

Vector = NDArray[np.floating[Any]]
NUMBERING = threading.Lock()
"""Numbering held-out places takes several times their memory for a moment: one block at a time."""
VALUES = "values"
"""The name of the observed values, less the offset of the fit."""


class Vectors(Protocol):
    """Named vectors, all of one length and precision."""

    def read(self, name: str) -> Vector:
        """A vector that an earlier step left; StateLost if there is none."""

    def change(self, name: str) -> Vector:
        """The same, to be changed in place."""

    def fresh(self, name: str) -> Vector:
        """Room for a vector whose every entry will be written; its content is undefined."""


class MemoryVectors:
    """Vectors that stay in memory."""

    def __init__(self, values: Vector) -> None:
        self._held: dict[str, Vector] = {VALUES: values}

    def read(self, name: str) -> Vector:
        try:
            return self._held[name]
        except KeyError:
            raise StateLost(f"the vector {name!r} is not held here any more") from None

    change = read

    def fresh(self, name: str) -> Vector:
        held = self._held.get(name)
        if held is None:
            # Several threads may be at work on one block: the first one's room is everybody's.
            held = self._held.setdefault(name, np.zeros_like(self._held[VALUES]))
        return held

    def drop(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._held.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._held)

    @property
    def nbytes(self) -> int:
        return sum(vector.nbytes for vector in self._held.values())


@dataclass(frozen=True)
class Coupling:
    """A block's part of the rows that couple entries with each other: see `kernels.coupling`.

    positions : entries' numbers in the block;  rows : numbers of the rows
    """

    positions: NDArray[np.int32]
    rows: NDArray[np.int32]
    coefficients: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes + self.rows.nbytes + self.coefficients.nbytes

    def moved(self, new_positions: NDArray[np.int64]) -> Coupling:
        """The same where every entry has a new number; those that are coupled must have one."""
        return Coupling(
            new_positions[self.positions].astype(np.int32), self.rows, self.coefficients
        )


Made = TypeVar("Made")
NewRoom = Callable[[tuple[int, ...]], NDArray[np.float64]]
"""Makes room for numbers."""


@dataclass
class Buffers:
    """Room for what a thread makes of a block; used again from block to block.

    new_room : makes room for what other workers are to see
    helping : through which neighbours take work from each other, if there are any
    """

    new_room: NewRoom = np.empty
    helping: Helping | None = None
    _held: dict[tuple[int, str], NDArray[np.float64]] = field(default_factory=dict)
    _arrays: dict[Hashable, NDArray[Any]] = field(default_factory=dict)
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def room(self, mode: int, name: str, rows: int, width: int) -> NDArray[np.float64]:
        held = self._held.get((mode, name))
        if held is None or held.size < rows * width:
            held = self._held[mode, name] = np.zeros(rows * width)
        return held[: rows * width].reshape(rows, width)

    def array(self, key: Hashable, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Room for an array, the same memory for the same key; its content not kept."""
        size = math.prod(shape)
        held = self._arrays.get(key)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._arrays[key] = np.empty(size, dtype=dtype)
        return held[:size].reshape(shape)

    def seen(self, key: Hashable, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Room for numbers that other workers may be shown, the same memory for the same key."""
        held = self._arrays.get(key)
        if held is None or held.shape != shape:
            held = self._arrays[key] = self.new_room(shape)
        return held

    def made(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Something small that is made once and kept until it is let go."""
        if key not in self._made:
            self._made[key] = make()
        kept: Made = self._made[key]
        return kept

    def let_go(self, key: Hashable, above: int = -1) -> None:
        """Keep no more room, nor what was made, for a key.

        above : bytes up to which room is kept all the same
        """
        if key in self._arrays and self._arrays[key].nbytes > above:
            del self._arrays[key]
        self._made.pop(key, None)

    def forget(self) -> None:
        """Keep nothing that somebody else may still be at work on."""
        self._arrays.clear()
        self._made.clear()

    @property
    def nbytes(self) -> int:
        return sum(room.nbytes for room in (*self._held.values(), *self._arrays.values()))


@dataclass
class Block:
    """Observations of some whole slices, their numbering, and named vectors of their length.

    columns : K index arrays, sorted by the slab mode
    partition, position : which partition of the store, and where in it the block begins
    slices : first and last but one of the slices that the block is responsible for, those without
        entries included
    found : places that a step wants to have among the entries from the next change of support on
    queries, query_values : places held out for validation that lie in these slices, if any
    query_found : what a step has found for them, and leaves to a later one
    coupling : the block's part of a linear constraint, if there is one
    tiles : whether its products are made on dense tiles
    """

    columns: IndexColumns
    vectors: Vectors
    partition: int
    position: int
    buffers: Buffers = field(default_factory=Buffers)
    slices: tuple[int, int] = (0, 0)
    found: IndexColumns | None = None
    queries: IndexColumns | None = None
    query_values: Vector | None = None
    query_found: NDArray[np.float64] | None = None
    coupling: Coupling | None = None
    tiles: bool = False
    numbered: tuple[BlockIndex, FibreNumbering] | None = None
    _strips: tuple[BlockIndex, tuple[int, ...], NDArray[np.int64]] | None = None
    _query_index: QueryIndex | None = None

    @property
    def entries(self) -> int:
        return len(self.columns[0]) if self.columns else len(self.values)

    @property
    def index(self) -> BlockIndex:
        return self._numbered()[0]

    @property
    def numbering(self) -> FibreNumbering:
        return self._numbered()[1]

    @property
    def query_index(self) -> QueryIndex | None:
        """The held-out places, numbered beside the entries; None where there are none."""
        if self._query_index is None and self.queries is not None and len(self.queries[0]):
            with NUMBERING:
                self._query_index = build_queries(self.index, self.queries, self.numbering)
        return self._query_index

    @property
    def values(self) -> Vector:
        return self.vectors.read(VALUES)

    def vector(self, name: str) -> Vector:
        return self.vectors.read(name)

    def changing(self, name: str) -> Vector:
        return self.vectors.change(name)

    def fresh(self, name: str) -> Vector:
        return self.vectors.fresh(name)

    def buffer(self, mode: int, width: int, name: str = "sums") -> NDArray[np.float64]:
        """Room for the fibre sums of one slice of a local mode; its content not kept."""
        return self.buffers.room(mode, name, self.index.buffer_rows[mode], width)

    def piece(self, first: int, stop: int) -> Block:
        """The slices from `first` to before `stop`.

        Entries, their number and vectors are those of the whole block; only `index.starts` tells
        which are meant.
        """
        index, numbering = self._numbered()
        part = replace(index, starts=index.starts[first : stop + 1])
        return replace(self, numbered=(part, numbering))

    def strips(self, borders: tuple[int, ...]) -> NDArray[np.int64] | None:
        """Where strips of the slab mode's fibres lie in every slice: see `crossing.strip_bounds`.

        None if they do not: entries that were added later are not sorted by fibre.
        """
        index, held = self.index, self._strips
        if held is None or held[0] is not index or held[1] != borders:
            fibres = index.fibres[index.slab_mode]
            bounds = strip_bounds(index.starts, fibres, np.array(borders))
            held = self._strips = index, borders, bounds
        return held[2] if len(held[2]) else None

    def _numbered(self) -> tuple[BlockIndex, FibreNumbering]:
        if self.numbered is None:
            raise StateLost("this block was loaded but not numbered; the fit has to be restarted")
        return self.numbered
