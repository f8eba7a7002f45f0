"""External sorting: batches on local disk, the slabs they are cut into, and the order of entries.

A slab is a range of slices of one mode; a partition holds the entries of one slab in lexicographic
order, the slab mode first. A batch's columns lie one after another in a file, so that any range of
entries is read with one seek per column. The files have no names: they end with the process,
however it ends.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.layout import LARGEST_INT32
from slrt_dask.errors import InvalidInput

LARGEST_INT64 = 2**63 - 1
# A histogram of this many bins is 32 MB. A longer mode is counted in bins of several slices, and
# cut at their edges only, so that memory does not grow with the length of the mode.
MOST_BINS = 2**22
DuplicateRule = Literal["error", "mean", "sum", "last"]
"""What happens to an index that is observed more than once."""


@dataclass(frozen=True)
class Batch:
    """Some observations: indices (K, m) of any real type, values (m,), rows (m,) or None.

    `weights` are those of the observations, (m,), or None if they have none.

    `rows` says where each entry stands in its source; None where the index itself says so.
    `visited` is how far this batch takes its reader, in the unit of `Source.total`; None means
    as many as it has entries.
    """

    indices: NDArray[Any]
    values: NDArray[Any]
    rows: NDArray[np.int64] | None = None
    visited: int | None = None
    weights: NDArray[Any] | None = None

    def taken(self, places: Any) -> Batch:
        """The entries at these places (positions or a slice), in their order."""
        rows = None if self.rows is None else self.rows[places]
        weights = None if self.weights is None else self.weights[places]
        return Batch(self.indices[:, places], self.values[places], rows, weights=weights)


def rebatch(batches: Iterable[Batch], limit: int) -> Iterable[Batch]:
    """The same entries in the same order, in batches of at most `limit` and rarely much less."""
    waiting: list[Batch] = []
    count = 0
    for batch in batches:
        for start in range(0, batch.values.shape[0], limit):
            piece = batch.taken(slice(start, start + limit))
            if waiting and count + piece.values.shape[0] > limit:
                yield _joined(waiting)
                waiting, count = [], 0
            waiting.append(piece)
            count += piece.values.shape[0]
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[Batch]) -> Batch:
    if len(pieces) == 1:
        return pieces[0]
    rows = [piece.rows for piece in pieces if piece.rows is not None]
    weights = [piece.weights for piece in pieces if piece.weights is not None]
    return Batch(
        np.concatenate([piece.indices for piece in pieces], axis=1),
        np.concatenate([piece.values for piece in pieces]),
        np.concatenate(rows) if len(rows) == len(pieces) else None,
        weights=np.concatenate(weights) if weights else None,
    )


class Scratch:
    """Room for batches: those written in this pass, and those of the pass before, to be read.

    directory : an existing one, whose disk has the room; None is the system's choice
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._files: list[IO[bytes]] = []

    def begin_pass(self) -> None:
        """Write to a new file from now on; what was written before the last pass is dropped."""
        while len(self._files) > 1:
            self._files.pop(0).close()
        # Without a name there is nothing that a killed process could leave behind.
        file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115 - kept open
        self._files.append(file)

    def write(self, batch: Batch) -> ScratchBatch:
        """Keep a batch of int64 indices, in as few bytes as its indices allow."""
        is_small = batch.values.size == 0 or int(batch.indices.max()) <= LARGEST_INT32
        columns = [column.astype(np.int32 if is_small else np.int64) for column in batch.indices]
        others = (batch.values, batch.weights, batch.rows)
        columns += [column for column in others if column is not None]
        start = self._files[-1].seek(0, 2)
        for column in columns:
            # Unlike `tofile`, this raises the system's own error when the disk is full.
            left = np.ascontiguousarray(column).view(np.uint8).data
            while left:
                left = left[self._files[-1].write(left) :]
        dtypes = tuple(column.dtype for column in columns)
        order, count = batch.indices.shape
        weighted = batch.weights is not None
        return ScratchBatch(self._files[-1], start, order, count, dtypes, weighted)

    def __enter__(self) -> Scratch:
        self.begin_pass()
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for file in self._files:
                stack.enter_context(file)


