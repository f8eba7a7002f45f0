"""Sums over rows of a dual vector: the gradient, Hessian products, products for eigenvalues.

With X the sparse tensor of dual values, `RowSums` is `X_k (X_kᵀ F_k)` for all modes at once: the
gradient for F = U, a step of the power or Lanczos method for F = a vector. The derivative forms
serve the Hessian. Each is two rounds, because the slab mode's fibre sums are needed whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slrt_dask.dual.entries import EntryModel
from slrt_dask.dual.operator import Factors, Matrix, Operator, Sums
from slrt_dask.engine.block import VALUES, Block, Vector
from slrt_dask.engine.program import OneRound, Program, Rounds, Sweep
from slrt_dask.kernels import entries as passes
from slrt_dask.kernels import sweeps, vectors
from slrt_dask.kernels.simd import lanes_for


@dataclass(frozen=True)
class RowSums(Program):
    """Of every term X_k (X_kᵀ F_t), X being the vector named (the observed values if None)."""

    vector: str | None
    operator: Operator

    def rounds(self) -> Rounds:
        sums, local = yield Sweep(RowSums._local)
        (crossing,) = yield Sweep(RowSums._slab, (sums,))
        return in_order(self.operator, local, crossing)

    def _local(self, block: Block, total: Any) -> tuple[Sums, tuple[Matrix, ...]]:
        """The slab mode's fibre sums, and X_k (X_kᵀ F_t) of the local terms."""
        index, x = block.index, block.vector(self.vector or VALUES)
        totals = zeros_for(self.operator, self.operator.local) if total is None else total[1]
        for t, rows in zip(self.operator.local, totals, strict=True):
            mode, matrix = self.operator.terms[t].mode, self.operator.gather.padded[t]
            width = matrix.shape[1]
            in_runs = mode == index.mode_in_runs
            add_rows = sweeps.row_sums_runs if in_runs else sweeps.row_sums_slices
            add_rows(
                index.starts, index.rows[mode], index.fibres[mode], x, matrix,
                lanes_for(width), block.buffer(mode, width), rows,
            )  # fmt: skip
        return self.operator.crossing_sums(block, x, total and total[0]), totals

    def _slab(self, block: Block, total: Any, sums: Sums) -> tuple[tuple[Matrix, ...]]:
        x = block.vector(self.vector or VALUES)
        return (slab_row_sums(block, self.operator, [(x, sums)], total and total[0]),)


@dataclass(frozen=True)
class DerivativeRowSums(Program):
    """Derivative of RowSums as the vector moves along `vector_dot`, factors along `direction`."""

    vector: str
    vector_dot: str
    operator: Operator
    direction: Factors

    def rounds(self) -> Rounds:
        sums, sums_dot, local = yield Sweep(DerivativeRowSums._local)
        (crossing,) = yield Sweep(DerivativeRowSums._slab, (sums, sums_dot))
        return in_order(self.operator, local, crossing)

    def _local(self, block: Block, total: Any) -> tuple[Sums, Sums, tuple[Matrix, ...]]:
        x, x_dot = block.vector(self.vector), block.vector(self.vector_dot)
        index, operator = block.index, self.operator
        if total is None:
            empty = tuple(matrix.copy() for matrix in operator.room(block))
            total = empty, operator.room(block), zeros_for(operator, operator.local)
        sums, sums_dot, totals = total
        for t, rows in zip(operator.local, totals, strict=True):
            mode, matrix = operator.terms[t].mode, operator.gather.padded[t]
            width = matrix.shape[1]
            sweeps.derivative_row_sums_slices(
                index.starts, index.rows[mode], index.fibres[mode], x, x_dot, matrix,
                self.direction.padded[t], lanes_for(width), block.buffer(mode, width),
                block.buffer(mode, width, "derivative"), rows,
            )  # fmt: skip
        moved = replace(operator, gather=self.direction)
        sums = operator.crossing_sums(block, x, sums)
        sums_dot = moved.crossing_sums(block, x, sums_dot)
        return sums, operator.crossing_sums(block, x_dot, sums_dot), totals

    def _slab(self, block: Block, total: Any, sums: Sums, sums_dot: Sums) -> Any:
        x, x_dot = block.vector(self.vector), block.vector(self.vector_dot)
        parts = [(x, sums_dot), (x_dot, sums)]
        return (slab_row_sums(block, self.operator, parts, total and total[0]),)


