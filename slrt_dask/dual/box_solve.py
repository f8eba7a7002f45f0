"""The inner solve with boxes: projected conjugate gradients.

Minimises F(x) = Σ_e ψ_e(x_e) + ½⟨x, L x⟩, ψ_e being what an entry pays for its dual number
(`kernels/entries.py`). Conjugate gradients run on the entries that are free to move, while the
others are held. A step stops entries at the numbers at which they are to be held; directions begin
anew then. When the held entries have more to gain than the free ones, all take a step down the
slope, which lets them go (Dostál's proportioning, with projected steps as Kružík and others have
them). Every x on the way is one that its box allows, however loosely it is solved for: certificates
depend on that. An iteration takes one product with L, and one more where entries were stopped.

Rows of a linear constraint take part as entries of their own (`rows.py`): the model then sees
x + Aᵀ t instead of x, and what it says of a row is A w.

Newton steps on the sets of held entries took 1.2 times the sweeps with bounds, and ten times with
Huber's loss, where entries change sides all the time if C is large and δ small.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from slrt_dask.dual.entries import EVERY, EntryModel
from slrt_dask.dual.operator import Operator, Sums
from slrt_dask.dual.rows import Rows, RowState, RowVector, add_multipliers, products_of
from slrt_dask.dual.solve import InnerOutcome, Scalars, TimeLimit, check_finite, missed_value
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.kernels import entries as passes

FELL = 1e-6
"""By how much of itself the dual value may fall in a step, for rounding, and still be trusted."""
FORCING, MOST_STEPS = 0.1, 100
"""How far one of z and s is solved for before it is the other's turn, and in how many steps."""
Total = tuple[Any, Scalars]


class Standing(NamedTuple):
    """How far x is from the solution: see `kernels.entries.standing`."""

    squares: float
    free: float
    chopped: float
    reachable: float
    dual: float
    stopped: float


class Part(NamedTuple):
    """What is solved for: the vector `x`, for the kinds of entries given.

    base : a vector that the model sees besides, and that does not move
    """

    x: str
    kinds: int = EVERY
    base: str | None = None


