"""What each part of a Hankel fit costs in bytes: chunks of the embedding, and sums of W's size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slrt_dask.engine.costs import DRIVER_FACTORS, ROOMS, RUNTIME_BYTES, WorkerBytes
from slrt_dask.engine.embedded import EmbeddedStore
from slrt_dask.engine.exchange import FAN_IN

SOLVER_VECTORS = 5
"""Of a conjugate gradient iteration: r, p, s, w and the model's image of r."""
KEPT_VECTORS = 5
"""Duals of the accepted and the trial point, one being refined, and two of a Hessian product."""
OPEN_VECTORS = 7
"""Vectors of a chunk that one step has in hand at most."""
ROOT_TENSORS = 12
"""At the root of a run: observations, mask, copies, H* of the residual and of its image, what is
told, and what is made of these."""
BATCH_BYTES = 6 * 8 * 2**17
"""Of a thread that contracts a part of a chunk: the part, unfolded, and what is made of it."""


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
        self, entries: int, threads: int, slices: tuple[tuple[int, int], ...] = ()
    ) -> WorkerBytes:
        """With all chunks in memory."""
        state = entries * (SOLVER_VECTORS + KEPT_VECTORS) * self.value_bytes
        return WorkerBytes(
            entries * self.value_bytes, state, self._sums(threads), threads * BATCH_BYTES
        )

    def streamed(
        self,
        entries: int,
        threads: int,
        block_entries: int,
        slices: tuple[tuple[int, int], ...] = (),
    ) -> WorkerBytes:
        """With chunks of about this many entries in files."""
        window = math.prod(self.store.embedding.window)
        # A window is never cut.
        held = ROOMS * threads * min(max(block_entries, window), entries) * self.value_bytes
        kept = (SOLVER_VECTORS + KEPT_VECTORS + 1) * self.value_bytes
        return WorkerBytes(
            held, OPEN_VECTORS * held, self._sums(threads), threads * BATCH_BYTES,
            scratch=entries * kept,
        )  # fmt: skip

    @property
    def _tensor(self) -> int:
        return 8 * math.prod(self.store.shape)

    def _sums(self, threads: int) -> int:
        """Sums of the tensor's size: two of every thread, those that arrive, and the root's own."""
        arriving = min(FAN_IN, self.workers - 1)
        return (2 * (threads + 1 + arriving) + ROOT_TENSORS) * self._tensor
