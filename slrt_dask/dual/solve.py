"""The inner solve: conjugate gradients with one reduction an iteration, and what it came to.

Solves `A z = b` for the operator of `operator.py`. The operator is applied to the residual instead
of to the direction (Chronopoulos and Gear): with `w = A r` the recurrence `s ← w + βs` keeps
`s = A p`, and the scalars of an iteration, `⟨r, r⟩` and `⟨r, A r⟩`, come with the one sum of the
slab mode's fibre sums. There is no preconditioner: the operator's diagonal was tried and, on warm
solves of images, hyperspectral cubes and ratings, saved no sweeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.operator import Factors, Matrix, add_crossing, add_local, crossing_sums
from slrt_dask.engine.block import VALUES, Block, Vector
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.errors import NumericalBreakdown
from slrt_dask.kernels import vectors
from slrt_dask.kernels.crossing import crossing_step
from slrt_dask.kernels.simd import lanes_for

Sums = tuple[Matrix, NDArray[np.float64]]
"""Fibre sums of the slab mode, and scalars."""
NO_SUMS = np.zeros((0, 0))
CLEARLY = 4.0
"""How many times larger one ⟨r, r⟩ has to be than another to learn from their difference."""


@dataclass(frozen=True)
class InnerOutcome:
    """How a solve ended; x is the solution it left on the blocks, r = b − A x.

    sweeps : products with the operator that were made
    converged : whether ‖r‖ reached the tolerance within the iterations allowed
    missed : how much ½⟨b + r, x⟩ misses for every unit of ⟨r, r⟩, as seen on the way; at least that
    """

    iterations: int
    sweeps: int
    converged: bool
    b_dot_x: float
    r_dot_x: float
    x_dot_x: float
    r_dot_r: float
    missed: float = 0.0


@dataclass(frozen=True)
class ConjugateGradients(Program):
    """Solve for the vector `solution`, to ‖r‖ ≤ tolerance, starting from the vector `start`.

    right_hand_side : name of b; the observed values if None
    start : name of the vector to start from; zero if None
    """

    factors: Factors
    weights: tuple[float, ...]
    slab_mode: int
    shift: float
    solution: str
    start: str | None
    right_hand_side: str | None
    tolerance: float
    max_iterations: int

    at_once = 8

    def rounds(self) -> Rounds:
        enough = self.tolerance**2
        sweeps, iteration, history = 0, 0, []
        beta, alpha, before = 0.0, 0.0, math.inf
        sums, (rr, rw) = yield Sweep(ConjugateGradients._begin)
        if self.start is not None:
            sweeps = 1
            sums, (rr, rw) = yield Sweep(ConjugateGradients._residual, (sums,))
        while True:
            sweeps += 1
            check_finite(rr)
            curvature = rw + self.weights[self.slab_mode] * squares(sums)
            if rr == 0.0 or (iteration == 0 and rr <= enough):
                break
            beta = rr / before if iteration else 0.0
            denominator = curvature - (beta * rr / alpha if iteration else 0.0)
            if denominator <= 0.0:  # rounding has eaten the recurrence: begin anew from r
                beta, denominator = 0.0, curvature
            if denominator <= 0.0:  # so small a residual that its products are no numbers any more
                break
            # The sweep that shows convergence is not wasted: it pays for one more step, so this is
            # decided on the residual which that step is expected to reach.
            shrinking = min(1.0, rr / before) if iteration else 1.0
            alpha, before, iteration = rr / denominator, rr, iteration + 1
            history.append((rr, 0.5 * alpha * rr))
            if rr * shrinking > enough and iteration < self.max_iterations:
                sums, (rr, rw) = yield Sweep(ConjugateGradients._iterate, (sums, alpha, beta))
                continue
            found = yield Sweep(ConjugateGradients._finish, (sums, alpha, beta))
            if found[1][0] <= enough or iteration >= self.max_iterations:
                return self._outcome(iteration, sweeps, found[1], history)
            sums, (rr, rw) = yield Sweep(ConjugateGradients._go_on)
        found = yield Sweep(ConjugateGradients._measure)
        return self._outcome(iteration, sweeps, found[1], history)

    def _outcome(
        self, iterations: int, sweeps: int, found: Any, history: list[tuple[float, float]]
    ) -> InnerOutcome:
        rr, bx, rx, xx = map(float, found)
        missed = missed_value(history, rr)
        return InnerOutcome(iterations, sweeps, rr <= self.tolerance**2, bx, rx, xx, rr, missed)

    # ---- on a block -------------------------------------------------------------------------

    def _begin(self, block: Block, total: Sums | None) -> Sums:
        """x ← start and w ← A x; or, without a start, r ← b and w ← A r."""
        x, p, s = (block.fresh(name) for name in (self.solution, "p", "s"))
        if self.start is None:
            r = block.fresh("r")
            return self._product(block, r, vectors.start(self._b(block), r, (x, p, s)), total)
        vectors.start(block.vector(self.start), x, (p, s))
        return self._product(block, x, 0.0, total)

    def _residual(self, block: Block, total: Sums | None, sums: Matrix) -> Sums:
        """r ← b − w, w being complete with the slab mode's sums; w ← A r."""
        w, r = block.changing("w"), block.fresh("r")
        add_crossing(block, self.factors, self.weights, sums, w)
        return self._product(block, r, vectors.difference(self._b(block), w, r), total, sums)

    def _iterate(
        self, block: Block, total: Sums | None, sums: Matrix, alpha: float, beta: float
    ) -> Sums:
        """A step of x, r, p and s with w = A r complete, and then w ← A r, in one pass."""
        index, mode = block.index, self.slab_mode
        factor = self.factors.padded[mode]
        width = factor.shape[1]
        new = self._room(block, sums) if total is None else total[0]
        x, r, p, s, w = (block.changing(name) for name in (self.solution, "r", "p", "s", "w"))
        rr = crossing_step(
            *block.strips(width), index.rows[mode], index.fibres[mode], sums, factor,
            lanes_for(width), self.weights[mode], x, r, p, s, w, alpha, beta, new,
        )  # fmt: skip
        return self._local_product(block, r, rr, new, total)

    def _go_on(self, block: Block, total: Sums | None) -> Sums:
        r = block.vector("r")
        return self._product(block, r, vectors.dot(r, r), total)

    def _finish(
        self, block: Block, total: Sums | None, sums: Matrix, alpha: float, beta: float
    ) -> Sums:
        """A last step, and what it has come to."""
        w = block.changing("w")
        add_crossing(block, self.factors, self.weights, sums, w)
        x, r, p, s = (block.changing(name) for name in (self.solution, "r", "p", "s"))
        vectors.conjugate_step(x, r, p, s, w, alpha, beta)
        return self._measure(block, total)

    def _measure(self, block: Block, total: Sums | None) -> Sums:
        x, r = block.vector(self.solution), block.vector("r")
        bx, rx, xx, rr = vectors.solution_products(x, r, self._b(block))
        scalars = np.array([rr, bx, rx, xx])
        return NO_SUMS, scalars if total is None else total[1] + scalars

    def _product(
        self, block: Block, x: Vector, xx: float, total: Sums | None, beside: Matrix | None = None
    ) -> Sums:
        """w ← A x but for the slab mode's part, whose fibre sums are added to the total.

        beside : sums that are in use
        """
        sums = self._room(block, beside) if total is None else total[0]
        return self._local_product(block, x, xx, crossing_sums(block, self.factors, x, sums), total)

    def _local_product(
        self, block: Block, x: Vector, xx: float, sums: Matrix, total: Sums | None
    ) -> Sums:
        w = block.fresh("w")
        energy = add_local(block, self.factors, self.factors, self.weights, x, w, self.shift)
        scalars = np.array([xx, self.shift * xx + energy])
        return sums, scalars if total is None else total[1] + scalars

    def _room(self, block: Block, beside: Matrix | None) -> Matrix:
        """Room for fibre sums, where those of the last turn but one have been.

        New memory costs as much as the sums themselves, in every iteration. Nobody looks at the old
        ones any more: all workers have told what they made of them.
        """
        mode = self.slab_mode
        shape = block.index.buffer_rows[mode], self.factors.width(mode)
        return block.buffers.sums(shape, beside)

    def _b(self, block: Block) -> Vector:
        return block.vector(self.right_hand_side or VALUES)


