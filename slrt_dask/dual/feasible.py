"""The objective at a feasible tensor near the answer: the upper bound of a certificate.

An answer misses its constraints by a little. It is moved until it satisfies them, at a price that
is bounded from above: P is then the objective of a tensor that is allowed, or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slrt_dask.dual.bounds import BoundedProducts, BoundVectors
from slrt_dask.dual.certificate import nuclear_norm
from slrt_dask.dual.repair import Repaired
from slrt_dask.optim.manifold import Point


@dataclass(frozen=True)
class Middle:
    """A tensor well inside the bounds that satisfies the rows too.

    norm : of the bounds' middle, which it was made from, per entry
    """

    norm: float
    repair: Repaired

    @classmethod
    def of(cls, bounds: BoundVectors, shape: tuple[int, ...], repair: Repaired) -> Middle:
        return cls(float(np.linalg.norm(bounds.middle)) / math.sqrt(shape[bounds.mode]), repair)


@dataclass(frozen=True)
class Answer:
    """An answer's misfit and the nuclear norms of its parts.

    observed : how many entries are
    norms : K nuclear norms ‖W^k_(k)‖_*
    """

    shape: tuple[int, ...]
    observed: int
    cost_weight: float
    weights: tuple[float, ...]
    norms: tuple[float, ...]

    @classmethod
    def of(
        cls,
        point: Point,
        row_sums: Point,
        shape: tuple[int, ...],
        observed: int,
        cost_weight: float,
        weights: tuple[float, ...],
    ) -> Answer:
        """From K matrices X_k (X_kᵀ U_k)."""
        norms = tuple(
            weight * nuclear_norm(factor, totals)
            for factor, totals, weight in zip(point, row_sums, weights, strict=True)
        )
        return cls(shape, observed, cost_weight, weights, norms)

    def moved_inside(
        self, products: BoundedProducts, bounds: BoundVectors, violation: float
    ) -> float:
        """The objective with bounds that are missed by `violation` at most.

        Either all entries are shifted by that, or the answer is drawn towards the middle of the
        bounds; whichever costs less. The part that takes the shift, a tensor of rank one, is the
        one where it costs least.
        """
        misfit = math.sqrt(max(products.misfit, 0.0))
        entries = math.sqrt(math.prod(self.shape))
        drawn = violation / (violation + bounds.margin) if violation > 0.0 else 0.0
        middle = float(np.linalg.norm(bounds.middle)) / math.sqrt(self.shape[bounds.mode])
        ways = [
            self._objective(
                (1.0 - drawn) * misfit + drawn * math.sqrt(products.middle_misfit),
                [(1.0 - drawn) * norm for norm in self.norms],
                [drawn * middle * entries] * len(self.norms),
            )
        ]
        if bounds.one_sided:
            shifted = misfit + violation * math.sqrt(self.observed)
            shifts = [violation * entries] * len(self.norms)
            ways.append(self._objective(shifted, list(self.norms), shifts))
        return min(ways)

    def repaired(self, repair: Repaired, drawn: float, middle: Middle | None) -> float:
        """The objective after a repair of rows, and drawn towards a tensor inside the bounds.

        drawn : how far towards it, from 0 to 1;  middle : that tensor, unless drawn is 0
        """
        entries = math.prod(self.shape)
        # ‖D‖_* ≤ √rank ‖D‖_F, for a change of which no more is known.
        roots = [math.sqrt(min(length, entries // length)) for length in self.shape]
        shifts = [(1.0 - drawn) * root * math.sqrt(repair.squares) for root in roots]
        misfit = (1.0 - drawn) * math.sqrt(repair.misfit)
        if middle is not None:
            misfit += drawn * math.sqrt(middle.repair.misfit)
            changes = [root * math.sqrt(middle.repair.squares) for root in roots]
            for mode, change in enumerate(changes):
                shifts[mode] += drawn * (middle.norm * math.sqrt(entries) + change)
        return self._objective(misfit, [(1.0 - drawn) * norm for norm in self.norms], shifts)

    def _objective(self, misfit: float, norms: list[float], shifts: list[float]) -> float:
        """C misfit² + Σ_k norm_k²/(2λ_k), with a shift's norm added to the part it costs least."""
        plain = sum(
            norm**2 / (2 * weight) for norm, weight in zip(norms, self.weights, strict=True)
        )
        cheapest = min(
            ((norm + shift) ** 2 - norm**2) / (2 * weight)
            for norm, shift, weight in zip(norms, shifts, self.weights, strict=True)
        )
        return self.cost_weight * misfit**2 + plain + cheapest
