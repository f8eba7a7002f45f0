"""Ranks that grow until the gap closes: where a factor is too narrow, and what to widen it with.

Where the gradient vanishes, mode k has λ_k/2 (σ_k² − ‖U_kᵀ X_k‖²) of the gap: the largest
eigenvalue of X_k X_kᵀ beside what the factor catches of it. Eigenvectors with larger ones are
directions in which the cost falls, at just this rate: d/dε of g at `[√(1−ε) U_k, √ε v]` is
−λ_k/2 (θ − ‖U_kᵀ X_k‖²) for a unit vector v with ⟨v, X_k X_kᵀ v⟩ = θ. When no mode has one left,
the point is a global optimum of the convex problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slrt_dask.dual.lanczos import Spectrum
from slrt_dask.dual.problem import Evaluation
from slrt_dask.optim.manifold import Point

BALANCE = 0.5
"""A gradient this much smaller than what growth promises is left for growth."""
WORTH = 0.2
"""Modes grow that have at least this part of the largest share of the gap."""
CLEARLY = 1e-3
"""By how much of what a factor catches a direction has to exceed it."""
PORTIONS = tuple(0.25 ** (n + 1) for n in range(8))
"""Of a factor's squared norm, what its new columns may begin with: the first that helps."""
AT_ONCE = 5
"""Columns to add where there are fewer. Every rank on the way has to be fitted: one, two and four
columns took half as many sweeps again as one and six."""
LOST = 1e-10
"""Columns with less than this part of a factor's squared norm are dropped."""
LOOSEST, TIGHTEST = 1e-2, 1e-9


class GrowingProblem(Protocol):
    """What growth needs of a problem."""

    @property
    def weights(self) -> tuple[float, ...]:
        """The λ_k."""

    @property
    def spectra(self) -> tuple[Spectrum, ...]:
        """What the last certificate saw of every mode's X_k X_kᵀ."""

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        """g at a point of any ranks."""


@dataclass(frozen=True)
class RankGrowth:
    """Widens factors, up to the most columns that each may have."""

    problem: GrowingProblem
    most: tuple[int, ...]

    def __call__(self, evaluation: Evaluation, gradient_norm: float) -> Evaluation | None:
        """A point with more columns and a lower cost; None where there is none, or not yet.

        evaluation : of a point that was certified just now
        gradient_norm : what the present columns still promise; 0 if that is nothing any more
        """
        kept = tuple(_without_lost(factor) for factor in evaluation.point)
        seen = self.problem.spectra
        shares = tuple(
            0.5 * weight * (spectrum.values[0] - spectrum.caught) if factor.shape[1] < most else 0.0
            for weight, spectrum, factor, most in zip(
                self.problem.weights, seen, kept, self.most, strict=True
            )
        )
        largest = max(shares)
        if largest <= 0.0 or gradient_norm > BALANCE * largest:
            return None
        added = tuple(
            _directions(spectrum, min(most - factor.shape[1], _at_once(factor)))
            if share >= WORTH * largest
            else np.zeros((len(factor), 0))
            for share, spectrum, factor, most in zip(shares, seen, kept, self.most, strict=True)
        )
        if not any(columns.shape[1] for columns in added):
            return None
        return self._lower(evaluation, kept, added, largest)

    def _lower(
        self, evaluation: Evaluation, kept: Point, added: Point, slope: float
    ) -> Evaluation | None:
        for portion in PORTIONS:
            # Solved so well that what a residual hides is small beside what is to be gained.
            hidden = max(evaluation.inner.noise_scale, abs(evaluation.cost))
            rtol = min(LOOSEST, max(TIGHTEST, 0.3 * math.sqrt(portion * slope / hidden)))
            point = tuple(
                _widened(factor, columns, portion)
                for factor, columns in zip(kept, added, strict=True)
            )
            trial = self.problem.evaluate(point, rtol=rtol, warm=evaluation)
            if trial.cost < evaluation.cost:
                return trial
        return None


def _at_once(factor: np.ndarray) -> int:
    """How many columns to add: as many as there are, so that many do not take for ever."""
    return max(AT_ONCE, int(factor.shape[1]))


def _directions(spectrum: Spectrum, most: int) -> np.ndarray:
    """Vectors that would catch more than the factor does, scaled by how much more."""
    excess = spectrum.values - spectrum.caught
    count = min(most, int((excess > CLEARLY * spectrum.caught).sum()))
    scaled = spectrum.vectors[:, :count] * np.sqrt(excess[:count])
    length = np.linalg.norm(scaled)
    unit: np.ndarray = scaled / length if length > 0.0 else scaled
    return unit


def _widened(factor: np.ndarray, columns: np.ndarray, portion: float) -> np.ndarray:
    if not columns.shape[1]:
        return factor
    wide = np.hstack([math.sqrt(1.0 - portion) * factor, math.sqrt(portion) * columns])
    unit: np.ndarray = wide / np.linalg.norm(wide)
    return unit


def _without_lost(factor: np.ndarray) -> np.ndarray:
    """The factor with as many columns as it has rank; U Uᵀ stays what it is, but for LOST."""
    left, values, _ = np.linalg.svd(factor, full_matrices=False)
    rank = max(1, int((values**2 > LOST).sum()))
    if rank == factor.shape[1]:
        return factor
    narrow = left[:, :rank] * values[:rank]
    unit: np.ndarray = narrow / np.linalg.norm(narrow)
    return unit
