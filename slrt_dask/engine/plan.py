"""What a fit will need, computed before anything is loaded: pure integers, no I/O.

Every byte has a cause: index columns and values, the vectors of the solver, the fibre sums of the
slab mode, the buffers of the other modes. What does not fit is refused with these numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slrt_dask.data.header import StoreHeader
from slrt_dask.engine.placement import Place, assign_partitions
from slrt_dask.engine.prepare import numbers_every_fibre
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.kernels.blocks import possible_fibres
from slrt_dask.kernels.rows import padded_width

SOLVER_VECTORS = 4
"""Of a conjugate gradient iteration: r, p, s and w."""
KEPT_VECTORS = 5
"""Duals of the accepted and the trial point, one being refined, and two of a Hessian product."""
RUNTIME_BYTES = 350 * 2**20
"""The interpreter with its libraries, after compiling the kernels: 327 MB were measured."""


@dataclass(frozen=True)
class WorkerBytes:
    """Bytes that one worker will hold, by cause."""

    observations: int
    state: int
    fibre_sums: int
    buffers: int
    runtime: int = RUNTIME_BYTES

    @property
    def total(self) -> int:
        return self.observations + self.state + self.fibre_sums + self.buffers + self.runtime


@dataclass(frozen=True)
class Plan:
    """Where the observations go and what that costs.

    entries : observations on each worker that gets some
    exchange_bytes : what crosses between workers in one inner iteration, in all
    """

    entries: tuple[int, ...]
    threads: tuple[int, ...]
    slab_mode: int
    fibres: int
    worker_bytes: tuple[WorkerBytes, ...]
    exchange_bytes: int
    memory_limits: tuple[int | None, ...]

    @property
    def largest(self) -> WorkerBytes:
        return max(self.worker_bytes, key=lambda needed: needed.total)

    def check(self) -> None:
        """Raise MemoryBudgetExceeded if a worker's share does not fit its limit."""
        pairs = zip(self.worker_bytes, self.memory_limits, strict=True)
        for number, (needed, limit) in enumerate(pairs):
            if limit is not None and needed.total > limit:
                raise MemoryBudgetExceeded(
                    f"worker {number} needs {readable(needed.total)} "
                    f"(observations {readable(needed.observations)}, solver state "
                    f"{readable(needed.state)}, fibre sums {readable(needed.fibre_sums)}, buffers "
                    f"{readable(needed.buffers)}, runtime {readable(needed.runtime)}) but may use "
                    f"{readable(limit)}; use more workers, raise the memory limit, or lower the "
                    f"rank of mode {self.slab_mode}"
                )

    def __str__(self) -> str:
        needed = self.largest
        lines = [
            f"workers           {len(self.entries)}, threads {sum(self.threads)}",
            f"slab mode         {self.slab_mode} ({self.fibres:,} fibres cross partitions)",
            f"observations      {readable(needed.observations)} on the fullest worker",
            f"solver state      {readable(needed.state)}",
            f"fibre sums        {readable(needed.fibre_sums)}",
            f"buffers           {readable(needed.buffers)}",
            f"runtime           {readable(needed.runtime)}",
            f"total per worker  {readable(needed.total)}",
            f"network           {readable(self.exchange_bytes)} an inner iteration",
            "partitions        resident in memory",
        ]
        return "\n".join(lines)


def plan_fit(
    header: StoreHeader,
    ranks: tuple[int, ...],
    *,
    places: list[Place],
    value_bytes: int = 8,
    held_out: int = 0,
) -> Plan:
    """Plan a fit on the places that there are; those that get no partition stay out of it.

    held_out : observations for validation, which are held beside the others
    """
    shares = assign_partitions([part.count for part in header.partitions], places)
    pairs = [(place, share) for place, share in zip(places, shares, strict=True) if share]
    counts = [sum(header.partitions[number].count for number in share) for _, share in pairs]
    fibres = fibre_bound(header)
    width = padded_width(ranks[header.slab_mode])
    worker_bytes = tuple(
        _worker_bytes(header, ranks, count, place.threads, fibres, value_bytes, held_out)
        for (place, _), count in zip(pairs, counts, strict=True)
    )
    # Every worker but one sends its partial sums up the tree, and all but one get the total back.
    exchange = 2 * (len(pairs) - 1) * fibres * width * 8
    return Plan(
        tuple(counts),
        tuple(place.threads for place, _ in pairs),
        header.slab_mode,
        fibres,
        worker_bytes,
        exchange,
        tuple(place.memory_limit for place, _ in pairs),
    )


def fibre_bound(header: StoreHeader) -> int:
    """How many fibres of the slab mode will be numbered, at most."""
    possible = possible_fibres(header.shape, (header.slab_mode,))
    if numbers_every_fibre(header.shape, header.slab_mode, header.nnz):
        return possible
    return min(possible, header.nnz)


def _worker_bytes(
    header: StoreHeader,
    ranks: tuple[int, ...],
    entries: int,
    threads: int,
    fibres: int,
    value_bytes: int,
    held_out: int,
) -> WorkerBytes:
    order, slab = len(header.shape), header.slab_mode
    index_bytes = header.index_dtype.itemsize
    # Modes of order-3 tensors number their fibres by an index column that is there anyway.
    fibre_columns = {2: 1, 3: 1}.get(order, order)
    observations = entries * ((order + fibre_columns) * index_bytes + 2 * value_bytes)
    # Held-out entries have columns, fibre numbers and values; order 4 and more number the fibres
    # of both kinds of entries together.
    queries = math.ceil(held_out * entries / header.nnz)
    observations += queries * (4 * order * index_bytes + 24)
    observations += entries * order * index_bytes if held_out and order > 3 else 0
    state = entries * (SOLVER_VECTORS + KEPT_VECTORS) * value_bytes
    # A Hessian product has factor and direction side by side: twice the width. Every thread makes
    # a partial sum, and the complete one arrives beside them.
    sums = (threads + 2) * fibres * 2 * padded_width(ranks[slab]) * 8
    buffers = 0
    for mode in range(order):
        if mode != slab:
            rows = possible_fibres(header.shape, (mode, slab))
            buffers += threads * min(rows, entries) * 4 * padded_width(ranks[mode]) * 8
    # Reading a partition, or writing its dual, holds its columns once more.
    transfer = max(part.count for part in header.partitions) * (order * index_bytes + 24)
    factors = sum(n * padded_width(r) * 8 for n, r in zip(header.shape, ranks, strict=True))
    return WorkerBytes(observations, state, sums, buffers + transfer + 6 * factors * (threads + 1))


def readable(count: int) -> str:
    """A number of bytes with a unit that a person would choose."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000.0:
            return f"{size:.3g} {unit}"
        size /= 1000.0
    return f"{size:.3g} TB"