@dataclass(frozen=True)
class ScratchBatch:
    """Where a batch lies: `order` index columns, values, weights and rows if it has any."""

    file: IO[bytes]
    start: int
    order: int
    count: int
    dtypes: tuple[np.dtype[Any], ...]
    weighted: bool = False

    def read(self) -> Batch:
        return gathered([(self, 0, self.count)])

    def column(self, number: int, first: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Entries first to stop of one column."""
        before = self.count * sum(dtype.itemsize for dtype in self.dtypes[:number])
        dtype = self.dtypes[number]
        self.file.seek(self.start + before + first * dtype.itemsize)
        stop = self.count if stop is None else stop
        return np.fromfile(self.file, dtype=dtype, count=stop - first)


def gathered(ranges: Iterable[tuple[ScratchBatch, int, int]]) -> Batch:
    """Ranges of several batches as one, in the order given."""
    wanted = [(kept, first, stop) for kept, first, stop in ranges if stop > first]
    example = wanted[0][0]
    total = sum(stop - first for _, first, stop in wanted)
    indices = np.empty((example.order, total), dtype=np.int64)
    columns = [
        *indices,
        *(np.empty(total, dtype=dtype) for dtype in example.dtypes[len(indices) :]),
    ]
    done = 0
    for kept, first, stop in wanted:
        for number, column in enumerate(columns):
            column[done : done + stop - first] = kept.column(number, first, stop)
        done += stop - first
    values, *others = columns[len(indices) :]
    weights = others.pop(0) if example.weighted else None
    return Batch(indices, values, others[0] if others else None, weights=weights)


@dataclass(frozen=True)
class Slab:
    """`count` entries with slab index in [first, stop)."""

    first: int
    stop: int
    count: int


class SliceHistogram:
    """Counts of entries along the slab mode, gathered batch by batch."""

    def __init__(self, length: int, most_bins: int = MOST_BINS) -> None:
        self.length = length
        self.width = math.ceil(length / most_bins)
        self.counts = np.zeros(math.ceil(length / self.width), dtype=np.int64)

    def add(self, positions: NDArray[np.int64]) -> None:
        self.counts += np.bincount(positions // self.width, minlength=self.counts.shape[0])

    def slabs(self, most_entries: int) -> tuple[Slab, ...]:
        """Slabs that tile the mode, cut as `cut_slices` cuts."""
        return tuple(
            Slab(slab.first * self.width, min(slab.stop * self.width, self.length), slab.count)
            for slab in cut_slices(self.counts, most_entries)
        )


def cut_slices(counts: NDArray[np.int64], most_entries: int) -> tuple[Slab, ...]:
    """Ranges that tile the slices, none empty, with at most `most_entries` entries each.

    Only a single slice with more entries than that may exceed it. There are as few ranges as
    that allows, and among those the largest is as small as it can be: 5 M entries at 2 M become
    three of about 1.67 M, not 2, 2 and 1.
    """
    through = np.cumsum(counts, dtype=np.int64)
    fewest = len(_filled(through, most_entries))
    low, high = 1, most_entries
    while low < high:
        middle = (low + high) // 2
        if len(_filled(through, middle, fewest)) <= fewest:
            high = middle
        else:
            low = middle + 1
    stops = _filled(through, high)
    edges = [0, *stops[:-1], counts.shape[0]]
    reached = [0, *(int(through[stop - 1]) for stop in stops)]
    return tuple(
        Slab(edges[number], edges[number + 1], reached[number + 1] - reached[number])
        for number in range(len(stops))
    )


def _filled(through: NDArray[np.int64], capacity: int, most: int | None = None) -> list[int]:
    """Stops of slabs filled one after another up to `capacity`; given up after `most` + 1."""
    total, done = int(through[-1]), 0
    stops: list[int] = []
    while done < total and (most is None or len(stops) <= most):
        stop = int(np.searchsorted(through, done + capacity, side="right"))
        if stop == 0 or int(through[stop - 1]) <= done:
            # The next slice that holds anything exceeds the capacity: it stands alone.
            stop = int(np.searchsorted(through, done, side="right")) + 1
        stops.append(stop)
        done = int(through[stop - 1])
    return stops


def lexicographic_order(
    indices: Sequence[NDArray[np.int64]], shape: Sequence[int], slab_mode: int
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """A stable order by (slab mode, other modes in order), and which entries repeat.

    Returns (order, repeated), both (m,): in that order, repeated[i] says that entry i has the
    same index as the one before it.
    """
    modes = [slab_mode, *(mode for mode in range(len(shape)) if mode != slab_mode)]
    if math.prod(shape) < 2**63:
        keys = [indices[slab_mode].astype(np.int64)]
        for mode in modes[1:]:
            keys[0] *= shape[mode]
            keys[0] += indices[mode]
        order = np.argsort(keys[0], kind="stable")
    else:
        keys = [indices[mode] for mode in modes]
        order = np.lexsort(keys[::-1])
    repeated = np.ones(len(order), dtype=np.bool_)
    repeated[:1] = False
    for key in keys:
        ordered = key[order]
        repeated[1:] &= ordered[1:] == ordered[:-1]
    return order, repeated


def check_rule(rule: str) -> None:
    known = get_args(DuplicateRule)
    if rule not in known:
        raise InvalidInput(f"duplicates={rule!r} is not a rule; choose one of {', '.join(known)}.")


def merge(
    batch: Batch, repeated: NDArray[np.bool_], rule: DuplicateRule
) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[Any] | None]:
    """Which of ordered entries to keep, and their values, under a rule other than "error".

    repeated : (m,), True where an entry has the same index as the one before it.
    Returns (kept, values, weights): positions (q,) and the q merged values and weights, summed in
    float64. A weighted mean has the sum of the weights.
    """
    values, weights = batch.values, batch.weights
    firsts = np.flatnonzero(~repeated)
    stops = np.append(firsts[1:], values.shape[0])
    if rule == "last":
        return firsts, values[stops - 1], None if weights is None else weights[stops - 1]
    # What overflows becomes infinite, and the caller names it.
    with np.errstate(over="ignore", invalid="ignore"):
        if weights is None:
            sums = np.add.reduceat(values, firsts, dtype=np.float64)
            if rule == "mean":
                sums /= stops - firsts
            return firsts, sums.astype(values.dtype), None
        totals = np.add.reduceat(weights, firsts, dtype=np.float64)
        sums = np.add.reduceat(weights.astype(np.float64) * values, firsts)
        return firsts, (sums / totals).astype(values.dtype), totals.astype(weights.dtype)
