"""What each part of a fit costs in bytes: the formulas behind a plan, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from slrt_dask.data.layout import StoreHeader
from slrt_dask.dual.numbering import numbers_every_fibre
from slrt_dask.engine.cluster import FAN_IN
from slrt_dask.engine.plan import RUNTIME_BYTES, Plan, WorkerBytes, planned
from slrt_dask.engine.spill import ROOMS
from slrt_dask.engine.watch import Place
from slrt_dask.kernels.blocks import possible_fibres
from slrt_dask.kernels.simd import padded_width

SOLVER_VECTORS, KEPT_VECTORS = 4, 5
"""Of conjugate gradients: r, p, s and w. And duals of the accepted point, of a trial and the
refused one before it, one being refined, and one that a certificate has refined."""
OPEN_VECTORS = 6
"""Vectors of a block that one sweep has in hand at most: the solution, r, p, s, w and b."""
WEIGHT_VECTORS = 2
"""What weights of observations add: themselves, and the diagonal that they make."""
BOUND_VECTORS, ALTERNATING_VECTORS, ROW_VECTORS = 4, 3, 3
"""What bounds add: marks, the multipliers' centre and its next place, and where a step began; what
they add if multipliers take turns with z; and what rows of a linear constraint add to that."""
CERTIFICATE_WIDTH = 8
"""Columns of each mode's factors with which a certificate looks for eigenvalues."""
SCAN_BYTES = 5 * 8 * 2**19
"""Of a thread that looks through the tensor: a box of it, and what is made of that."""
DRIVER_FACTORS = 45
"""Sets of factors in a driver's hands: quasi-Newton steps with a memory of eight have the most."""
NUMBERING_BYTES, JOINING_KEYS = 100, 6
"""Of an entry whose fibre is being numbered: keys, places, their order. And how many sets of keys
of fibres there are when two of them are joined."""
COEFFICIENT_BYTES = 16 + 24
"""Of a linear constraint's coefficient: as it is kept, and what it is made from at the start."""
SOLVE_ROW_VECTORS, DRIVER_ROW_VECTORS = 16, 12
"""Vectors of a linear constraint's rows: the solve's at its root, and those of the driver."""


@dataclass(frozen=True)
class CouplingSize:
    """How large a linear constraint is.

    pieces : (first slice, one after the last, coefficients), for parts of the tensor
    """

    rows: int
    pieces: tuple[tuple[int, int, int], ...]

    def coefficients(self, slices: tuple[int, int]) -> int:
        """How many coefficients some slices have, at most."""
        inside = (n for low, high, n in self.pieces if slices[0] < high and low < slices[1])
        return sum(inside)


