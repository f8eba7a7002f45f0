"""Batches on local disk while a store is being made: raw columns, one file per batch.

A file holds its columns one after another, so that any range of entries is read with one seek per
column. The directory belongs to one ingest and disappears with it. This changes when another way
of keeping intermediate data is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.batches import Batch
from slrt_dask.data.header import LARGEST_INT32


@dataclass(frozen=True)
class ScratchFile:
    """Where one batch lies: `count` entries of K index columns, values, and rows if it has any."""

    path: Path
    count: int
    order: int
    index_dtype: np.dtype[Any]
    value_dtype: np.dtype[Any]
    has_rows: bool

    def read(self, start: int = 0, stop: int | None = None) -> Batch:
        """Entries start to stop, in memory."""
        stop = self.count if stop is None else stop
        indices = np.empty((self.order, stop - start), dtype=np.int64)
        with self.path.open("rb") as file:
            for mode in range(self.order):
                indices[mode] = self._column(file, mode, start, stop)
            values = self._column(file, self.order, start, stop)
            rows = self._column(file, self.order + 1, start, stop) if self.has_rows else None
        return Batch(indices, values, rows)

    def read_mode(self, mode: int) -> NDArray[Any]:
        """One index column, in memory."""
        with self.path.open("rb") as file:
            return self._column(file, mode, 0, self.count)

    def _column(self, file: IO[bytes], number: int, start: int, stop: int) -> NDArray[Any]:
        offset = min(number, self.order) * self.index_dtype.itemsize
        offset += max(number - self.order, 0) * self.value_dtype.itemsize
        dtype = self.index_dtype if number < self.order else self.value_dtype
        dtype = np.dtype(np.int64) if number > self.order else dtype
        file.seek(offset * self.count + start * dtype.itemsize)
        return np.fromfile(file, dtype=dtype, count=stop - start)


def write_scratch(path: Path, batch: Batch) -> ScratchFile:
    """Put a batch of int64 indices in a new file, in as few bytes as its indices allow."""
    order, count = batch.indices.shape
    small = count == 0 or int(batch.indices.max()) <= LARGEST_INT32
    index_dtype = np.dtype(np.int32 if small else np.int64)
    with path.open("wb") as file:
        for column in batch.indices:
            column.astype(index_dtype).tofile(file)
        batch.values.tofile(file)
        if batch.rows is not None:
            batch.rows.tofile(file)
    return ScratchFile(
        path, count, order, index_dtype, batch.values.dtype, has_rows=batch.rows is not None
    )


def taken(batch: Batch, positions: NDArray[np.intp]) -> Batch:
    """The batch's entries at these positions, in their order."""
    rows = None if batch.rows is None else batch.rows[positions]
    return Batch(batch.indices[:, positions], batch.values[positions], rows)


def gathered(ranges: Iterable[tuple[ScratchFile, int, int]]) -> Batch:
    """Ranges of several files as one batch, in the order given; allocated once."""
    wanted = [(file, start, stop) for file, start, stop in ranges if stop > start]
    total = sum(stop - start for _, start, stop in wanted)
    example = wanted[0][0]
    indices = np.empty((example.order, total), dtype=np.int64)
    values = np.empty(total, dtype=example.value_dtype)
    rows = np.empty(total, dtype=np.int64) if example.has_rows else None
    done = 0
    for file, start, stop in wanted:
        piece = file.read(start, stop)
        end = done + stop - start
        indices[:, done:end] = piece.indices
        values[done:end] = piece.values
        if rows is not None and piece.rows is not None:
            rows[done:end] = piece.rows
        done = end
    return Batch(indices, values, rows)