@dataclass(frozen=True)
class HessianRightHandSide(Program):
    """The vector −Σ_t λ_t (X ×_k (V Pᵀ + P Vᵀ))_Ω, left under `target`; ends in its norm.

    operator : the derivative of the problem's operator
    """

    vector: str
    target: str
    operator: Operator

    def rounds(self) -> Rounds:
        (sums,) = yield Sweep(HessianRightHandSide._local)
        squares = yield Sweep(HessianRightHandSide._slab, (sums,))
        return float(squares) ** 0.5

    def _local(self, block: Block, total: Any) -> tuple[Sums]:
        x, out = block.vector(self.vector), block.fresh(self.target)
        self.operator.add_local(block, x, out, shift=0.0)
        return (self.operator.crossing_sums(block, x, total and total[0]),)

    def _slab(self, block: Block, total: Any, sums: Sums) -> float:
        out = block.changing(self.target)
        self.operator.add_crossing(block, sums, out)
        np.negative(out, out=out)
        return float(vectors.dot(out, out)) + (total or 0.0)


@dataclass(frozen=True)
class RowMoments(OneRound):
    """Counts of entries and sums of squares by row, 2 K vectors (n_k,), of the vector named.

    Leaves the vector `ones`, which is one at every entry: its row sums tell how often rows meet.
    """

    vector: str | None
    ones: str
    shape: tuple[int, ...]

    def step(self, block: Block, total: Any) -> tuple[Matrix, ...]:
        block.fresh(self.ones)[:] = 1.0
        squares = np.square(block.vector(self.vector or VALUES), dtype=np.float64)
        here = [
            np.bincount(rows, weights=weights, minlength=length).astype(np.float64)
            for weights in (None, squares)
            for rows, length in zip(block.index.rows, self.shape, strict=True)
        ]
        return tuple(here) if total is None else self.combine(total, here)


@dataclass(frozen=True)
class ObservationSize(OneRound):
    """Σ w h(y) and Σ w over all observations, what the loss is without any model, and min w."""

    model: EntryModel

    def step(self, block: Block, total: Any) -> tuple[float, float, float]:
        loss, count, least = total or (0.0, 0.0, math.inf)
        weights = self.model.weights(block)
        loss += float(passes.total_loss(block.values, weights, self.model.delta))
        if not weights.size:
            return loss, count + block.entries, min(least, 1.0)
        count += float(weights.sum(dtype=np.float64))
        return loss, count, min(least, float(weights.min()))

    def combine(self, left: Any, right: Any) -> Any:
        return (*super().combine(left[:2], right[:2]), min(left[2], right[2]))


@dataclass(frozen=True)
class Limited(OneRound):
    """Leave the observed values under `target`, none of them larger than δ."""

    delta: float
    target: str

    def step(self, block: Block, total: Any) -> int:
        np.clip(block.values, -self.delta, self.delta, out=block.fresh(self.target))
        return 0


@dataclass(frozen=True)
class Resistances(OneRound):
    """Leave under `target` the entries' term on the diagonal where they are free, else zero.

    vector : the dual vector at which that is asked
    """

    model: EntryModel
    vector: str
    target: str

    def step(self, block: Block, total: Any) -> int:
        x = block.vector(self.vector)
        passes.resistances(self.model.of(block), x, block.fresh(self.target))
        return 0


def in_order(
    operator: Operator, local: tuple[Matrix, ...], crossing: tuple[Matrix, ...]
) -> tuple[Matrix, ...]:
    """Matrices of all terms, given those of the local and of the crossing ones; no padding."""
    found = dict(zip(operator.local, local, strict=True))
    found |= dict(zip(operator.crossing, crossing, strict=True))
    return operator.gather.unpad(tuple(found[t] for t in range(len(operator.terms))))


def zeros_for(operator: Operator, numbers: tuple[int, ...]) -> tuple[Matrix, ...]:
    return tuple(np.zeros_like(operator.gather.padded[t]) for t in numbers)


def slab_row_sums(
    block: Block, operator: Operator, parts: list[tuple[Vector, Sums]], total: Any
) -> tuple[Matrix, ...]:
    """The total, with Σ over parts of X_p Tᵀ on this block's slab added to it, by crossing term."""
    index, mode = block.index, operator.slab_mode
    found: tuple[Matrix, ...] = total or zeros_for(operator, operator.crossing)
    for x, sums in parts:
        for matrix, rows in zip(sums, found, strict=True):
            lanes = lanes_for(rows.shape[1])
            sweeps.row_sums(index.rows[mode], index.fibres[mode], x, matrix, lanes, rows)
    return found
