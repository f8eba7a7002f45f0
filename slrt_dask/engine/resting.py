"""A block between steps: in memory as it is, or in files from which a step's view is made."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import VALUES, Block, Buffers, Coupling, MemoryVectors, Vector
from slrt_dask.engine.scratch import FileVectors, Room, read_file, write_file
from slrt_dask.kernels.blocks import BlockIndex, FibreNumbering, IndexColumns


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

    def open(self, room: Room | None, buffers: Buffers, names: frozenset[str]) -> Block:
        """The block for one step; `names` are vectors it will most likely read."""

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
    """A block that stays in memory: opening and closing it does nothing."""

    def __init__(self, block: Block, extra: NDArray[np.bool_] | None = None) -> None:
        self.block = block
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
        extra = np.zeros(self.entries, dtype=np.bool_) if self._extra is None else self._extra
        names = self._vectors.names
        return Contents(self.block, {name: self.block.vector(name) for name in names}, extra)

    def open(self, room: Room | None, buffers: Buffers, names: frozenset[str]) -> Block:
        self.block.buffers = buffers
        return self.block

    def close(self, block: Block) -> None:
        pass

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
        held = {id(array): int(array.nbytes) for array in arrays}
        coupling = self.coupling.nbytes if self.coupling else 0
        return sum(held.values()) + self._vectors.nbytes + coupling


@dataclass(frozen=True)
class _Numbered:
    """A block's numbering without its long arrays, and in which file each of those is."""

    index: BlockIndex
    numbering: FibreNumbering
    fibre_files: tuple[str, ...]
    fibre_types: tuple[Any, ...]


EXTRA = "extra"
"""The file that says which entries are not the store's."""


class FileBlock:
    """A block whose columns and vectors are in files of one directory."""

    def __init__(
        self, block: Block, directory: Path, extra: NDArray[np.bool_] | None = None
    ) -> None:
        self.partition, self.position, self.entries = block.partition, block.position, block.entries
        self.slices = block.slices
        self.coupling, self._tiles = block.coupling, block.tiles
        self.found: IndexColumns | None = None
        self._directory = directory
        self._column_type = block.columns[0].dtype if block.columns else None
        self._order = len(block.columns)
        self._value_type = block.values.dtype
        self._queries, self._query_values = block.queries, block.query_values
        self._numbered: _Numbered | None = None
        directory.mkdir()
        for mode, column in enumerate(block.columns):
            write_file(directory / f"rows_{mode}", column)
        assert isinstance(block.vectors, MemoryVectors)
        for name in block.vectors.names:
            write_file(directory / name, block.vector(name))
        if extra is not None:
            write_file(directory / EXTRA, extra)

    def contents(self) -> Contents:
        columns = tuple(
            self._whole(f"rows_{mode}", self._column_type) for mode in range(self._order)
        )
        vectors = {
            file.name: self._whole(file.name, self._value_type)
            for file in self._directory.iterdir()
            if file.name != EXTRA and not file.name.startswith(("rows_", "fibres_"))
        }
        extra = np.zeros(self.entries, dtype=np.bool_)
        if (self._directory / EXTRA).exists():
            read_file(self._directory / EXTRA, extra)
        block = Block(
            columns, MemoryVectors(vectors[VALUES]), self.partition, self.position,
            slices=self.slices, queries=self._queries, query_values=self._query_values,
            coupling=self.coupling, tiles=self._tiles,
        )  # fmt: skip
        return Contents(block, vectors, extra)

    def open(self, room: Room | None, buffers: Buffers, names: frozenset[str]) -> Block:
        assert room is not None
        room.take_back()
        columns = tuple(
            self._read(room, f"rows_{mode}", self._column_type) for mode in range(self._order)
        )
        vectors = FileVectors(self._directory, self.entries, self._value_type, room)
        vectors.prefetch(names)
        block = Block(
            columns, vectors, self.partition, self.position, buffers, self.slices, None,
            self._queries, self._query_values, self.coupling, self._tiles,
        )  # fmt: skip
        if self._numbered is not None:
            block.numbered = self._opened_numbering(room, columns)
        return block

    def close(self, block: Block) -> None:
        assert isinstance(block.vectors, FileVectors)
        block.vectors.write_back()
        if self._numbered is None and block.numbered is not None:
            self._numbered = self._resting_numbering(*block.numbered)
        self.found = block.found

    def vector(self, name: str) -> Vector:
        return self._whole(name, self._value_type)

    def put(self, name: str, values: NDArray[Any]) -> None:
        write_file(self._directory / name, values.astype(self._value_type, copy=False))

    def drop(self, names: tuple[str, ...]) -> None:
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove its files; the block is of no use after it."""
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def nbytes(self) -> int:
        starts = 0 if self._numbered is None else self._numbered.index.starts.nbytes
        return starts + (self.coupling.nbytes if self.coupling else 0)

    def _whole(self, name: str, dtype: Any) -> NDArray[Any]:
        array = np.empty(self.entries, dtype=dtype)
        read_file(self._directory / name, array)
        return array

    def _read(self, room: Room, name: str, dtype: Any) -> NDArray[Any]:
        array = room.array(dtype, self.entries)
        read_file(self._directory / name, array)
        return array

    def _opened_numbering(
        self, room: Room, columns: IndexColumns
    ) -> tuple[BlockIndex, FibreNumbering]:
        held = self._numbered
        assert held is not None
        fibres = tuple(
            columns[int(name.removeprefix("rows_"))]
            if name.startswith("rows_")
            else self._read(room, name, dtype)
            for name, dtype in zip(held.fibre_files, held.fibre_types, strict=True)
        )
        return replace(held.index, rows=columns, fibres=fibres), held.numbering

    def _resting_numbering(self, index: BlockIndex, numbering: FibreNumbering) -> _Numbered:
        rows = {id(column): f"rows_{mode}" for mode, column in enumerate(index.rows)}
        files = []
        for mode, fibres in enumerate(index.fibres):
            # Fibre numbers that are an index column are not written twice.
            name = rows.get(id(fibres), f"fibres_{mode}")
            if name.startswith("fibres_"):
                write_file(self._directory / name, fibres)
            files.append(name)
        types = tuple(fibres.dtype for fibres in index.fibres)
        resting = replace(index, rows=(), fibres=())
        return _Numbered(resting, numbering, tuple(files), types)
