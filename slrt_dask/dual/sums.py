"""Sums over rows of a dual vector: the gradient, Hessian products, products for eigenvalues.

With X the sparse tensor of dual values, `RowSums` is `X_k (X_kᵀ F_k)` for all modes at once: the
gradient for F = U, a step of the power or Lanczos method for F = a vector. The derivative forms
serve the Hessian. Each is two rounds, because the slab mode's fibre sums are needed whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.dual.operator import Factors, Matrix, add_crossing, add_local, crossing_sums
from slrt_dask.engine.block import VALUES, Block, Vector
from slrt_dask.engine.program import OneRound, Program, Rounds, Sweep
from slrt_dask.kernels import sweeps, vectors
from slrt_dask.kernels.blocks import BlockIndex
from slrt_dask.kernels.simd import lanes_for


@dataclass(frozen=True)
class RowSums(Program):
    """K matrices X_k (X_kᵀ F_k), X being the vector named (the observed values if None)."""

    vector: str | None
    factors: Factors
    slab_mode: int

    def rounds(self) -> Rounds:
        sums, *local = yield Sweep(RowSums._local)
        (slab,) = yield Sweep(RowSums._slab, (sums,))
        return self.factors.unpad((*local[: self.slab_mode], slab, *local[self.slab_mode :]))

    def _local(self, block: Block, total: Any) -> tuple[Matrix, ...]:
        """The slab mode's fibre sums, and X_k (X_kᵀ F_k) of the other modes."""
        index, x = block.index, block.vector(self.vector or VALUES)
        totals = local_totals(self.factors, index) if total is None else total[1:]
        for mode, rows in zip(index.local_modes, totals, strict=True):
            matrix = self.factors.padded[mode]
            width = matrix.shape[1]
            in_runs = mode == index.mode_in_runs
            add_rows = sweeps.row_sums_runs if in_runs else sweeps.row_sums_slices
            add_rows(
                index.starts, index.rows[mode], index.fibres[mode], x, matrix,
                lanes_for(width), block.buffer(mode, width), rows,
            )  # fmt: skip
        return (crossing_sums(block, self.factors, x, total and total[0]), *totals)

    def _slab(self, block: Block, total: Any, sums: Matrix) -> tuple[Matrix]:
        x = block.vector(self.vector or VALUES)
        return slab_row_sums(block, self.factors, [(x, sums)], total)


@dataclass(frozen=True)
class DerivativeRowSums(Program):
    """Derivative of RowSums as the vector moves along `vector_dot`, factors along `direction`."""

    vector: str
    vector_dot: str
    factors: Factors
    direction: Factors
    slab_mode: int

    def rounds(self) -> Rounds:
        sums, sums_dot, *local = yield Sweep(DerivativeRowSums._local)
        (slab,) = yield Sweep(DerivativeRowSums._slab, (sums, sums_dot))
        return self.factors.unpad((*local[: self.slab_mode], slab, *local[self.slab_mode :]))

    def _local(self, block: Block, total: Any) -> tuple[Matrix, ...]:
        x, x_dot = block.vector(self.vector), block.vector(self.vector_dot)
        index = block.index
        totals = local_totals(self.factors, index) if total is None else total[2:]
        for mode, rows in zip(index.local_modes, totals, strict=True):
            matrix = self.factors.padded[mode]
            width = matrix.shape[1]
            sweeps.derivative_row_sums_slices(
                index.starts, index.rows[mode], index.fibres[mode], x, x_dot, matrix,
                self.direction.padded[mode], lanes_for(width), block.buffer(mode, width),
                block.buffer(mode, width, "derivative"), rows,
            )  # fmt: skip
        before = (None, None) if total is None else total[:2]
        sums = crossing_sums(block, self.factors, x, before[0])
        sums_dot = crossing_sums(block, self.direction, x, before[1])
        return (sums, crossing_sums(block, self.factors, x_dot, sums_dot), *totals)

    def _slab(self, block: Block, total: Any, sums: Matrix, sums_dot: Matrix) -> tuple[Matrix]:
        x, x_dot = block.vector(self.vector), block.vector(self.vector_dot)
        return slab_row_sums(block, self.factors, [(x, sums_dot), (x_dot, sums)], total)


@dataclass(frozen=True)
class HessianRightHandSide(Program):
    """The vector −Σ_k λ_k (Z ×_k (V_kU_kᵀ + U_kV_kᵀ))_Ω, left under `target`; ends in its norm."""

    vector: str
    target: str
    factors: Factors
    direction: Factors
    weights: tuple[float, ...]

    def rounds(self) -> Rounds:
        (sums,) = yield Sweep(HessianRightHandSide._local)
        (squares,) = yield Sweep(HessianRightHandSide._slab, (sums,))
        return float(squares) ** 0.5

    @property
    def _negative(self) -> tuple[float, ...]:
        return tuple(-weight for weight in self.weights)

    def _local(self, block: Block, total: Any) -> tuple[Matrix]:
        gather = self.factors.beside(self.direction)
        scatter = self.direction.beside(self.factors)
        z, out = block.vector(self.vector), block.fresh(self.target)
        add_local(block, gather, scatter, self._negative, z, out, shift=0.0)
        return (crossing_sums(block, gather, z, total and total[0]),)

    def _slab(self, block: Block, total: Any, sums: Matrix) -> tuple[float]:
        out = block.changing(self.target)
        scatter = self.direction.beside(self.factors)
        add_crossing(block, scatter, self._negative, sums, out)
        return (vectors.dot(out, out) + (total[0] if total else 0.0),)


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
class NormOfObservations(Program):
    """‖y‖ over all blocks."""

    at_once = 1

    def rounds(self) -> Rounds:
        (squares,) = yield Sweep(NormOfObservations._squares)
        return float(squares) ** 0.5

    def _squares(self, block: Block, total: Any) -> tuple[float]:
        return (vectors.dot(block.values, block.values) + (total[0] if total else 0.0),)


def slab_row_sums(
    block: Block, factors: Factors, terms: list[tuple[Vector, Matrix]], total: Any
) -> tuple[Matrix]:
    """The total, (n_p, width), with Σ over terms of X_p Tᵀ on this block's slab added to it."""
    index, mode = block.index, block.index.slab_mode
    rows = np.zeros_like(factors.padded[mode]) if total is None else total[0]
    for x, sums in terms:
        sweeps.row_sums(
            index.rows[mode], index.fibres[mode], x, sums, lanes_for(rows.shape[1]), rows
        )
    return (rows,)


def local_totals(factors: Factors, index: BlockIndex) -> tuple[Matrix, ...]:
    return tuple(np.zeros_like(factors.padded[mode]) for mode in index.local_modes)
