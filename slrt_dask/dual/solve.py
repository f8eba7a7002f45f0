"""The inner solve without boxes: conjugate gradients with one reduction an iteration.

Solves `(D + L) x = b`, D the entries' diagonal and L the operator of `operator.py`. The operator is
applied to the residual instead of to the direction (Chronopoulos and Gear): with `w = A r` the
recurrence `s ← w + βs` keeps `s = A p`, and the scalars of an iteration, `⟨r, r⟩` and `⟨r, A r⟩`,
come with the one sum of the slab mode's fibre sums. There is no preconditioner: the operator's
diagonal was tried and, on warm solves of images, hyperspectral cubes and ratings, saved no sweeps.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.operator import Operator, Sums
from slrt_dask.engine.block import VALUES, Block, Vector
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.errors import NumericalBreakdown
from slrt_dask.kernels import vectors
from slrt_dask.kernels.crossing import crossing_step
from slrt_dask.kernels.simd import lanes_for

Scalars = NDArray[np.float64]
Total = tuple[Sums, Scalars]
"""What a round adds up: fibre sums of the slab mode, and scalars."""
CLEARLY = 4.0
"""How many times larger one ⟨r, r⟩ has to be than another to learn from their difference."""


@dataclass(frozen=True)
class InnerOutcome:
    """How a solve ended.

    sweeps : products with the operator that were made
    converged : whether the residual reached the tolerance within the iterations allowed
    cost : the dual value of the solution that was left on the blocks; below the largest one
    r_dot_r : the squared residual
    missed : how much `cost` is too low for every unit of it, as seen on the way; at least that
    rows : multipliers of a linear constraint's rows, if there are any
    """

    iterations: int
    sweeps: int
    converged: bool
    cost: float
    r_dot_r: float
    missed: float = 0.0
    rows: NDArray[np.float64] | None = None


class TimeLimit:
    """Says when some seconds are over; made where and when a program's rounds begin."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end


