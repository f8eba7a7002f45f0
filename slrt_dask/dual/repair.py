"""The smallest change that makes a tensor satisfy the rows of its linear constraint.

It changes only entries that are held: `d = Aᵀ t`, t being zero for rows that are satisfied anyway,
and `A d` just what the others miss. Rows that this breaks join them, and it is done again. Whether
bounds hold after it is reported, not enforced.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.entries import MARKS, EntryModel
from slrt_dask.dual.rows import Rows, RowVector, add_multipliers, products_of
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.kernels.entries import BOUNDED, OBSERVED, total_loss

EXACT = 1e-14
"""Rows are repaired to this part of what they missed at first."""
MOST_STAGES = 20
MOST_ITERATIONS = 500


@dataclass(frozen=True)
class Repaired:
    """What a repair came to.

    squares : ‖d‖², the change's
    misfit : Σ w h(W + d − y) over the observed entries
    slack : how far inside its bounds every entry is at least; negative if one is outside
    missed : by how much a row is still missed, at most
    """

    squares: float
    misfit: float
    slack: float
    missed: float


@dataclass(frozen=True)
class Repair(Program):
    """Repair a tensor; the vector `change` is left behind.

    tensor : the name of the vector that has its entries; None for the middle of the bounds
    """

    model: EntryModel
    rows: Rows
    change: str
    tensor: str | None

    at_once = 4

    def rounds(self) -> Rounds:
        (products,) = yield Sweep(Repair._products)
        wanted = self.rows.missing(products)
        active = (wanted != 0.0) | (self.rows.lower == self.rows.upper)
        for stage in range(MOST_STAGES):
            if stage:
                wanted = self.rows.missing(products) + self._to_bound(products, active)
            solution = yield from self._solution(np.where(active, wanted, 0.0), active)
            changed, (squares, misfit), slack = yield Sweep(Repair._changed, (solution,))
            left = self.rows.missing(products + changed)
            broken = ~active & (left != 0.0)
            if not broken.any():
                break
            active = active | broken
        missed = float(np.abs(left).max(initial=0.0))
        return Repaired(float(squares), float(misfit), float(slack), missed)

    def _solution(
        self, r: RowVector, active: NDArray[np.bool_]
    ) -> Generator[Sweep, Any, RowVector]:
        """t with `A Aᵀ t = r` on the active rows, by conjugate gradients."""
        t, p, rr = np.zeros_like(r), r.copy(), float(r @ r)
        enough, stiffest = EXACT**2 * rr, 0.0
        for _ in range(MOST_ITERATIONS):
            if rr <= enough:
                break
            (image,) = yield Sweep(Repair._searched, (p,))
            image = np.where(active, image, 0.0)
            curvature, squared = float(p @ image), float(p @ p)
            stiffest = max(stiffest, curvature / squared)
            if curvature <= EXACT * stiffest * squared:  # the rest is in the reach of no change
                break
            t += rr / curvature * p
            r = r - rr / curvature * image
            before, rr = rr, float(r @ r)
            p = r + rr / before * p
        return t

    def _to_bound(self, products: RowVector, active: NDArray[np.bool_]) -> RowVector:
        """What rows that were satisfied may change by: as far as their bound, and no further."""
        lower, upper = self.rows.lower, self.rows.upper
        nearest = np.where(products - lower <= upper - products, lower, upper)
        satisfied = active & (self.rows.missing(products) == 0.0)
        way: RowVector = np.where(satisfied, nearest - products, 0.0)
        return way

    # ---- on a block -------------------------------------------------------------------------

    def _products(self, block: Block, total: Any) -> tuple[RowVector]:
        held = None if total is None else total[0]
        return (products_of(block, self._tensor(block), self.rows.count, held),)

    def _searched(self, block: Block, total: Any, t: RowVector) -> tuple[RowVector]:
        """A Aᵀ t."""
        change = block.fresh(self.change)
        change[:] = 0.0
        add_multipliers(block, t, change)
        return (products_of(block, change, self.rows.count, None if total is None else total[0]),)

    def _changed(self, block: Block, total: Any, t: RowVector) -> Any:
        """d = Aᵀ t: A d, ‖d‖² and the misfit after it, and how far inside the bounds it leads."""
        (products,) = self._searched(block, total, t)
        change, tensor = block.vector(self.change), self._tensor(block)
        tensor, bounds = tensor + change, self.model.bounds
        assert bounds is not None
        places, marks = block.columns[bounds.mode], block.vector(MARKS).astype(np.int64)
        seen, bounded = marks & OBSERVED > 0, marks & BOUNDED > 0
        inside = np.minimum(tensor - bounds.lower[places], bounds.upper[places] - tensor)[bounded]
        weights = self.model.weights(block)
        weights = weights[seen] if weights.size else weights
        misfit = total_loss(tensor[seen] - block.values[seen], weights, self.model.delta)
        scalars = np.array([float(np.dot(change, change)), misfit])
        slack = np.array(inside.min(initial=math.inf))
        if total is not None:
            scalars, slack = scalars + total[1], np.minimum(slack, total[2])
        return products, scalars, slack

    def combine(self, left: Any, right: Any) -> Any:
        summed = super().combine(left[:2], right[:2])
        return (*summed, np.minimum(left[2], right[2])) if len(left) > 2 else summed

    def _tensor(self, block: Block) -> Vector:
        if self.tensor is not None:
            return block.vector(self.tensor)
        assert self.model.bounds is not None
        middle: Vector = self.model.bounds.middle[block.columns[self.model.bounds.mode]]
        return middle
