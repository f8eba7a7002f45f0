"""Bounds on entries as the programs read them, and the programs that look after multipliers.

The entries of a problem with bounds are the observed ones and a working set of others; the vector
`MARKS` tells which are what. The multipliers' centre is a vector of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.operator import Factors, Matrix, add_crossing, add_local, crossing_sums
from slrt_dask.dual.rows import RowVector, add_multipliers, products_of
from slrt_dask.dual.solve import NO_SUMS, Sums
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import OneRound, Program, Rounds, Sweep
from slrt_dask.kernels import bounds as passes

MARKS = "marks"
"""The vector that says of every entry whether it is observed, bounded, and at which bound."""


@dataclass(frozen=True)
class BoundVectors:
    """lower ≤ W ≤ upper, the bounds being those of an entry's index in one mode; ±∞ for none.

    penalty : μ, the proximal weight of the multipliers; what is left of it vanishes as their
        centre moves
    """

    mode: int
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    penalty: float

    def of(self, block: Block) -> tuple[Any, ...]:
        """The arguments that every pass over a block's bounds has after the marks."""
        return block.columns[self.mode], self.lower, self.upper

    @property
    def margin(self) -> float:
        """How far `middle` is from every bound, at least."""
        narrowest = float(np.min(self.upper - self.lower))
        return 0.5 * narrowest if np.isfinite(narrowest) else 1.0

    @property
    def middle(self) -> NDArray[np.float64]:
        """Numbers inside the bounds, at least `margin` from both, near zero where there is room."""
        return np.clip(
            np.zeros_like(self.lower), self.lower + self.margin, self.upper - self.margin
        )

    @property
    def one_sided(self) -> bool:
        """Whether a shift of all entries in one direction can mend every violation."""
        return bool(np.isneginf(self.lower).all() or np.isposinf(self.upper).all())


@dataclass(frozen=True)
class Mark(OneRound):
    """Mark entries that have no mark yet; the outcome is how many entries there are.

    mark : what they are
    """

    mark: int

    def step(self, block: Block, total: Any) -> tuple[int]:
        marks = block.changing(MARKS)
        marks[marks == 0.0] = self.mark
        return (block.entries + (total[0] if total else 0),)


@dataclass(frozen=True)
class CountOutside(OneRound):
    """How many observed values lie outside bounds that hold for them."""

    bounds: BoundVectors

    def step(self, block: Block, total: Any) -> tuple[int]:
        places, lower, upper = self.bounds.of(block)
        both = passes.OBSERVED + passes.BOUNDED
        meant = (block.vector(MARKS).astype(np.int64) & both) == both
        outside = (block.values < lower[places]) | (block.values > upper[places])
        return (int(np.count_nonzero(meant & outside)) + (total[0] if total else 0),)


@dataclass(frozen=True)
class Clear(OneRound):
    """Make vectors of zeros."""

    names: tuple[str, ...]

    def step(self, block: Block, total: Any) -> tuple[int]:
        for name in self.names:
            block.fresh(name)[:] = 0.0
        return (0,)


@dataclass(frozen=True)
class MoveCentre(OneRound):
    """Leave the multipliers of `dual` under `target`, and tell how far they are from `centre`.

    rows : the multipliers of a linear constraint that are part of `dual`
    """

    dual: str
    centre: str
    target: str
    bounds: BoundVectors
    twice_c: float
    rows: RowVector | None = None

    def step(self, block: Block, total: Any) -> tuple[float]:
        squares, _ = passes.multipliers(
            block.vector(MARKS), *self.bounds.of(block), block.values, block.vector(self.centre),
            own_part(block, self.dual, self.rows, self.bounds), self.twice_c, self.bounds.penalty,
            block.fresh(self.target),
        )  # fmt: skip
        return (squares + (total[0] if total else 0.0),)


@dataclass(frozen=True)
class Mix(OneRound):
    """vector ← (1 − part) vector + part other."""

    vector: str
    other: str
    part: float

    def step(self, block: Block, total: Any) -> tuple[int]:
        vector = block.changing(self.vector)
        vector *= 1.0 - self.part
        vector += self.part * block.vector(self.other)
        return (0,)


@dataclass(frozen=True)
class BoundedProducts:
    """What a certificate needs of a dual vector: see `kernels.bounds.certified_sums`.

    rows : what the model says of the rows of a linear constraint, A W
    """

    misfit: float
    z_dot_z: float
    overlap: float
    middle_misfit: float
    violation: float
    slack: float
    rows: RowVector


@dataclass(frozen=True)
class MeasureBounded(Program):
    """The products of `dual` and of w = L x that a certificate is made of; w stays behind.

    rows : the multipliers of a linear constraint that are part of `dual`; what the model says of
        its rows is then part of the outcome
    """

    dual: str
    factors: Factors
    weights: tuple[float, ...]
    bounds: BoundVectors
    twice_c: float
    rows: RowVector | None = None

    def rounds(self) -> Rounds:
        sums, _ = yield Sweep(MeasureBounded._product)
        rows, found = yield Sweep(MeasureBounded._measure, (sums,))
        misfit, z_dot_z, overlap, middle_misfit, violation, slack = map(float, found)
        return BoundedProducts(misfit, z_dot_z, overlap, middle_misfit, violation, slack, rows)

    def _product(self, block: Block, total: Sums | None) -> Sums:
        x, w = block.vector(self.dual), block.fresh("w")
        add_local(block, self.factors, self.factors, self.weights, x, w, shift=0.0)
        return crossing_sums(block, self.factors, x, total and total[0]), np.zeros(6)

    def _measure(self, block: Block, total: Sums | None, sums: Matrix) -> Sums:
        w = block.changing("w")
        add_crossing(block, self.factors, self.weights, sums, w)
        found = passes.certified_sums(
            block.vector(MARKS), *self.bounds.of(block), self.bounds.middle, block.values,
            own_part(block, self.dual, self.rows, self.bounds), w, self.twice_c,
        )  # fmt: skip
        part = self._products(block, w), np.array(found)
        return part if total is None else self.combine(total, part)

    def _products(self, block: Block, w: Vector) -> RowVector:
        return NO_SUMS if self.rows is None else products_of(block, w, len(self.rows), None)

    def combine(self, left: Any, right: Any) -> Any:
        sums, scalars = super().combine(left, (right[0], np.zeros(6)))
        scalars = left[1] + right[1]
        scalars[VIOLATION] = max(left[1][VIOLATION], right[1][VIOLATION])
        return sums, scalars


def own_part(block: Block, dual: str, rows: RowVector | None, bounds: BoundVectors) -> Vector:
    """The entries' own part of a dual vector, in which the multipliers of rows have a part too."""
    if rows is None:
        return block.vector(dual)
    own = block.fresh("v")
    own[:] = block.vector(dual)
    take_out_rows(block, rows, bounds, own)
    return own


def take_out_rows(block: Block, rows: RowVector, bounds: BoundVectors, x: Vector) -> None:
    """x becomes the entries' own part of it; what rounding leaves where there is none goes."""
    add_multipliers(block, rows, x, -1.0)
    passes.make_feasible(block.vector(MARKS), *bounds.of(block), x)


VIOLATION = 4
"""Where the largest violation is among the products; it is not added up."""
