"""Observations seen through the Hankel embedding of their tensor.

A block is a run of offsets, whose windows it is responsible for, and a piece of the tensor, whose
entries its vectors have. Windows are cut when they are needed: nothing of the embedding's size is
ever held.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.header import PartitionInfo
from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.block import Block, MemoryVectors
from slrt_dask.kernels.windows import Embedding

if TYPE_CHECKING:
    from slrt_dask.engine.assignment import Assignment


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
        offsets, entries = self._edges(math.prod(self.tau)), self._edges(math.prod(self.shape))
        return tuple(
            PartitionInfo(f"offsets{first}", stop_entry - first_entry, first, stop)
            for (first, stop), (first_entry, stop_entry) in zip(
                itertools.pairwise(offsets), itertools.pairwise(entries), strict=True
            )
        )

    def piece(self, block: Block) -> slice:
        """Which entries of the flattened tensor a block's vectors are of."""
        first = self._edges(math.prod(self.shape))[block.partition] + block.position
        return slice(first, first + block.entries)

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


def load_runs(assignment: Assignment) -> Iterator[Block]:
    """The blocks of an assignment to an embedded store."""
    store = assignment.store
    assert isinstance(store, EmbeddedStore)
    flat = store.dense(assignment.offset)[0].reshape(-1)
    wanted = math.ceil(assignment.threads / max(1, len(assignment.partitions)))
    for number in assignment.partitions:
        part = store.partitions[number]
        offsets = range(part.first_slice, part.stop_slice)
        pieces = max(1, min(wanted, len(offsets), part.count))
        for piece in range(pieces):
            run = offsets[len(offsets) * piece // pieces : len(offsets) * (piece + 1) // pieces]
            first, stop = part.count * piece // pieces, part.count * (piece + 1) // pieces
            block = Block(
                (), MemoryVectors(np.zeros(stop - first, dtype=assignment.precision)), number,
                first, slices=(run.start, run.stop),
            )  # fmt: skip
            block.values[:] = flat[store.piece(block)]
            yield block
