"""Fibre sums of fitted models, read from their files piece by piece, as they are needed.

A model has as many sums as its slab mode has fibres, which may be more than a worker can hold, and
whoever asks for some entries needs only those of their fibres. Pieces that were read are kept, as
far as there is room. This changes when the files of models do, or with what may be kept.
"""

from __future__ import annotations

import threading
import zlib
from functools import partial
from typing import Any

import distributed
import numpy as np
from distributed.system import MEMORY_LIMIT
from numpy.typing import NDArray

from slrt_dask.data.read_cache import ReadCache
from slrt_dask.dual.operator import Matrix
from slrt_dask.dual.writing import SUMS_ARRAY, read_rows, rows_at_once
from slrt_dask.engine.plan import RUNTIME_BYTES
from slrt_dask.errors import StoreCorrupt
from slrt_dask.kernels.simd import padded_width

KEPT_BYTES = 2**27
"""Of all models' sums, at least."""
KEPT_PART = 4
"""One in so many of the bytes that a process may have, beside twice its runtime, if that is more:
there are partitions, and chunks that are made, as well."""

PIECES: ReadCache[tuple[str, str, int, int], Matrix] = ReadCache(KEPT_BYTES, lambda one: one.nbytes)
"""By path, digest of the model, number and checksum: what is found here is what was meant."""


class FibreSums:
    """The sums (fibres, rank) of one model, in a process.

    path, digest : of the model;  checksum : of all its sums
    shape : that they have to have; what the files say of themselves is not checked otherwise
    """

    def __init__(self, path: str, digest: str, checksum: int, shape: tuple[int, int]) -> None:
        self._path, self._digest, self._checksum = path, digest, checksum
        self._count, self._rank = shape
        found, self._step = rows_at_once(f"{path}/model", SUMS_ARRAY)
        if found != shape:
            raise self._altered()
        self._checking, self._checksums = threading.Lock(), tuple[int, ...]()

    def at(self, numbers: NDArray[np.integer[Any]]) -> Matrix:
        """Sums of the fibres of these numbers, (m, padded width); zeros for one beyond the last."""
        width, pieces = padded_width(self._rank), self._pieces_of(numbers)
        if pieces.size and pieces[0] == pieces[-1] and numbers.max() < self._count:
            rows = np.take(self._piece(pieces[0]), numbers - pieces[0] * self._step, axis=0)
            return rows if self._rank == width else np.pad(rows, ((0, 0), (0, width - self._rank)))
        found = np.zeros((len(numbers), width))
        for piece in sorted(pieces.tolist(), key=lambda number: not self._is_kept(number)):
            first = piece * self._step
            stop = min(first + self._step, self._count)
            chosen = np.flatnonzero((numbers >= first) & (numbers < stop))
            found[chosen, : self._rank] = self._piece(piece)[numbers[chosen] - first]
        return found

    def _pieces_of(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """In which pieces some fibres are, each once, in order."""
        wanted: NDArray[np.integer[Any]] = np.unique(numbers[numbers < self._count] // self._step)
        return wanted

    def _key(self, piece: int) -> tuple[str, str, int, int]:
        return self._path, self._digest, piece, self._checked()[piece]

    def _is_kept(self, piece: int) -> bool:
        return self._key(piece) in PIECES

    def _piece(self, piece: int) -> Matrix:
        key = self._key(piece)

        def read() -> Matrix:
            content = self._read(piece)
            if zlib.crc32(content.data) != key[-1]:
                raise self._altered()
            return content

        return PIECES.get(key, read, at_least=_room())

    def _checked(self) -> tuple[int, ...]:
        """Checksums of all pieces, once their whole content is known to be what was written."""
        with self._checking:
            if not self._checksums:
                whole, checksums, room = 0, [], _room()
                for piece in range(-(-self._count // self._step)):
                    content = self._read(piece)
                    whole = zlib.crc32(content.data, whole)
                    checksums.append(zlib.crc32(content.data))
                    # So that nothing is read twice where all of it can be kept.
                    key = self._path, self._digest, piece, checksums[-1]
                    PIECES.get(key, partial(np.asarray, content), at_least=room)
                if whole != self._checksum:
                    forget(self._path, self._digest)
                    raise self._altered()
                self._checksums = tuple(checksums)
            return self._checksums

    def _read(self, piece: int) -> Matrix:
        first = piece * self._step
        stop = min(first + self._step, self._count)
        return read_rows(f"{self._path}/model", SUMS_ARRAY, first, stop)

    def _altered(self) -> StoreCorrupt:
        return StoreCorrupt(f"{self._path}/model/{SUMS_ARRAY} was altered after it was written.")


def forget(path: str, digest: str) -> None:
    """Drop what this process keeps of a model."""
    PIECES.forget(lambda key: key[:2] == (path, digest))


def _room() -> int:
    """Bytes that may be kept for the sake of what is asked now."""
    try:
        limit = distributed.get_worker().memory_manager.memory_limit
    except ValueError:  # not on a worker
        limit = MEMORY_LIMIT
    return max(0, int(limit or 0) - 2 * RUNTIME_BYTES) // KEPT_PART
