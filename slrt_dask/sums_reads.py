"""Fibre sums of fitted models, read from their files piece by piece, as they are needed.

A model has as many sums as its slab mode has fibres, which may be more than a worker can hold, and
predictions need only those of their own fibres. Pieces that were read are kept while there is room.
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

KEPT_BYTES, KEPT_PART = 3 * 2**27, 4
"""What a process may keep of all models: so many bytes or, where that is more, one in so many of
its memory except for twice its runtime: there are partitions and chunks in use as well."""


def most_kept() -> int:
    """Bytes that this process may keep of models."""
    try:
        limit = distributed.get_worker().memory_manager.memory_limit
    except ValueError:  # not on a worker
        limit = MEMORY_LIMIT
    return max(KEPT_BYTES, (int(limit or 0) - 2 * RUNTIME_BYTES) // KEPT_PART)


KEPT = ReadCache(most_kept)
"""What this process keeps of models, by path, digest and part: a path may come to hold another."""


class FibreSums:
    """The sums (fibres, rank) of one model, in a process.

    path, digest : of the model;  checksum : of all its sums
    shape : the shape that they must have; what the files say of it is not checked otherwise
    """

    def __init__(
        self, path: str, digest: str, checksum: int, shape: tuple[int, int], cache: ReadCache = KEPT
    ) -> None:
        self._model, self._checksum, self._cache = (path, digest), checksum, cache
        self._group, (self._count, self._rank) = f"{path}/model", shape
        found, self._rows = rows_at_once(self._group, SUMS_ARRAY)
        if found != shape:
            raise self._altered()
        self._checking, self._checksums = threading.Lock(), list[int]()

    def at(self, numbers: NDArray[np.integer[Any]]) -> Matrix:
        """Sums of the fibres of these numbers, (m, padded width); zeros for one beyond the last."""
        found = np.zeros((len(numbers), padded_width(self._rank)))
        pieces, known = numbers // self._rows, numbers < self._count
        for piece in np.unique(pieces[known]).tolist():
            chosen = np.flatnonzero(known & (pieces == piece))
            found[chosen, : self._rank] = self._piece(piece)[numbers[chosen] % self._rows]
        return found

    def _piece(self, piece: int) -> Matrix:
        with self._checking:
            if not self._checksums:
                self._checksums = self._checked()
        return self._kept(piece)

    def _checked(self) -> list[int]:
        """Checksums of all pieces, if their whole content is what was written."""
        whole, checksums = 0, []
        try:
            for piece in range(-(-self._count // self._rows)):
                content = self._kept(piece).data
                whole = zlib.crc32(content, whole)
                checksums.append(zlib.crc32(content))
            if whole != self._checksum:
                raise self._altered()
        except BaseException:
            self._cache.forget(self._model)
            raise
        return checksums

    def _kept(self, piece: int) -> Matrix:
        return self._cache.get((*self._model, SUMS_ARRAY, piece), partial(self._read, piece))

    def _read(self, piece: int) -> Matrix:
        first = piece * self._rows
        content = read_rows(self._group, SUMS_ARRAY, first, min(first + self._rows, self._count))
        if self._checksums and zlib.crc32(content.data) != self._checksums[piece]:
            raise self._altered()
        return content

    def _altered(self) -> StoreCorrupt:
        return StoreCorrupt(f"{self._group}/{SUMS_ARRAY} was altered after it was written.")
