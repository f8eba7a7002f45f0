"""The completed tensor at places other than the observations.

    W[i] = Σ_t λ_t ⟨P_t[i_k], T_t[fibre of i in mode k]⟩,      T_t = P_tᵀ X_k

Fibre sums of the local modes are rebuilt slice by slice from the dual entries of the same slab;
those of the slab mode come from all slabs, and are given. A place whose fibres hold no observation
in any mode gets zero: the model knows nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.holding_out import SINGLY, Kind, SquaredErrors
from slrt_dask.dual.offsets import Offset
from slrt_dask.dual.operator import Matrix, Operator, Sums
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.kernels import sweeps
from slrt_dask.kernels.blocks import (
    BlockIndex,
    FibreNumbering,
    IndexColumns,
    QueryIndex,
    build_block,
    build_queries,
    fibre_keys,
)
from slrt_dask.kernels.simd import lanes_for

SumsAt = Callable[[NDArray[np.integer[Any]]], Sums]


@dataclass(frozen=True)
class Model:
    """What the completed tensor is made of, besides the dual entries.

    sums_at : the slab mode's fibre sums, (m, width) for each of its terms, given the numbers (m,)
        of fibres; zeros for the number after the last one
    offset : added to every value: what was subtracted from the observations
    """

    shape: tuple[int, ...]
    operator: Operator
    sums_at: SumsAt
    numbering: FibreNumbering
    offset: Offset = field(default_factory=Offset)

    @property
    def slab_mode(self) -> int:
        return self.operator.slab_mode


def with_empty_row(sums: Sums) -> Sums:
    """Fibre sums with one more row of zeros, for fibres that hold no observation."""
    return tuple(np.vstack([matrix, np.zeros((1, matrix.shape[1]))]) for matrix in sums)


def sums_from(sums: Sums) -> SumsAt:
    """Fibre sums by number, all of which are in memory."""
    return lambda numbers: tuple(np.take(matrix, numbers, axis=0) for matrix in sums)


def sample_queries(
    index: BlockIndex, queries: QueryIndex, x: Vector, operator: Operator, sums: Sums
) -> NDArray[np.float64]:
    """L X at the queries, given the slab mode's fibre sums with an empty row."""
    out = sample_local(index, queries, x, operator)
    mode = operator.slab_mode
    sample_slab(queries.rows[mode], queries.fibres[mode], operator, sums, out)
    return out


def sample_slab(
    rows: NDArray[Any],
    fibres: NDArray[Any],
    operator: Operator,
    sums: Sums,
    out: NDArray[np.float64],
) -> None:
    """Add the slab mode's part at some rows and fibres, given its fibre sums."""
    for t, matrix in zip(operator.crossing, sums, strict=True):
        lanes = lanes_for(matrix.shape[1])
        weight = operator.terms[t].weight
        sweeps.sample(rows, fibres, matrix, operator.gather.padded[t], lanes, weight, out)


def sample_local(
    index: BlockIndex, queries: QueryIndex, x: Vector, operator: Operator
) -> NDArray[np.float64]:
    """The same of the local modes alone."""
    out = np.zeros(len(queries.rows[0]))
    for t in operator.local:
        mode, matrix = operator.terms[t].mode, operator.gather.padded[t]
        buffer = np.zeros((queries.buffer_rows[mode], matrix.shape[1]))
        sweeps.sample_slices(
            queries.source_bounds, index.rows[mode], queries.source_fibres[mode], x,
            queries.starts, queries.rows[mode], queries.fibres[mode], matrix,
            lanes_for(matrix.shape[1]), buffer, operator.terms[t].weight, out,
        )  # fmt: skip
    return out


def predict_slab(
    model: Model, columns: IndexColumns, dual: Vector, queries: IndexColumns
) -> NDArray[np.float64]:
    """Values at queries, all sorted by the slab mode, given the dual entries of their slices."""
    slab = model.slab_mode
    index = build_block(columns, model.shape, slab, model.numbering)
    places = build_queries(index, queries, model.numbering)
    values = sample_local(index, places, dual, model.operator)
    numbers = places.fibres[slab]
    own = np.arange(len(numbers), dtype=numbers.dtype)
    sample_slab(places.rows[slab], own, model.operator, model.sums_at(numbers), values)
    return values + model.offset.at(queries)


