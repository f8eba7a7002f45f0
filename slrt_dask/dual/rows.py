"""Rows of a linear constraint, lower ≤ A W ≤ upper, on the root's side of a solve.

To the inner solve a row is one more entry with a bound: what the model says there is (A w)_i
instead of w_e, and its multiplier acts on all entries that it couples. So rows go through the same
passes as bounded entries. There are few of them compared with entries; their vectors are kept whole
by the root of a run, and only one of them at a time is told to the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import Block, Vector
from slrt_dask.kernels import bounds as passes
from slrt_dask.kernels import coupling, vectors

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
    """

    lower: RowVector
    upper: RowVector
    centre: RowVector
    lengths: RowVector
    penalty: float = 1.0

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

    def missed(self, products: RowVector) -> RowVector:
        """What has to be added to A W for it to be within its bounds."""
        missing: RowVector = np.maximum(self.lower - products, 0.0)
        return missing - np.maximum(products - self.upper, 0.0)

    def measure(self, products: RowVector, multipliers: RowVector) -> RowMeasure:
        """How the rows stand, given A W."""
        used = multipliers != 0.0
        bound = np.where(multipliers > 0.0, self.lower, self.upper)[used]
        slack = float(np.abs(multipliers[used] * (products[used] - bound)).sum())
        missed = np.abs(self.missed(products) * self.lengths).max(initial=0.0)
        return RowMeasure(float(missed), slack)


@dataclass(frozen=True)
class RowMeasure:
    """How a constraint's rows stand: by how much one is missed at most, and what is left of
    complementarity, Σ |s_i ((A W)_i − bound_i)|."""

    missed: float
    slack: float


@dataclass
class RowState:
    """The rows' part of an inner solve; every vector is (m,)."""

    rows: Rows
    twice_c: float
    x: RowVector
    before: RowVector = field(init=False)
    marks: RowVector = field(init=False)

    def __post_init__(self) -> None:
        count = self.rows.count
        self._places, self._y = np.arange(count), np.zeros(count)
        self._r, self._p, self._s, self._w = (np.zeros(count) for _ in range(4))
        self.before = self.x.copy()
        self.marks = np.full(count, float(passes.BOUNDED))
        passes.mark_active(
            *self._bounds, self._y, self.rows.centre, self.x, self.twice_c, self.rows.penalty
        )

    def enter(self, phase: str) -> RowVector:
        """Do the rows' part of a phase; returns what the blocks have to be told of them."""
        if phase == "retreat":
            self.x = 0.5 * (self.x + self.before)
        elif phase == "release":
            self.before[:] = self.x
            passes.strand(self.marks, self.x)
        elif phase == "project":
            passes.make_feasible(*self._bounds, self.x)
        elif phase == "set off":
            self.before[:] = self.x
        if phase in ("set off", "depart"):
            self._p[:] = 0.0
            self._s[:] = 0.0
        return self._r if phase in ("set off", "depart", "iterate") else self.x

    def classify(self, products: RowVector) -> NDArray[np.float64]:
        """As the pass of this name, given A w."""
        found = passes.classify(*self._at(products), self._r)
        return np.array(found, dtype=np.float64)

    def remeasure(self, products: RowVector) -> None:
        """The residual, the marks being as they are."""
        passes.residual(*self._at(products), self._r)

    def energies(self) -> tuple[float, float]:
        """⟨r, r⟩ and ⟨r, r/c⟩."""
        squares = passes.scale_by_resistance(
            self.marks, self._r, self.twice_c, self.rows.penalty, self._w
        )
        return float(squares), float(vectors.dot(self._r, self._w))

    def conjugate_step(self, products: RowVector, alpha: float, beta: float) -> None:
        """Advance the rows' part of an iteration, given A w for the model's part of w."""
        self.energies()
        self._w += products
        passes.conjugate_step(
            self.marks, self.x, self._r, self._p, self._s, self._w, alpha, beta, self.twice_c,
            self.rows.penalty,
        )  # fmt: skip

    @property
    def _bounds(self) -> tuple[RowVector, NDArray[np.int64], RowVector, RowVector]:
        return self.marks, self._places, self.rows.lower, self.rows.upper

    def _at(self, products: RowVector) -> tuple[object, ...]:
        return (
            *self._bounds, self._y, self.rows.centre, self.x, products, self.twice_c,
            self.rows.penalty,
        )  # fmt: skip


def products_of(block: Block, w: Vector, count: int, total: RowVector | None) -> RowVector:
    """A w, with this block's part added to it."""
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
