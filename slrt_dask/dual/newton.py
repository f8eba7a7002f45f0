"""The inner solve with bounds: Newton steps on the active set, conjugate gradients inside.

With w = L x, L = Σ_k λ_k ×_k U_kU_kᵀ, every entry answers to w with a number x*(w), which is
piecewise linear (`kernels/bounds.py`); a solution has x = x*(L x). It minimises the convex function

    Σ_e f_e((L x)_e) + ½ ⟨x, L x⟩,      f_e the misfit and the price of the bound at an entry

A Newton step holds for the pieces on which the entries are now: idle entries get x = 0, the others
solve `x/c + L x = t/c`. That is a descent direction, so halving a step that went too far is all
that convergence needs; on the right pieces the step is the solution. The multipliers' proximal term
μ keeps the system about as well conditioned as that without bounds.

Rows of a linear constraint take part as entries of their own (`rows.py`): the model then sees
x + Aᵀ s instead of x, and what it says of a row, A w, has to be added up over all blocks. That is
one more round an iteration, after the one for the fibre sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.newton_steps import BoundedOutcome, BoundedSteps, Stage
from slrt_dask.dual.rows import RowState, RowVector
from slrt_dask.dual.solve import NO_SUMS, Sums
from slrt_dask.engine.program import Finished
from slrt_dask.errors import NumericalBreakdown
from slrt_dask.kernels import vectors

MOST_RETREATS, MOST_PROJECTIONS = 8, 4
CLOSER = 0.2
TIGHTENING = 0.5
ROUNDING = 1e-13
PROJECTED = 4.0
"""By how much the squared residual may exceed its tolerance once all multipliers are possible."""


@dataclass(frozen=True)
class BoundedSolve(BoundedSteps):
    """The solve itself: what its fields mean is said where the blocks' steps are."""

    def first(self) -> Stage:
        if self.rows is None:
            return Stage("begin")
        start = np.zeros(self.rows.count) if self.rows_start is None else self.rows_start.copy()
        state = RowState(self.rows, self.twice_c, start)
        return _entering(Stage("begin", rows=state))

    def sent(self, message: Stage) -> Stage:
        return message if message.rows is None else replace(message, rows=None)

    def advance(self, message: Stage, total: Sums) -> Stage | Finished:
        sums, scalars = total
        if message.phase == "compose":
            return Finished(message.outcome)
        if message.phase == "classify":
            if message.rows is not None:
                scalars = scalars + message.rows.classify(sums)
            following = self._judged(message, scalars)
            return following if isinstance(following, Finished) else _entering(following)
        if message.phase in ("gather", "remeasure"):
            return self._heard_of_rows(message, sums)
        swept = replace(message, sums=sums, sweeps=message.sweeps + 1)
        if message.phase == "release":
            return replace(swept, phase="depart" if message.rows is None else "remeasure")
        if message.phase in self.begins_with_image:
            return replace(swept, phase="classify")
        return self._next_iteration(swept, float(scalars[0]), float(scalars[1]))

    def _heard_of_rows(self, message: Stage, products: RowVector) -> Stage:
        assert message.rows is not None
        if message.phase == "remeasure":
            message.rows.remeasure(products)
            return _entering(replace(message, phase="depart", sums=None))
        message.rows.conjugate_step(products, message.alpha, message.beta)
        return _entering(replace(message, phase=message.then, sums=NO_SUMS))

    def _judged(self, message: Stage, scalars: NDArray[np.float64]) -> Stage | Finished:
        """Accept what the last Newton step reached, and say how to go on."""
        rr, primal, dual, changed, stranded, impossible = (float(value) for value in scalars)
        if not math.isfinite(rr + primal):
            raise NumericalBreakdown(
                "the inner solve met a value that is not a number; look for huge values in the "
                "data, or a C so large that its products overflow"
            )
        # Once a projection cost too much, the next one is made closer to the solution.
        goal = (CLOSER**message.projections * self.tolerance) ** 2
        small = rr <= goal
        rose = primal > message.primal + ROUNDING * abs(message.primal)
        may_retreat = message.retreats < MOST_RETREATS and not message.projected
        if rose and not small and may_retreat:
            # Half the step, and from now on steps that are solved for more exactly.
            forcing = message.forcing * (TIGHTENING if message.retreats == 0 else 1.0)
            return replace(
                message, phase="retreat", sums=None, retreats=message.retreats + 1, forcing=forcing
            )
        good = rr <= (PROJECTED if message.projected else 1.0) * self.tolerance**2
        over = message.iteration >= self.max_iterations
        if message.projected and not (good or over or message.projections >= MOST_PROJECTIONS):
            message = replace(message, projected=False)
        elif small or message.projected or over:
            if impossible:
                return replace(
                    message, phase="project", sums=None, projected=True,
                    projections=message.projections + 1,
                )  # fmt: skip
            rows = None if message.rows is None else message.rows.x
            outcome = BoundedOutcome(
                message.iteration, message.sweeps, good, dual, primal, rr, rows
            )
            if rows is None:
                return Finished(outcome)
            return replace(message, phase="compose", sums=None, outcome=outcome)
        target = goal
        if changed:
            target = max(target, message.forcing**2 * rr)
        return replace(
            message, phase="release" if stranded else "set off", sums=None, target=0.9 * target,
            fresh=True, primal=primal, retreats=0,
        )  # fmt: skip

    def _next_iteration(self, message: Stage, rr: float, rw: float) -> Stage:
        assert message.sums is not None
        flat = message.sums.reshape(-1)
        curvature = rw + self.weights[self.slab_mode] * vectors.dot(flat, flat)
        if message.rows is not None:
            squares, diagonal = message.rows.energies()
            rr, curvature = rr + squares, curvature + diagonal
        # After a step of no length, for want of a number to divide by, directions begin anew.
        fresh = message.fresh or message.alpha == 0.0
        beta = 0.0 if fresh else rr / message.squared_residual
        denominator = curvature - (0.0 if fresh else beta * rr / message.alpha)
        if denominator <= 0.0:
            beta, denominator = 0.0, curvature
        alpha = rr / denominator if denominator > 0.0 else 0.0
        shrinking = 1.0 if fresh else min(1.0, rr / message.squared_residual)
        over = alpha == 0.0 or message.iteration + 1 >= self.max_iterations
        last = over or rr * shrinking <= message.target
        following = "arrive" if last else "iterate"
        return replace(
            message, phase=following if message.rows is None else "gather", then=following,
            alpha=alpha, beta=beta, iteration=message.iteration + 1, squared_residual=rr,
            fresh=False,
        )  # fmt: skip


def _entering(message: Stage) -> Stage:
    """A message whose rows have done their part of its phase."""
    if message.rows is None:
        return message
    return replace(message, told=message.rows.enter(message.phase))
