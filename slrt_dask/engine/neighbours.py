"""Parts that workers on one machine give each other through memory that both of them see.

Fibre sums are megabytes, every round. Through a socket they pass several buffers on their way, on
the very cores that the kernels want; through memory they are copied once by each side, or even
added where they lie. The memory is an anonymous file of the sender, which the receiver opens
through /proc. It has no name that could be left behind: when those who have it open are gone,
however they went, so is the file.

Workers that cannot see each other's files, on other machines, in other containers or of other
users, send everything through sockets.
"""

from __future__ import annotations

import mmap
import os
import pickle
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST, LARGEST = 2**18, 2**24
"""Bytes from which on a part is worth the detour, and up to which: the memory counts for whoever
gives and for whoever takes, so there has to be a limit to it."""
TOKEN_BYTES, ALIGNMENT = 16, 64

Parcel = tuple[int, int, int, bytes, bytes, tuple[int, ...]]
"""Process and number of the open file, its length and token; a pickle, and its buffers' sizes."""


def _references_unheld() -> int:
    """How many references to a room are counted of which nobody else has one.

    They are the list's, the loop's and the question's, which not every Python counts.
    """
    for room in [np.empty(0)]:
        return sys.getrefcount(room)
    raise AssertionError


UNHELD = _references_unheld()


class OutOfSight(Exception):
    """The memory that a parcel speaks of cannot be seen from here."""


class Outbox:
    """Memory in which a worker leaves parts for its neighbours, one at a time."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._file, self._token = -1, b""
        self._memory: mmap.mmap | None = None
        self._closed = False

    @contextmanager
    def holding(self, part: Any) -> Iterator[Parcel | None]:
        """A parcel that tells where the part is while this lasts; None if it is small, or huge."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(part, protocol=5, buffer_callback=buffers.append)
        pieces = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        size = sum(piece.size for piece in pieces)
        if not hasattr(os, "memfd_create") or not SMALLEST <= size <= LARGEST:
            yield None
            return
        with self._busy:
            memory = self._with_room(_extent([piece.size for piece in pieces]))
            if memory is None:
                yield None
                return
            room = np.frombuffer(memory, np.uint8)
            for first, piece in zip(_places([p.size for p in pieces]), pieces, strict=True):
                room[first : first + piece.size] = piece
            del room  # or the memory could not be closed
            sizes = tuple(piece.size for piece in pieces)
            yield os.getpid(), self._file, len(memory), self._token, pickled, sizes

    def close(self) -> None:
        with self._busy:
            self._closed = True
            self._let_go()

    def _with_room(self, size: int) -> mmap.mmap | None:
        """Memory of at least this size; None if there is none to be had, or none any more."""
        if self._closed:
            return None
        if self._memory is None or len(self._memory) < size:
            self._let_go()
            try:
                self._file = os.memfd_create("slrt-outbox", os.MFD_CLOEXEC)
                os.ftruncate(self._file, size)
                self._memory = mmap.mmap(self._file, size)
            except OSError:  # a kernel or a container without them, or too many files are open
                self._let_go()
                return None
            self._token = secrets.token_bytes(TOKEN_BYTES)
            self._memory[:TOKEN_BYTES] = self._token
        return self._memory

    def _let_go(self) -> None:
        if self._memory is not None:
            self._memory.close()
        if self._file >= 0:
            os.close(self._file)
        self._memory, self._file = None, -1


class Inbox:
    """The neighbours' memory, as far as parcels from there have come."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[bytes, mmap.mmap]] = {}
        self._rooms: list[NDArray[np.uint8]] = []

    def opened(self, parcel: Parcel) -> Any:
        """A copy of the part; OutOfSight if it cannot be had."""
        sizes = parcel[5]
        self._rooms = [room for room in self._rooms if room.size in sizes]
        return self._part(parcel, self._copy)

    def seen(self, parcel: Parcel) -> Any:
        """The part where it is, which is there only as long as its sender holds it."""
        return self._part(parcel, np.asarray)

    def _part(self, parcel: Parcel, taken: Callable[[NDArray[np.uint8]], Any]) -> Any:
        pickled, sizes = parcel[4:]
        whole = np.frombuffer(self._memory(parcel), np.uint8)
        pieces = zip(_places(sizes), sizes, strict=True)
        buffers = [taken(whole[first : first + size]) for first, size in pieces]
        return pickle.loads(pickled, buffers=buffers)

    def _copy(self, piece: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A copy in the room of an earlier one that nobody holds any more, if there is such a room.

        Parts of one size come every round, and new memory for them costs more than the copying.
        """
        if piece.size < SMALLEST:
            return piece.copy()
        for room in self._rooms:
            if room.size == piece.size and sys.getrefcount(room) == UNHELD:
                room[:] = piece
                return room
        self._rooms.append(piece.copy())
        return self._rooms[-1]

    def close(self) -> None:
        self._rooms.clear()
        while self._seen:
            _close(self._seen.popitem()[1][1])

    def _memory(self, parcel: Parcel) -> mmap.mmap:
        process, file, length, token, _, _ = parcel
        known, memory = self._seen.get(process, (b"", None))
        if memory is not None and known == token:
            return memory
        if memory is not None:
            del self._seen[process]
            _close(memory)
        try:
            # Another process's file of that number may be a named pipe, at which one waits.
            descriptor = os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY | os.O_NONBLOCK)
            try:
                if os.fstat(descriptor).st_size != length:
                    raise OutOfSight
                memory = mmap.mmap(descriptor, length, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise OutOfSight from error
        # Elsewhere the process of that number may be another one.
        if memory[:TOKEN_BYTES] != token:
            memory.close()
            raise OutOfSight
        self._seen[process] = token, memory
        return memory


def _close(memory: mmap.mmap) -> None:
    with suppress(BufferError):  # somebody still looks at it: it will be closed after that
        memory.close()


def _places(sizes: Sequence[int]) -> Iterator[int]:
    """Where each buffer begins, after the token."""
    first = ALIGNMENT
    for size in sizes:
        yield first
        first += -(-size // ALIGNMENT) * ALIGNMENT


def _extent(sizes: Sequence[int]) -> int:
    """Bytes of the token and of buffers of these sizes."""
    return ALIGNMENT + sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
