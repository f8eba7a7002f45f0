"""Where a fit begins: factors that already see the observations' largest directions.

A random point knows nothing of the data. A few steps of subspace iteration on the unfoldings of the
observed values, `U_k ← orth(Y_k Y_kᵀ U_k)`, cost as many sweeps and save many more.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from slrt_dask.engine.base import VectorHandle
from slrt_dask.optim.manifold import Point, SpectrahedronProduct

SUBSPACE_STEPS = 2
SMALLEST_WEIGHT = 1e-8


class SpectralProblem(Protocol):
    """What a start needs of a problem."""

    @property
    def manifold(self) -> SpectrahedronProduct:
        """Where the points live."""

    def row_sums(self, dual: VectorHandle | None, matrices: Point) -> Point:
        """Y_k (Y_kᵀ F_k) for K matrices F_k, dual being None."""


def spectral_start(problem: SpectralProblem, seed: int) -> Point:
    """K factors (n_k, r_k) of norm one: leading directions of the observed unfoldings.

    Directions are weighted by the square roots of their singular values, which is what minimises
    the cost for an unfolding that is known (U Uᵀ ∝ (Y_k Y_kᵀ)^½).
    """
    point = problem.manifold.random_point(np.random.default_rng(seed))
    for _ in range(SUBSPACE_STEPS):
        images = problem.row_sums(None, point)
        point = tuple(_orthonormal(image) for image in images)
    images = problem.row_sums(None, point)
    return tuple(_weighted(q, image) for q, image in zip(point, images, strict=True))


def _orthonormal(image: np.ndarray) -> np.ndarray:
    factor: np.ndarray = np.linalg.qr(image)[0]
    return factor


def _weighted(basis: np.ndarray, image: np.ndarray) -> np.ndarray:
    projected = basis.T @ image
    squares, vectors = np.linalg.eigh(0.5 * (projected + projected.T))
    largest = max(float(squares[-1]), np.finfo(float).tiny)
    # No direction starts at exactly zero: it could then not be found by a gradient.
    weights = np.maximum(squares / largest, SMALLEST_WEIGHT) ** 0.25
    factor = basis @ (vectors * weights)
    unit: np.ndarray = factor / np.linalg.norm(factor)
    return unit