@dataclass(frozen=True)
class ConjugateGradients(Program):
    """Solve for the vector `solution`, to ‖r‖ ≤ tolerance, starting from the vector `start`.

    shift : D, if it is a multiple of the identity
    diagonal : else, the vector that has it; x stays zero where it is zero
    right_hand_side : name of b; the observed values if None
    start : name of the vector to start from; zero if None
    seconds : after which it ends with what it has
    """

    operator: Operator
    shift: float
    solution: str
    tolerance: float
    max_iterations: int
    start: str | None = None
    right_hand_side: str | None = None
    diagonal: str | None = None
    seconds: float = math.inf

    at_once = 8

    def rounds(self) -> Rounds:
        enough, limit = self.tolerance**2, TimeLimit(self.seconds)
        sweeps, iteration, history = 0, 0, []
        beta, alpha, before = 0.0, 0.0, math.inf
        sums, (rr, rw) = yield Sweep(ConjugateGradients._begin)
        if self.start is not None:
            sweeps = 1
            sums, (rr, rw) = yield Sweep(ConjugateGradients._residual, (sums,))
        while True:
            sweeps += 1
            check_finite(rr)
            curvature = rw + self.operator.energy(sums)
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
            over = iteration >= self.max_iterations or limit.is_over
            if rr * shrinking > enough and not over:
                sums, (rr, rw) = yield Sweep(ConjugateGradients._iterate, (sums, alpha, beta))
                continue
            _, found = yield Sweep(ConjugateGradients._finish, (sums, alpha, beta))
            if found[0] <= enough or over:
                return self._outcome(iteration, sweeps, found, history)
            sums, (rr, rw) = yield Sweep(ConjugateGradients._go_on)
        _, found = yield Sweep(ConjugateGradients._measure)
        return self._outcome(iteration, sweeps, found, history)

    def _outcome(
        self, iterations: int, sweeps: int, found: Scalars, history: list[tuple[float, float]]
    ) -> InnerOutcome:
        rr, bx, rx = map(float, found)
        # Right for a truncated solve too: off by half of rᵀA⁻¹r only, and never too high.
        cost, missed = 0.5 * (bx + rx), missed_value(history, rr)
        return InnerOutcome(iterations, sweeps, rr <= self.tolerance**2, cost, rr, missed)

    # ---- on a block -------------------------------------------------------------------------

    def _begin(self, block: Block, total: Total | None) -> Total:
        """x ← start and w ← A x; or, without a start, r ← b and w ← A r."""
        x, p, s = (block.fresh(name) for name in (self.solution, "p", "s"))
        if self.start is not None:
            vectors.start(block.vector(self.start), x, (p, s))
            return self._product(block, x, 0.0, total)
        r = block.fresh("r")
        rr = vectors.start(self._b(block), r, (x, p, s))
        return self._product(block, r, self._masked(block, r, rr), total)

    def _residual(self, block: Block, total: Total | None, sums: Sums) -> Total:
        """r ← b − w, w being complete with the slab mode's sums; w ← A r."""
        w, r = block.changing("w"), block.fresh("r")
        self.operator.add_crossing(block, sums, w)
        rr = self._masked(block, r, vectors.difference(self._b(block), w, r))
        return self._product(block, r, rr, total, sums)

    def _iterate(
        self, block: Block, total: Total | None, sums: Sums, alpha: float, beta: float
    ) -> Total:
        """A step of x, r, p and s with w = A r complete, and then w ← A r, in one pass."""
        if self.diagonal is not None or len(sums) != 1:
            rr = self._step(block, sums, alpha, beta)
            return self._product(block, block.vector("r"), rr, total, sums)
        index, mode, (t,) = block.index, self.operator.slab_mode, self.operator.crossing
        factor = self.operator.gather.padded[t]
        width, (complete,) = factor.shape[1], sums
        (new,) = self.operator.room(block, sums) if total is None else total[0]
        x, r, p, s, w = (block.changing(name) for name in (self.solution, "r", "p", "s", "w"))
        rr = crossing_step(
            *block.strips(width), index.rows[mode], index.fibres[mode], complete, factor,
            lanes_for(width), self.operator.terms[t].weight, x, r, p, s, w, alpha, beta, new,
        )  # fmt: skip
        return self._local_product(block, r, rr, (new,), total)

    def _step(self, block: Block, sums: Sums, alpha: float, beta: float) -> float:
        w = block.changing("w")
        self.operator.add_crossing(block, sums, w)
        x, r, p, s = (block.changing(name) for name in (self.solution, "r", "p", "s"))
        if self.diagonal is not None:
            vectors.clear_where_zero(block.vector(self.diagonal), w)
        return float(vectors.conjugate_step(x, r, p, s, w, alpha, beta))

    def _go_on(self, block: Block, total: Total | None) -> Total:
        r = block.vector("r")
        return self._product(block, r, vectors.dot(r, r), total)

    def _finish(
        self, block: Block, total: Total | None, sums: Sums, alpha: float, beta: float
    ) -> Total:
        """A last step, and what it has come to."""
        self._step(block, sums, alpha, beta)
        return self._measure(block, total)

    def _measure(self, block: Block, total: Total | None) -> Total:
        x, r = block.vector(self.solution), block.vector("r")
        bx, rx, _, rr = vectors.solution_products(x, r, self._b(block))
        scalars = np.array([rr, bx, rx])
        return (), scalars if total is None else total[1] + scalars

    def _product(
        self, block: Block, x: Vector, xx: float, total: Total | None, in_use: Sums = ()
    ) -> Total:
        """w ← A x but for the slab mode's part, whose fibre sums are added to the total."""
        held = None if total is None else total[0]
        sums = self.operator.crossing_sums(block, x, held, in_use)
        return self._local_product(block, x, xx, sums, total)

    def _local_product(
        self, block: Block, x: Vector, xx: float, sums: Sums, total: Total | None
    ) -> Total:
        w = block.fresh("w")
        if self.diagonal is None:
            own = self.shift * xx
            energy = own + self.operator.add_local(block, x, w, self.shift)
        else:
            own = vectors.scale(block.vector(self.diagonal), x, w)
            energy = own + self.operator.add_local(block, x, w)
        scalars = np.array([xx, energy])
        return sums, scalars if total is None else total[1] + scalars

    def _masked(self, block: Block, r: Vector, rr: float) -> float:
        """r is zero where the diagonal is; returns ⟨r, r⟩, which is rr if it was."""
        if self.diagonal is None:
            return rr
        vectors.clear_where_zero(block.vector(self.diagonal), r)
        return float(vectors.dot(r, r))

    def _b(self, block: Block) -> Vector:
        return block.vector(self.right_hand_side or VALUES)


def check_finite(number: float) -> None:
    """Raise NumericalBreakdown if it is none."""
    if not math.isfinite(number):
        raise NumericalBreakdown(
            "the inner solve met a value that is not a number; look for huge values in the data, "
            "or a C so large that its products overflow"
        )


def missed_value(history: Any, rr: float) -> float:
    """The most that a solve, stopped at some iteration, was seen to miss per unit of ⟨r, r⟩.

    history : ⟨r, r⟩ before every iteration, and what each one added to the dual value
    rr : ⟨r, r⟩ in the end. What an iteration with a residual hardly larger missed is not seen yet
    """
    missed, still = 0.0, 0.0
    for before, gained in reversed(history):
        still += gained
        if before > CLEARLY * rr:
            missed = max(missed, still / (before - rr))
    return missed
