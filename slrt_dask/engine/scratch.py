"""Blocks at rest in local files, for problems that do not fit in memory.

    <directory>/lock                      held while the process that made it lives
    <directory>/b00003/rows_0, fibres_2, values, v17, …       raw columns and vectors of a block

Columns and vectors are plain bytes, read into room that is used again for every block: no
decompression, no allocation, and no mapped pages that would count as this process's memory. A
directory whose lock nobody holds belongs to a process that died, and is removed by the next one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.disk import FULL, write_all
from slrt_dask.engine.block import Vector
from slrt_dask.engine.sections import SectionOrder
from slrt_dask.errors import ScratchFull, StateLost

PREFIX = "slrt-scratch-"


class ScratchDirectory:
    """A directory of this process's own, gone when it is closed or when the process has died."""

    def __init__(self, parent: str | None) -> None:
        base = Path(parent or tempfile.gettempdir())
        base.mkdir(parents=True, exist_ok=True)
        remove_abandoned(base)
        # Locked before it has the name by which abandoned ones are known.
        making = Path(tempfile.mkdtemp(prefix=f"making-{PREFIX}", dir=base))
        self._lock = open(making / "lock", "w")  # noqa: SIM115 - held open as long as it is used
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = base / making.name.removeprefix("making-")
        os.rename(making, self.path)

    def close(self) -> None:
        _remove_lock_last(self.path)
        self._lock.close()


def remove_abandoned(base: Path) -> list[Path]:
    """Remove scratch directories whose processes have died; returns what was removed."""
    removed = []
    for directory in base.glob(f"{PREFIX}*"):
        try:
            with open(directory / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_lock_last(directory)
                removed.append(directory)
        except OSError:
            continue  # in use, just being made, or somebody else's
    return removed


def _remove_lock_last(directory: Path) -> None:
    """What cannot be removed now still has its lock, so that it can be recognised later."""
    for entry in directory.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


class Room:
    """Arrays that are handed out by dtype and taken back all at once."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._arrays: dict[Any, list[NDArray[Any]]] = {}
        self._used: dict[Any, int] = {}
        self._spare: NDArray[Any] | None = None

    def array(self, dtype: Any, count: int) -> NDArray[Any]:
        kind = np.dtype(dtype)
        held = self._arrays.setdefault(kind, [])
        used = self._used.get(kind, 0)
        if used == len(held):
            held.append(np.empty(self._entries, dtype=kind))
        self._used[kind] = used + 1
        return held[used][:count]

    def spare(self, dtype: Any, count: int) -> NDArray[Any]:
        """An array for what is only on its way from or to a file; the next call's is the same."""
        if self._spare is None:
            self._spare = np.empty(self._entries, dtype=dtype)
        return self._spare[:count]

    def take_back(self) -> None:
        self._used.clear()

    @property
    def nbytes(self) -> int:
        spare = 0 if self._spare is None else self._spare.nbytes
        return spare + sum(array.nbytes for arrays in self._arrays.values() for array in arrays)


def write_file(path: Path, values: NDArray[Any], first: int = 0) -> None:
    """Write (over) a file, or a part of it; a full disk is an error that says so.

    first : the number of values in the file before these
    """
    try:
        # Written over in place: the file keeps its blocks on disk, which is much faster.
        with open(path, "r+b" if path.exists() else "wb", buffering=0) as file:
            if first:
                file.seek(first * values.itemsize)
            write_all(file, values)
    except OSError as error:
        if error.errno in FULL:
            free = shutil.disk_usage(path.parent).free
            raise ScratchFull(
                f"the disk of the scratch directory {path.parent.parent} is full ({free} bytes "
                f"are left, {values.nbytes} more were needed); free some, or choose another "
                f"directory with dask's temporary-directory setting"
            ) from error
        raise


def read_file(path: Path, room: NDArray[Any], first: int = 0) -> None:
    """Fill an array from a file; first : the number of values in it before those wanted."""
    try:
        with open(path, "rb", buffering=0) as file:
            if first:
                file.seek(first * room.itemsize)
            view, done = room.data.cast("B"), 0
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise StateLost(f"{path} is shorter than it was written")
                done += count
    except FileNotFoundError:
        raise StateLost(f"the vector {path.name!r} is not held here any more") from None


class FileVectors:
    """The vectors of one block during one step: read when asked for, written back at its end.

    first : the number of values before these in each file, if they are one section of a block
    order : how files hold a whole block, if that is section by section
    """

    def __init__(
        self,
        directory: Path,
        entries: int,
        dtype: Any,
        room: Room,
        *,
        first: int = 0,
        order: SectionOrder | None = None,
    ) -> None:
        self._directory = directory
        self._entries = entries
        self._dtype = dtype
        self._room = room
        self._first, self._order = first, order
        self._held: dict[str, Vector] = {}
        self._wanted: set[str] = set()
        self._changed: set[str] = set()
        self.waited = 0.0
        """Seconds in which a step had to wait for what was not read before it."""

    def prefetch(self, names: frozenset[str]) -> None:
        """Read what the step will most likely ask for; what is not there is left to the step."""
        for name in names:
            if (self._directory / name).exists():
                self._load(name)

    def read(self, name: str) -> Vector:
        self._wanted.add(name)
        if name in self._held:
            return self._held[name]
        began = time.perf_counter()
        vector = self._load(name)
        self.waited += time.perf_counter() - began
        return vector

    def change(self, name: str) -> Vector:
        self._changed.add(name)
        return self.read(name)

    def fresh(self, name: str) -> Vector:
        self._changed.add(name)
        if name not in self._held:
            self._held[name] = self._room.array(self._dtype, self._entries)
        return self._held[name]

    def write_back(self) -> None:
        for name in self._changed:
            values = self._held[name]
            if self._order is not None:
                values = self._order.by_section(values, self._spare())
            write_file(self._directory / name, values, self._first)

    @property
    def wanted(self) -> frozenset[str]:
        """The names that had to be read."""
        return frozenset(self._wanted)

    def _load(self, name: str) -> Vector:
        vector = self._room.array(self._dtype, self._entries)
        if self._order is None:
            read_file(self._directory / name, vector, self._first)
        else:
            read_file(self._directory / name, spare := self._spare())
            self._order.by_slice(spare, vector)
        self._held[name] = vector
        return vector

    def _spare(self) -> Vector:
        return self._room.spare(self._dtype, self._entries)
