"""What each part of a fit costs in bytes: the formulas behind a plan, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slrt_dask.data.header import StoreHeader
from slrt_dask.engine.amounts import RUNTIME_BYTES, CouplingSize, WorkerBytes
from slrt_dask.engine.exchange import FAN_IN
from slrt_dask.engine.helping import MOST_BESIDE, OFFERED_PART
from slrt_dask.engine.neighbours import LARGEST
from slrt_dask.engine.prepare import numbers_every_fibre
from slrt_dask.engine.tiling import Tiling, slice_lengths
from slrt_dask.kernels.blocks import possible_fibres
from slrt_dask.kernels.rows import padded_width
from slrt_dask.kernels.sections import section_length
from slrt_dask.kernels.tiles import tile_bytes

SOLVER_VECTORS = 4
"""Of a conjugate gradient iteration: r, p, s and w."""
KEPT_VECTORS = 5
"""Duals of the accepted point, of a trial and the refused one before it, one being refined, and one
that a certificate has refined; or those of Hessian products in their places."""
CERTIFICATE_WIDTH = 8
"""Columns of each mode's factors with which a certificate looks for eigenvalues."""
OPEN_VECTORS = 6
"""Vectors of a block that one step has in hand at most: the solution, r, p, s, w and b."""
BOUND_VECTORS = 4
"""What bounds add: marks, the multipliers' centre and its next place, and where a step began."""
ALTERNATING_VECTORS = 3
"""What bounds add to that if multipliers take turns with z: the observed values, a gradient and a
change, beside what the joint solve has as well."""
SCAN_BYTES = 5 * 8 * 2**19
"""Of a thread that looks through the tensor: a box of it, and what is made of that."""
ROOMS = 3
"""Blocks that a streaming thread has in memory: read, computed, written."""
BLAS_BYTES = 8 * 2**20
"""Of a thread that makes matrix products: where BLAS puts pieces of them. 2.3 MB were measured."""
DRIVER_FACTORS = 45
"""Sets of factors in a driver's hands: point, gradient and direction of several iterations, and
what the optimiser makes of them; quasi-Newton steps, with eight before them, have the most."""
NUMBERING_BYTES = 100
"""Of an entry whose fibre is being numbered: keys, places, their order, and both in that order."""
JOINING_KEYS = 6
"""Sets of keys of fibres when two of them are joined: both, one after the other, sorted, and what
occurs once, while another one arrives. There are no sums yet."""
COEFFICIENT_BYTES = 16 + 24
"""Of a linear constraint's coefficient: as it is kept, and what it is made from at the start."""
ROW_VECTORS = 16
"""Of a linear constraint's rows: the solve's at its root, those that a program comes with, and what
is told and heard in a round."""
DRIVER_ROW_VECTORS = 12
"""Of them on the driver: bounds, lengths, and multipliers of a few points."""


