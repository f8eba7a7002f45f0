"""What a share has to hold, and the reading of it from the store."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.block import Block, MemoryVectors
from slrt_dask.engine.embedded import EmbeddedStore, load_runs

SMALLEST_BLOCK = 20_000
"""Entries below which a block is not cut further: waking a thread would cost more than it saves."""


@dataclass(frozen=True)
class Streaming:
    """How blocks are kept in files: at most about `block_entries` each, below `directory`."""

    block_entries: int
    directory: str | None = None


@dataclass(frozen=True)
class Assignment:
    """What a share has to load: some partitions of a store, and how.

    offset : subtracted from every value (the mean, when the fit is centred)
    validation : a store of held-out entries, sampled in the same slices
    streaming : None to keep blocks in memory
    tiles : whether products are made on dense tiles (`tiling.py`)
    sections : into how many parts the slab mode's fibres are cut, if their sums are made in parts
    """

    store: ObservationStore
    partitions: tuple[int, ...]
    threads: int
    precision: str = "float64"
    offset: float = 0.0
    validation: ObservationStore | None = None
    streaming: Streaming | None = None
    tiles: bool = False
    sections: int = 1


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


def load_blocks(assignment: Assignment) -> Iterator[Block]:
    """The blocks of an assignment, read a partition at a time.

    In memory a partition is cut into as many blocks as keep the threads busy; streamed, into
    blocks small enough for the room there is.
    """
    if isinstance(assignment.store, EmbeddedStore):
        yield from load_runs(assignment)
        return
    total = sum(assignment.store.partitions[number].count for number in assignment.partitions)
    for number in assignment.partitions:
        count = assignment.store.partitions[number].count
        if assignment.streaming is None:
            wanted = max(1, round(assignment.threads * count / total))
            pieces = min(wanted, max(1, count // SMALLEST_BLOCK))
        else:
            pieces = math.ceil(count / assignment.streaming.block_entries)
        yield from _load_partition(assignment, number, pieces)


def _load_partition(assignment: Assignment, number: int, pieces: int) -> list[Block]:
    columns, values = assignment.store.read_partition(number)
    working = (values.astype(np.float64) - assignment.offset).astype(assignment.precision)
    slab = columns[assignment.store.slab_mode]
    cuts = cut_at_slices(slab, pieces)
    low, high = assignment.store.header.slices_of(number)
    borders = [low, *(int(slab[first]) for first, _ in cuts[1:]), high]
    blocks = [
        Block(
            tuple(column[first:stop] for column in columns),
            MemoryVectors(working[first:stop]),
            number,
            first,
            slices=slices,
            tiles=assignment.tiles,
        )
        for (first, stop), slices in zip(cuts, itertools.pairwise(borders), strict=True)
    ]
    if assignment.validation is not None:
        _attach_queries(assignment, blocks, borders)
    return blocks


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
    values = np.concatenate([part for _, part in found]).astype(np.float64) - assignment.offset
    order = np.argsort(indices[mode], kind="stable")
    indices, values = indices[:, order], values[order]
    edges = np.searchsorted(indices[mode], borders)
    for block, first, stop in zip(blocks, edges[:-1], edges[1:], strict=True):
        block.queries = tuple(column[first:stop] for column in indices)
        block.query_values = values[first:stop]
