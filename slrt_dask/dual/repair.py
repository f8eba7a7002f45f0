"""The smallest change that makes a tensor satisfy the rows of its linear constraint.

It changes only entries that are held: `d = Aᵀ t`, t being zero for rows that are satisfied anyway,
and `A d` just what the others miss. Rows that this breaks join them, and it is done again. Whether
bounds hold after it is told, not seen to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.bounds import MARKS, BoundVectors
from slrt_dask.dual.rows import Rows, RowVector, add_multipliers, products_of
from slrt_dask.dual.solve import NO_SUMS
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Finished, StateMachine, add_into
from slrt_dask.kernels.bounds import BOUNDED, OBSERVED

EXACT = 1e-14
"""Rows are repaired to this part of what they missed at first."""
MOST_STAGES = 20
MOST_ITERATIONS = 500


@dataclass(frozen=True)
class Repaired:
    """What a repair came to.

    squares : ‖d‖², the change's
    misfit : ‖W + d − y‖² over the observed entries
    slack : how far inside its bounds every entry is at least; negative if one is outside
    missed : by how much a row is still missed, at most
    """

    squares: float
    misfit: float
    slack: float
    missed: float


@dataclass
class _Search:
    """Conjugate gradients for `A Aᵀ t = v` on the rows that take part; the root's own.

    products : A W before any change
    """

    products: RowVector
    active: NDArray[np.bool_]
    stage: int = 0
    solution: RowVector = field(init=False)
    residual: RowVector = field(init=False)
    direction: RowVector = field(init=False)

    def begin(self, wanted: RowVector) -> None:
        self.solution = np.zeros_like(wanted)
        self.residual = np.where(self.active, wanted, 0.0)
        self.direction = self.residual.copy()
        self.squares = float(self.residual @ self.residual)
        self.enough = EXACT**2 * self.squares
        self.iteration, self.stage, self.stiffest = 0, self.stage + 1, 0.0

    @property
    def done(self) -> bool:
        return self.squares <= self.enough or self.iteration >= MOST_ITERATIONS

    def go_on(self, image: RowVector) -> None:
        image = np.where(self.active, image, 0.0)
        curvature = float(self.direction @ image)
        length = float(self.direction @ self.direction)
        self.stiffest = max(self.stiffest, curvature / length)
        if curvature <= EXACT * self.stiffest * length:  # the rest is in the reach of no change
            self.iteration = MOST_ITERATIONS
            return
        step = self.squares / curvature
        self.solution += step * self.direction
        self.residual -= step * image
        squares = float(self.residual @ self.residual)
        self.direction = self.residual + squares / self.squares * self.direction
        self.squares, self.iteration = squares, self.iteration + 1


@dataclass(frozen=True)
class _Phase:
    """begin : A W;  search : one product with A Aᵀ;  change : A d, and what d comes to."""

    name: str
    told: RowVector | None = None
    search: _Search | None = None


@dataclass(frozen=True)
class Repair(StateMachine):
    """Repair a tensor; the vector `change` is left behind.

    tensor : the name of the vector that has its entries; None for the middle of the bounds
    """

    bounds: BoundVectors
    rows: Rows
    change: str
    tensor: str | None

    def first(self) -> _Phase:
        return _Phase("begin")

    def sent(self, message: _Phase) -> _Phase:
        return replace(message, search=None)

    def step(self, block: Block, message: _Phase, total: Any) -> Any:
        count, held = self.rows.count, None if total is None else total[0]
        if message.told is None:
            return products_of(block, self._tensor(block), count, held), NO_SUMS, math.inf
        change = block.fresh(self.change)
        change[:] = 0.0
        add_multipliers(block, message.told, change)
        products = products_of(block, change, count, held)
        if message.name == "search":
            return products, NO_SUMS, math.inf
        scalars, slack = self._measured(block, change)
        if total is not None:
            scalars, slack = scalars + total[1], min(slack, total[2])
        return products, scalars, slack

    def combine(self, left: Any, right: Any) -> Any:
        sums = (add_into(left[part], right[part]) for part in (0, 1))
        return (*sums, min(left[2], right[2]))

    def advance(self, message: _Phase, total: Any) -> _Phase | Finished:
        products, scalars, slack = total
        search = message.search
        if search is None:
            wanted = self.rows.missed(products)
            search = _Search(products, (wanted != 0.0) | (self.rows.lower == self.rows.upper))
            search.begin(wanted)
        elif message.name == "search":
            search.go_on(products)
        else:
            left = self.rows.missed(search.products + products)
            broken = ~search.active & (left != 0.0)
            if not broken.any() or search.stage >= MOST_STAGES:
                missed = float(np.abs(left).max(initial=0.0))
                return Finished(Repaired(float(scalars[0]), float(scalars[1]), slack, missed))
            search.active |= broken
            search.begin(self.rows.missed(search.products) + self._to_bound(search))
        if search.done:
            return _Phase("change", search.solution, search)
        return _Phase("search", search.direction, search)

    def _to_bound(self, search: _Search) -> RowVector:
        """What rows that were satisfied may change by: as far as their bound, and no further."""
        satisfied = search.active & (self.rows.missed(search.products) == 0.0)
        nearest = np.where(
            search.products - self.rows.lower <= self.rows.upper - search.products,
            self.rows.lower,
            self.rows.upper,
        )
        way: RowVector = np.where(satisfied, nearest - search.products, 0.0)
        return way

    def _tensor(self, block: Block) -> Vector:
        if self.tensor is not None:
            return block.vector(self.tensor)
        middle: Vector = self.bounds.middle[block.columns[self.bounds.mode]]
        return middle

    def _measured(self, block: Block, change: Vector) -> tuple[NDArray[np.float64], float]:
        """‖d‖² and the misfit after it, and how far inside the bounds it leaves every entry."""
        places, lower, upper = self.bounds.of(block)
        marks, tensor = block.vector(MARKS).astype(np.int64), self._tensor(block) + change
        seen, bounded = marks & OBSERVED > 0, marks & BOUNDED > 0
        misfit = float(np.sum((tensor[seen] - block.values[seen]) ** 2))
        inside = np.minimum(tensor - lower[places], upper[places] - tensor)[bounded]
        squares = float(np.dot(change, change))
        return np.array([squares, misfit]), float(inside.min(initial=math.inf))