@dataclass(frozen=True)
class SlabCosts:
    """Bytes of the parts of a problem whose blocks are slabs.

    held_out : observations for validation, which are held beside the others
    extra : entries beside the observed ones at which bounds are looked after; None without bounds
    workers : how many there are, at most
    hessian : whether the method makes Hessian products, as the trust region does
    alternating : whether multipliers of bounds take turns with z
    """

    header: StoreHeader
    ranks: tuple[int, ...]
    value_bytes: int = 8
    held_out: int = 0
    extra: int | None = None
    workers: int = 1
    coupling: CouplingSize | None = None
    hessian: bool = False
    alternating: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(part.count for part in self.header.partitions)

    @property
    def crossing(self) -> int:
        rows = 0 if self.coupling is None else self.coupling.rows
        return self._sums_bytes + 8 * rows

    @property
    def driver(self) -> int:
        rows = 0 if self.coupling is None else self.coupling.rows
        return RUNTIME_BYTES + DRIVER_FACTORS * self._factor_bytes + DRIVER_ROW_VECTORS * 8 * rows

    @property
    def fibres(self) -> int:
        """How many fibres of the slab mode will be numbered, at most."""
        possible = possible_fibres(self.header.shape, (self.header.slab_mode,))
        return possible if self._every else min(possible, self.header.nnz + (self.extra or 0))

    @property
    def _every(self) -> bool:
        header = self.header
        return numbers_every_fibre(header.shape, header.slab_mode, header.nnz)

    @property
    def _index_bytes(self) -> int:
        """Of one entry: its index columns, the fibre numbers that are not among them, strips."""
        # Modes of order-3 tensors number their fibres by an index column that is there anyway.
        order = len(self.header.shape)
        fibre_columns = {2: 1, 3: 1}.get(order, order)
        return (order + fibre_columns) * self.header.index_dtype.itemsize + 1

    @property
    def _sums_bytes(self) -> int:
        """Of one set of the slab mode's fibre sums."""
        return self.fibres * padded_width(self.ranks[self.header.slab_mode]) * 8

    @property
    def _factor_bytes(self) -> int:
        """Of one matrix per mode, padded as the kernels want it."""
        lengths = zip(self.header.shape, self.ranks, strict=True)
        return sum(length * padded_width(rank) * 8 for length, rank in lengths)

    @property
    def _bound_vectors(self) -> int:
        if self.extra is None:
            return 0
        alternating = ALTERNATING_VECTORS if self.alternating else 0
        return BOUND_VECTORS + alternating + (0 if self.coupling is None else ROW_VECTORS)

    def needed(
        self, entries: int, threads: int, slices: tuple[int, int], block_entries: int | None
    ) -> WorkerBytes:
        held, value, index = self._with_extra(entries), self.value_bytes, self._index_bytes
        weights = WEIGHT_VECTORS if self.header.weighted else 0
        vectors = SOLVER_VECTORS + KEPT_VECTORS + self._bound_vectors + weights
        largest = held if block_entries is None else min(self._with_extra(block_entries), held)
        scratch, seen, open_vectors = 0, held, vectors + 2
        if block_entries is not None:
            scratch = held * (index + (vectors + 1) * value)
            seen = ROOMS * threads * largest
            open_vectors = OPEN_VECTORS + self._bound_vectors + weights
        strips = 0 if block_entries is None else held + 8 * (slices[1] - slices[0])
        buffers = self._buffers(largest, threads)
        if self.extra is not None:
            # A block whose entries change is there twice for a moment, and put in order.
            changing = min(largest, -(-held // threads)) if block_entries is None else largest
            buffers += threads * SCAN_BYTES
            buffers += changing * (index + (vectors + 2) * value + 8 * (len(self.ranks) + 4))
        return WorkerBytes(
            seen * index + strips + self._queries(held, largest), seen * open_vectors * value,
            self._sums(threads), buffers, self._rows(threads, slices), scratch=scratch,
        )  # fmt: skip

    def _with_extra(self, entries: int) -> int:
        """Entries of a part of the observations, with their part of what is held beside them."""
        return entries + math.ceil((self.extra or 0) * entries / self.header.nnz)

    @property
    def _arriving(self) -> int:
        """Sums of other workers that one task adds up, a message, and the one before it."""
        return min(FAN_IN, self.workers) - 1 + (2 if self.workers > 1 else 1)

    def _rows(self, threads: int, slices: tuple[int, int]) -> int:
        """Of a linear constraint: coefficients, which stay in memory, and vectors of its rows."""
        if self.coupling is None:
            return 0
        vectors = SOLVE_ROW_VECTORS + threads + self._arriving
        coefficients = self.coupling.coefficients(slices)
        return COEFFICIENT_BYTES * coefficients + vectors * 8 * self.coupling.rows

    def _sums(self, threads: int) -> int:
        """Every thread has two rooms for partial sums; a Hessian product makes one more."""
        widest = self.fibres * self._widest(self.ranks[self.header.slab_mode]) * 8
        made = ((3 if self.hessian else 2) * threads + self._arriving) * widest
        keys = 0 if self._every else 8 * self.fibres
        return max(made + keys, JOINING_KEYS * keys)

    def _widest(self, rank: int) -> int:
        """Columns of a mode's widest fibre sums."""
        # A Hessian product has factor and direction side by side, and two such sums.
        width = padded_width(rank) * (3 if self.hessian else 1)
        return max(width, CERTIFICATE_WIDTH)

    def _buffers(self, entries: int, threads: int) -> int:
        header, buffers = self.header, 0
        for mode, rank in enumerate(self.ranks):
            if mode != header.slab_mode:
                rows = possible_fibres(header.shape, (mode, header.slab_mode))
                if len(header.shape) > 3:  # only then are just the fibres that occur numbered
                    rows = min(rows, entries)
                buffers += threads * rows * 2 * self._widest(rank) * 8
        # Reading a partition, or writing its dual, holds its columns once more.
        largest = self._with_extra(max(part.count for part in header.partitions))
        weight = 8 if header.weighted else 0
        buffers += largest * (len(header.shape) * header.index_dtype.itemsize + 24 + weight)
        return buffers + 6 * self._factor_bytes * (threads + 1)

    def _queries(self, entries: int, block_entries: int) -> int:
        """Held-out entries have columns, fibre numbers and values."""
        order, index = len(self.header.shape), self.header.index_dtype.itemsize
        queries = math.ceil(self.held_out * entries / self.header.nnz)
        each = 4 * order * index + (32 if self.header.weighted else 24)
        if not self.held_out or order <= 3:
            return queries * each
        # Order 4 and more number the fibres of both kinds of entries together, by sorting them,
        # block after block.
        both = (self.header.nnz + self.held_out) / self.header.nnz * block_entries
        return queries * each + entries * order * index + math.ceil(NUMBERING_BYTES * both)


def plan_fit(costs: SlabCosts, places: list[Place]) -> Plan:
    """Plan a fit on the places that there are; those that get no partition stay out of it."""
    header, ranks = costs.header, costs.ranks
    costs = replace(costs, workers=len(places))
    best = max(range(len(ranks)), key=lambda mode: header.shape[mode] / ranks[mode])
    ratio = header.shape[header.slab_mode] / ranks[header.slab_mode]
    better = best if header.shape[best] / ranks[best] > ratio else None
    rows = 0 if costs.coupling is None else costs.coupling.rows
    plan = planned(costs, places, [header.slices_of(n) for n in range(len(header.partitions))])
    return replace(
        plan, slab_mode=header.slab_mode, better_slab_mode=better, extra=costs.extra, rows=rows
    )
