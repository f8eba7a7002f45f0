"""Fibre sums of fitted models, read from their files piece by piece, as they are needed.

A model has as many sums as its slab mode has fibres, which may be more than a worker can hold, and
whoever asks for some entries needs only those of their fibres. Pieces that were read are kept, as
far as there is room. This changes when the files of models do, or with what may be kept.
"""

from __future__ import annotations

import threading
import zlib
from functools import partial

import distributed
import numpy as np
from distributed.system import MEMORY_LIMIT
from numpy.typing import NDArray

from slrt_dask.dual.operator import Matrix
from slrt_dask.dual.writing import SUMS_ARRAY, read_rows, rows_at_once
from slrt_dask.errors import StoreCorrupt
from slrt_dask.kernels.rows import padded_width
from slrt_dask.read_cache import ReadCache

KEPT_BYTES = 2**27
"""Of all models' sums."""
KEPT_PART = 8
"""One in so many of the bytes that a process may have are kept, if that is more."""

PIECES: ReadCache[tuple[str, str, int], Matrix] = ReadCache(KEPT_BYTES, lambda piece: piece.nbytes)
"""By path, digest of the model, and number."""


class FibreSums:
    """The sums (fibres, r_p) of one model, in a process.

    path, digest : of the model;  checksum : of all its sums
    """

    def __init__(self, path: str, digest: str, checksum: int) -> None:
        self._path, self._digest, self._checksum = path, digest, checksum
        (self._count, self._rank), self._step = rows_at_once(f"{path}/model", SUMS_ARRAY)
        self._checking, self._checksums = threading.Lock(), tuple[int, ...]()

    def at(self, numbers: NDArray[np.integer]) -> Matrix:
        """Sums of the fibres of these numbers, (m, padded width); zeros for one beyond the last."""
        found = np.zeros((len(numbers), padded_width(self._rank)))
        piece_of = np.where(numbers < self._count, numbers // self._step, -1)
        for piece in np.unique(piece_of[piece_of >= 0]).tolist():
            chosen = np.flatnonzero(piece_of == piece)
            rows = self._piece(piece)[numbers[chosen] - piece * self._step]
            found[chosen, : self._rank] = rows
        return found

    def _piece(self, piece: int) -> Matrix:
        checksums = self._checked()

        def read() -> Matrix:
            content = self._read(piece)
            if zlib.crc32(content.data) != checksums[piece]:
                raise self._altered()
            return content

        return PIECES.get((self._path, self._digest, piece), read, at_least=_room())

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
                    key = self._path, self._digest, piece
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
    limit = None
    try:
        limit = distributed.get_worker().memory_manager.memory_limit
    except ValueError:  # not on a worker
        limit = MEMORY_LIMIT
    return 0 if limit is None else int(limit) // KEPT_PART
