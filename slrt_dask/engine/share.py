"""The blocks that one worker, or this process, holds, and the threads that sweep over them.

A share is a run of a store's partitions, and so of slices. In memory it is one block for every
thread, of about as many entries each; streamed, it is blocks small enough for the room there is.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.read_cache import drop_kept
from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.block import ROWS, VALUES, WEIGHTS, Block, Buffers, MemoryArrays
from slrt_dask.engine.program import Program, Sweep
from slrt_dask.engine.spill import ROOMS, FileBlock, ScratchFile, read_ahead
from slrt_dask.errors import MemoryBudgetExceeded, StateLost
from slrt_dask.kernels.blocks import IndexColumns
from slrt_dask.spending import ProcessMemory, ShareSeconds, ShareSpending, peak_bytes

SMALLEST_BLOCK = 20_000
"""Entries below which a block is not cut further: waking a thread would cost more than it saves."""


@dataclass(frozen=True)
class Assignment:
    """What a share has to load, and how.

    partitions : consecutive ones of the store
    offset : subtracted from every value
    validation : a store of held-out entries, sampled in the same slices
    block_entries : of blocks that are kept in a file of `directory`; None to keep all in memory
    layout : what makes the blocks if they are not slabs: `blocks(assignment)`, and
        `part(block, partition)`, which of a block's entries are a partition's
    smallest_block : entries below which a block is not cut further for the sake of threads
    """

    store: ObservationStore
    partitions: tuple[int, ...]
    threads: int
    precision: str = "float64"
    offset: float = 0.0
    validation: ObservationStore | None = None
    block_entries: int | None = None
    directory: str | None = None
    layout: Any = None
    smallest_block: int = SMALLEST_BLOCK


class Share:
    """Blocks held in one place; contributes to a program's round as one."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        # A plan counts with all the memory that this process may have.
        drop_kept()
        self.seconds, self.peak_before = ShareSeconds(), peak_bytes()
        streamed = assignment.block_entries is not None
        self._file = ScratchFile(assignment.directory) if streamed else None
        self._run, self._round, self._left_at = -1, -1, 0.0
        self._busy = threading.Lock()
        self._waited = 0.0
        try:
            self.blocks = [self._at_rest(block) for block in load_blocks(assignment)]
            self._refuse_long_slices()
        except BaseException:
            if self._file is not None:
                self._file.close()
            raise
        self._divide_among_threads()
        self._threads = ThreadPoolExecutor(assignment.threads, thread_name_prefix="slrt")
        self._background = ThreadPoolExecutor(2 * assignment.threads, thread_name_prefix="slrt-io")

    def _at_rest(self, block: Block) -> Block | FileBlock:
        return block if self._file is None else FileBlock(block, self._file)

    def _divide_among_threads(self) -> None:
        """Give every thread a run of blocks of about as many entries, and its working memory."""
        threads, total = self.assignment.threads, sum(block.entries for block in self.blocks)
        runs: list[list[Any]] = [[] for _ in range(threads)]
        passed = 0
        for block in self.blocks:
            middle = passed + block.entries / 2
            runs[min(threads - 1, int(threads * middle / max(total, 1)))].append(block)
            passed += block.entries
        rooms = range(0 if self._file is None else ROOMS)
        self._runs = [(run, Buffers(), [Buffers() for _ in rooms]) for run in runs if run]

    def _refuse_long_slices(self) -> None:
        """A slice is never cut, so one that is too long for its room cannot be streamed."""
        largest = max((block.entries for block in self.blocks), default=0)
        wanted = self.assignment.block_entries
        if wanted is not None and largest > 2 * wanted:
            raise MemoryBudgetExceeded(
                f"a slice of mode {self.assignment.store.slab_mode} holds {largest:,} observations "
                f"and cannot be cut, but there is room for blocks of {wanted:,}; raise the memory "
                f"limit, or store the observations along another mode"
            )

    # ---- rounds -----------------------------------------------------------------------------

    def sweep(self, run: int, number: int, program: Program, sweep: Sweep, drop: Any = ()) -> Any:
        """One round of a run; rounds change vectors in place, so that none can be made again.

        drop : names of vectors that nobody needs any more, from when a run begins
        """
        with self._busy:
            if number == 0 and run > self._run:
                self._run, self._round = run, -1
                self.discard(drop)
            if (run, number) != (self._run, self._round + 1):
                raise StateLost(
                    f"round {number} of run {run} was asked for after round {self._round} of run "
                    f"{self._run}"
                )
            began, waited = time.perf_counter(), self._waited
            if number:
                self.seconds.exchange += began - self._left_at
            self._round = number
            part = self._contribution(program, sweep)
            self._left_at = time.perf_counter()
            self.seconds.add_round(self._left_at - began, self._waited - waited)
            return part

    def _contribution(self, program: Program, sweep: Sweep) -> Any:
        """The sum over all blocks, in a fixed order so that it can be repeated."""
        if not self._runs:
            raise StateLost("this share was closed; the fit has to be started again")

        def over(thread: int) -> Any:
            total = None
            with contextlib.closing(self._opened(thread)) as blocks:
                for block in blocks:
                    total = sweep.step(program, block, total, *sweep.message)
            return total

        others = [self._threads.submit(over, thread) for thread in range(1, len(self._runs))]
        try:
            total = over(0)
        finally:
            wait(others)  # when a round has failed, no thread may be in the middle of it any more
        return functools.reduce(program.combine, (part.result() for part in others), total)

    def _opened(self, thread: int) -> Generator[Block, None, None]:
        blocks, buffers, rooms = self._runs[thread]
        if not rooms:
            yield from (block.open(buffers) for block in blocks)
            return
        with contextlib.closing(read_ahead(blocks, rooms, buffers, self._background)) as ahead:
            while True:
                began = time.perf_counter()
                block = next(ahead, None)
                self._waited += (time.perf_counter() - began) / len(self._runs)
                if block is None:
                    return
                yield block

    # ---- what is held -----------------------------------------------------------------------

    def opened(self) -> Iterator[Block]:
        """All blocks, one after the other; what is changed of them is kept."""
        for at_rest in self.blocks:
            block = at_rest.open()
            yield block
            at_rest.close(block)

    def discard(self, names: tuple[str, ...]) -> None:
        for block in self.blocks:
            block.drop(names)

    def change_support(self, change: Callable[[Block], Block]) -> int:
        """Have other entries in every block; they have to be numbered again after it.

        change : from a block in memory to the one in its place; returns how many entries there are
            then that are not the store's
        """
        extra, before = 0, self._file
        with self._busy:
            if before is not None:  # a file of its own for what has other lengths
                self._file = ScratchFile(self.assignment.directory)
            for number, at_rest in enumerate(self.blocks):
                block = at_rest if isinstance(at_rest, Block) else at_rest.loaded()
                block = change(block)
                extra += int(block.extra.sum())
                self.blocks[number] = self._at_rest(block)
            self._divide_among_threads()
            if before is not None:
                before.close()
        return extra

    def pieces(self, partition: int) -> Iterator[tuple[Block, slice]]:
        """The blocks that have entries of a partition, and which these are."""
        store, layout = self.assignment.store, self.assignment.layout
        low, high = store.slices_of(partition)
        for at_rest in self.blocks:
            if layout is not None:
                block = at_rest.open()
                yield block, layout.part(block, partition)
            elif at_rest.slices[0] < high and at_rest.slices[1] > low:
                block = at_rest.open()
                slab = block.arrays.read(f"{ROWS}{store.slab_mode}")
                yield block, slice(*map(int, np.searchsorted(slab, (low, high))))
                at_rest.close(block)

    def spending(self) -> ShareSpending:
        """What it has spent; its place is not known to it."""
        memory = ProcessMemory.of_this(self.peak_before)
        return ShareSpending("", **asdict(self.seconds), memory=memory)

    @property
    def nbytes(self) -> int:
        """Bytes held in memory now, by numpy's count."""
        working = sum(
            buffers.nbytes + sum(room.nbytes for room in rooms) for _, buffers, rooms in self._runs
        )
        return working + sum(block.nbytes for block in self.blocks)

    def close(self) -> None:
        """Let go of everything, after the round that may still be running."""
        with self._busy:
            self._threads.shutdown(wait=True)
            self._background.shutdown(wait=True)
            self.blocks, self._runs = [], []
            if self._file is not None:
                self._file.close()


