"""The inner solve with Huber's loss: conjugate gradients between bounds.

The dual of the loss C Σ h(w_e − y_e) is that of the squared one with a bound on every entry:

    max_z ⟨z, y⟩ − ‖z‖²/(4C) − Σ_k λ_k/2 ‖U_kᵀ Z_k‖²      subject to  |z_e| ≤ 2Cδ

At its solution z = 2C (y − w), clipped, with w = L z. Entries at a bound are held there and the
others are solved for by conjugate gradients, the operator being that of `operator.py`. A step that
would cross bounds is clipped, and directions begin anew after it; when the held entries have more
to gain than the others, all take a step along the gradient, clipped, which lets them go (Dostál's
proportioning, with the projected steps of Kružík and others). Every z on the way lies within the
bounds, however loosely it is solved for: certificates depend on that.

Newton steps on the sets of held entries, as for bounds on W (`newton.py`), were tried: with a large
C and a small δ entries change sides all the time, and they took ten times the sweeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.operator import Factors, Matrix, add_crossing, add_local, crossing_sums
from slrt_dask.dual.solve import NO_SUMS, Sums, missed_value
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Finished, StateMachine
from slrt_dask.errors import NumericalBreakdown
from slrt_dask.kernels import huber, vectors

FELL = 1e-6
"""By how much of itself the dual value may fall in a step, for rounding, and still be trusted."""


@dataclass(frozen=True)
class RobustRound:
    """What the blocks are to do next.

    phase : begin | measure | turn | move | image | slide
    sums : complete fibre sums of the slab mode for the vector swept last
    free : ⟨r, r⟩ over the entries that are free to move, when it was last known
    squares, dual, best : the squared residual, the dual value, and the largest one so far
    history : the squared residual before every step so far, and what each added to the dual value
    """

    phase: str
    sums: Matrix | None = None
    alpha: float = 0.0
    beta: float = 0.0
    iteration: int = 0
    sweeps: int = 0
    free: float = 0.0
    squares: float = math.inf
    dual: float = 0.0
    best: float = -math.inf
    history: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class RobustSolve(StateMachine):
    """Solve for the vector `solution`, to ‖r‖ ≤ tolerance, starting from the vector `start`.

    r here is how far entries are from their answers to w, in units of w
    delta : δ, from where on the loss grows with the size of a misfit only
    """

    factors: Factors
    weights: tuple[float, ...]
    slab_mode: int
    twice_c: float
    delta: float
    solution: str
    start: str | None
    tolerance: float
    max_iterations: int

    def first(self) -> RobustRound:
        return RobustRound("begin")

    def sent(self, message: RobustRound) -> RobustRound:
        return replace(message, history=())

    @property
    def length(self) -> float:
        """Of steps along the gradient: with twice one over the operator's norm, none goes down."""
        norms = (np.linalg.norm(factor, 2) ** 2 for factor in self.factors.padded)
        model = sum(w * norm for w, norm in zip(self.weights, norms, strict=True))
        return float(1.9 / (1.0 / self.twice_c + model))

    # ---- on a block -------------------------------------------------------------------------

    def step(self, block: Block, message: RobustRound, total: Sums | None) -> Sums:
        if message.phase == "turn":
            return self._turned(block, message, total)
        if message.phase == "move":
            return self._moved(block, message, total)
        if message.phase == "measure":
            w, r = self._completed(block, message), block.fresh("r")
            np.subtract(block.values, w, out=r)
            return self._standing(block, 0, total)
        z, most = self._chosen(block, message), self._most(block)
        np.clip(z, -most, most, out=z)
        np.multiply(z, 1.0 / self.twice_c, out=block.fresh("w"))
        return self._swept(block, z, (0.0, 0.0), total)

    def _chosen(self, block: Block, message: RobustRound) -> Vector:
        """The solution as it is to be measured, but for its bounds."""
        if message.phase == "begin":
            z = block.fresh(self.solution)
            z[:] = 0.0 if self.start is None else block.vector(self.start)
            block.fresh("p")[:] = 0.0
        else:
            z = block.changing(self.solution)
        if message.phase == "slide":
            z += message.alpha * block.vector("r")
        return z

    def _turned(self, block: Block, message: RobustRound, total: Sums | None) -> Sums:
        p = block.changing("p")
        found = huber.turn(
            block.vector(self.solution), block.vector("r"), self._most(block), message.beta, p,
            1.0 / self.twice_c, block.fresh("w"),
        )  # fmt: skip
        return self._swept(block, p, found, total)

    def _moved(self, block: Block, message: RobustRound, total: Sums | None) -> Sums:
        clipped = huber.move(
            block.changing(self.solution), block.changing("r"), block.vector("p"),
            self._completed(block, message), message.alpha, self._most(block),
        )  # fmt: skip
        return self._standing(block, clipped, total)

    def _standing(self, block: Block, clipped: int, total: Sums | None) -> Sums:
        found = huber.standing(
            block.values, block.vector(self.solution), block.vector("r"), self.twice_c,
            self._most(block), self.length,
        )  # fmt: skip
        scalars = np.array([*found, clipped], dtype=np.float64)
        return NO_SUMS, scalars if total is None else total[1] + scalars

    def _swept(
        self, block: Block, x: Vector, found: tuple[float, float], total: Sums | None
    ) -> Sums:
        """The local modes' part of a product with x; w has the diagonal's."""
        gain, energy = found
        energy += add_local(block, self.factors, self.factors, self.weights, x, block.changing("w"))
        sums = crossing_sums(block, self.factors, x, None if total is None else total[0])
        scalars = np.array([gain, energy])
        return sums, scalars if total is None else total[1] + scalars

    def _completed(self, block: Block, message: RobustRound) -> Vector:
        """The product w with the slab mode's part added."""
        w = block.changing("w")
        assert message.sums is not None
        add_crossing(block, self.factors, self.weights, message.sums, w)
        return w

    def _most(self, block: Block) -> float:
        return largest_answer(self.twice_c * self.delta, block.values)

    # ---- between rounds ---------------------------------------------------------------------

    def advance(self, message: RobustRound, total: Sums) -> RobustRound | Finished:
        sums, scalars = total
        if message.phase == "turn":
            flat = sums.reshape(-1)
            curvature = float(scalars[1]) + self.weights[self.slab_mode] * vectors.dot(flat, flat)
            alpha = float(scalars[0]) / curvature if curvature > 0.0 else 0.0
            return replace(message, phase="move", sums=sums, alpha=alpha, sweeps=message.sweeps + 1)
        if message.phase in ("begin", "image", "slide"):
            return replace(message, phase="measure", sums=sums, sweeps=message.sweeps + 1)
        if message.phase == "move" and scalars[-1] > 0.0:
            return replace(message, phase="image", sums=None)
        return self._judged(message, scalars)

    def _judged(self, message: RobustRound, scalars: NDArray[np.float64]) -> RobustRound | Finished:
        """Say how to go on from a z whose residual is known."""
        squares, free, chopped, reachable, dual, _ = (float(value) for value in scalars)
        if not math.isfinite(squares + dual):
            raise NumericalBreakdown(
                "the inner solve met a value that is not a number; look for huge values in the "
                "data, or a C so large that its products overflow"
            )
        history = message.history
        if message.iteration:
            history = (*history, (message.squares, dual - message.dual))
        converged = squares <= self.tolerance**2
        if converged or message.iteration >= self.max_iterations:
            return Finished(
                RobustOutcome(
                    message.iteration, message.sweeps, converged, dual, squares,
                    missed_value(history, squares),
                )
            )  # fmt: skip
        fell = dual < message.best - FELL * abs(message.best)
        following = replace(
            message, sums=None, iteration=message.iteration + 1, free=free, squares=squares,
            dual=dual, best=max(dual, message.best), history=history,
        )  # fmt: skip
        if fell or chopped > reachable:
            return replace(following, phase="slide", alpha=self.length)
        # The held entries are the same as before as long as nothing was clipped and none let go.
        same = message.phase == "move" and message.free > 0.0
        return replace(following, phase="turn", beta=free / message.free if same else 0.0)


@dataclass(frozen=True)
class RobustOutcome:
    """How a solve ended; `cost` is the dual value at the solution, r as in the solve.

    missed : how much the cost misses for every unit of ⟨r, r⟩, as seen on the way; at least that
    """

    iterations: int
    sweeps: int
    converged: bool
    cost: float
    r_dot_r: float
    missed: float


def largest_answer(most: float, like: Vector) -> float:
    """The largest number of a vector's precision that is not above 2Cδ."""
    held = like.dtype.type(most)
    return float(held if float(held) <= most else np.nextafter(held, like.dtype.type(0)))
