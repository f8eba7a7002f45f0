"""What a fit will need and how it will run, decided before anything is loaded: no I/O.

Every byte has a cause (`costs.py`). Blocks stay in memory where they fit; where they do not, they
are streamed from local files with as much room as there is; what does not fit even so is refused
with the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from slrt_dask.data.header import StoreHeader
from slrt_dask.engine.amounts import CouplingSize, WorkerBytes
from slrt_dask.engine.costs import Costs
from slrt_dask.engine.embedded import EmbeddedStore
from slrt_dask.engine.embedded_costs import EmbeddedCosts
from slrt_dask.engine.neighbours import LARGEST
from slrt_dask.engine.placement import Place, assign_partitions
from slrt_dask.engine.tiling import Tiling
from slrt_dask.errors import MemoryBudgetExceeded

AnyCosts = Costs | EmbeddedCosts
LARGEST_STREAMED_BLOCK = 1_000_000
SMALLEST_STREAMED_BLOCK = 20_000
WORTHWHILE_BLOCK = 100_000
"""Entries of a streamed block below which rather fibre sums are cut into more sections."""
SECTIONS = (1, 2, 4, 8, 16, 32, 64)
"""How many there may be."""
BLOCK_SECONDS, VISIT_SECONDS, ROUND_SECONDS, ENTRY_SECONDS = 1.5e-3, 0.6e-3, 3e-3, 25e-9
"""What an iteration takes beside arithmetic, as measured once: for a streamed block, for a section
of one, for a round of all workers, and for an entry that is put in order of sections and back."""


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

    @property
    def worth(self) -> float:
        """How large its blocks are beside those that are worth streaming; 0 if none fit."""
        if not self.fits:
            return 0.0
        wanted = min(WORTHWHILE_BLOCK, LARGEST_STREAMED_BLOCK, self.entries)
        return 1.0 if self.block_entries is None else min(1.0, self.block_entries / wanted)

    def seconds_beside(self, sections: int) -> float:
        """About how long an iteration waits for files and rounds; infinite if this does not fit."""
        if not self.fits:
            return math.inf
        blocks = 0 if self.block_entries is None else -(-self.entries // self.block_entries)
        if sections == 1:
            return blocks * BLOCK_SECONDS
        visits = 2 * sections * (blocks * VISIT_SECONDS + ROUND_SECONDS)
        return blocks * BLOCK_SECONDS + visits + self.entries * ENTRY_SECONDS

    def check(self, number: int, slab_mode: int | None, sections: int = 1) -> None:
        """Raise MemoryBudgetExceeded if this does not fit."""
        if self.fits:
            return
        needed, limit = self.needed, self.place.memory_limit or 0
        cut = f" and its fibre sums in {sections} sections" if sections > 1 else ""
        raise MemoryBudgetExceeded(
            f"worker {number} needs {readable(needed.total)} even with its blocks on disk{cut} "
            f"(open blocks {readable(needed.observations + needed.state)}, sums "
            f"{readable(needed.fibre_sums)}, linear rows {readable(needed.rows)}, buffers "
            f"{readable(needed.buffers)}, runtime "
            f"{readable(needed.runtime)}) but may use {readable(limit)}; {self._remedy(slab_mode)}"
        )

    def _remedy(self, slab_mode: int | None) -> str:
        if self.needed.runtime >= (self.place.memory_limit or 0):
            fewer = "" if self.place.address is None else ", or have fewer workers with more each"
            return (
                "the runtime alone needs more, whatever the ranks and the observations: raise the "
                f"memory limit{fewer}"
            )
        ranks = "" if slab_mode is None else f"lower the rank of mode {slab_mode}, "
        return f"raise the memory limit, {ranks}or give each worker fewer threads"


@dataclass(frozen=True)
class Plan:
    """Where the observations go and what that costs.

    workers : the places that get some of them
    exchange_bytes : what crosses between workers in one inner iteration, in all
    driver : bytes in the process that has the plan, where that is not a worker itself
    slab_mode : the mode along which blocks are cut; None for chunks of an embedded tensor
    better_slab_mode : a mode along which less would cross, if there is one
    extra : entries beside the observed ones that bounds may need; None without bounds
    rows : rows of linear constraints
    tiling : how products are made; None for chunks of an embedded tensor
    sections : into how many parts the slab mode's fibres are cut, whose sums are made in turn
    left_out : places that are too small for a share, beside those that there is a plan for
    """

    workers: tuple[WorkerPlan, ...]
    slab_mode: int | None
    fibres: int
    exchange_bytes: int
    better_slab_mode: int | None
    available: int
    partitions: int
    driver: int
    extra: int | None = None
    rows: int = 0
    tiling: Tiling | None = None
    sections: int = 1
    left_out: int = 0

    @property
    def tiles(self) -> bool:
        """Whether products are made on dense tiles."""
        return self.tiling is not None and self.tiling.used

    @property
    def in_memory(self) -> bool:
        """Whether every worker has all its blocks in memory, and room for them."""
        return all(worker.block_entries is None and worker.fits for worker in self.workers)

    @property
    def worth(self) -> float:
        """Of the worker for which it is least; 1 if blocks are in memory, or worth streaming."""
        return min(worker.worth for worker in self.workers)

    @property
    def largest(self) -> WorkerBytes:
        return max((worker.needed for worker in self.workers), key=lambda needed: needed.total)

    def check(self) -> None:
        """Raise MemoryBudgetExceeded if a worker's share does not fit its limit."""
        for number, worker in enumerate(self.workers):
            worker.check(number, self.slab_mode, self.sections)

    def __str__(self) -> str:
        from slrt_dask.engine.plan_text import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        from slrt_dask.engine.plan_html import plan_html

        return plan_html(self)


