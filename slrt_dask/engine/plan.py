"""What a fit will need and how it will run, decided before anything is loaded: no I/O.

Every byte has a cause. Blocks stay in memory where they fit; where they do not, they are streamed
from a local file with as much room as there is; what does not fit even so is refused with the
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slrt_dask.engine.watch import Place, assign_partitions
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.spending import Rates, readable

RUNTIME_BYTES = 350 * 2**20
"""The interpreter with its libraries, after compiling the kernels: 327 MB were measured."""
LARGEST_STREAMED_BLOCK, SMALLEST_STREAMED_BLOCK = 1_000_000, 20_000


@dataclass(frozen=True)
class WorkerBytes:
    """Bytes that one worker will hold in memory, by cause, and on its disk (scratch)."""

    observations: int
    state: int
    fibre_sums: int
    buffers: int
    rows: int = 0
    runtime: int = RUNTIME_BYTES
    scratch: int = 0

    @property
    def total(self) -> int:
        """In memory."""
        sums = self.fibre_sums + self.rows
        return self.observations + self.state + sums + self.buffers + self.runtime


class Costs(Protocol):
    """What the parts of a problem take; its mathematics knows that."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Entries of every partition."""

    @property
    def crossing(self) -> int:
        """Bytes of what one worker sends in a round."""

    @property
    def driver(self) -> int:
        """Bytes of a driver whose blocks are on workers."""

    def needed(
        self, entries: int, threads: int, slices: tuple[int, int], block_entries: int | None
    ) -> WorkerBytes:
        """Of a worker with so many entries of some slices, in blocks that are streamed or not."""


@dataclass(frozen=True)
class WorkerPlan:
    """What one place will hold.

    block_entries : of streamed blocks; None where they stay in memory
    resident : bytes that would be needed for that
    """

    place: Place
    partitions: tuple[int, ...]
    entries: int
    needed: WorkerBytes
    block_entries: int | None
    resident: int

    @property
    def fits(self) -> bool:
        limit = self.place.memory_limit
        return limit is None or self.needed.total <= limit

    def check(self, number: int, slab_mode: int | None) -> None:
        """Raise MemoryBudgetExceeded if this does not fit."""
        if self.fits:
            return
        needed, limit = self.needed, self.place.memory_limit or 0
        useless = slab_mode is None or needed.runtime >= limit
        lower = "" if useless else f"lower the rank of mode {slab_mode}, "
        raise MemoryBudgetExceeded(
            f"worker {number} needs {readable(needed.total)} even with its blocks on disk "
            f"(open blocks {readable(needed.observations + needed.state)}, sums "
            f"{readable(needed.fibre_sums)}, linear rows {readable(needed.rows)}, buffers "
            f"{readable(needed.buffers)}, runtime {readable(needed.runtime)}) but may use "
            f"{readable(limit)}; raise the memory limit to {readable(needed.total)} or more; "
            f"{lower}give each worker fewer threads, or have fewer workers with more memory each"
        )


@dataclass(frozen=True)
class Plan:
    """Where the observations go and what that costs.

    workers : the places that get some of them, the root first
    crossing : bytes of what a worker sends in a round
    driver : bytes in the process that has the plan, where that is not a worker itself
    slab_mode : the mode along which blocks are cut; None for chunks of an embedded tensor
    better_slab_mode : a mode along which less would cross, if there is one
    extra : entries beside the observed ones that bounds may need; None without bounds
    rows : rows of linear constraints
    left_out : places that are too small for a share, beside those that there is a plan for
    rates : what was measured of the machines, if it was
    """

    workers: tuple[WorkerPlan, ...]
    slab_mode: int | None
    crossing: int
    better_slab_mode: int | None
    available: int
    partitions: int
    driver: int
    extra: int | None = None
    rows: int = 0
    left_out: int = 0
    rates: Rates | None = None

    @property
    def in_memory(self) -> bool:
        """Whether every worker has all its blocks in memory, and room for them."""
        return all(worker.block_entries is None and worker.fits for worker in self.workers)

    @property
    def largest(self) -> WorkerBytes:
        return max((worker.needed for worker in self.workers), key=lambda needed: needed.total)

    @property
    def exchange_bytes(self) -> int:
        """What crosses between workers in a round, in all."""
        # Every worker but one sends its partial sums up, and all but one get the total back.
        return 2 * (len(self.workers) - 1) * self.crossing

    def check(self) -> None:
        """Raise MemoryBudgetExceeded if a worker's share does not fit its limit."""
        for number, worker in enumerate(self.workers):
            worker.check(number, self.slab_mode)

    def __str__(self) -> str:
        from slrt_dask.show.text import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        from slrt_dask.show.html import plan_html

        return plan_html(self)


def planned(costs: Costs, places: list[Place], slices: list[tuple[int, int]]) -> Plan:
    """The plan for costs, given the slices of every partition."""
    counts, workers = list(costs.counts), []
    for place, share in zip(places, assign_partitions(counts, places), strict=True):
        if share:
            extent = slices[share[0]][0], slices[share[-1]][1]
            entries = sum(counts[number] for number in share)
            workers.append(_worker_plan(costs, place, share, entries, extent))
    return Plan(tuple(workers), None, costs.crossing, None, len(places), len(counts), costs.driver)


def _worker_plan(
    costs: Costs, place: Place, share: tuple[int, ...], entries: int, slices: tuple[int, int]
) -> WorkerPlan:
    def needed(block_entries: int | None) -> WorkerBytes:
        return costs.needed(entries, place.threads, slices, block_entries)

    limit, resident, block = place.memory_limit, needed(None), None
    if limit is not None and resident.total > limit:
        # The most entries a streamed block may have for everything to fit; the fewest if none.
        block, high = SMALLEST_STREAMED_BLOCK, LARGEST_STREAMED_BLOCK
        while block < high:
            middle = (block + high + 1) // 2
            fits = needed(middle).total <= limit
            block, high = (middle, high) if fits else (block, middle - 1)
    return WorkerPlan(place, share, entries, needed(block), block, resident.total)
