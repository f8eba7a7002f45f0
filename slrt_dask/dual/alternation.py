"""The inner solve with bounds as the paper has it: z and the multipliers in turn.

With the multipliers s fixed, z solves the linear system of the problem without bounds (conjugate
gradients); with z fixed, s solves a least-squares problem with signs (projected steps of Barzilai
and Borwein's lengths). In turn, until neither moves. The same problem as `newton.py` solves, to the
same residual, in many more sweeps; it is here to be compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.bounds import MARKS
from slrt_dask.dual.newton_steps import BoundedOutcome, BoundedSteps, Stage
from slrt_dask.dual.operator import add_crossing
from slrt_dask.dual.solve import NO_SUMS, Sums
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Finished
from slrt_dask.kernels import alternation as turns
from slrt_dask.kernels import bounds as passes
from slrt_dask.kernels import vectors

FORCING = 0.1
"""How far one of the two is solved for before it is the other's turn."""
MOST_STEPS = 100
"""Steps of either before it is the other's turn in any case."""
OWN = "z"
MULTIPLIERS = "multipliers"
OBSERVED = "observed"


@dataclass(frozen=True)
class Turn(Stage):
    """What the blocks are to do next.

    phase : begin | classify | z begin | z iterate | z arrive | s measure | s step
    step : length of a projected step
    steps : taken since this one's turn began
    """

    step: float = 0.0
    steps: int = 0


