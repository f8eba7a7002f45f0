"""The completed tensor at places other than the observations.

    W[i] = Σ_k λ_k ⟨U_k[i_k], T_k[fibre of i in mode k]⟩,      T_k = U_kᵀ Z_k

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
from slrt_dask.dual.operator import Factors, Matrix, crossing_sums
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


@dataclass(frozen=True)
class Model:
    """What the completed tensor is made of, besides the dual entries.

    sums_at : fibre sums of the slab mode, (m, width), given the numbers (m,) of fibres; zeros for
        the number after the last one
    offset : added to every value: what was subtracted from the observations
    """

    shape: tuple[int, ...]
    slab_mode: int
    factors: Factors
    weights: tuple[float, ...]
    sums_at: Callable[[NDArray[np.integer[Any]]], Matrix]
    numbering: FibreNumbering
    offset: Offset = field(default_factory=Offset)


def with_empty_row(sums: Matrix) -> Matrix:
    """Fibre sums with one more row of zeros, for fibres that hold no observation."""
    return np.vstack([sums, np.zeros((1, sums.shape[1]))])


def sample_queries(
    index: BlockIndex,
    queries: QueryIndex,
    x: Vector,
    factors: Factors,
    weights: tuple[float, ...],
    sums: Matrix,
) -> NDArray[np.float64]:
    """Σ_k λ_k X ×_k U_kU_kᵀ at the queries, given the slab mode's fibre sums with an empty row."""
    out = sample_local(index, queries, x, factors, weights)
    mode = index.slab_mode
    sample_slab(queries.rows[mode], queries.fibres[mode], factors, weights, mode, sums, out)
    return out


def sample_slab(
    rows: NDArray[Any],
    fibres: NDArray[Any],
    factors: Factors,
    weights: tuple[float, ...],
    mode: int,
    sums: Matrix,
    out: NDArray[np.float64],
) -> None:
    """Add the slab mode's part at some rows and fibres, given its fibre sums."""
    matrix = factors.padded[mode]
    sweeps.sample(rows, fibres, sums, matrix, lanes_for(matrix.shape[1]), weights[mode], out)


def sample_local(
    index: BlockIndex,
    queries: QueryIndex,
    x: Vector,
    factors: Factors,
    weights: tuple[float, ...],
) -> NDArray[np.float64]:
    """The same of the local modes alone."""
    out = np.zeros(len(queries.rows[0]))
    for mode in index.local_modes:
        matrix = factors.padded[mode]
        lanes = lanes_for(matrix.shape[1])
        buffer = np.zeros((queries.buffer_rows[mode], matrix.shape[1]))
        sweeps.sample_slices(
            queries.source_bounds, index.rows[mode], queries.source_fibres[mode], x,
            queries.starts, queries.rows[mode], queries.fibres[mode], matrix, lanes, buffer,
            weights[mode], out,
        )  # fmt: skip
    return out


def predict_slab(
    model: Model, columns: IndexColumns, dual: Vector, queries: IndexColumns
) -> NDArray[np.float64]:
    """Values at queries, all sorted by the slab mode, given the dual entries of their slices."""
    index = build_block(columns, model.shape, model.slab_mode, model.numbering)
    places = build_queries(index, queries, model.numbering)
    values = sample_local(index, places, dual, model.factors, model.weights)
    slab, numbers = model.slab_mode, places.fibres[model.slab_mode]
    sums, own = model.sums_at(numbers), np.arange(len(numbers), dtype=numbers.dtype)
    sample_slab(places.rows[slab], own, model.factors, model.weights, slab, sums, values)
    return values + model.offset.at(queries)


def dense_chunk(
    model: Model, columns: IndexColumns, dual: Vector, ranges: tuple[range, ...]
) -> NDArray[np.float64]:
    """The completed tensor on a box of indices, given the dual entries of the box's slices.

    Each mode's part is one matrix product: fibre sums restricted to the box, times factor rows.
    """
    sizes = tuple(len(box) for box in ranges)
    result = model.offset.on_box(ranges)
    for mode in range(len(sizes)):
        others = tuple(length for k, length in enumerate(sizes) if k != mode)
        if mode == model.slab_mode:
            sums = _crossing_sums_in_box(model, ranges)
        else:
            sums = _local_sums_in_box(model, columns, dual, ranges, mode)
        rows = model.factors.padded[mode][ranges[mode].start : ranges[mode].stop]
        part = (model.weights[mode] * rows) @ sums.T
        result += np.moveaxis(part.reshape(sizes[mode], *others), 0, mode)
    return result


def _crossing_sums_in_box(model: Model, ranges: tuple[range, ...]) -> Matrix:
    others = [k for k in range(len(ranges)) if k != model.slab_mode]
    grids = np.meshgrid(*(np.arange(r.start, r.stop) for r in (ranges[k] for k in others)),
                        indexing="ij")  # fmt: skip
    columns = [np.zeros(grids[0].size, dtype=np.int64)] * len(ranges)
    for mode, grid in zip(others, grids, strict=True):
        columns[mode] = grid.reshape(-1)
    keys = fibre_keys(tuple(columns), model.shape, (model.slab_mode,))
    return model.sums_at(model.numbering.numbers(keys))


def _local_sums_in_box(
    model: Model, columns: IndexColumns, dual: Vector, ranges: tuple[range, ...], mode: int
) -> Matrix:
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
    matrix = model.factors.padded[mode]
    width = matrix.shape[1]
    sums = np.zeros((math.prod(sizes) // sizes[mode], width))
    sweeps.fibre_sums(shifted[mode], fibres, dual[inside], matrix, lanes_for(width), sums)
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
    factors: Factors
    weights: tuple[float, ...]
    kind: Kind = SINGLY
    delta: float | None = None

    def rounds(self) -> Rounds:
        (sums,) = yield Sweep(ValidationErrors._sums)
        counts, squares = yield Sweep(ValidationErrors._errors, (with_empty_row(sums),))
        none = SquaredErrors.none()
        return SquaredErrors(none.counts + counts, none.squares + squares)

    def _sums(self, block: Block, total: Any) -> tuple[Matrix]:
        return (crossing_sums(block, self.factors, block.vector(self.vector), total and total[0]),)

    def _errors(self, block: Block, total: Any, sums: Matrix) -> tuple[Any, Any]:
        queries, wanted = block.query_index, block.query_values
        counts, squares = total or (0.0, 0.0)
        if queries is None or wanted is None:
            return counts, squares
        dual = block.vector(self.vector)
        found = sample_queries(block.index, queries, dual, self.factors, self.weights, sums)
        missed = found - wanted
        if self.delta is not None:
            missed = huber_roots(missed, self.delta)
        errors = SquaredErrors.of(self.kind, queries.rows, missed)
        return counts + errors.counts, squares + errors.squares
