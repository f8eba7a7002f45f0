"""Memory of one process that others on the machine can look at.

It is a file without a name, which others open through /proc. There is nothing that could be left
behind: when those who have it open are gone, however they went, so is the memory.
"""

from __future__ import annotations

import mmap
import os
import secrets
import weakref
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TOKEN_BYTES, ALIGNMENT = 16, 64


class OutOfSight(Exception):
    """Memory that was spoken of cannot be seen from here."""


class Whereabouts(NamedTuple):
    """How others find the memory: process, number of the open file, its length, how it begins."""

    process: int
    file: int
    length: int
    token: bytes

    def opened(self, *, shared: bool = False) -> mmap.mmap:
        """The memory as it is now and later on; what is written to it stays here, unless shared."""
        access, how = (mmap.ACCESS_WRITE, os.O_RDWR) if shared else (mmap.ACCESS_COPY, os.O_RDONLY)
        try:
            # Another process's file of that number may be a named pipe, at which one waits.
            path = f"/proc/{self.process}/fd/{self.file}"
            descriptor = os.open(path, how | os.O_NONBLOCK)
            try:
                if os.fstat(descriptor).st_size != self.length:
                    raise OutOfSight
                memory = mmap.mmap(descriptor, self.length, access=access)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise OutOfSight from error
        # Elsewhere the process of that number may be another one.
        if memory[:TOKEN_BYTES] != self.token:
            memory.close()
            raise OutOfSight
        return memory


class SeenMemory:
    """What others are told of memory of this process, as long as somebody here holds its content.

    Made by `new_memory`.
    """

    def __init__(self, file: int, content: NDArray[np.uint8], token: bytes) -> None:
        self.whereabouts = Whereabouts(os.getpid(), file, ALIGNMENT + content.size, token)
        self._first, self._size = int(content.ctypes.data), content.size
        self._closing = weakref.finalize(content, os.close, file)

    @property
    def is_held(self) -> bool:
        return self._closing.alive

    def place_of(self, piece: NDArray[np.uint8]) -> int | None:
        """Where in the file these very bytes are; None if they are elsewhere."""
        first = int(piece.ctypes.data) - self._first
        inside = self.is_held and first >= 0 and first + piece.size <= self._size
        return ALIGNMENT + first if inside else None


def new_memory(size: int) -> tuple[SeenMemory, NDArray[np.uint8]] | None:
    """So many bytes, aligned, that others can look at; None if there are none to be had."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        file = os.memfd_create("slrt-seen", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, ALIGNMENT + size)
            memory = mmap.mmap(file, ALIGNMENT + size)
        except BaseException:
            os.close(file)
            raise
    except OSError:  # a kernel or a container without them, or too many files are open
        return None
    token = secrets.token_bytes(TOKEN_BYTES)
    memory[:TOKEN_BYTES] = token
    content = np.frombuffer(memory, np.uint8, offset=ALIGNMENT)
    return SeenMemory(file, content, token), content
