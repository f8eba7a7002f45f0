"""Observations seen through the Hankel embedding of their tensor.

A block is a run of offsets, whose windows it is responsible for, and a piece of the tensor, whose
entries its vectors have. Windows are cut when they are needed: nothing of the embedding's size is
ever held.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.layout import PartitionInfo
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.hankel.embedding import Embedding
from slrt_dask.engine.block import VALUES, Block, MemoryArrays

if TYPE_CHECKING:
    from slrt_dask.engine.share import Assignment


@dataclass(frozen=True, repr=False)
class EmbeddedStore(ObservationStore):
    """A store, seen through an embedding; its partitions are runs of offsets.

    tau : offsets in every mode;  parts : how many partitions there are to be, at most

    Tensors have their modes in `mode_order` here, those with the shortest windows first: matrix
    products with the windows then have long rows.
    """

    tau: tuple[int, ...] = ()
    parts: int = 1

    @property
    def mode_order(self) -> tuple[int, ...]:
        window = Embedding(self.shape, self.tau).window
        return tuple(sorted(range(len(window)), key=lambda mode: window[mode]))

    @property
    def embedding(self) -> Embedding:
        """Of the tensor with its modes in `mode_order`."""
        return _embedding(
            tuple(self.shape[mode] for mode in self.mode_order),
            tuple(self.tau[mode] for mode in self.mode_order),
        )

    @property
    def partitions(self) -> tuple[PartitionInfo, ...]:
        """Runs of offsets, with how many entries of the tensor each has a piece of."""
        entries = self._edges(math.prod(self.shape))
        return tuple(
            PartitionInfo(f"offsets{first}", entries[number + 1] - entries[number], first, stop)
            for number, (first, stop) in enumerate(map(self.slices_of, range(len(entries) - 1)))
        )

    def slices_of(self, number: int) -> tuple[int, int]:
        offsets = self._edges(math.prod(self.tau))
        return offsets[number], offsets[number + 1]

    def piece(self, block: Block) -> slice:
        """Which entries of the flattened tensor a block's vectors are of."""
        return slice(block.position, block.position + block.entries)

    def part(self, block: Block, partition: int) -> slice:
        """Which of a block's entries are a partition's."""
        edges = self._edges(math.prod(self.shape))
        first, stop = (
            min(max(edge - block.position, 0), block.entries)
            for edge in edges[partition : partition + 2]
        )
        return slice(first, stop)

    def blocks(self, assignment: Assignment) -> Iterator[Block]:
        """The blocks of an assignment: one for every thread, if there are offsets enough."""
        flat = self.dense(assignment.offset)[0].reshape(-1)
        edges, numbers = self._edges(math.prod(self.shape)), assignment.partitions
        low, high = self.slices_of(numbers[0])[0], self.slices_of(numbers[-1])[1]
        first_entry, stop_entry = edges[numbers[0]], edges[numbers[-1] + 1]
        count, entries = high - low, stop_entry - first_entry
        pieces = max(1, min(assignment.threads, count, entries))
        for piece in range(pieces):
            run = low + count * piece // pieces, low + count * (piece + 1) // pieces
            first = first_entry + entries * piece // pieces
            stop = first_entry + entries * (piece + 1) // pieces
            values = flat[first:stop].astype(assignment.precision)
            yield Block(MemoryArrays({VALUES: values}), stop - first, 0, run, first)

    def dense(self, offset: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The observations less an offset, zero elsewhere, and where they are."""
        shape = self.embedding.shape
        values, seen = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        plain = ObservationStore(self.path, self.header)
        for number in range(len(self.header.partitions)):
            columns, numbers = plain.read_partition(number)
            turned = tuple(columns[mode] for mode in self.mode_order)
            values[turned] = numbers.astype(np.float64) - offset
            seen[turned] = True
        return values, seen

    def _edges(self, count: int) -> list[int]:
        parts = min(self.parts, math.prod(self.tau), math.prod(self.shape))
        return [part * count // parts for part in range(parts + 1)]


@functools.lru_cache(maxsize=8)
def _embedding(shape: tuple[int, ...], tau: tuple[int, ...]) -> Embedding:
    """Always the same one, for it keeps where its windows' rows are."""
    return Embedding(shape, tau)
