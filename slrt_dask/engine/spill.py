"""Blocks in a local file, for problems that do not fit in memory.

All arrays of a share's blocks lie in one file without a name, as raw bytes in slots that are used
again: there is nothing that a process could leave behind, however it ends. They are read into room
that is used again for every block: no decompression, no allocation, and no mapped pages that would
count as this process's memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.location import FULL
from slrt_dask.engine.block import VALUES, Block, Buffers, MemoryArrays
from slrt_dask.errors import ScratchFull, StateLost

ROOMS = 3
"""Blocks that a streaming thread has in memory: read, computed, written."""


class ScratchFile:
    """A file without a name, in slots; threads may read and write different ones at once."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory or tempfile.gettempdir()
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - kept open
        self._end = 0
        self._free: dict[int, list[int]] = defaultdict(list)
        self._changing = threading.Lock()

    def slot(self, nbytes: int) -> int:
        """Where so many bytes can be written."""
        with self._changing:
            if self._free[nbytes]:
                return self._free[nbytes].pop()
            first, self._end = self._end, self._end + nbytes
            return first

    def give_back(self, first: int, nbytes: int) -> None:
        with self._changing:
            self._free[nbytes].append(first)

    def write(self, first: int, values: NDArray[Any]) -> None:
        """Write an array at a place; a full disk is an error that says so."""
        left = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        try:
            while left:
                written = os.pwrite(self._file.fileno(), left, first)
                left, first = left[written:], first + written
        except OSError as error:
            if error.errno not in FULL:
                raise
            free = shutil.disk_usage(self._directory).free
            raise ScratchFull(
                f"the disk of the scratch directory {self._directory} is full ({free} bytes are "
                f"left, {values.nbytes} more were needed); free some, or choose another directory "
                f"with dask's temporary-directory setting"
            ) from error

    def read(self, first: int, room: NDArray[Any]) -> None:
        """Fill an array from a place."""
        left = room.view(np.uint8).data
        while left:
            count = os.preadv(self._file.fileno(), [left], first)
            if not count:
                raise StateLost("a scratch file is shorter than it was written")
            left, first = left[count:], first + count

    def close(self) -> None:
        self._file.close()


class FileArrays:
    """A block's arrays during one sweep: read when asked for, written back at its end."""

    def __init__(self, block: FileBlock, room: Buffers) -> None:
        self._block, self._room = block, room
        self._held: dict[str, NDArray[Any]] = {}
        self.wanted: set[str] = set()
        """The names that had to be read."""
        self._changed: set[str] = set()

    def prefetch(self, names: frozenset[str]) -> None:
        """Read what the sweep will most likely ask for; what is not there is left to the sweep."""
        for name in names & self._block.slots.keys():
            self._load(name)

    def read(self, name: str) -> NDArray[Any]:
        self.wanted.add(name)
        if name not in self._held:
            self._load(name)
        return self._held[name]

    def change(self, name: str) -> NDArray[Any]:
        self._changed.add(name)
        return self.read(name)

    def fresh(self, name: str) -> NDArray[Any]:
        self._changed.add(name)
        if name not in self._held:
            self._make_room(name, self._block.slots[VALUES][1])
        return self._held[name]

    def put(self, name: str, values: NDArray[Any]) -> None:
        self._held[name] = values
        self._changed.add(name)

    def write_back(self) -> None:
        for name in self._changed:
            self._block.write(name, self._held[name])

    def _load(self, name: str) -> None:
        if name not in self._block.slots:
            raise StateLost(f"the vector {name!r} is not held here any more")
        first, kind = self._block.slots[name]
        self._make_room(name, kind)
        self._block.file.read(first, self._held[name])

    def _make_room(self, name: str, kind: np.dtype[Any]) -> None:
        number = sum(array.dtype == kind for array in self._held.values())
        self._held[name] = self._room.array((kind, number), (self._block.entries,), kind)


class FileBlock:
    """A block whose arrays are in a file; all else of it stays in memory.

    slots : by name, where an array is and its dtype
    """

    def __init__(self, block: Block, file: ScratchFile) -> None:
        assert isinstance(block.arrays, MemoryArrays)
        self.file, self.entries, self.slices = file, block.entries, block.slices
        self.slots: dict[str, tuple[int, np.dtype[Any]]] = {}
        for name, array in block.arrays.held.items():
            self.write(name, array)
        self._rest(block)

    def _rest(self, block: Block) -> None:
        nothing = MemoryArrays({})
        self.block = replace(
            block, arrays=nothing, buffers=Buffers(), _index=None, _query_index=None
        )

    def write(self, name: str, array: NDArray[Any]) -> None:
        if name not in self.slots:
            self.slots[name] = self.file.slot(array.nbytes), array.dtype
        self.file.write(self.slots[name][0], array)

    def open(
        self,
        buffers: Buffers | None = None,
        room: Buffers | None = None,
        names: frozenset[str] = frozenset(),
    ) -> Block:
        """The block for one sweep.

        room : for its arrays, to which nobody else may hold on
        names : arrays it will most likely read
        """
        arrays = FileArrays(self, room or Buffers())
        arrays.prefetch(names)
        return replace(self.block, arrays=arrays, buffers=buffers or Buffers())

    def close(self, block: Block) -> None:
        """Keep what the sweep has changed."""
        assert isinstance(block.arrays, FileArrays)
        block.arrays.write_back()
        self._rest(block)

    def loaded(self) -> Block:
        """The block with all its arrays in memory, to be made anew; its slots are free then."""
        block = self.open()
        held = {name: block.arrays.read(name) for name in self.slots}
        self.drop(tuple(self.slots))
        return replace(self.block, arrays=MemoryArrays(held))

    def drop(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self.slots:
                first, kind = self.slots.pop(name)
                self.file.give_back(first, self.entries * kind.itemsize)

    @property
    def nbytes(self) -> int:
        return self.block.nbytes


def read_ahead(
    blocks: Sequence[FileBlock], rooms: Sequence[Buffers], buffers: Buffers, background: Executor
) -> Generator[Block, None, None]:
    """The blocks one after the other, the next being read and the last written meanwhile."""
    names: frozenset[str] = frozenset()
    writing: list[Future[Any]] = []

    def reading_of(number: int) -> Future[Block]:
        # The room that it is read into may still be being written from.
        if number >= len(rooms):
            writing[number - len(rooms)].result()
        room = rooms[number % len(rooms)]
        return background.submit(blocks[number].open, buffers, room, names)

    reading = reading_of(0)
    try:
        for number, at_rest in enumerate(blocks):
            block = reading.result()
            if number + 1 < len(blocks):
                # The next block will want what this round's blocks have wanted so far.
                reading = reading_of(number + 1)
            yield block
            assert isinstance(block.arrays, FileArrays)
            names = frozenset(block.arrays.wanted)
            writing.append(background.submit(at_rest.close, block))
    finally:
        # No thread may still be at work on the files when a round is over, or has failed.
        wait([reading, *writing[-len(rooms) :]])
    for future in writing:
        future.result()