@dataclass(frozen=True)
class Costs:
    """Bytes of a problem's parts.

    held_out : observations for validation, which are held beside the others
    extra : entries beside the observed ones at which bounds are looked after; None without bounds
    workers : how many there are, at most
    coupling : a linear constraint, if there is one
    hessian : whether the method makes Hessian products, as the trust region does
    alternating : whether multipliers of bounds take turns with z
    sections : into how many parts the slab mode's fibres are cut, with sums for one at a time
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
    sections: int = 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Entries of every partition."""
        return tuple(part.count for part in self.header.partitions)

    @property
    def tiling(self) -> Tiling:
        """Whether products are made on dense tiles."""
        return Tiling.of(self.header)

    def slices_of(self, number: int) -> tuple[int, int]:
        return self.header.slices_of(number)

    @property
    def exchanged(self) -> int:
        """Bytes that one worker sends in an iteration."""
        return self.sums_bytes + (0 if self.coupling is None else 8 * self.coupling.rows)

    @property
    def fibres(self) -> int:
        """How many fibres of the slab mode will be numbered, at most."""
        header = self.header
        possible = possible_fibres(header.shape, (header.slab_mode,))
        if numbers_every_fibre(header.shape, header.slab_mode, header.nnz):
            return possible
        return min(possible, header.nnz + (self.extra or 0))

    @property
    def index_bytes(self) -> int:
        """Of one entry: its index columns and the fibre numbers that are not among them."""
        # Modes of order-3 tensors number their fibres by an index column that is there anyway.
        order = len(self.header.shape)
        fibre_columns = {2: 1, 3: 1}.get(order, order)
        return (order + fibre_columns) * self.header.index_dtype.itemsize

    @property
    def sums_bytes(self) -> int:
        """Of one set of the slab mode's fibre sums, of all sections."""
        return self.fibres * padded_width(self.ranks[self.header.slab_mode]) * 8

    @property
    def section_bytes(self) -> int:
        """Of one set of a section's fibre sums."""
        width = padded_width(self.ranks[self.header.slab_mode])
        return section_length(self.fibres, self.sections) * width * 8

    @property
    def factor_bytes(self) -> int:
        """Of one matrix per mode, padded as the kernels want it."""
        lengths = zip(self.header.shape, self.ranks, strict=True)
        return sum(length * padded_width(rank) * 8 for length, rank in lengths)

    @property
    def driver(self) -> int:
        """Of a driver whose blocks are on workers."""
        rows = 0 if self.coupling is None else self.coupling.rows
        return RUNTIME_BYTES + DRIVER_FACTORS * self.factor_bytes + DRIVER_ROW_VECTORS * 8 * rows

    def resident(
        self,
        entries: int,
        threads: int,
        slices: tuple[tuple[int, int], ...] = (),
        *,
        most_entries: int = 0,
    ) -> WorkerBytes:
        """With all blocks in memory.

        slices : those of its partitions;  most_entries : of any worker, if some have more
        """
        held = self._with_extra(entries)
        observations = held * (self.index_bytes + 2 * self.value_bytes)
        state = held * self._vectors * self.value_bytes
        return WorkerBytes(
            observations + self._queries(held), state, self._sums(threads),
            self._buffers(held, threads)
            + self._offers(max(entries, most_entries))
            + self._gathered(held, slices),
            self._rows(threads, slices),
        )  # fmt: skip

    def streamed(
        self,
        entries: int,
        threads: int,
        block_entries: int,
        slices: tuple[tuple[int, int], ...] = (),
    ) -> WorkerBytes:
        """With blocks of about this many entries in files."""
        held = self._with_extra(entries)
        open_entries = ROOMS * threads * min(self._with_extra(block_entries), held)
        kept = (self._vectors + 1) * self.value_bytes
        columns = self.index_bytes
        if self.sections > 1:  # the slab mode's columns lie in order of them, too
            columns += 2 * self.header.index_dtype.itemsize
        # Blocks that lie so in files pass through one more vector.
        vectors = OPEN_VECTORS + self._bound_vectors + (1 if self.sections > 1 else 0)
        return WorkerBytes(
            open_entries * self.index_bytes + self._order(slices) + self._queries(held),
            open_entries * vectors * self.value_bytes,
            self._sums(threads),
            self._buffers(self._with_extra(block_entries), threads),
            self._rows(threads, slices),
            scratch=held * (columns + kept),
        )

    def _gathered(self, held: int, slices: tuple[tuple[int, int], ...]) -> int:
        """Of sections of blocks in memory: where their entries are, and copies of them."""
        if self.sections == 1:
            return 0
        columns = 2 * self.header.index_dtype.itemsize
        # One section may have nearly all entries.
        return self._order(slices) + held * (8 + columns + OPEN_VECTORS * self.value_bytes)

    def _order(self, slices: tuple[tuple[int, int], ...]) -> int:
        """Of where sections begin in every slice."""
        if self.sections == 1:
            return 0
        return sum(stop - first for first, stop in slices) * (self.sections + 1) * 4

    @property
    def _vectors(self) -> int:
        """Of every entry, beside the observed values."""
        return SOLVER_VECTORS + KEPT_VECTORS + self._bound_vectors

    @property
    def _bound_vectors(self) -> int:
        if self.extra is None:
            return 0
        alternating = ALTERNATING_VECTORS if self.alternating else 0
        return BOUND_VECTORS + alternating + (0 if self.coupling is None else 3)

    def _offers(self, entries: int) -> int:
        """Of what neighbours let each other do, with two vectors: the own offer, and theirs.

        entries : of the worker that has most
        """
        if self.workers == 1 or self.tiling.used or self.sections > 1:
            return 0
        offers = 1 + min(MOST_BESIDE, self.workers - 1)
        offered = math.ceil(self._with_extra(entries) / OFFERED_PART)
        return offers * offered * (self.index_bytes + 2 * self.value_bytes)

    def _rows(self, threads: int, slices: tuple[tuple[int, int], ...]) -> int:
        """Of a linear constraint: coefficients, which stay in memory, and vectors of its rows."""
        if self.coupling is None:
            return 0
        vectors = ROW_VECTORS + threads + min(FAN_IN, self.workers - 1)
        coefficients = self.coupling.coefficients(slices)
        return COEFFICIENT_BYTES * coefficients + vectors * 8 * self.coupling.rows

    def _with_extra(self, entries: int) -> int:
        """Entries of a part of the observations, with their part of what is held beside them."""
        return entries + math.ceil((self.extra or 0) * entries / self.header.nnz)

    def _sums(self, threads: int) -> int:
        # Every thread may make a partial sum, and in a solve keep the one before; the complete one
        # arrives beside them, and at a worker that adds up those of others, so do theirs. What
        # neighbours give each other is in memory that counts for both of them, be it in an outbox
        # or in the two rooms that a solve uses in turns.
        arriving = min(FAN_IN, self.workers - 1)
        one = self.section_bytes
        solving = (2 * threads + 2 + arriving) * one
        # Other programs make one of it a thread, which may be wider.
        columns = self._widest(self.ranks[self.header.slab_mode])
        largest = section_length(self.fibres, self.sections) * columns * 8
        neighbours = min(FAN_IN + 1, self.workers - 1)
        given = (neighbours + 1) * min(largest, LARGEST) if neighbours else 0
        if one <= LARGEST:
            given += 2 * neighbours * one
        # What solves have used in turns is kept for the next one, if it is not much.
        kept = 2 * threads * one if one <= LARGEST else 0
        made = max(solving, (threads + 2 + arriving) * largest + kept) + given
        return max(made + self._key_bytes, JOINING_KEYS * self._key_bytes)

    @property
    def _key_bytes(self) -> int:
        """Of the keys of fibres that occur, where only these have numbers."""
        header = self.header
        every = numbers_every_fibre(header.shape, header.slab_mode, header.nnz)
        return 0 if every else 8 * self.fibres

    def _widest(self, rank: int) -> int:
        """Columns of a mode's widest fibre sums."""
        # A Hessian product has factor and direction side by side.
        width = padded_width(rank) * (2 if self.hessian else 1)
        return max(width, CERTIFICATE_WIDTH)

    def _buffers(self, entries: int, threads: int) -> int:
        header, slab = self.header, self.header.slab_mode
        buffers = 0
        for mode, rank in enumerate(self.ranks):
            if mode != slab:
                rows = possible_fibres(header.shape, (mode, slab))
                if len(header.shape) > 3:  # only then are just the fibres that occur numbered
                    rows = min(rows, entries)
                buffers += threads * rows * 2 * self._widest(rank) * 8
        if self.tiling.used:
            # Factors are there once more, weighted.
            ranks = (rank for mode, rank in enumerate(self.ranks) if mode != slab)
            widths = tuple(self._widest(rank) for rank in ranks)
            tile = tile_bytes(slice_lengths(header), widths)
            buffers += threads * (tile + 2 * self.factor_bytes + BLAS_BYTES)
        # Reading a partition, or writing its dual, holds its columns once more.
        largest = self._with_extra(max(part.count for part in header.partitions))
        if self.extra is not None:
            # A block whose entries change is there twice for a moment.
            buffers += threads * SCAN_BYTES + largest * (self.index_bytes + self._vectors * 8)
        buffers += largest * (len(header.shape) * header.index_dtype.itemsize + 24)
        return buffers + 6 * self.factor_bytes * (threads + 1)

    def _queries(self, entries: int) -> int:
        """Held-out entries have columns, fibre numbers and values."""
        order, index = len(self.header.shape), self.header.index_dtype.itemsize
        queries = math.ceil(self.held_out * entries / self.header.nnz)
        # In sections, what local modes predict is kept until the slab mode's part is known.
        each = 4 * order * index + (24 if self.sections == 1 else 32)
        if not self.held_out or order <= 3:
            return queries * each
        # Order 4 and more number the fibres of both kinds of entries together, by sorting them,
        # block after block; a block may be a whole partition.
        share = (self.header.nnz + self.held_out) / self.header.nnz
        block = min(entries, self._with_extra(max(part.count for part in self.header.partitions)))
        sorting = math.ceil(NUMBERING_BYTES * share * block)
        return queries * each + entries * order * index + sorting
