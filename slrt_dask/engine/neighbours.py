"""Parts that workers on one machine give each other through memory that both of them see.

Fibre sums are megabytes, every round. Through a socket they pass several buffers on their way, on
the very cores that the kernels want; through memory they are copied once by each side, or not at
all: what was made in a room that neighbours see is added, and used, where it lies.

Workers that cannot see each other's memory, on other machines, in other containers or of other
users, send everything through sockets.
"""

from __future__ import annotations

import math
import mmap
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.seen_memory import (
    ALIGNMENT,
    SeenMemory,
    Whereabouts,
    new_memory,
)

SMALLEST, LARGEST = 2**18, 2**24
"""Bytes from which on a part is worth the detour, and up to which: the memory counts for whoever
gives and for whoever takes, so there has to be a limit to it."""
REMEMBERED = 3
"""How much of a neighbour's memory is kept open: its outbox, and two rooms used in turns."""


class Parcel(NamedTuple):
    """Where a part is.

    pieces : of every buffer of the pickle the memory, its first byte there, and its size
    stays : whether it is in rooms, where it can be used until these are written to again
    """

    pickled: bytes
    pieces: tuple[tuple[Whereabouts, int, int], ...]
    stays: bool


def _references_unheld() -> int:
    """How many references to a room are counted of which nobody else has one.

    They are the list's, the loop's and the question's, which not every Python counts.
    """
    for room in [np.empty(0)]:
        return sys.getrefcount(room)
    raise AssertionError


UNHELD = _references_unheld()


class Outbox:
    """Memory in which a worker leaves parts for its neighbours, one at a time, and rooms."""

    def __init__(self) -> None:
        self._busy, self._changing = threading.Lock(), threading.Lock()
        self._memory: SeenMemory | None = None
        self._content = np.empty(0, np.uint8)
        self._rooms: list[SeenMemory] = []
        self._closed = False

    def room(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Room for numbers that neighbours look at where they are, if its size allows that.

        Whoever writes to it again has to know that nobody looks any more.
        """
        size = 8 * math.prod(shape)
        made = new_memory(size) if SMALLEST <= size <= LARGEST and not self._closed else None
        if made is None:
            return np.empty(shape)
        memory, content = made
        with self._changing:
            self._rooms = [*(room for room in self._rooms if room.is_held), memory]
        return content.view(np.float64).reshape(shape)

    @contextmanager
    def holding(self, part: Any) -> Iterator[Parcel | None]:
        """A parcel that tells where the part is while this lasts; None if it is small, or huge."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(part, protocol=5, buffer_callback=buffers.append)
        pieces = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        if not SMALLEST <= sum(piece.size for piece in pieces) <= LARGEST:
            yield None
            return
        lying = [self._lying(piece) for piece in pieces]
        found = tuple(place for place in lying if place is not None)
        if len(found) == len(pieces):
            yield Parcel(pickled, found, stays=True)
            return
        with self._busy:
            yield self._filled(pickled, pieces)

    def close(self) -> None:
        with self._busy:
            self._closed = True
            self._memory, self._content = None, np.empty(0, np.uint8)

    def _lying(self, piece: NDArray[np.uint8]) -> tuple[Whereabouts, int, int] | None:
        """Where a buffer is if it is in a room already."""
        for room in self._rooms:
            first = room.place_of(piece)
            if first is not None:
                return room.whereabouts, first, piece.size
        return None

    def _filled(self, pickled: bytes, pieces: Sequence[NDArray[np.uint8]]) -> Parcel | None:
        """A parcel of copies; None if there is no memory to be had, or none any more."""
        extent = sum(_rounded(piece.size) for piece in pieces)
        if self._closed or (self._content.size < extent and not self._grown(extent)):
            return None
        assert self._memory is not None
        first, found = 0, []
        for piece in pieces:
            room = self._content[first : first + piece.size]
            room[:] = piece
            found.append((self._memory.whereabouts, ALIGNMENT + first, piece.size))
            first += _rounded(piece.size)
        return Parcel(pickled, tuple(found), stays=False)

    def _grown(self, extent: int) -> bool:
        self._memory, self._content = None, np.empty(0, np.uint8)
        made = new_memory(extent)
        if made is not None:
            self._memory, self._content = made
        return made is not None


class Inbox:
    """The neighbours' memory, as far as parcels from there have come."""

    def __init__(self) -> None:
        self._seen: dict[Whereabouts, mmap.mmap] = {}
        self._rooms: list[NDArray[np.uint8]] = []

    def opened(self, parcel: Parcel) -> Any:
        """The part, to be kept; OutOfSight if it cannot be had.

        It is a copy, unless it stays where it is: then it must not be written to. Nobody else would
        see that, but the pages written to would not show any more what is written there later.
        """
        if parcel.stays:
            return self._part(parcel, np.asarray)
        sizes = {size for _, _, size in parcel.pieces}
        self._rooms = [room for room in self._rooms if room.size in sizes]
        return self._part(parcel, self._copy)

    def seen(self, parcel: Parcel) -> Any:
        """The part where it is, which is there only as long as its sender holds it."""
        return self._part(parcel, _unwritable)

    def _part(self, parcel: Parcel, taken: Callable[[NDArray[np.uint8]], Any]) -> Any:
        buffers = []
        for whereabouts, first, size in parcel.pieces:
            memory = self._memory(whereabouts)
            buffers.append(taken(np.frombuffer(memory, np.uint8, count=size, offset=first)))
        return pickle.loads(parcel.pickled, buffers=buffers)

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
        self._forget(list(self._seen))

    def _memory(self, whereabouts: Whereabouts) -> mmap.mmap:
        memory = self._seen.pop(whereabouts, None) or whereabouts.opened()
        self._seen[whereabouts] = memory  # as the last one
        theirs = [other for other in self._seen if other.process == whereabouts.process]
        self._forget(theirs[:-REMEMBERED])
        return memory

    def _forget(self, several: list[Whereabouts]) -> None:
        for whereabouts in several:
            with suppress(BufferError):  # somebody still looks at it: it will be closed after that
                self._seen.pop(whereabouts).close()


def _unwritable(piece: NDArray[np.uint8]) -> NDArray[np.uint8]:
    piece.flags.writeable = False
    return piece


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
