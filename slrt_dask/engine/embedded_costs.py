"""What each part of a Hankel fit costs in bytes: tensors like W, and a few windows at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slrt_dask.engine.amounts import RUNTIME_BYTES, WorkerBytes
from slrt_dask.engine.costs import DRIVER_FACTORS
from slrt_dask.engine.embedded import EmbeddedStore
from slrt_dask.engine.exchange import FAN_IN
from slrt_dask.kernels.windows import BATCH_ENTRIES

KEPT_VECTORS = 6
"""Pieces of W at the accepted and the trial point, one being refined, two of a Hessian product, and
what a certificate takes off."""
TOLD_TENSORS = 2
"""Tensors that a worker is told in a round."""
GATHERED_TENSORS = 3
"""Tensors that are put together from pieces, or summed up, in a round."""
ROOT_TENSORS = 16
"""At the root of a run: observations, mask, copies and bounds; the solver's own; what is made of
them."""
WINDOW_BUFFERS = 12
"""Arrays of a batch of windows that a thread has in hand: windows, their parts, what is made."""


@dataclass(frozen=True)
class EmbeddedCosts:
    """Bytes of a Hankel problem's parts; the same questions as to `Costs`."""

    store: EmbeddedStore
    ranks: tuple[int, ...]
    value_bytes: int = 8
    workers: int = 1

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(part.count for part in self.store.partitions)

    def slices_of(self, number: int) -> tuple[int, int]:
        part = self.store.partitions[number]
        return part.first_slice, part.stop_slice

    @property
    def fibres(self) -> int:
        """Entries of the tensor, whose sums cross chunks."""
        return math.prod(self.store.shape)

    @property
    def exchanged(self) -> int:
        """Bytes that one worker sends in an iteration."""
        return self._tensor

    @property
    def driver(self) -> int:
        window = self.store.embedding.window
        factors = sum(8 * m * r for m, r in zip(window, self.ranks, strict=True))
        return RUNTIME_BYTES + DRIVER_FACTORS * factors

    def resident(
        self,
        entries: int,
        threads: int,
        slices: tuple[tuple[int, int], ...] = (),
        *,
        most_entries: int = 0,
    ) -> WorkerBytes:
        """With everything in memory, which is not much: the embedding itself is never held."""
        state = entries * KEPT_VECTORS * self.value_bytes
        arriving = min(FAN_IN, self.workers - 1)
        sums = GATHERED_TENSORS * (threads + 1 + arriving) + TOLD_TENSORS + ROOT_TENSORS
        batch = max(BATCH_ENTRIES, math.prod(self.store.embedding.window)) * 8
        return WorkerBytes(
            entries * self.value_bytes,
            state,
            sums * self._tensor,
            threads * WINDOW_BUFFERS * batch,
        )

    def streamed(
        self,
        entries: int,
        threads: int,
        block_entries: int,
        slices: tuple[tuple[int, int], ...] = (),
    ) -> WorkerBytes:
        """Files would not help: there is nothing large that is kept."""
        return self.resident(entries, threads, slices)

    @property
    def _tensor(self) -> int:
        return 8 * math.prod(self.store.shape)
