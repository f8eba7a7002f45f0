"""What each part of a Hankel fit costs in bytes: tensors like W, and a few windows at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from slrt_dask.dual.costs import DRIVER_FACTORS
from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.hankel.embedding import BATCH_ENTRIES
from slrt_dask.engine.cluster import FAN_IN
from slrt_dask.engine.plan import RUNTIME_BYTES, Plan, WorkerBytes, planned
from slrt_dask.engine.watch import Place

KEPT_VECTORS = 6
"""Pieces of W at the accepted and the trial point, one being refined, two of a Hessian product, and
what a certificate takes off."""
TOLD_TENSORS = 2
"""Tensors in the message of a round."""
GATHERED_TENSORS = 3
"""Tensors that are put together from pieces, or summed up, in a round."""
ROOT_TENSORS = 16
"""At the root of a run: observations, mask, copies and bounds; the solver's own; what is made of
them."""
WINDOW_BUFFERS = 12
"""Arrays of a batch of windows that a thread has in hand: windows, their parts, what is made."""


@dataclass(frozen=True)
class EmbeddedCosts:
    """Bytes of a Hankel problem's parts."""

    store: EmbeddedStore
    ranks: tuple[int, ...]
    value_bytes: int = 8
    workers: int = 1

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(part.count for part in self.store.partitions)

    @property
    def crossing(self) -> int:
        return 8 * math.prod(self.store.shape)

    @property
    def driver(self) -> int:
        window = self.store.embedding.window
        factors = sum(8 * m * r for m, r in zip(window, self.ranks, strict=True))
        return RUNTIME_BYTES + DRIVER_FACTORS * factors

    def needed(
        self, entries: int, threads: int, slices: tuple[int, int], block_entries: int | None
    ) -> WorkerBytes:
        """Files would not help: there is nothing large that is kept."""
        state = entries * KEPT_VECTORS * self.value_bytes
        arriving = min(FAN_IN, self.workers) - 1
        sums = GATHERED_TENSORS * (threads + 1 + arriving) + TOLD_TENSORS + ROOT_TENSORS
        batch = max(BATCH_ENTRIES, math.prod(self.store.embedding.window)) * 8
        return WorkerBytes(
            entries * self.value_bytes, state, sums * self.crossing,
            threads * WINDOW_BUFFERS * batch,
        )  # fmt: skip


def plan_embedded(costs: EmbeddedCosts, places: list[Place]) -> Plan:
    """Plan a fit whose blocks are chunks of an embedded tensor."""
    costs, count = replace(costs, workers=len(places)), len(costs.store.partitions)
    return planned(costs, places, [costs.store.slices_of(number) for number in range(count)])