def dense_chunk(
    model: Model, columns: IndexColumns, dual: Vector, ranges: tuple[range, ...]
) -> NDArray[np.float64]:
    """The completed tensor on a box of indices, given the dual entries of the box's slices.

    Each term's part is one matrix product: fibre sums restricted to the box, times factor rows.
    """
    operator, sizes = model.operator, tuple(len(box) for box in ranges)
    result, crossing = model.offset.on_box(ranges), _crossing_sums_in_box(model, ranges)
    sums = dict(zip(operator.crossing, crossing, strict=True))
    for t, term in enumerate(operator.terms):
        if t in operator.local:
            sums[t] = _local_sums_in_box(operator, t, columns, dual, ranges)
        box, others = ranges[term.mode], (*sizes[: term.mode], *sizes[term.mode + 1 :])
        rows = term.weight * operator.gather.padded[t][box.start : box.stop]
        part = rows @ sums[t].T
        result += np.moveaxis(part.reshape(len(box), *others), 0, term.mode)
    return result


def _crossing_sums_in_box(model: Model, ranges: tuple[range, ...]) -> Sums:
    slab = model.slab_mode
    others = [k for k in range(len(ranges)) if k != slab]
    grids = np.meshgrid(*(np.arange(r.start, r.stop) for r in (ranges[k] for k in others)),
                        indexing="ij")  # fmt: skip
    columns = [np.zeros(grids[0].size, dtype=np.int64)] * len(ranges)
    for mode, grid in zip(others, grids, strict=True):
        columns[mode] = grid.reshape(-1)
    keys = fibre_keys(tuple(columns), model.shape, (slab,))
    return model.sums_at(model.numbering.numbers(keys))


def _local_sums_in_box(
    operator: Operator, t: int, columns: IndexColumns, dual: Vector, ranges: tuple[range, ...]
) -> Matrix:
    mode, matrix = operator.terms[t].mode, operator.gather.padded[t]
    inside = np.ones(len(dual), dtype=bool)
    for k, (column, box) in enumerate(zip(columns, ranges, strict=True)):
        if k != mode:
            inside &= (column >= box.start) & (column < box.stop)
    shifted = tuple(
        column[inside] - (0 if k == mode else column.dtype.type(box.start))
        for k, (column, box) in enumerate(zip(columns, ranges, strict=True))
    )
    sizes = tuple(len(box) for box in ranges)
    fibres = fibre_keys(shifted, sizes, (mode,))
    kind = columns[0].dtype
    if math.prod(sizes) <= np.iinfo(kind).max:
        fibres = fibres.astype(kind)  # for which the kernel is compiled already
    sums = np.zeros((math.prod(sizes) // sizes[mode], matrix.shape[1]))
    lanes = lanes_for(matrix.shape[1])
    sweeps.fibre_sums(shifted[mode], fibres, dual[inside], matrix, lanes, sums)
    return sums


def huber_roots(errors: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Numbers (m,) whose squares are Huber's loss of the errors."""
    sizes = np.abs(errors)
    beyond = sizes > delta
    sizes[beyond] = np.sqrt(delta * (2.0 * sizes[beyond] - delta))
    return sizes


@dataclass(frozen=True)
class ValidationErrors(Program):
    """Squared errors at the held-out places that the blocks carry, by what was held out.

    delta : δ of Huber's loss, which then takes the place of the square
    """

    vector: str
    operator: Operator
    kind: Kind = SINGLY
    delta: float = math.inf

    def rounds(self) -> Rounds:
        (sums,) = yield Sweep(ValidationErrors._sums)
        counts, squares = yield Sweep(ValidationErrors._errors, (with_empty_row(sums),))
        none = SquaredErrors.none()
        return SquaredErrors(none.counts + counts, none.squares + squares)

    def _sums(self, block: Block, total: Any) -> tuple[Sums]:
        return (self.operator.crossing_sums(block, block.vector(self.vector), total and total[0]),)

    def _errors(self, block: Block, total: Any, sums: Sums) -> tuple[Any, Any]:
        queries, wanted = block.query_index, block.query_values
        counts, squares = total or (0.0, 0.0)
        if queries is None or wanted is None:
            return counts, squares
        dual = block.vector(self.vector)
        missed = sample_queries(block.index, queries, dual, self.operator, sums) - wanted
        if math.isfinite(self.delta):
            missed = huber_roots(missed, self.delta)
        errors = SquaredErrors.of(self.kind, queries.rows, missed, block.query_weights)
        return counts + errors.counts, squares + errors.squares
