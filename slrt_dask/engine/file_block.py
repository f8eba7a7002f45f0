"""A block between steps whose columns and vectors are in files: a step's view is made of them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import VALUES, Block, Buffers, MemoryVectors, Vector
from slrt_dask.engine.resting import Contents
from slrt_dask.engine.scratch import FileVectors, Room, read_file, write_file
from slrt_dask.engine.sections import SectionOrder, order_of, section_arrays
from slrt_dask.kernels.blocks import BlockIndex, FibreNumbering, IndexColumns


@dataclass(frozen=True)
class _Numbered:
    """A block's numbering without its long arrays, and in which file each of those is."""

    index: BlockIndex
    numbering: FibreNumbering
    fibre_files: tuple[str, ...]
    fibre_types: tuple[Any, ...]


EXTRA = "extra"
"""The file that says which entries are not the store's."""
INDEX_FILES = ("rows_", "fibres_", "section_")
"""How the names of files begin that are no vectors."""
SECTION_ROWS, SECTION_FIBRES = "section_rows", "section_fibres"
"""The slab mode's rows and fibres, section by section, fibres numbered from a section's first."""


class FileBlock:
    """A block whose columns and vectors are in files of one directory.

    sections : how many there are; from its numbering on, vectors lie section by section
    """

    def __init__(
        self,
        block: Block,
        directory: Path,
        extra: NDArray[np.bool_] | None = None,
        sections: int = 1,
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
        self._query_found: NDArray[np.float64] | None = None
        self._numbered: _Numbered | None = None
        self._sections = sections
        self._sectioned: SectionOrder | None = None
        directory.mkdir()
        for mode, column in enumerate(block.columns):
            write_file(directory / f"rows_{mode}", column)
        assert isinstance(block.vectors, MemoryVectors)
        for name in block.vectors.names:
            write_file(directory / name, block.vector(name))
        if extra is not None:
            write_file(directory / EXTRA, extra)

    def contents(self) -> Contents:
        vectors = {name: self.vector(name) for name in self._vector_names()}
        block = Block(
            self.columns(), MemoryVectors(vectors[VALUES]), self.partition, self.position,
            slices=self.slices, queries=self._queries, query_values=self._query_values,
            coupling=self.coupling, tiles=self._tiles,
        )  # fmt: skip
        return Contents(block, vectors, self.extra())

    def columns(self) -> IndexColumns:
        return tuple(self._whole(f"rows_{mode}", self._column_type) for mode in range(self._order))

    def extra(self) -> NDArray[np.bool_]:
        extra = np.zeros(self.entries, dtype=np.bool_)
        if (self._directory / EXTRA).exists():
            read_file(self._directory / EXTRA, extra)
        return extra

    def open(
        self,
        room: Room | None,
        buffers: Buffers,
        names: frozenset[str],
        section: int | None = None,
    ) -> Block:
        assert room is not None
        room.take_back()
        if section is not None:
            return self._opened_section(room, buffers, names, section)
        columns = tuple(
            self._read(room, f"rows_{mode}", self._column_type) for mode in range(self._order)
        )
        vectors = FileVectors(
            self._directory, self.entries, self._value_type, room, order=self._sectioned
        )
        vectors.prefetch(names)
        block = Block(
            columns, vectors, self.partition, self.position, buffers, self.slices, None,
            self._queries, self._query_values, self._query_found, self.coupling, self._tiles,
        )  # fmt: skip
        if self._numbered is not None:
            block.numbered = self._opened_numbering(room, columns)
        return block

    def _opened_section(
        self, room: Room, buffers: Buffers, names: frozenset[str], section: int
    ) -> Block:
        order, held = self._sectioned, self._numbered
        assert order is not None
        assert held is not None
        first, stop = order.range_of(section)
        kinds = {
            SECTION_ROWS: self._column_type,
            SECTION_FIBRES: held.fibre_types[held.index.slab_mode],
        }
        arrays = [room.array(kind, stop - first) for kind in kinds.values()]
        for name, array in zip(kinds, arrays, strict=True):
            read_file(self._directory / name, array, first)
        vectors = FileVectors(self._directory, stop - first, self._value_type, room, first=first)
        vectors.prefetch(names)
        index = order.index(section, held.index, *arrays)
        return Block(
            (), vectors, self.partition, self.position, buffers, self.slices, None,
            self._queries, self._query_values, self._query_found,
            numbered=(index, held.numbering),
        )  # fmt: skip

    def close(self, block: Block) -> None:
        assert isinstance(block.vectors, FileVectors)
        block.vectors.write_back()
        if self._numbered is None and block.numbered is not None:
            self._numbered = self._resting_numbering(*block.numbered)
            self._put_in_sections(block.numbered)
        self.found, self._query_found = block.found, block.query_found

    def _put_in_sections(self, numbered: tuple[BlockIndex, FibreNumbering]) -> None:
        order = order_of(numbered, self._sections)
        if order is None:
            return
        vectors = {name: self.vector(name) for name in self._vector_names()}
        for section in range(self._sections):
            first, stop = order.range_of(section)
            arrays = section_arrays(order, section, numbered[0], order.places[first:stop])
            for name, array in zip((SECTION_ROWS, SECTION_FIBRES), arrays, strict=True):
                write_file(self._directory / name, array, first)
        # From here on files are read so; places are of no use any more, and as long as the block.
        self._sectioned = SectionOrder(order.borders, order.bounds, order.offsets)
        for name, values in vectors.items():
            self.put(name, values)

    def vector(self, name: str) -> Vector:
        values = self._whole(name, self._value_type)
        if self._sectioned is None:
            return values
        return self._sectioned.by_slice(values, np.empty_like(values))

    def put(self, name: str, values: NDArray[Any]) -> None:
        values = values.astype(self._value_type, copy=False)
        if self._sectioned is not None:
            values = self._sectioned.by_section(values, np.empty_like(values))
        write_file(self._directory / name, values)

    def _vector_names(self) -> list[str]:
        names = (file.name for file in self._directory.iterdir())
        return [name for name in names if name != EXTRA and not name.startswith(INDEX_FILES)]

    def drop(self, names: tuple[str, ...]) -> None:
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove its files; the block is of no use after it."""
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def nbytes(self) -> int:
        starts = 0 if self._numbered is None else self._numbered.index.starts.nbytes
        starts += 0 if self._sectioned is None else self._sectioned.bounds.nbytes
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
