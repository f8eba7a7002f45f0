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
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.disk import FULL
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


class Room:
    """Arrays of a block's length that are handed out by dtype and taken back all at once."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._arrays: dict[Any, list[NDArray[Any]]] = {}
        self._used: dict[Any, int] = {}

    def array(self, dtype: Any, count: int) -> NDArray[Any]:
        kind = np.dtype(dtype)
        held = self._arrays.setdefault(kind, [])
        used = self._used.get(kind, 0)
        if used == len(held):
            held.append(np.empty(self._entries, dtype=kind))
        self._used[kind] = used + 1
        return held[used][:count]

    def take_back(self) -> None:
        self._used.clear()

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for arrays in self._arrays.values() for array in arrays)


class FileArrays:
    """A block's arrays during one sweep: read when asked for, written back at its end."""

    def __init__(self, block: FileBlock, room: Room) -> None:
        self._block, self._room = block, room
        self._held: dict[str, NDArray[Any]] = {}
        self.wanted: set[str] = set()
        """The names that had to be read."""
        self._changed: set[str] = set()
        self.waited = 0.0
        """Seconds in which a sweep had to wait for what was not read before it."""

    def prefetch(self, names: frozenset[str]) -> None:
        """Read what the sweep will most likely ask for; what is not there is left to the sweep."""
        for name in names & self._block.slots.keys():
            self._load(name)

    def read(self, name: str) -> NDArray[Any]:
        self.wanted.add(name)
        if name not in self._held:
            began = time.perf_counter()
            self._load(name)
            self.waited += time.perf_counter() - began
        return self._held[name]

    def change(self, name: str) -> NDArray[Any]:
        self._changed.add(name)
        return self.read(name)

    def fresh(self, name: str) -> NDArray[Any]:
        self._changed.add(name)
        if name not in self._held:
            kind = self._block.slots[VALUES][1]
            self._held[name] = self._room.array(kind, self._block.entries)
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
        self._held[name] = self._room.array(kind, self._block.entries)
        self._block.file.read(first, self._held[name])


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
        room: Room | None = None,
        names: frozenset[str] = frozenset(),
    ) -> Block:
        """The block for one sweep.

        names : arrays it will most likely read
        """
        room = room or Room(self.entries)
        room.take_back()
        arrays = FileArrays(self, room)
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
    blocks: Sequence[FileBlock], rooms: Sequence[Room], buffers: Buffers, background: Executor,
    waiting: Callable[[float], None],
) -> Iterator[Block]:  # fmt: skip
    """The blocks one after the other, the next being read and the last written meanwhile.

    waiting : is given the seconds that were spent waiting for files
    """
    names: frozenset[str] = frozenset()
    writing: list[Future[None] | None] = [None] * len(rooms)

    def waited_for(future: Future[Any] | None) -> Any:
        began = time.perf_counter()
        try:
            return None if future is None else future.result()
        finally:
            waiting(time.perf_counter() - began)

    def reading_of(number: int) -> Future[Block]:
        place = number % len(rooms)
        waited_for(writing[place])
        return background.submit(blocks[number].open, buffers, rooms[place], names)

    reading = reading_of(0)
    try:
        for number, at_rest in enumerate(blocks):
            block = waited_for(reading)
            if number + 1 < len(blocks):
                # The next block will want what this round's blocks have wanted so far.
                reading = reading_of(number + 1)
            yield block
            assert isinstance(block.arrays, FileArrays)
            names = frozenset(block.arrays.wanted)
            waiting(block.arrays.waited)
            writing[number % len(rooms)] = background.submit(at_rest.close, block)
    finally:
        # No thread may still be at work on the files when a round is over, or has failed.
        pending = [future for future in (reading, *writing) if future is not None]
        began = time.perf_counter()
        _drain(pending)
        waiting(time.perf_counter() - began)
    for future in pending:
        future.result()


def _drain(futures: Sequence[Future[Any]]) -> None:
    """Wait until all are done, come what may; an interrupt meanwhile is raised only then."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            wait(futures)
        except KeyboardInterrupt as error:
            interrupt = error
        else:
            break
    if interrupt is not None:
        raise interrupt
