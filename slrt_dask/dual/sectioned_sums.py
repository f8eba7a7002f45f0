"""Sums over rows, errors and the model's fibre sums, where these are made section by section.

Counterparts of `RowSums`, `ValidationErrors` and `WriteFibreSums` for problems whose slab mode has
more fibres than sums of all of them could be held for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slrt_dask.data.holding_out import SINGLY, Kind, SquaredErrors
from slrt_dask.dual.operator import Factors, Matrix, crossing_sums
from slrt_dask.dual.sampling import sample_local, sample_slab, squared_errors, with_empty_row
from slrt_dask.dual.sums import local_row_sums, slab_row_sums
from slrt_dask.dual.writing import (
    COUNTS_ARRAY,
    KEYS_ARRAY,
    SUMS_ARRAY,
    create_array,
    write_array,
    write_rows,
)
from slrt_dask.engine.block import VALUES, Block
from slrt_dask.engine.program import Finished, Program, add_into
from slrt_dask.kernels.blocks import fibre_keys
from slrt_dask.kernels.sections import section_length, section_range


@dataclass(frozen=True)
class Part:
    """What the blocks are to do next.

    work : local, on whole blocks; gather, which makes a section's fibre sums; or what uses these
    sums : complete fibre sums of the section
    so_far : what the parts before have come to; for `advance` alone
    """

    work: str
    section: int = 0
    sums: Matrix | None = None
    so_far: Any = None


class _Sectioned(Program):
    """A round on whole blocks, and then rounds that make, or use, the fibre sums of one section."""

    vector: str | None
    factors: Factors
    sections: int

    def first(self) -> Part:
        return Part("local")

    def section(self, message: Part) -> int | None:
        return None if message.work == "local" else message.section

    def sent(self, message: Part) -> Part:
        return replace(message, so_far=None)

    def _gathered(self, block: Block, total: Any) -> tuple[Matrix]:
        x = block.vector(self.vector or VALUES)
        return (crossing_sums(block, self.factors, x, None if total is None else total[0]),)

    def _next(self, message: Part, so_far: Any) -> Part | None:
        """The next section, if there is one."""
        following = message.section + 1
        return None if following == self.sections else Part("gather", following, None, so_far)


@dataclass(frozen=True)
class SectionedRowSums(_Sectioned):
    """K matrices X_k (X_kᵀ F_k): see `sums.RowSums`."""

    vector: str | None
    factors: Factors
    slab_mode: int
    sections: int

    label = "rows"

    def step(self, block: Block, message: Part, total: Any) -> tuple[Matrix, ...]:
        if message.work == "gather":
            return self._gathered(block, total)
        x = block.vector(self.vector or VALUES)
        if message.work == "local":
            return local_row_sums(block, self.factors, x, total)
        assert message.sums is not None
        return slab_row_sums(block, self.factors, [(x, message.sums)], total)

    def advance(self, message: Part, total: Any) -> Part | Finished:
        if message.work == "local":
            return Part("gather", so_far=(total, None))
        if message.work == "gather":
            return replace(message, work="rows", sums=total[0])
        others, rows = message.so_far
        rows = total[0] if rows is None else add_into(rows, total[0])
        following = self._next(message, (others, rows))
        if following is not None:
            return following
        totals = list(others)
        totals.insert(self.slab_mode, rows)
        return Finished(self.factors.unpad(tuple(totals)))


@dataclass(frozen=True)
class SectionedValidationErrors(_Sectioned):
    """Squared errors at held-out places: see `sampling.ValidationErrors`.

    What local modes predict is made first, and kept. A place lies in one fibre of the slab mode,
    and so in one section, with whose sums its prediction is complete.
    """

    vector: str
    factors: Factors
    weights: tuple[float, ...]
    sections: int
    kind: Kind = SINGLY

    label = "validate"

    def step(self, block: Block, message: Part, total: Any) -> tuple[Any, ...]:
        if message.work == "gather":
            return self._gathered(block, total)
        counts, squares = total or (0.0, 0.0)
        if block.queries is None or not len(block.queries[0]):
            return counts, squares
        if message.work == "local":
            queries, dual = block.query_index, block.vector(self.vector)
            assert queries is not None
            block.query_found = sample_local(block.index, queries, dual, self.factors, self.weights)
            return counts, squares
        errors = self._errors(block, message)
        return counts + errors.counts, squares + errors.squares

    def _errors(self, block: Block, message: Part) -> SquaredErrors:
        """At the places whose fibre is in this section."""
        found, wanted, columns = block.query_found, block.query_values, block.queries
        assert found is not None
        assert wanted is not None
        assert columns is not None
        assert message.sums is not None
        mode, numbering = block.index.slab_mode, block.numbering
        numbers = numbering.numbers(fibre_keys(columns, block.index.shape, (mode,)))
        length = section_length(numbering.count, self.sections)
        # Places in fibres that hold no observation have the number after the last one.
        inside = np.flatnonzero(np.minimum(numbers // length, self.sections - 1) == message.section)
        rows = tuple(column[inside] for column in columns)
        fibres = (numbers[inside] - message.section * length).astype(numbers.dtype)
        found = found[inside]
        sample_slab(rows[mode], fibres, self.factors, self.weights, mode, message.sums, found)
        return SquaredErrors.of(self.kind, rows, found - wanted[inside])

    def advance(self, message: Part, total: Any) -> Part | Finished:
        if message.work == "local":
            return Part("gather")
        if message.work == "gather":
            return replace(message, work="errors", sums=with_empty_row(total[0]))
        so_far = total if message.so_far is None else self.combine(message.so_far, total)
        following = self._next(message, so_far)
        return Finished(squared_errors(so_far)) if following is None else following


@dataclass(frozen=True)
class SectionedWriteFibreSums(_Sectioned):
    """Write T_p = U_pᵀ Z_p as it is made: see `writing.WriteFibreSums`.

    fibres : how many the slab mode has
    """

    vector: str
    factors: Factors
    slab_mode: int
    group: str
    sections: int
    fibres: int

    label = "write-sums"

    def first(self) -> Part:
        return Part("gather")

    def step(self, block: Block, message: Part, total: Any) -> tuple[Any, ...]:
        (sums,) = self._gathered(block, total)
        fibres = block.index.fibres[self.slab_mode]
        counts = np.bincount(fibres, minlength=len(sums)).astype(np.int64)
        keys = None if total is None else total[2]
        # Every block knows the same keys, which are wanted once.
        if (message.section, block.partition, block.position) == (0, 0, 0):
            keys = block.numbering.known
        return sums, counts if total is None else total[1] + counts, keys

    def combine(self, left: Any, right: Any) -> Any:
        keys = right[2] if left[2] is None else left[2]
        return add_into(left[0], right[0]), left[1] + right[1], keys

    def advance(self, message: Part, total: Any) -> Part | Finished:
        sums, counts, keys = total
        checksums = self._created() if message.so_far is None else dict(message.so_far)
        first, stop = section_range(self.fibres, self.sections, message.section)
        values = {SUMS_ARRAY: sums[:, : self.factors.ranks[self.slab_mode]], COUNTS_ARRAY: counts}
        for name, rows in values.items():
            part = rows[: stop - first]
            checksums[name] = write_rows(self.group, name, first, part, checksums[name])
        if keys is not None:
            checksums[KEYS_ARRAY] = write_array(self.group, KEYS_ARRAY, keys)
        following = self._next(message, checksums)
        return Finished(checksums) if following is None else following

    def _created(self) -> dict[str, int]:
        """Arrays without content yet; their checksums."""
        rank = self.factors.ranks[self.slab_mode]
        create_array(self.group, SUMS_ARRAY, (self.fibres, rank), np.float64)
        create_array(self.group, COUNTS_ARRAY, (self.fibres,), np.int64)
        return {SUMS_ARRAY: 0, COUNTS_ARRAY: 0}
