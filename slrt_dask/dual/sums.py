"""Sums over rows of a dual vector: the gradient, Hessian products, products for eigenvalues.

With X the sparse tensor of dual values, `RowSums` is `X_k (X_kᵀ F_k)` for all modes at once: the
gradient for F = U, a step of the power or Lanczos method for F = a vector. The derivative forms
serve the Hessian. Each is two rounds, because the slab mode's fibre sums are needed whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.dual.operator import (
    Factors,
    Matrix,
    add_crossing,
    add_local,
    aligned,
    crossing_sums,
)
from slrt_dask.engine.block import VALUES, Block, Vector
from slrt_dask.engine.program import Finished, OneRound, Program
from slrt_dask.kernels import sweeps, vectors
from slrt_dask.kernels.rows import lanes_for


@dataclass(frozen=True)
class Crossing:
    """The message of a second round: complete fibre sums, and what the first round summed."""

    sums: tuple[Matrix, ...]
    local_totals: tuple[Matrix, ...]


class _TwoRoundRowSums(Program):
    """Row sums of the local modes, then of the slab mode once its fibre sums are complete."""

    factors: Factors
    slab_mode: int
    crossing_parts: int

    label = "rows"

    def first(self) -> None:
        return None

    def advance(self, message: Crossing | None, total: Any) -> Crossing | Finished:
        if message is None:
            return Crossing(total[: self.crossing_parts], total[self.crossing_parts :])
        totals = list(message.local_totals)
        totals.insert(self.slab_mode, total[0])
        return Finished(self.factors.unpad(tuple(totals)))


@dataclass(frozen=True)
class RowSums(_TwoRoundRowSums):
    """K matrices X_k (X_kᵀ F_k), X being the vector named (the observed values if None)."""

    vector: str | None
    factors: Factors
    slab_mode: int

    crossing_parts = 1

    def step(
        self, block: Block, message: Crossing | None, total: tuple[Matrix, ...] | None
    ) -> tuple[Matrix, ...]:
        x = block.vector(self.vector or VALUES)
        if message is not None:
            return slab_row_sums(block, self.factors, [(x, message.sums[0])], total)
        totals = local_row_sums(block, self.factors, x, None if total is None else total[1:])
        sums = crossing_sums(block, self.factors, x, None if total is None else total[0])
        return (sums, *totals)


@dataclass(frozen=True)
class DerivativeRowSums(_TwoRoundRowSums):
    """Derivative of RowSums as the vector moves along `vector_dot`, factors along `direction`."""

    vector: str
    vector_dot: str
    factors: Factors
    direction: Factors
    slab_mode: int

    crossing_parts = 2

    def step(
        self, block: Block, message: Crossing | None, total: tuple[Matrix, ...] | None
    ) -> tuple[Matrix, ...]:
        x, x_dot = block.vector(self.vector), block.vector(self.vector_dot)
        index = block.index
        if message is not None:
            sums, sums_dot = message.sums
            return slab_row_sums(block, self.factors, [(x, sums_dot), (x_dot, sums)], total)
        totals = _local_totals(self.factors, index.local_modes) if total is None else total[2:]
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


@dataclass(frozen=True)
class HessianRightHandSide(Program):
    """The vector −Σ_k λ_k (Z ×_k (V_kU_kᵀ + U_kV_kᵀ))_Ω, left under `target`; ends in its norm."""

    vector: str
    target: str
    factors: Factors
    direction: Factors
    weights: tuple[float, ...]

    label = "rhs"

    def first(self) -> None:
        return None

    def step(self, block: Block, message: Matrix | None, total: Any) -> tuple[Any, ...]:
        gather = self.factors.beside(self.direction)
        scatter = self.direction.beside(self.factors)
        negative = tuple(-weight for weight in self.weights)
        if message is None:
            z, out = block.vector(self.vector), block.fresh(self.target)
            out[:] = 0.0
            add_local(block, gather, scatter, negative, z, out)
            return (crossing_sums(block, gather, z, None if total is None else total[0]),)
        out = block.changing(self.target)
        add_crossing(block, scatter, negative, message, out)
        return (vectors.dot(out, out) + (0.0 if total is None else total[0]),)

    def advance(self, message: Matrix | None, total: Any) -> Matrix | Finished:
        if message is None:
            sums: Matrix = total[0]
            return sums
        return Finished(float(total[0]) ** 0.5)


@dataclass(frozen=True)
class RowMoments(OneRound):
    """Counts of entries and sums of squares by row, 2 K vectors (n_k,), of the vector named.

    Leaves the vector `ones`, which is one at every entry: its row sums tell how often rows meet.
    """

    vector: str | None
    ones: str
    shape: tuple[int, ...]

    label = "moments"

    def step(
        self, block: Block, message: None, total: tuple[Matrix, ...] | None
    ) -> tuple[Matrix, ...]:
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

    label = "norm"

    def first(self) -> None:
        return None

    def step(self, block: Block, message: None, total: tuple[float] | None) -> tuple[float]:
        square = vectors.dot(block.values, block.values)
        return (square if total is None else total[0] + square,)

    def advance(self, message: None, total: Any) -> Finished:
        return Finished(float(total[0]) ** 0.5)


def local_row_sums(
    block: Block, factors: Factors, x: Vector, totals: tuple[Matrix, ...] | None
) -> tuple[Matrix, ...]:
    """The totals, (n_k, width) for every local mode, with this block's X_k (X_kᵀ F_k) added."""
    index = block.index
    totals = _local_totals(factors, index.local_modes) if totals is None else totals
    for mode, rows in zip(index.local_modes, totals, strict=True):
        matrix = factors.padded[mode]
        width = matrix.shape[1]
        in_runs = mode == index.mode_in_runs
        add_rows = sweeps.row_sums_runs if in_runs else sweeps.row_sums_slices
        add_rows(
            index.starts, index.rows[mode], index.fibres[mode], x, matrix,
            lanes_for(width), block.buffer(mode, width), rows,
        )  # fmt: skip
    return totals


def slab_row_sums(
    block: Block,
    factors: Factors,
    terms: list[tuple[Vector, Matrix]],
    total: tuple[Matrix, ...] | None,
) -> tuple[Matrix]:
    """The total, (n_p, width), with Σ over terms of X_p Tᵀ on this block's slab added to it."""
    index, mode = block.index, block.index.slab_mode
    rows = np.zeros_like(factors.padded[mode]) if total is None else total[0]
    for x, sums in terms:
        sweeps.row_sums(
            index.rows[mode], index.fibres[mode], x, aligned(sums), lanes_for(rows.shape[1]), rows
        )
    return (rows,)


def _local_totals(factors: Factors, modes: tuple[int, ...]) -> tuple[Matrix, ...]:
    return tuple(np.zeros_like(factors.padded[mode]) for mode in modes)