def plan_fit(
    header: StoreHeader,
    ranks: tuple[int, ...],
    *,
    places: list[Place],
    value_bytes: int = 8,
    held_out: int = 0,
    extra: int | None = None,
    coupling: CouplingSize | None = None,
    hessian: bool = False,
    alternating: bool = False,
    divisible: bool = False,
) -> Plan:
    """Plan a fit on the places that there are; those that get no partition stay out of it.

    held_out : observations for validation, which are held beside the others
    extra : entries beside the observed ones that bounds may need; None without bounds
    coupling : a linear constraint, if there is one
    hessian : whether the method makes Hessian products, which take more room
    alternating : whether multipliers of bounds take turns with z, which does too
    divisible : whether fibre sums may be made in sections
    """
    costs = Costs(
        header, ranks, value_bytes, held_out, extra, len(places), coupling, hessian, alternating
    )
    if divisible:
        costs = replace(costs, sections=_sections(costs, places))
    best = max(range(len(ranks)), key=lambda mode: header.shape[mode] / ranks[mode])
    ratio = header.shape[header.slab_mode] / ranks[header.slab_mode]
    plan = _plan(costs, places, header.slab_mode)
    return replace(
        plan,
        better_slab_mode=best if header.shape[best] / ranks[best] > ratio else None,
        extra=extra,
        rows=0 if coupling is None else coupling.rows,
        tiling=costs.tiling,
        sections=costs.sections,
    )


def _sections(costs: Costs, places: list[Place]) -> int:
    """Those with which an iteration takes the least time: few sections leave room for small blocks.

    Where nothing fits it is the most, with which least is missing.
    """
    least, best = math.inf, SECTIONS[-1]
    # With enough of them, workers of one machine exchange them by memory.
    by_memory = costs.workers > 1 and replace(costs, sections=best).section_bytes <= LARGEST
    for sections in SECTIONS:
        cut = replace(costs, sections=sections)
        if by_memory and sections > 1 and cut.section_bytes > LARGEST:
            continue
        plan = _plan(cut, places, costs.header.slab_mode)
        seconds = max(worker.seconds_beside(sections) for worker in plan.workers)
        if seconds < least:
            least, best = seconds, sections
    return best


def plan_embedded(
    store: EmbeddedStore, ranks: tuple[int, ...], *, places: list[Place], value_bytes: int = 8
) -> Plan:
    """Plan a fit whose blocks are chunks of an embedded tensor."""
    return _plan(EmbeddedCosts(store, ranks, value_bytes, len(places)), places, None)


def _plan(costs: AnyCosts, places: list[Place], slab_mode: int | None) -> Plan:
    counts = costs.counts
    shares = assign_partitions(list(counts), places)
    most = max(sum(counts[number] for number in share) for share in shares)
    workers = tuple(
        _planned(costs, place, share, most)
        for place, share in zip(places, shares, strict=True)
        if share
    )
    # Every worker but one sends its partial sums up the tree, and all but one get the total back.
    exchange = 2 * (len(workers) - 1) * costs.exchanged
    return Plan(
        workers, slab_mode, costs.fibres, exchange, None, len(places), len(counts), costs.driver
    )


def _planned(
    costs: AnyCosts, place: Place, share: tuple[int, ...], most_entries: int
) -> WorkerPlan:
    entries = sum(costs.counts[number] for number in share)
    slices = tuple(costs.slices_of(number) for number in share)
    resident = costs.resident(entries, place.threads, slices, most_entries=most_entries)
    if place.memory_limit is None or resident.total <= place.memory_limit:
        return WorkerPlan(place, share, entries, resident, None, resident.total)
    block_entries = _largest_block(costs, place, entries, slices)
    streamed = costs.streamed(entries, place.threads, block_entries, slices)
    return WorkerPlan(place, share, entries, streamed, block_entries, resident.total)


def _largest_block(
    costs: AnyCosts, place: Place, entries: int, slices: tuple[tuple[int, int], ...]
) -> int:
    """The most entries a streamed block may have for everything to fit; the smallest if none."""
    assert place.memory_limit is not None
    low, high = SMALLEST_STREAMED_BLOCK, max(SMALLEST_STREAMED_BLOCK, LARGEST_STREAMED_BLOCK)
    while low < high:
        middle = (low + high + 1) // 2
        needed = costs.streamed(entries, place.threads, middle, slices)
        fits = needed.total <= place.memory_limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def readable(count: int) -> str:
    """A number of bytes with a unit that a person would choose."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000.0:
            return f"{size:.3g} {unit}"
        size /= 1000.0
    return f"{size:.3g} TB"
