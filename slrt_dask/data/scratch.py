"""Batches on local disk while a store is being made: raw columns, one file per pass over them.

A batch's columns lie one after another, so that any range of entries is read with one seek per
column. The files have no names: whatever ends the process, they end with it. This changes when
another way of keeping intermediate data is wanted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.batches import Batch
from slrt_dask.data.disk import write_all
from slrt_dask.data.header import LARGEST_INT32


class Scratch:
    """Room for batches: those written in this pass, and those of the pass before, to be read.

    directory : an existing one, whose disk has the room; None is the system's choice
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._files: list[IO[bytes]] = []

    def begin_pass(self) -> None:
        """Write to a new file from now on; what was written before the last pass goes."""
        while len(self._files) > 1:
            self._files.pop(0).close()
        # Without a name there is nothing that a killed process could leave behind.
        file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115 - kept open
        self._files.append(file)

    def write(self, batch: Batch) -> ScratchBatch:
        """Keep a batch of int64 indices, in as few bytes as its indices allow."""
        order, count = batch.indices.shape
        small = count == 0 or int(batch.indices.max()) <= LARGEST_INT32
        index_dtype = np.dtype(np.int32 if small else np.int64)
        file = self._files[-1]
        start = file.seek(0, 2)
        for column in batch.indices:
            write_all(file, column.astype(index_dtype))
        write_all(file, batch.values)
        if batch.rows is not None:
            write_all(file, batch.rows)
        has_rows = batch.rows is not None
        return ScratchBatch(file, start, count, order, index_dtype, batch.values.dtype, has_rows)

    def __enter__(self) -> Scratch:
        self.begin_pass()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files:
            file.close()


@dataclass(frozen=True)
class ScratchBatch:
    """Where one batch lies: `count` entries of K index columns, values, and rows if it has any."""

    file: IO[bytes]
    start: int
    count: int
    order: int
    index_dtype: np.dtype[Any]
    value_dtype: np.dtype[Any]
    has_rows: bool

    def read(self, first: int = 0, stop: int | None = None) -> Batch:
        """Entries first to stop, in memory."""
        stop = self.count if stop is None else stop
        indices = np.empty((self.order, stop - first), dtype=np.int64)
        for mode in range(self.order):
            indices[mode] = self._column(mode, first, stop)
        values = self._column(self.order, first, stop)
        rows = self._column(self.order + 1, first, stop) if self.has_rows else None
        return Batch(indices, values, rows)

    def read_mode(self, mode: int) -> NDArray[Any]:
        """One index column, in memory."""
        return self._column(mode, 0, self.count)

    def _column(self, number: int, first: int, stop: int) -> NDArray[Any]:
        offset = min(number, self.order) * self.index_dtype.itemsize
        offset += max(number - self.order, 0) * self.value_dtype.itemsize
        dtype = self.index_dtype if number < self.order else self.value_dtype
        dtype = np.dtype(np.int64) if number > self.order else dtype
        self.file.seek(self.start + offset * self.count + first * dtype.itemsize)
        return np.fromfile(self.file, dtype=dtype, count=stop - first)


def taken(batch: Batch, positions: NDArray[np.intp]) -> Batch:
    """The batch's entries at these positions, in their order."""
    rows = None if batch.rows is None else batch.rows[positions]
    return Batch(batch.indices[:, positions], batch.values[positions], rows)


def gathered(ranges: Iterable[tuple[ScratchBatch, int, int]]) -> Batch:
    """Ranges of several batches as one, in the order given; allocated once."""
    wanted = [(kept, first, stop) for kept, first, stop in ranges if stop > first]
    total = sum(stop - first for _, first, stop in wanted)
    example = wanted[0][0]
    indices = np.empty((example.order, total), dtype=np.int64)
    values = np.empty(total, dtype=example.value_dtype)
    rows = np.empty(total, dtype=np.int64) if example.has_rows else None
    done = 0
    for kept, first, stop in wanted:
        piece = kept.read(first, stop)
        end = done + stop - first
        indices[:, done:end] = piece.indices
        values[done:end] = piece.values
        if rows is not None and piece.rows is not None:
            rows[done:end] = piece.rows
        done = end
    return Batch(indices, values, rows)
