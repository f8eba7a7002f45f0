"""Observations whose blocks are chunks of the Hankel embedding of their tensor.

A chunk is a run of offsets. Its entries come in the order (offset, window), and nothing of it is
stored anywhere: windows are cut from the tensor when the blocks are made.
"""

from __future__ import annotations

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

SMALLEST_CHUNK = 20_000
"""Entries below which a chunk is not cut further for the sake of threads."""


@dataclass(frozen=True, repr=False)
class EmbeddedStore(ObservationStore):
    """A store, seen through an embedding; its partitions are runs of offsets.

    tau : offsets in every mode;  parts : how many partitions there are to be, at most
    """

    tau: tuple[int, ...] = ()
    parts: int = 1

    @property
    def embedding(self) -> Embedding:
        return Embedding(self.shape, self.tau)

    @property
    def partitions(self) -> tuple[PartitionInfo, ...]:
        embedding = self.embedding
        size, parts = math.prod(embedding.window), min(self.parts, embedding.offsets)
        edges = [part * embedding.offsets // parts for part in range(parts + 1)]
        return tuple(
            PartitionInfo(f"offsets{first}", (stop - first) * size, first, stop)
            for first, stop in itertools.pairwise(edges)
        )

    def dense(self, offset: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The observations less an offset, zero elsewhere, and where they are; of `shape`."""
        values, seen = np.zeros(self.shape), np.zeros(self.shape, dtype=np.bool_)
        plain = ObservationStore(self.path, self.header)
        for number in range(len(self.header.partitions)):
            columns, numbers = plain.read_partition(number)
            values[columns] = numbers.astype(np.float64) - offset
            seen[columns] = True
        return values, seen


def load_chunks(assignment: Assignment) -> Iterator[Block]:
    """The blocks of an assignment to an embedded store."""
    store = assignment.store
    assert isinstance(store, EmbeddedStore)
    embedding, (values, _) = store.embedding, store.dense(assignment.offset)
    size, total = math.prod(embedding.window), 0
    total = sum(store.partitions[number].count for number in assignment.partitions)
    for number in assignment.partitions:
        part = store.partitions[number]
        if assignment.streaming is None:
            wanted = max(1, round(assignment.threads * part.count / total))
            pieces = min(wanted, max(1, part.count // SMALLEST_CHUNK))
        else:
            pieces = math.ceil(part.count / assignment.streaming.block_entries)
        offsets = range(part.first_slice, part.stop_slice)
        pieces = min(pieces, len(offsets))
        edges = [piece * len(offsets) // pieces for piece in range(pieces + 1)]
        for first, stop in itertools.pairwise(edges):
            run = offsets[first:stop]
            chunk = np.zeros((len(run), *embedding.window), dtype=assignment.precision)
            embedding.embed(values, run, chunk)
            yield Block(
                (), MemoryVectors(chunk.reshape(-1)), number, first * size,
                slices=(run.start, run.stop),
            )  # fmt: skip