@dataclass(frozen=True)
class AlternatingSolve(BoundedSteps):
    """Solve for the vector `solution`; the fields are those of the joint solve."""

    def first(self) -> Turn:
        return Turn("begin")

    # ---- on a block -------------------------------------------------------------------------

    def step(self, block: Block, message: Stage, total: Sums | None) -> Sums:
        assert isinstance(message, Turn)
        if message.phase == "classify":
            return self._classified(block, message, total)
        if message.phase == "s measure":
            return self._measured(block, message, total)
        if message.phase in ("z begin", "z iterate"):
            return self._z_swept(block, message, total)
        if message.phase == "begin":
            self._taken_apart(block)
        elif message.phase == "z arrive":
            self._z_step(block, message)
        else:
            turns.projected_step(
                block.vector(MARKS), *self.bounds.of(block), block.changing(MULTIPLIERS),
                block.vector("gradient"), message.step, block.fresh("change"),
            )  # fmt: skip
        x = block.fresh(self.solution)
        np.add(block.vector(OWN), block.vector(MULTIPLIERS), out=x)
        return self._image(block, message, x, total)

    def _taken_apart(self, block: Block) -> None:
        """z and s of the x to start from."""
        z, s = block.fresh(OWN), block.fresh(MULTIPLIERS)
        z[:] = 0.0 if self.start is None else block.vector(self.start)
        passes.multipliers(
            block.vector(MARKS), *self.bounds.of(block), block.values, block.vector(self.centre),
            z, self.twice_c, self.bounds.penalty, s,
        )  # fmt: skip
        z -= s
        block.fresh(OBSERVED)[:] = block.vector(MARKS).astype(np.int64) & passes.OBSERVED
        z[block.vector(OBSERVED) == 0.0] = 0.0
        for name in ("gradient", "change"):
            block.fresh(name)[:] = 0.0

    def _z_swept(self, block: Block, message: Turn, total: Sums | None) -> Sums:
        if message.phase == "z iterate":
            return self._swept(block, message, self._z_step(block, message), total)
        # w is complete since the entries were classified.
        passes.residual(
            block.vector(OBSERVED), *self.bounds.of(block), block.values, block.vector(self.centre),
            block.vector(OWN), block.vector("w"), self.twice_c, self.bounds.penalty,
            block.fresh("r"),
        )  # fmt: skip
        for name in ("p", "s"):
            block.fresh(name)[:] = 0.0
        rr = passes.scale_by_resistance(
            block.vector(OBSERVED), block.vector("r"), self.twice_c, self.bounds.penalty,
            block.fresh("w"),
        )  # fmt: skip
        return self._swept(block, message, rr, total)

    def _z_step(self, block: Block, message: Turn) -> float:
        return float(
            passes.conjugate_step(
                block.vector(OBSERVED), block.changing(OWN), block.changing("r"),
                block.changing("p"), block.changing("s"), self._completed(block, message),
                message.alpha, message.beta, self.twice_c, self.bounds.penalty,
            )
        )  # fmt: skip

    def _measured(self, block: Block, message: Turn, total: Sums | None) -> Sums:
        found = turns.gradient_sums(
            block.vector(MARKS), *self.bounds.of(block), block.vector(MULTIPLIERS),
            block.vector(self.centre), self._completed(block, message), self.bounds.penalty,
            block.vector("change"), block.changing("gradient"),
        )  # fmt: skip
        scalars = np.array([*found, 0.0, 0.0, 0.0])
        return NO_SUMS, scalars if total is None else total[1] + scalars

    def _completed(self, block: Block, message: Turn) -> Vector:
        assert message.sums is not None
        w = block.changing("w")
        add_crossing(block, self.factors, self.weights, message.sums, w)
        return w

    # ---- between rounds ---------------------------------------------------------------------

    def advance(self, message: Stage, total: Sums) -> Turn | Finished:
        assert isinstance(message, Turn)
        sums, scalars = total
        if message.phase == "classify":
            return self._judged(message, scalars)
        if message.phase == "s measure":
            return self._next_step(message, scalars)
        swept = replace(message, sums=sums, sweeps=message.sweeps + 1)
        if message.phase in ("z begin", "z iterate"):
            return self._next_iteration(swept, float(scalars[0]), float(scalars[1]))
        if message.phase == "begin":
            return replace(swept, phase="classify")
        if message.phase == "z arrive":
            return replace(swept, phase="s measure", steps=0, target=0.0)
        return replace(swept, phase="s measure", iteration=message.iteration + 1)

    def _judged(self, message: Turn, scalars: NDArray[np.float64]) -> Turn | Finished:
        rr, primal, dual = (float(value) for value in scalars[:3])
        small = rr <= self.tolerance**2
        if small or message.iteration >= self.max_iterations:
            return Finished(
                BoundedOutcome(message.iteration, message.sweeps, small, dual, primal, rr)
            )
        return replace(message, phase="z begin", sums=None, fresh=True, steps=0)

    def _next_iteration(self, message: Turn, rr: float, rw: float) -> Turn:
        """One more conjugate step for z, or the last one of its turn."""
        assert message.sums is not None
        flat = message.sums.reshape(-1)
        curvature = rw + self.weights[self.slab_mode] * vectors.dot(flat, flat)
        fresh = message.fresh or message.alpha == 0.0
        beta = 0.0 if fresh else rr / message.squared_residual
        denominator = curvature - (0.0 if fresh else beta * rr / message.alpha)
        if denominator <= 0.0:
            beta, denominator = 0.0, curvature
        target = max(FORCING**2 * rr, 0.01 * self.tolerance**2) if message.fresh else message.target
        last = rr <= target or message.steps + 1 >= MOST_STEPS
        return replace(
            message, phase="z arrive" if last else "z iterate", beta=beta, target=target,
            alpha=rr / denominator if denominator > 0.0 else 0.0, squared_residual=rr, fresh=False,
            iteration=message.iteration + 1, steps=message.steps + 1,
        )  # fmt: skip

    def _next_step(self, message: Turn, scalars: NDArray[np.float64]) -> Turn:
        """One more projected step for s, or the end of its turn."""
        squares, curvature, left = (float(value) for value in scalars[:3])
        safe = 1.0 / (sum(self.weights) + self.bounds.penalty)
        first = message.steps == 0
        # ‖U_k‖ ≤ 1, so that the model's operator is at most Σ λ_k and this step always safe.
        step = squares / curvature if curvature > 0.0 and not first else safe
        target = max(FORCING**2 * left, 0.01 * self.tolerance**2) if first else message.target
        over = left <= target or message.steps >= MOST_STEPS
        if over or message.iteration >= self.max_iterations:
            # What was measured is w at this very x: it needs no sweep to be judged.
            return replace(message, phase="classify", sums=np.zeros_like(message.sums))
        return replace(
            message, phase="s step", step=min(max(step, safe), math.inf), target=target,
            steps=message.steps + 1, sums=None,
        )  # fmt: skip