# ---- loading ----------------------------------------------------------------------------------


def load_blocks(assignment: Assignment) -> Iterator[Block]:
    """The blocks of an assignment; streamed ones are made from a partition at a time."""
    store, block_entries = assignment.store, assignment.block_entries
    if assignment.layout is not None:
        yield from assignment.layout.blocks(assignment)
        return
    parts = [(number,) for number in assignment.partitions]
    for numbers in parts if block_entries is not None else [assignment.partitions]:
        counts = [store.partitions[number].count for number in numbers]
        total, first = sum(counts), 0
        columns = [np.empty(total, dtype=store.header.index_dtype) for _ in store.shape]
        held = {VALUES: np.empty(total, dtype=assignment.precision)}
        if store.weighted:
            held[WEIGHTS] = np.empty(total, dtype=assignment.precision)
        for number, count in zip(numbers, counts, strict=True):
            piece, first = slice(first, first + count), first + count
            read, observed, weights = store.read_weighted(number)
            for column, target in zip(read, columns, strict=True):
                target[piece] = column
            held[VALUES][piece] = observed.astype(np.float64) - assignment.offset
            if weights is not None:
                held[WEIGHTS][piece] = weights.astype(np.float64) / store.mean_weight
        if block_entries is not None:
            pieces = math.ceil(total / block_entries)
        else:
            pieces = min(assignment.threads, max(1, total // assignment.smallest_block))
        slices = store.slices_of(numbers[0])[0], store.slices_of(numbers[-1])[1]
        held |= {f"{ROWS}{mode}": column for mode, column in enumerate(columns)}
        yield from _cut(assignment, held, slices, pieces)


def _cut(
    assignment: Assignment,
    arrays: dict[str, NDArray[Any]],
    slices: tuple[int, int],
    pieces: int,
) -> Iterator[Block]:
    """Blocks of whole slices, about equally long, with what is held out of these slices."""
    slab = arrays[f"{ROWS}{assignment.store.slab_mode}"]
    cuts = cut_at_slices(slab, pieces)
    borders = [slices[0], *(int(slab[first]) for first, _ in cuts[1:]), slices[1]]
    held_out = _queries(assignment, borders)
    for (first, stop), ends in zip(cuts, itertools.pairwise(borders), strict=True):
        held = {name: array[first:stop] for name, array in arrays.items()}
        block = Block(MemoryArrays(held), stop - first, assignment.store.order, ends)
        if assignment.validation is not None:
            block.queries, block.query_values, block.query_weights = next(held_out)
        yield block


def cut_at_slices(slab_indices: NDArray[Any], pieces: int) -> list[tuple[int, int]]:
    """Cut sorted slab indices into at most `pieces` runs of whole slices, about equally long."""
    entries = len(slab_indices)
    boundaries = [0]
    for piece in range(1, pieces):
        wanted = piece * entries // pieces
        slice_at = slab_indices[min(wanted, entries - 1)]
        before, after = (
            int(np.searchsorted(slab_indices, slice_at, side=side)) for side in ("left", "right")
        )
        boundaries.append(before if wanted - before <= after - wanted else after)
    boundaries.append(entries)
    return list(itertools.pairwise(sorted(set(boundaries))))


def _queries(
    assignment: Assignment, borders: list[int]
) -> Iterator[tuple[IndexColumns, NDArray[np.float64], NDArray[np.float64] | None]]:
    """The held-out entries in slices from each border to the next one's, with their weights."""
    validation, mode = assignment.validation, assignment.store.slab_mode
    if validation is None:
        return
    parts, weights = [], []
    for number in range(len(validation.partitions)):
        columns, values, found = validation.read_weighted(number)
        inside = (columns[mode] >= borders[0]) & (columns[mode] < borders[-1])
        parts.append((np.stack(columns)[:, inside], values[inside].astype(np.float64)))
        weights += [] if found is None else [found[inside]]
    indices = np.concatenate([columns for columns, _ in parts], axis=1)
    values = np.concatenate([values for _, values in parts])
    order = np.argsort(indices[mode], kind="stable")
    indices, values = indices[:, order], values[order] - assignment.offset
    weighted = np.concatenate(weights)[order].astype(np.float64) if weights else None
    for first, stop in itertools.pairwise(np.searchsorted(indices[mode], borders)):
        part = None if weighted is None else weighted[first:stop]
        yield tuple(indices[:, first:stop]), values[first:stop], part
