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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.inner_rounds import NO_SUMS, InnerOutcome, Round, Sums, missed_value
from slrt_dask.dual.iteration import CrossingTurns, SharedIteration
from slrt_dask.dual.layout import layout_of, strips_of
from slrt_dask.dual.offers import mutual_help
from slrt_dask.dual.operator import (
    Factors,
    Matrix,
    add_crossing,
    add_local,
    aligned,
    crossing_sums,
)
from slrt_dask.engine.block import VALUES, Block, Buffers, Vector
from slrt_dask.engine.neighbours import LARGEST
from slrt_dask.engine.program import Finished, Overlapping, Place
from slrt_dask.errors import NumericalBreakdown
from slrt_dask.kernels import vectors

SUMS = ("even sums", "odd sums")
"""Rooms for the fibre sums of every other turn: one is read while the next is made."""
LAYOUT = "layout"
"""What the kernels of a solve's iterations are told of where things are."""
SWEEPING = ("begin", "residual", "iterate", "resume")
"""Rounds that end with a product with the operator."""
COMPLETING = ("residual", "iterate", "finish")
"""Rounds that begin with the slab mode's part of the last one."""


@dataclass(frozen=True)
class ConjugateGradient(Overlapping):
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

    def first(self) -> Round:
        return Round("begin")

    # ---- on a block -------------------------------------------------------------------------

    def step(self, block: Block, message: Round, total: Sums | None) -> Sums:
        if message.phase == "begin":
            return self._begin(block, total)
        if message.phase == "measure":
            let_go(block)
            return self._measure(block, block.vector("r"), total)
        if message.phase == "iterate":
            return self._iterate(block, message, total)
        if message.phase == "finish":
            self._conjugate_step(block, message)
            let_go(block)
            return self._measure(block, block.vector("r"), total)
        r, rr = self._residual(block, message)
        return (
            self._measure(block, r, total)
            if self.max_iterations == 0
            else self._sweep(block, r, rr, total, message.iteration)
        )

    def _begin(self, block: Block, total: Sums | None) -> Sums:
        let_go(block)
        swept, rr = self._started(block)
        # After a start comes the residual, whose sums are the first ones of those used in turns.
        return self._sweep(block, swept, rr, total, 0 if self.start is None else 1)

    def _started(self, block: Block) -> tuple[Vector, float]:
        """What is swept first, and ⟨r, r⟩ if it is the residual: it is b if there is no start."""
        x, p, s = (block.fresh(name) for name in (self.solution, "p", "s"))
        if self.start is None:
            r = block.fresh("r")
            return r, vectors.start(self._right_hand_side(block), r, (x, p, s))
        vectors.start(block.vector(self.start), x, (p, s))
        return x, 0.0

    def _residual(self, block: Block, message: Round) -> tuple[Vector, float]:
        """r and ⟨r, r⟩; at first r = b − w, w being completed with the slab mode's sums."""
        if message.phase == "resume":
            r = block.vector("r")
            return r, vectors.dot(r, r)
        w, r = self._completed(block, message), block.fresh("r")
        return r, vectors.difference(self._right_hand_side(block), w, r)

    def _completed(self, block: Block, message: Round) -> Vector:
        """w = A r, with the slab mode's part."""
        w = block.changing("w")
        assert message.sums is not None
        add_crossing(block, self.factors, self.weights, message.sums, w)
        return w

    def _conjugate_step(self, block: Block, message: Round) -> float:
        """Complete w and make one step, with all that was left to it; ⟨r, r⟩."""
        w = self._completed(block, message)
        changing = (block.changing(name) for name in (self.solution, "r", "p", "s"))
        if message.before is None:
            rr = vectors.conjugate_step(*changing, w, message.alpha, message.beta)
        else:
            rr = vectors.conjugate_steps(*changing, w, message.alpha, message.beta, *message.before)
        return float(rr)

    def shared(self, message: Round, places: Sequence[Place]) -> SharedIteration | None:
        if message.phase != "iterate":
            return None
        buffers = places[0].buffers
        layout = buffers.made(LAYOUT, lambda: layout_of(places, self.factors, self.solution))
        if layout is None:
            return None
        sums = self._room_for_sums(buffers, int(layout.strips.borders[-1]), message.iteration)
        return SharedIteration(
            layout, message, self.factors, self.weights, self.slab_mode, self.shift, sums,
            mutual_help(layout, places, self.factors),
        )  # fmt: skip

    def _iterate(self, block: Block, message: Round, total: Sums | None) -> Sums:
        """A step and the next one's sweep, but for the local modes; all in one pass."""
        mode = self.slab_mode
        fibres = block.index.buffer_rows[mode]
        sums = total[0] if total else self._room_for_sums(block.buffers, fibres, message.iteration)
        # Where blocks are in files, what is not moved is not read.
        moved = ("r", "r") if message.before is None else (self.solution, "p")
        strips = strips_of([block], 1, self.factors, moved)
        if strips is None:  # there are no fibres, and so there is nothing
            return self._swept(sums, 0.0, total)
        turns = CrossingTurns(
            strips, message, self.factors.padded[mode], self.weights[mode], sums, total is None
        )
        turns.take()
        return self._swept(sums, turns.squared_residual, total)

    def _room_for_sums(self, buffers: Buffers, fibres: int, turn: int) -> Matrix:
        """Room for fibre sums, where those of the last turn but one have been.

        New memory for them costs as much as adding them up, in every iteration and still in every
        solve. Nobody looks at the old ones any more: all workers have told what they made of them,
        and after a run that was given up a share begins with new ones.

        turn : the iteration, or the section of it
        """
        shape = (fibres, self.factors.width(self.slab_mode))
        return buffers.seen(SUMS[turn % 2], shape)

    def _cleared_sums(self, block: Block, turn: int) -> Matrix:
        fibres = block.index.buffer_rows[self.slab_mode]
        sums = self._room_for_sums(block.buffers, fibres, turn)
        sums.fill(0.0)
        return sums

    def _sweep(self, block: Block, r: Vector, rr: float, total: Sums | None, turn: int) -> Sums:
        sums = self._cleared_sums(block, turn) if total is None else total[0]
        return self._swept(crossing_sums(block, self.factors, r, sums), rr, total)

    def _swept(self, sums: Matrix, rr: float, total: Sums | None) -> Sums:
        scalars = np.array([rr, self.shift * rr, 0.0, 0.0])
        return sums, scalars if total is None else total[1] + scalars

    def follow(
        self, block: Block, message: Round, rest: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """w = A r, but for the slab mode's part, which has to be summed first."""
        scalars = np.zeros(4)
        begins = message.phase == "begin" and self.start is not None
        if begins or (message.phase in SWEEPING and self.max_iterations > 0):
            swept, w = block.vector(self.solution if begins else "r"), block.fresh("w")
            energy = add_local(
                block, self.factors, self.factors, self.weights, swept, w, self.shift
            )
            scalars[1] = 0.0 if begins else energy
        return scalars if rest is None else rest + scalars

    def known_of(self, shared: Matrix) -> NDArray[np.float64]:
        """The slab mode's part of ⟨r, Ar⟩: the norm of its fibre sums."""
        flat = aligned(shared).reshape(-1)
        return np.array([0.0, self.weights[self.slab_mode] * vectors.dot(flat, flat), 0.0, 0.0])

    def _measure(self, block: Block, r: Vector, total: Sums | None) -> Sums:
        """The products that tell how the solve ended."""
        bx, rx, xx, rr = vectors.solution_products(
            block.vector(self.solution), r, self._right_hand_side(block)
        )
        scalars = np.array([rr, bx, rx, xx])
        return NO_SUMS, scalars if total is None else total[1] + scalars

    def _right_hand_side(self, block: Block) -> Vector:
        return block.vector(self.right_hand_side or VALUES)

    # ---- between rounds ---------------------------------------------------------------------

    def advance(self, message: Round, total: Sums) -> Round | Finished:
        sums, scalars = total
        if message.phase == "begin" and self.start is not None:
            return Round("residual", sums, sweeps=1)
        rr = float(scalars[0])
        if not math.isfinite(rr):
            raise NumericalBreakdown(
                "the inner solve met a value that is not a number; look for huge values in the "
                "data, or a C so large that its products overflow"
            )
        small = rr <= self.tolerance**2
        if message.phase in ("finish", "measure") or self.max_iterations == 0:
            # A last step of no length only moves what the one before has left: see `_nothing_left`.
            over = message.alpha == 0.0 or message.iteration >= self.max_iterations
            if small or over or message.phase == "measure":
                return Finished(self._outcome(message, scalars))
            return replace(message, phase="resume", sums=None)
        if rr == 0.0 or (small and message.iteration == 0):
            return self._nothing_left(message, sums)
        return self._next_iteration(message, sums, rr, float(scalars[1]))

    def _nothing_left(self, message: Round, sums: Matrix) -> Round:
        """Measure the solution, or first move it by a step that was left to the next one."""
        sweeps = message.sweeps + 1
        if message.left is None:
            return replace(message, phase="measure", sums=None, sweeps=sweeps)
        return replace(
            message, phase="finish", sums=sums, alpha=0.0, beta=0.0, before=message.left,
            sweeps=sweeps,
        )  # fmt: skip

    def _next_iteration(self, message: Round, sums: Matrix, rr: float, curvature: float) -> Round:
        beta = rr / message.squared_residual if message.iteration else 0.0
        denominator = curvature - (beta * rr / message.alpha if message.iteration else 0.0)
        if denominator <= 0.0:
            # Rounding has eaten the recurrence: a restart from the current residual is safe.
            beta, denominator = 0.0, curvature
        if denominator <= 0.0:  # so small a residual that its products are no numbers any more
            return self._nothing_left(message, sums)
        # Nothing is expected of the first step: next to no solve is over after one.
        shrinking = min(1.0, rr / message.squared_residual) if message.iteration else 1.0
        last = rr * shrinking <= self.tolerance**2 or message.iteration + 1 >= self.max_iterations
        alpha = rr / denominator
        return Round(
            "finish" if last else "iterate", sums, alpha, beta, message.left, message.iteration + 1,
            message.sweeps + 1, rr, (*message.history, (rr, 0.5 * alpha * rr)),
        )  # fmt: skip

    def sent(self, message: Round) -> Round:
        return replace(message, history=(), sums=None)

    def told(self, message: Round, shared: Matrix) -> Round:
        return replace(message, sums=shared) if message.phase in COMPLETING else message

    def _outcome(self, message: Round, scalars: NDArray[np.float64]) -> InnerOutcome:
        rr, bx, rx, xx = (float(value) for value in scalars)
        return InnerOutcome(
            message.iteration, message.sweeps, rr <= self.tolerance**2, bx, rx, xx, rr,
            missed_value(message.history, rr),
        )  # fmt: skip


def let_go(block: Block) -> None:
    """Keep room for the next solve's sums, if it is not much."""
    block.buffers.let_go(LAYOUT)
    for key in SUMS:
        block.buffers.let_go(key, above=LARGEST)
