"""Rows of a linear constraint, lower ≤ A W ≤ upper, on the root's side of a solve.

To the inner solve a row is one more entry with a bound: what the model says there is (A w)_i
instead of w_e, and its multiplier acts on all entries that it couples. So rows go through the same
passes as bounded entries. There are few of them compared with entries; their vectors are kept whole
by the root of a run, and only one of them at a time is sent to the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.entries import EVERY, NONE
from slrt_dask.engine.block import Block, Vector
from slrt_dask.kernels import coupling
from slrt_dask.kernels import entries as passes

RowVector = NDArray[np.float64]


@dataclass(frozen=True)
class Coupling:
    """A block's part of the rows that couple entries with each other: see `kernels.coupling`.

    positions : entries' numbers in the block;  rows : numbers of the rows
    """

    positions: NDArray[np.int32]
    rows: NDArray[np.int32]
    coefficients: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes + self.rows.nbytes + self.coefficients.nbytes


@dataclass(frozen=True)
class Rows:
    """lower ≤ A W ≤ upper, the rows of A having length one; ±∞ for no bound.

    centre : multipliers that a proximal term holds the rows' own near to
    lengths : what the rows were divided by to have length one
    penalty : μ of that term, as in `BoundVectors`
    overlap : a bound of ‖A‖²
    """

    lower: RowVector
    upper: RowVector
    centre: RowVector
    lengths: RowVector
    penalty: float = 1.0
    overlap: float = 1.0

    @property
    def count(self) -> int:
        return len(self.lower)

    def around(self, centre: RowVector, penalty: float | None = None) -> Rows:
        return replace(self, centre=centre, penalty=penalty or self.penalty)

    def worth(self, multipliers: RowVector) -> float:
        """What multipliers add to the dual objective: each the bound that its sign stands for."""
        bound = np.where(multipliers > 0.0, self.lower, self.upper)
        used = multipliers != 0.0
        return float(np.dot(multipliers[used], bound[used]))

    def missing(self, products: RowVector) -> RowVector:
        """What has to be added to A W for it to be within its bounds."""
        lacking: RowVector = np.maximum(self.lower - products, 0.0)
        return lacking - np.maximum(products - self.upper, 0.0)

    def violation(self, products: RowVector) -> float:
        """By how much a row is missed at most, given A W, in the units that rows came in."""
        return float(np.abs(self.missing(products) * self.lengths).max(initial=0.0))

    def slack(self, products: RowVector, multipliers: RowVector) -> float:
        """What is left of complementarity, Σ |t_i ((A W)_i − bound_i)|."""
        used = multipliers != 0.0
        bound = np.where(multipliers > 0.0, self.lower, self.upper)[used]
        return float(np.abs(multipliers[used] * (products[used] - bound)).sum())


class RowState:
    """The rows' part of an inner solve: multipliers x and a direction p, (m,) each."""

    def __init__(self, rows: Rows, start: RowVector | None) -> None:
        count = rows.count
        self._these = passes.Entries(
            np.full(count, float(passes.BOUNDED)), np.arange(count), rows.lower, rows.upper,
            rows.centre, np.zeros(count), NONE, 1.0, np.inf, rows.penalty, EVERY,
        )  # fmt: skip
        self.x = np.zeros(count) if start is None else start.copy()
        passes.begin(self._these, self.x)
        self.p, self._r, self._products = np.zeros(count), np.zeros(count), np.zeros(count)

    def standing(self, products: RowVector, length: float) -> NDArray[np.float64]:
        """As the pass of this name, given A w."""
        self._products = products
        found = passes.standing(self._these, self.x, products, length, self._r)
        return np.array([*found, 0.0])

    def slide(self, length: float) -> None:
        passes.slide(self._these, self.x, self._products, length)

    def turn(self, beta: float) -> tuple[float, float]:
        """The next direction; ⟨r, p⟩ and the rows' own part of its curvature."""
        found: tuple[float, float] = passes.turn(
            self._these, self.x, self._r, beta, self.p, np.empty_like(self.p)
        )
        return found

    def move(self, alpha: float) -> int:
        """A step; returns how many rows were stopped. What the model says then, blocks tell."""
        ignored = np.zeros_like(self.p)
        return int(passes.move(self._these, self.x, ignored, self.p, ignored, alpha))


def products_of(block: Block, w: Vector, count: int, total: RowVector | None) -> RowVector:
    """A w for `count` rows, with this block's part added to it."""
    products = np.zeros(count) if total is None else total
    if block.coupling is not None:
        held = block.coupling
        coupling.add_products(held.positions, held.rows, held.coefficients, w, products)
    return products


def add_multipliers(block: Block, multipliers: RowVector, out: Vector, factor: float = 1.0) -> None:
    """out += factor · Aᵀ multipliers."""
    if block.coupling is not None:
        held = block.coupling
        coupling.add_adjoint(held.positions, held.rows, held.coefficients, multipliers, factor, out)
