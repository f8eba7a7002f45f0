"""What blocks do in each phase of an inner solve with bounds; `newton.py` says when and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slrt_dask.dual.bounds import MARKS, BoundVectors, take_out_rows
from slrt_dask.dual.operator import Factors, Matrix, add_crossing, add_local, crossing_sums
from slrt_dask.dual.rows import Rows, RowState, RowVector, add_multipliers, products_of
from slrt_dask.dual.solve import NO_SUMS, Sums
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import StateMachine
from slrt_dask.kernels import bounds as passes
from slrt_dask.kernels import vectors

FORCING = 0.1
"""How far the residual is brought down before the active set is looked at again."""


@dataclass(frozen=True)
class BoundedOutcome:
    """How a solve ended; `cost` is the dual value at the solution, `primal` a bound above it.

    rows : multipliers of a linear constraint's rows, if there are any
    """

    iterations: int
    sweeps: int
    converged: bool
    cost: float
    primal: float
    r_dot_r: float
    rows: RowVector | None = None


@dataclass(frozen=True)
class Stage:
    """What the blocks are to do next.

    phase : begin | classify | retreat | release | depart | set off | iterate | arrive | project;
        with rows also gather (what the model says of them), remeasure, and compose at the end
    then : the phase after a gathering
    told : the rows' residual or multipliers, whichever the phase needs
    rows : the rows' own part of the solve, which stays with the root
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
    projections: int = 0
    then: str = ""
    told: RowVector | None = None
    rows: RowState | None = None
    outcome: BoundedOutcome | None = None


@dataclass(frozen=True)
class BoundedSteps(StateMachine):
    """Solve for the vector `solution`, to ‖r‖ ≤ tolerance, starting from the vector `start`.

    centre : name of the multipliers' centre
    rows, rows_start : a linear constraint, and multipliers of its rows to start from
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
    rows: Rows | None = None
    rows_start: RowVector | None = None
    begins_with_image: ClassVar[tuple[str, ...]] = (
        "begin",
        "retreat",
        "release",
        "arrive",
        "project",
    )

    def step(self, block: Block, message: Stage, total: Sums | None) -> Sums:
        if message.phase == "classify":
            return self._classified(block, message, total)
        if message.phase in self.begins_with_image:
            return self._image(block, message, self._moved(block, message), total)
        if message.phase == "iterate":
            rr = self._conjugate_step(block, message)
            return self._swept(block, message, rr, total)
        if message.phase in ("gather", "remeasure", "compose"):
            return self._told_of_rows(block, message, total)
        if message.phase == "set off":
            block.fresh("before")[:] = block.vector(self.solution)
        elif self.rows is None:
            passes.residual(*self._entries(block, message), block.fresh("r"))
        for name in ("p", "s"):
            block.fresh(name)[:] = 0.0
        rr = passes.scale_by_resistance(
            block.vector(MARKS), block.vector("r"), self.twice_c, self.bounds.penalty,
            block.fresh("w"),
        )  # fmt: skip
        return self._swept(block, message, rr, total)

    def _told_of_rows(self, block: Block, message: Stage, total: Sums | None) -> Sums:
        """A round that only rows need: what the model says of them, or what they add to x."""
        assert message.told is not None
        if message.phase == "compose":
            add_multipliers(block, message.told, block.changing(self.solution))
            return NO_SUMS, np.zeros(6)
        if message.phase == "remeasure":
            passes.residual(*self._entries(block, message), block.fresh("r"))
            return self._products(block, total), np.zeros(6)
        assert message.sums is not None
        w, diagonal = block.changing("w"), block.fresh("v")
        add_crossing(block, self.factors, self.weights, message.sums, w)
        products = self._products(block, total)
        passes.scale_by_resistance(
            block.vector(MARKS), block.vector("r"), self.twice_c, self.bounds.penalty, diagonal
        )
        w += diagonal
        return products, np.zeros(6)

    def _moved(self, block: Block, message: Stage) -> Vector:
        """The solution, changed as the phase says."""
        if message.phase == "begin":
            x = block.fresh(self.solution)
            x[:] = 0.0 if self.start is None else block.vector(self.start)
            if message.told is not None:
                take_out_rows(block, message.told, self.bounds, x)
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

    def _image(self, block: Block, message: Stage, own: Vector, total: Sums | None) -> Sums:
        """The local modes' part of w = L x, x being the entries' own part and that of the rows."""
        x, w = with_rows(block, message.told, own), block.fresh("w")
        w[:] = 0.0
        add_local(block, self.factors, self.factors, self.weights, x, w)
        sums = crossing_sums(block, self.factors, x, None if total is None else total[0])
        return sums, np.zeros(6)

    def _classified(self, block: Block, message: Stage, total: Sums | None) -> Sums:
        found = passes.classify(
            *self._entries(block, message, block.changing(MARKS)), block.fresh("r")
        )
        scalars = np.array(found, dtype=np.float64)
        products = NO_SUMS if self.rows is None else self._products(block, total)
        return products, scalars if total is None else total[1] + scalars

    def _products(self, block: Block, total: Sums | None) -> RowVector:
        assert self.rows is not None
        held = None if total is None else total[0]
        return products_of(block, block.vector("w"), self.rows.count, held)

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
        if self.rows is None:  # with rows, that was part of gathering
            add_crossing(block, self.factors, self.weights, message.sums, w)
        return float(
            passes.conjugate_step(
                block.vector(MARKS), block.changing(self.solution), block.changing("r"),
                block.changing("p"), block.changing("s"), w, message.alpha, message.beta,
                self.twice_c, self.bounds.penalty,
            )
        )  # fmt: skip

    def _swept(self, block: Block, message: Stage, rr: float, total: Sums | None) -> Sums:
        """The local modes' part of a product; w has the diagonal's, which rows have no use for."""
        r, w = block.vector("r"), block.changing("w")
        energy, x = vectors.dot(r, w), with_rows(block, message.told, r)
        if message.told is not None:
            w[:] = 0.0
        energy += add_local(block, self.factors, self.factors, self.weights, x, w)
        sums = crossing_sums(block, self.factors, x, None if total is None else total[0])
        scalars = np.array([rr, energy, 0.0, 0.0, 0.0, 0.0])
        return sums, scalars if total is None else total[1] + scalars


def with_rows(block: Block, multipliers: RowVector | None, own: Vector) -> Vector:
    """What the model sees: the entries' own numbers, and what rows add to them."""
    if multipliers is None:
        return own
    x = block.fresh("v")
    x[:] = own
    add_multipliers(block, multipliers, x)
    return x
