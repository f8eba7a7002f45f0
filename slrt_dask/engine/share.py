"""The blocks that one worker, or this process, holds, and the threads that run over them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Program
from slrt_dask.errors import StateLost

SMALLEST_BLOCK = 20_000
"""Entries below which a block is not cut further: waking a thread would cost more than it saves."""


@dataclass(frozen=True)
class Assignment:
    """What a share has to load: some partitions of a store, and how.

    offset : subtracted from every value (the mean, when the fit is centred)
    validation : a store of held-out entries, sampled in the same slices
    """

    store: ObservationStore
    partitions: tuple[int, ...]
    threads: int
    precision: str = "float64"
    offset: float = 0.0
    validation: ObservationStore | None = None


class Share:
    """Blocks held in one place; contributes to a program's round as one."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.blocks = _load_blocks(assignment)
        self._pool = ThreadPoolExecutor(assignment.threads, thread_name_prefix="slrt")
        self._position: tuple[int, int] = (-1, 0)
        self._answer: Any = None
        # A step of an abandoned run may still be running when the next run's first one arrives.
        self._busy = threading.Lock()

    def contribute(self, program: Program, message: Any) -> Any:
        """One round on all blocks, summed in the blocks' order so that it can be repeated."""
        if len(self.blocks) == 1:
            return program.step(self.blocks[0], message)
        parts = self.map_blocks(lambda block: program.step(block, message))
        return reduce(program.combine, parts)

    def contribute_at(self, position: tuple[int, int], program: Program, message: Any) -> Any:
        """The same for a numbered (run, round): repeating the last one returns its answer.

        Rounds change vectors in place, so a round that is neither the last nor the next one
        cannot be answered any more.
        """
        with self._busy:
            return self._contribute_at(position, program, message)

    def _contribute_at(self, position: tuple[int, int], program: Program, message: Any) -> Any:
        if position == self._position:
            return self._answer
        run, round_number = position
        follows = position == (self._position[0], self._position[1] + 1)
        begins = run > self._position[0] and round_number == 0
        if not (follows or begins):
            raise StateLost(
                f"round {round_number} of run {run} was asked for, but this worker stands at round "
                f"{self._position[1]} of run {self._position[0]}"
            )
        self._answer = self.contribute(program, message)
        self._position = position
        return self._answer

    def map_blocks(self, task: Callable[[Block], Any]) -> list[Any]:
        """The task's result on every block, in order, on this share's threads."""
        running = [self._pool.submit(task, block) for block in self.blocks]
        try:
            return [future.result() for future in running]
        finally:
            # After an error or an interrupt no thread may still be writing to the blocks.
            for future in running:
                future.cancel()
            wait(running)

    def discard(self, names: tuple[str, ...]) -> None:
        for block in self.blocks:
            block.discard(names)

    def partition_vector(self, partition: int, name: str) -> NDArray[Any]:
        """A named vector over one whole partition, in the store's order."""
        pieces = [block for block in self.blocks if block.partition == partition]
        pieces.sort(key=lambda block: block.position)
        return np.concatenate([block.vector(name) for block in pieces])

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.blocks = []


def cut_at_slices(slab_indices: NDArray[Any], pieces: int) -> list[tuple[int, int]]:
    """Cut sorted slab indices into at most `pieces` runs of whole slices, about equally long."""
    entries = len(slab_indices)
    boundaries = [0]
    for piece in range(1, pieces):
        wanted = piece * entries // pieces
        slice_at = slab_indices[min(wanted, entries - 1)]
        before = int(np.searchsorted(slab_indices, slice_at, side="left"))
        after = int(np.searchsorted(slab_indices, slice_at, side="right"))
        boundaries.append(before if wanted - before <= after - wanted else after)
    boundaries.append(entries)
    ordered = sorted(set(boundaries))
    return list(itertools.pairwise(ordered))


def _load_blocks(assignment: Assignment) -> list[Block]:
    total = sum(assignment.store.partitions[number].count for number in assignment.partitions)
    blocks: list[Block] = []
    for number in assignment.partitions:
        count = assignment.store.partitions[number].count
        wanted = max(1, round(assignment.threads * count / total))
        blocks += _load_partition(assignment, number, min(wanted, max(1, count // SMALLEST_BLOCK)))
    return blocks


def _load_partition(assignment: Assignment, number: int, pieces: int) -> list[Block]:
    columns, values = assignment.store.read_partition(number)
    working = (values - assignment.offset).astype(assignment.precision)
    slab = columns[assignment.store.slab_mode]
    cuts = cut_at_slices(slab, pieces)
    blocks = [
        Block(tuple(column[first:stop] for column in columns), working[first:stop], number, first)
        for first, stop in cuts
    ]
    if assignment.validation is not None:
        first_slices = [int(slab[first]) for first, _ in cuts]
        low, high = _slices_of_partition(assignment.store, number)
        _attach_queries(assignment, blocks, [low, *first_slices[1:], high])
    return blocks


def _slices_of_partition(store: ObservationStore, number: int) -> tuple[int, int]:
    """The slices that belong to a partition, those without observations included."""
    low = 0 if number == 0 else store.partitions[number].first_slice
    if number + 1 == len(store.partitions):
        return low, store.shape[store.slab_mode]
    return low, store.partitions[number + 1].first_slice


def _attach_queries(assignment: Assignment, blocks: list[Block], borders: list[int]) -> None:
    """Give each block the held-out entries in slices from its border to the next one's."""
    validation, mode = assignment.validation, assignment.store.slab_mode
    assert validation is not None
    found: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for number in range(len(validation.partitions)):
        columns, values = validation.read_partition(number)
        inside = (columns[mode] >= borders[0]) & (columns[mode] < borders[-1])
        found.append((np.stack([column[inside] for column in columns]), values[inside]))
    indices = np.concatenate([columns for columns, _ in found], axis=1)
    values = np.concatenate([part for _, part in found]) - assignment.offset
    order = np.argsort(indices[mode], kind="stable")
    indices, values = indices[:, order], values[order]
    edges = np.searchsorted(indices[mode], borders)
    for block, first, stop in zip(blocks, edges[:-1], edges[1:], strict=True):
        block.queries = tuple(column[first:stop] for column in indices)
        block.query_values = values[first:stop]
