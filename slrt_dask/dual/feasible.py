"""The objective at an allowed tensor near the answer: the upper bound of a certificate.

An answer misses its constraints by a little. It is moved until it satisfies them, at a price that
is bounded from above: P is then the objective of a tensor that is allowed, or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.dual.certificate import Products, nuclear_norm
from slrt_dask.dual.entries import BoundVectors, EntryModel
from slrt_dask.dual.operator import Term
from slrt_dask.dual.repair import Repair, Repaired
from slrt_dask.dual.rows import Rows
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import OneRound
from slrt_dask.optim.manifold import Point


@dataclass(frozen=True)
class Correction:
    """W becomes (1 − drawn) W + drawn · (the middle of its bounds), plus `changes` where held."""

    changes: VectorHandle
    drawn: float


@dataclass(frozen=True)
class Feasible:
    """A tensor that is allowed: one repaired, and drawn towards another where bounds ask for that.

    repair, change : of the answer's rows
    drawn : how far towards the middle, from 0 to 1
    middle, inner : the repair of the bounds' middle, unless drawn is 0
    """

    repair: Repaired
    change: VectorHandle
    drawn: float = 0.0
    middle: Repaired | None = None
    inner: VectorHandle | None = None

    @classmethod
    def of(
        cls, engine: Engine, model: EntryModel, rows: Rows, outside: float, tolerance: float
    ) -> Feasible | None:
        """What makes the tensor that was measured last satisfy everything; None if that fails.

        outside : by how much bounds are missed where no entry is held
        tolerance : by how much a row may be missed after a repair
        """
        assert model.bounds is not None
        change = engine.new_vector()
        repair = engine.run(Repair(model, rows, change.name, "w"))
        outside = max(outside, -repair.slack)
        if not repair.missed <= tolerance:
            return None
        if outside <= 0.0:
            return cls(repair, change)
        inner = engine.new_vector()
        inside = engine.run(Repair(model, rows, inner.name, None))
        margin = min(inside.slack, model.bounds.margin)
        if not inside.missed <= tolerance or margin <= 0.0:
            return None
        return cls(repair, change, outside / (outside + margin), inside, inner)

    def correction(self, engine: Engine) -> Correction:
        """One vector of changes for both repairs."""
        if self.inner is not None:
            engine.run(Mix(self.change.name, self.inner.name, self.drawn))
        return Correction(self.change, self.drawn)


@dataclass(frozen=True)
class Mix(OneRound):
    """vector ← (1 − part) vector + part other."""

    vector: str
    other: str
    part: float

    def step(self, block: Block, total: Any) -> int:
        vector = block.changing(self.vector)
        vector *= 1.0 - self.part
        vector += self.part * block.vector(self.other)
        return 0


@dataclass(frozen=True)
class Answer:
    """An answer's misfit, and the nuclear norms ‖W^t_(k)‖_* of its parts.

    observed : the sum of the observations' weights
    """

    shape: tuple[int, ...]
    observed: float
    model: EntryModel
    terms: tuple[Term, ...]
    misfit: float
    norms: tuple[float, ...]

    @classmethod
    def of(
        cls, shape: tuple[int, ...], observed: float, model: EntryModel, terms: tuple[Term, ...],
        products: Products, point: Point, row_sums: Point,
    ) -> Answer:  # fmt: skip
        """row_sums : of every term, X_k (X_kᵀ U_k)"""
        parts = zip(terms, point, row_sums, strict=True)
        norms = tuple(term.weight * nuclear_norm(U, totals) for term, U, totals in parts)
        return cls(shape, observed, model, terms, products.misfit, norms)

    @property
    def objective(self) -> float:
        """Of the answer as it is."""
        return self._objective(self.misfit, self.norms, (0.0,) * len(self.norms))

    def moved_inside(self, bounds: BoundVectors, violation: float, middle_misfit: float) -> float:
        """The objective with bounds that are missed by `violation` at most.

        Either all entries are shifted by that, or the answer is drawn towards the middle of the
        bounds; whichever costs less. The part that takes the shift, a tensor of rank one, is the
        one where it costs least.
        """
        entries, count = math.sqrt(math.prod(self.shape)), len(self.norms)
        drawn = violation / (violation + bounds.margin) if violation > 0.0 else 0.0
        ways = [
            self._objective(
                self._between(self.misfit, middle_misfit, drawn),
                tuple((1.0 - drawn) * norm for norm in self.norms),
                (drawn * self._middle_norm(bounds) * entries,) * count,
            )
        ]
        if bounds.one_sided:
            # √(Σ w h(t + v)) ≤ √(Σ w h(t)) + v √(Σ w), since h'² ≤ 4 h and h'' ≤ 2.
            shifted = math.sqrt(self.misfit) + violation * math.sqrt(self.observed)
            ways.append(self._objective(shifted**2, self.norms, (violation * entries,) * count))
        return min(ways)

    def repaired(self, found: Feasible) -> float:
        """The objective after a repair of rows, and drawn towards a tensor inside the bounds."""
        bounds, drawn, entries = self.model.bounds, found.drawn, math.prod(self.shape)
        assert bounds is not None
        # ‖D‖_* ≤ √rank ‖D‖_F, for a change of which no more is known.
        lengths = [self.shape[term.mode] for term in self.terms]
        roots = [math.sqrt(min(length, entries // length)) for length in lengths]
        shifts = [(1.0 - drawn) * root * math.sqrt(found.repair.squares) for root in roots]
        misfit = found.repair.misfit
        if found.middle is not None:
            misfit = self._between(misfit, found.middle.misfit, drawn)
            middle = self._middle_norm(bounds) * math.sqrt(entries)
            for t, root in enumerate(roots):
                shifts[t] += drawn * (middle + root * math.sqrt(found.middle.squares))
        return self._objective(
            misfit, tuple((1.0 - drawn) * norm for norm in self.norms), tuple(shifts)
        )

    def _between(self, misfit: float, other: float, drawn: float) -> float:
        """The misfit on the way between two tensors, or more: it is convex, or a squared norm."""
        if math.isfinite(self.model.delta):
            return (1.0 - drawn) * misfit + drawn * other
        return ((1.0 - drawn) * math.sqrt(misfit) + drawn * math.sqrt(other)) ** 2

    def _middle_norm(self, bounds: BoundVectors) -> float:
        """‖the bounds' middle‖ per entry."""
        return float(np.linalg.norm(bounds.middle)) / math.sqrt(self.shape[bounds.mode])

    def _objective(
        self, misfit: float, norms: tuple[float, ...], shifts: tuple[float, ...]
    ) -> float:
        """C misfit + Σ norm²/(2λ), with a shift's norm added to the part where it costs least."""
        weights = [term.weight for term in self.terms]
        plain = sum(n**2 / (2 * weight) for n, weight in zip(norms, weights, strict=True))
        cheapest = min(
            ((norm + shift) ** 2 - norm**2) / (2 * weight)
            for norm, shift, weight in zip(norms, shifts, weights, strict=True)
        )
        return self.model.cost_weight * misfit + plain + cheapest
