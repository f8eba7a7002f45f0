"""The inner solve: conjugate gradients with one reduction an iteration.

Solves `A z = b` for the operator of `operator.py`. The operator is applied to the residual
instead of to the direction (Chronopoulos and Gear): with `w = A r` the recurrence `s ← w + βs`
keeps `s = A p`, and the scalars of an iteration, `⟨r,r⟩` and `⟨r,Ar⟩`, come with the one sum of the
slab mode's fibre sums. There is no preconditioner: the operator's diagonal was tried and, on warm
solves of images, hyperspectral cubes and ratings, saved no sweeps.

The sweep that shows convergence is not wasted: it pays for one more step (`finish`), so the
decision is made on the residual which that step is expected to reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.operator import (
    Factors,
    Matrix,
    add_crossing,
    add_local,
    crossing_sums,
)
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Finished, Program
from slrt_dask.errors import NumericalBreakdown
from slrt_dask.kernels import vectors

NO_SUMS = np.zeros((0, 0))


@dataclass(frozen=True)
class InnerOutcome:
    """How a solve ended; x is the solution it left on the blocks, r = b − A x.

    sweeps : products with the operator that were made
    converged : whether ‖r‖ reached the tolerance within the iterations allowed
    """

    iterations: int
    sweeps: int
    converged: bool
    b_dot_x: float
    r_dot_x: float
    x_dot_x: float
    r_dot_r: float


@dataclass(frozen=True)
class Round:
    """What the blocks are to do next.

    phase : begin | residual | iterate | finish | resume
    sums : complete fibre sums of the slab mode for the vector swept last
    """

    phase: str
    sums: Matrix | None = None
    alpha: float = 0.0
    beta: float = 0.0
    iteration: int = 0
    sweeps: int = 0
    squared_residual: float = math.inf


@dataclass(frozen=True)
class ConjugateGradient(Program):
    """Solve for the vector `solution`, to ‖r‖ ≤ tolerance, starting from the vector `start`.

    right_hand_side : name of b; the observed values if None
    start : name of the vector to start from; zero if None
    max_iterations : 0 only computes the residual at `start`
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

    label = "solve"

    def expected_rounds(self) -> int:
        return min(4, self.max_iterations + 2)

    def first(self) -> Round:
        return Round("begin")

    # ---- on a block -------------------------------------------------------------------------

    def step(self, block: Block, message: Round) -> tuple[Matrix, NDArray[np.float64]]:
        if message.phase == "begin":
            return self._begin(block)
        r, w = block.scratch("r"), block.scratch("w")
        if message.phase != "resume":
            assert message.sums is not None
            add_crossing(block, self.factors, self.weights, message.sums, w)
        if message.phase == "residual":
            np.subtract(self._right_hand_side(block), w, out=r)
        elif message.phase != "resume":
            vectors.conjugate_step(
                block.vector(self.solution), r, block.scratch("p"), block.scratch("s"), w,
                message.alpha, message.beta,
            )  # fmt: skip
        sweeping = message.phase != "finish" and self.max_iterations > 0
        return self._sweep(block) if sweeping else (NO_SUMS, self._scalars(block, 0.0))

    def _begin(self, block: Block) -> tuple[Matrix, NDArray[np.float64]]:
        b, r, w = self._right_hand_side(block), block.scratch("r"), block.scratch("w")
        for name in ("p", "s"):
            block.scratch(name)[:] = 0.0
        if self.start is None:
            block.keep(self.solution, np.zeros_like(block.values))
            r[:] = b
            return self._sweep(block)
        x = block.vector(self.start).copy()
        block.keep(self.solution, x)
        np.multiply(x, self.shift, out=w)
        add_local(block, self.factors, self.factors, self.weights, x, w)
        return crossing_sums(block, self.factors, x), np.zeros(5)

    def _sweep(self, block: Block) -> tuple[Matrix, NDArray[np.float64]]:
        """The local modes' part of w = A r; the slab mode's part has to be summed first."""
        r, w = block.scratch("r"), block.scratch("w")
        np.multiply(r, self.shift, out=w)
        add_local(block, self.factors, self.factors, self.weights, r, w)
        return crossing_sums(block, self.factors, r), self._scalars(block, vectors.dot(r, w))

    def _scalars(self, block: Block, rw: float) -> NDArray[np.float64]:
        products = vectors.solution_products(
            block.vector(self.solution), block.scratch("r"), self._right_hand_side(block)
        )
        return np.array([*products, rw])

    def _right_hand_side(self, block: Block) -> Vector:
        if self.right_hand_side is None:
            return block.values
        return block.vector(self.right_hand_side)

    # ---- between rounds ---------------------------------------------------------------------

    def advance(self, message: Round, total: Any) -> Round | Finished:
        sums, scalars = total
        if message.phase == "begin" and self.start is not None:
            return Round("residual", sums, sweeps=1)
        rr, rw = float(scalars[3]), float(scalars[4])
        if not math.isfinite(rr):
            raise NumericalBreakdown(
                "the inner solve met a value that is not a number; look for huge values in the "
                "data, or a C so large that its products overflow"
            )
        if self._is_over(message, rr):
            return Finished(self._outcome(message, scalars))
        if message.phase == "finish":
            return replace(message, phase="resume", sums=None)
        # ⟨r, Ar⟩ from the local modes' part and the norm of the slab mode's fibre sums.
        curvature = rw + self.weights[self.slab_mode] * float(np.vdot(sums, sums))
        beta = rr / message.squared_residual if message.iteration else 0.0
        denominator = curvature - (beta * rr / message.alpha if message.iteration else 0.0)
        if denominator <= 0.0:
            # Rounding has eaten the recurrence: a restart from the current residual is safe.
            beta, denominator = 0.0, curvature
        shrinking = min(1.0, rr / message.squared_residual)
        last = rr * shrinking <= self.tolerance**2 or message.iteration + 1 >= self.max_iterations
        return Round(
            "finish" if last else "iterate", sums, rr / denominator, beta,
            message.iteration + 1, message.sweeps + 1, rr,
        )  # fmt: skip

    def _is_over(self, message: Round, rr: float) -> bool:
        if self.max_iterations == 0 or rr == 0.0:
            return True
        small = rr <= self.tolerance**2
        if message.phase == "finish":
            return small or message.iteration >= self.max_iterations
        return small and message.iteration == 0

    def _outcome(self, message: Round, scalars: NDArray[np.float64]) -> InnerOutcome:
        bx, rx, xx, rr = (float(value) for value in scalars[:4])
        swept = message.phase != "finish" and self.max_iterations > 0
        return InnerOutcome(
            message.iteration, message.sweeps + swept, rr <= self.tolerance**2, bx, rx, xx, rr
        )