@dataclass(frozen=True)
class BoxSolve(Program):
    """Solve for the vector `solution`, to a residual of `tolerance`, starting from `start`.

    The residual is how far entries are from their answers, in units of w.
    seconds : after which it ends with what it has
    length : of steps down the slope; with twice one over the operator's norm, none goes up
    rows, rows_start : a linear constraint, and multipliers of its rows to start from
    """

    operator: Operator
    model: EntryModel
    solution: str
    tolerance: float
    max_iterations: int
    length: float
    start: str | None = None
    rows: Rows | None = None
    rows_start: RowVector | None = None
    seconds: float = math.inf

    at_once = 8

    def rounds(self) -> Rounds:
        rows = None if self.rows is None else RowState(self.rows, self.rows_start)
        limit = TimeLimit(self.seconds)
        yield Sweep(BoxSolve._begin, (None if rows is None else rows.x,))
        outcome = yield from self._solved(Part(self.solution), rows, limit, self.tolerance**2)
        if rows is not None:
            yield Sweep(BoxSolve._compose, (rows.x,))
        return outcome

    def _solved(
        self,
        part: Part,
        rows: RowState | None,
        limit: TimeLimit,
        enough: float,
        most: int | None = None,
    ) -> Generator[Sweep, Any, InnerOutcome]:
        """Projected conjugate gradients, from where the vector is."""
        most = self.max_iterations if most is None else most
        length, iterations, sweeps, history = self.length, 0, 1, []
        best, free, restart = -math.inf, 0.0, True
        at = yield from self._looked(BoxSolve._image, part, rows, length)
        while at.squares > enough and iterations < most and not limit.is_over:
            before, iterations, sweeps = at, iterations + 1, sweeps + 1
            fell = part.base is None and at.dual < best - FELL * abs(best)
            best = max(best, at.dual)
            if fell or at.chopped > at.reachable:
                if rows is not None:
                    rows.slide(length)
                at = yield from self._looked(BoxSolve._slide, part, rows, length)
                restart = True
                if part.base is None and at.dual < before.dual - FELL * abs(before.dual):
                    length *= 0.5
            else:
                beta = 0.0 if restart else at.free / free
                free = at.free
                own = (0.0, 0.0) if rows is None else rows.turn(beta)
                told = None if rows is None else rows.p
                sums, scalars = yield Sweep(BoxSolve._turn, (part, beta, told))
                gain, energy = scalars + own
                curvature = energy + self.operator.energy(sums)
                alpha = gain / curvature if curvature > 0.0 else 0.0
                stopped = 0 if rows is None else rows.move(alpha)
                total = yield Sweep(BoxSolve._move, (part, sums, alpha, length))
                restart = alpha == 0.0 or total[1][-1] + stopped > 0
                if restart:
                    sweeps += 1
                    at = yield from self._looked(BoxSolve._image, part, rows, length)
                else:
                    at = self._standing_of(total, rows, length)
            history.append((before.squares, at.dual - before.dual))
        missed = missed_value(history, at.squares)
        converged = at.squares <= enough
        multipliers = None if rows is None else rows.x
        return InnerOutcome(iterations, sweeps, converged, at.dual, at.squares, missed, multipliers)

    def _looked(
        self, step: Any, part: Part, rows: RowState | None, length: float
    ) -> Generator[Sweep, Any, Standing]:
        """Make a product with x itself, and find how far it is from the solution."""
        told = None if rows is None else rows.x
        sums, _ = yield Sweep(step, (part, told, length))
        total = yield Sweep(BoxSolve._complete, (part, sums, length))
        return self._standing_of(total, rows, length)

    def _standing_of(self, total: Total, rows: RowState | None, length: float) -> Standing:
        products, scalars = total
        if rows is not None:
            scalars = scalars + rows.standing(products, length)
        check_finite(float(scalars[0] + scalars[4]))
        return Standing(*map(float, scalars))

    # ---- on a block -------------------------------------------------------------------------

    def _begin(self, block: Block, total: Any, rows: RowVector | None) -> int:
        x = block.fresh(self.solution)
        x[:] = 0.0 if self.start is None else block.vector(self.start)
        if rows is not None:
            add_multipliers(block, rows, x, -1.0)
        passes.begin(self.model.of(block), x)
        return 0

    def _compose(self, block: Block, total: Any, rows: RowVector) -> int:
        """The multipliers of rows become part of the solution."""
        add_multipliers(block, rows, block.changing(self.solution))
        return 0

    def _image(
        self, block: Block, total: Total | None, part: Part, rows: RowVector | None, length: float
    ) -> Total:
        """The local modes' part of the image L x."""
        seen = self._seen(block, block.vector(part.x), rows, part.base)
        return self._product(block, seen, "image", 0.0, np.zeros(2), total)

    def _slide(
        self, block: Block, total: Total | None, part: Part, rows: RowVector | None, length: float
    ) -> Total:
        x = block.changing(part.x)
        passes.slide(self.model.of(block, part.kinds), x, block.vector("image"), length)
        return self._image(block, total, part, rows, length)

    def _turn(
        self, block: Block, total: Total | None, part: Part, beta: float, rows: RowVector | None
    ) -> Total:
        """The next direction p, and the local modes' part of w = L p."""
        p, w = block.fresh("p") if beta == 0.0 else block.changing("p"), block.fresh("w")
        if beta == 0.0:
            p[:] = 0.0
        these = self.model.of(block, part.kinds)
        found = passes.turn(these, block.vector(part.x), block.vector("r"), beta, p, w)
        return self._product(block, self._seen(block, p, rows), "w", 0.0, np.array(found), total)

    def _move(
        self, block: Block, total: Total | None, part: Part, sums: Sums, alpha: float, length: float
    ) -> Total:
        w = block.changing("w")
        self.operator.add_crossing(block, sums, w)
        stopped = passes.move(
            self.model.of(block, part.kinds), block.changing(part.x), block.changing("image"),
            block.vector("p"), w, alpha,
        )  # fmt: skip
        return self._stands(block, total, part, length, stopped)

    def _complete(
        self, block: Block, total: Total | None, part: Part, sums: Sums, length: float
    ) -> Total:
        self.operator.add_crossing(block, sums, block.changing("image"))
        return self._stands(block, total, part, length, 0)

    def _stands(
        self, block: Block, total: Total | None, part: Part, length: float, stopped: int
    ) -> Total:
        image, these = block.vector("image"), self.model.of(block, part.kinds)
        found = passes.standing(these, block.vector(part.x), image, length, block.fresh("r"))
        scalars = np.array([*found, stopped], dtype=np.float64)
        count = 0 if self.rows is None else self.rows.count
        products = products_of(block, image, count, None if total is None else total[0])
        return products, scalars if total is None else total[1] + scalars

    def _product(
        self, block: Block, seen: Vector, name: str, shift: float, found: Scalars,
        total: Total | None,
    ) -> Total:  # fmt: skip
        """The local modes' part of L times what the model sees, and the fibre sums of the rest.

        found : ⟨r, p⟩ and the entries' own part of a direction's curvature, so far
        """
        energy = self.operator.add_local(block, seen, block.fresh(name), shift)
        sums = self.operator.crossing_sums(block, seen, None if total is None else total[0])
        scalars = np.array([found[0], found[1] + energy])
        return sums, scalars if total is None else total[1] + scalars

    def _seen(
        self, block: Block, own: Vector, rows: RowVector | None, base: str | None = None
    ) -> Vector:
        """What the model sees: the entries' own numbers, what rows add to them, and the base."""
        if rows is None and base is None:
            return own
        seen = block.fresh("seen")
        seen[:] = own
        if base is not None:
            seen += block.vector(base)
        if rows is not None:
            add_multipliers(block, rows, seen)
        return seen


@dataclass(frozen=True)
class AlternatingSolve(BoxSolve):
    """The same as the paper has it: z with the multipliers s held, s with z held, in turn."""

    def rounds(self) -> Rounds:
        enough, iterations, sweeps = self.tolerance**2, 0, 0
        limit = TimeLimit(self.seconds)
        parts = Part("z", passes.OBSERVED, "s"), Part("s", passes.BOUNDED, "z")
        yield Sweep(BoxSolve._begin, (None,))
        yield Sweep(AlternatingSolve._take_apart)
        while True:
            yield Sweep(AlternatingSolve._put_together)
            at = yield from self._looked(BoxSolve._image, Part(self.solution), None, self.length)
            sweeps += 1
            if at.squares <= enough or iterations >= self.max_iterations or limit.is_over:
                converged = at.squares <= enough
                return InnerOutcome(iterations, sweeps, converged, at.dual, at.squares)
            for part in parts:
                goal = max(FORCING**2 * at.squares, 0.01 * enough)
                turn = yield from self._solved(part, None, limit, goal, MOST_STEPS)
                iterations, sweeps = iterations + turn.iterations, sweeps + turn.sweeps

    def _take_apart(self, block: Block, total: Any) -> int:
        z, s = block.fresh("z"), block.fresh("s")
        passes.multipliers(self.model.of(block), block.vector(self.solution), s)
        np.subtract(block.vector(self.solution), s, out=z)
        return 0

    def _put_together(self, block: Block, total: Any) -> int:
        np.add(block.vector("z"), block.vector("s"), out=block.fresh(self.solution))
        return 0
