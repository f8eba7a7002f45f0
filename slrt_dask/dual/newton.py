"""The inner solve with bounds: Newton steps on the active set, conjugate gradients inside.

With w = L x, L = Σ_k λ_k ×_k U_kU_kᵀ, every entry answers to w with a number x*(w), which is
piecewise linear (`kernels/bounds.py`); a solution has x = x*(L x). It minimises the convex function

    Σ_e f_e((L x)_e) + ½ ⟨x, L x⟩,      f_e the misfit and the price of the bound at an entry

A Newton step holds for the pieces on which the entries are now: idle entries get x = 0, the others
solve `x/c + L x = t/c`. That is a descent direction, so halving a step that went too far is all
that convergence needs; on the right pieces the step is the solution. The multipliers' proximal term
μ keeps the system about as well conditioned as that without bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.bounds import MARKS, BoundVectors
from slrt_dask.dual.inner import NO_SUMS, Sums
from slrt_dask.dual.operator import Factors, Matrix, add_crossing, add_local, crossing_sums
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Finished, Program
from slrt_dask.errors import NumericalBreakdown
from slrt_dask.kernels import bounds as passes
from slrt_dask.kernels import vectors

FORCING = 0.1
"""How far the residual is brought down before the active set is looked at again."""
MOST_RETREATS = 8
ROUNDING = 1e-13
PROJECTED = 4.0
"""By how much the squared residual may exceed its tolerance once all multipliers are possible."""


@dataclass(frozen=True)
class BoundedOutcome:
    """How a solve ended; `cost` is the dual value at the solution, `primal` a bound above it."""

    iterations: int
    sweeps: int
    converged: bool
    cost: float
    primal: float
    r_dot_r: float


@dataclass(frozen=True)
class Stage:
    """What the blocks are to do next.

    phase : begin | classify | retreat | release | depart | set off | iterate | arrive | project
    target : squared residual at which this Newton step is good enough
    fresh : whether the next conjugate step is the first of its Newton step
    """

    phase: str
    sums: Matrix | None = None
    alpha: float = 0.0
    beta: float = 0.0
    iteration: int = 0
    sweeps: int = 0
    squared_residual: float = math.inf
    target: float = 0.0
    fresh: bool = True
    primal: float = math.inf
    retreats: int = 0
    forcing: float = FORCING
    projected: bool = False


@dataclass(frozen=True)
class BoundedSolve(Program):
    """Solve for the vector `solution`, to ‖r‖ ≤ tolerance, starting from the vector `start`.

    centre : name of the multipliers' centre
    max_iterations : of conjugate gradients, over all Newton steps
    """

    factors: Factors
    weights: tuple[float, ...]
    slab_mode: int
    twice_c: float
    bounds: BoundVectors
    solution: str
    start: str | None
    centre: str
    tolerance: float
    max_iterations: int

    label = "solve"
    begins_with_image: ClassVar[tuple[str, ...]] = (
        "begin",
        "retreat",
        "release",
        "arrive",
        "project",
    )

    def first(self) -> Stage:
        return Stage("begin")

    # ---- on a block -------------------------------------------------------------------------

    def step(self, block: Block, message: Stage, total: Sums | None) -> Sums:
        if message.phase == "classify":
            return self._classified(block, message, total)
        if message.phase in self.begins_with_image:
            return self._image(block, self._moved(block, message), total)
        if message.phase == "iterate":
            rr = self._conjugate_step(block, message)
            return self._swept(block, rr, total)
        if message.phase == "depart":
            passes.residual(*self._entries(block, message), block.fresh("r"))
        else:
            block.fresh("before")[:] = block.vector(self.solution)
        for name in ("p", "s"):
            block.fresh(name)[:] = 0.0
        rr = passes.scale_by_resistance(
            block.vector(MARKS), block.vector("r"), self.twice_c, self.bounds.penalty,
            block.fresh("w"),
        )  # fmt: skip
        return self._swept(block, rr, total)

    def _moved(self, block: Block, message: Stage) -> Vector:
        """The solution, changed as the phase says."""
        if message.phase == "begin":
            x = block.fresh(self.solution)
            x[:] = 0.0 if self.start is None else block.vector(self.start)
            block.fresh("before")[:] = x
            # Not from the marks that the last solve left, wherever that was: a run that is resumed
            # has none.
            passes.mark_active(
                block.changing(MARKS), *self.bounds.of(block), block.values,
                block.vector(self.centre), x, self.twice_c, self.bounds.penalty,
            )  # fmt: skip
            return x
        x = block.changing(self.solution)
        if message.phase == "retreat":
            x += block.vector("before")
            x *= 0.5
        elif message.phase == "release":
            block.fresh("before")[:] = x
            passes.strand(block.vector(MARKS), x)
        elif message.phase == "project":
            passes.make_feasible(block.vector(MARKS), *self.bounds.of(block), x)
        else:
            self._conjugate_step(block, message)
        return x

    def _image(self, block: Block, x: Vector, total: Sums | None) -> Sums:
        """The local modes' part of w = L x."""
        w = block.fresh("w")
        w[:] = 0.0
        add_local(block, self.factors, self.factors, self.weights, x, w)
        sums = crossing_sums(block, self.factors, x, None if total is None else total[0])
        return sums, np.zeros(6)

    def _classified(self, block: Block, message: Stage, total: Sums | None) -> Sums:
        found = passes.classify(
            *self._entries(block, message, block.changing(MARKS)), block.fresh("r")
        )
        scalars = np.array(found, dtype=np.float64)
        return NO_SUMS, scalars if total is None else total[1] + scalars

    def _entries(
        self, block: Block, message: Stage, marks: Vector | None = None
    ) -> tuple[object, ...]:
        """The arguments of a pass over the entries at w, which is completed first."""
        assert message.sums is not None
        w = block.changing("w")
        add_crossing(block, self.factors, self.weights, message.sums, w)
        return (
            block.vector(MARKS) if marks is None else marks, *self.bounds.of(block), block.values,
            block.vector(self.centre), block.vector(self.solution), w, self.twice_c,
            self.bounds.penalty,
        )  # fmt: skip

    def _conjugate_step(self, block: Block, message: Stage) -> float:
        assert message.sums is not None
        w = block.changing("w")
        add_crossing(block, self.factors, self.weights, message.sums, w)
        return float(
            passes.conjugate_step(
                block.vector(MARKS), block.changing(self.solution), block.changing("r"),
                block.changing("p"), block.changing("s"), w, message.alpha, message.beta,
                self.twice_c, self.bounds.penalty,
            )
        )  # fmt: skip

    def _swept(self, block: Block, rr: float, total: Sums | None) -> Sums:
        r, w = block.vector("r"), block.changing("w")
        add_local(block, self.factors, self.factors, self.weights, r, w)
        sums = crossing_sums(block, self.factors, r, None if total is None else total[0])
        scalars = np.array([rr, vectors.dot(r, w), 0.0, 0.0, 0.0, 0.0])
        return sums, scalars if total is None else total[1] + scalars

    # ---- between rounds ---------------------------------------------------------------------

    def advance(self, message: Stage, total: Sums) -> Stage | Finished:
        sums, scalars = total
        if message.phase == "classify":
            return self._judged(message, scalars)
        swept = replace(message, sums=sums, sweeps=message.sweeps + 1)
        if message.phase == "release":
            return replace(swept, phase="depart")
        if message.phase in self.begins_with_image:
            return replace(swept, phase="classify")
        return self._next_iteration(swept, float(scalars[0]), float(scalars[1]))

    def _judged(self, message: Stage, scalars: NDArray[np.float64]) -> Stage | Finished:
        """Accept what the last Newton step reached, and say how to go on."""
        rr, primal, dual, changed, stranded, impossible = (float(value) for value in scalars)
        if not math.isfinite(rr + primal):
            raise NumericalBreakdown(
                "the inner solve met a value that is not a number; look for huge values in the "
                "data, or a C so large that its products overflow"
            )
        small = rr <= self.tolerance**2
        rose = primal > message.primal + ROUNDING * abs(message.primal)
        if rose and not small and message.retreats < MOST_RETREATS:
            # Half the step, and from now on steps that are solved for more exactly.
            forcing = message.forcing * (FORCING if message.retreats == 0 else 1.0)
            return replace(
                message, phase="retreat", sums=None, retreats=message.retreats + 1, forcing=forcing
            )
        if small or message.projected or message.iteration >= self.max_iterations:
            if impossible:
                return replace(message, phase="project", sums=None, projected=True)
            good = rr <= (PROJECTED if message.projected else 1.0) * self.tolerance**2
            return Finished(
                BoundedOutcome(message.iteration, message.sweeps, good, dual, primal, rr)
            )
        target = self.tolerance**2
        if changed:
            target = max(target, message.forcing**2 * rr)
        return replace(
            message, phase="release" if stranded else "set off", sums=None, target=0.9 * target,
            fresh=True, primal=primal, retreats=0,
        )  # fmt: skip

    def _next_iteration(self, message: Stage, rr: float, rw: float) -> Stage:
        assert message.sums is not None
        flat = np.ascontiguousarray(message.sums).reshape(-1)
        curvature = rw + self.weights[self.slab_mode] * vectors.dot(flat, flat)
        beta = 0.0 if message.fresh else rr / message.squared_residual
        denominator = curvature - (0.0 if message.fresh else beta * rr / message.alpha)
        if denominator <= 0.0:
            beta, denominator = 0.0, curvature
        alpha = rr / denominator if denominator > 0.0 else 0.0
        shrinking = 1.0 if message.fresh else min(1.0, rr / message.squared_residual)
        last = rr * shrinking <= message.target or message.iteration + 1 >= self.max_iterations
        return replace(
            message, phase="arrive" if last else "iterate", alpha=alpha, beta=beta,
            iteration=message.iteration + 1, squared_residual=rr, fresh=False,
        )  # fmt: skip