@dataclass(frozen=True)
class Residual(Program):
    """The products of a vector x, y and the true residual r = y − A x: an InnerOutcome."""

    factors: Factors
    weights: tuple[float, ...]
    shift: float
    vector: str

    def rounds(self) -> Rounds:
        (sums,) = yield Sweep(Residual._product)
        (found,) = yield Sweep(Residual._measure, (sums,))
        rr, bx, rx, xx = map(float, found)
        return InnerOutcome(0, 1, False, bx, rx, xx, rr)

    def _product(self, block: Block, total: Any) -> tuple[Matrix]:
        x, w = block.vector(self.vector), block.fresh("w")
        add_local(block, self.factors, self.factors, self.weights, x, w, self.shift)
        return (crossing_sums(block, self.factors, x, total and total[0]),)

    def _measure(self, block: Block, total: Any, sums: Matrix) -> tuple[NDArray[np.float64]]:
        w, y = block.changing("w"), block.values
        add_crossing(block, self.factors, self.weights, sums, w)
        r = block.fresh("r")
        vectors.difference(y, w, r)
        bx, rx, xx, rr = vectors.solution_products(block.vector(self.vector), r, y)
        scalars = np.array([rr, bx, rx, xx])
        return (scalars if total is None else total[0] + scalars,)


def squares(sums: Matrix) -> float:
    """‖T‖² of fibre sums."""
    flat = sums.reshape(-1)
    return float(vectors.dot(flat, flat))


def check_finite(number: float) -> None:
    """Raise NumericalBreakdown if it is none."""
    if not math.isfinite(number):
        raise NumericalBreakdown(
            "the inner solve met a value that is not a number; look for huge values in the data, "
            "or a C so large that its products overflow"
        )


def missed_value(history: Any, rr: float) -> float:
    """The most that a solve, stopped at some iteration, was seen to miss per unit of ⟨r, r⟩.

    history : ⟨r, r⟩ before every iteration, and what each one added to ½⟨b + r, x⟩
    rr : ⟨r, r⟩ in the end. What an iteration with a residual hardly larger missed is not seen yet
    """
    missed, still = 0.0, 0.0
    for before, gained in reversed(history):
        still += gained
        if before > CLEARLY * rr:
            missed = max(missed, still / (before - rr))
    return missed
