"""Upper bounds of the largest eigenvalues of all modes' `X_k X_kᵀ`, by Lanczos on the driver.

One sweep over the observations multiplies a vector in every mode at once. A Ritz value bounds the
largest eigenvalue from below; with its residual norm added it bounds, from above, the eigenvalue it
has converged to. The start mixes the best vector known (of the factors, or of the last time) with
a random one, so that a direction which the factors miss is found too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = tuple[NDArray[np.float64], ...]
Multiply = Callable[[Vectors], Vectors]

RANDOM_SHARE = 0.3
"""Length of the random part of a start vector beside the best known direction's 1."""


@dataclass
class _Recurrence:
    """One mode's Lanczos basis and tridiagonal matrix, with full reorthogonalisation."""

    basis: list[NDArray[np.float64]]
    diagonal: list[float]
    off_diagonal: list[float]
    value: float = 0.0
    residual: float = np.inf
    weights: NDArray[np.float64] | None = None
    exhausted: bool = False

    def extend(self, image: NDArray[np.float64]) -> None:
        """Take the product with the last basis vector; update Ritz value and residual."""
        matrix = np.array(self.basis)
        self.diagonal.append(float(self.basis[-1] @ image))
        for _ in range(2):  # twice is enough to be orthogonal to working precision
            image = image - matrix.T @ (matrix @ image)
        length = float(np.linalg.norm(image))
        values, eigenvectors = np.linalg.eigh(self._tridiagonal())
        self.value, self.weights = float(values[-1]), eigenvectors[:, -1]
        self.residual = length * abs(float(self.weights[-1]))
        small = length <= 1e-13 * max(abs(self.value), np.finfo(float).tiny)
        if small or len(self.basis) == len(image):
            self.exhausted, self.residual = True, 0.0
        else:
            self.off_diagonal.append(length)
            self.basis.append(image / length)

    def top_vector(self) -> NDArray[np.float64]:
        assert self.weights is not None
        return np.array(self.basis[: len(self.weights)]).T @ self.weights

    def _tridiagonal(self) -> NDArray[np.float64]:
        return (
            np.diag(self.diagonal) + np.diag(self.off_diagonal, 1) + np.diag(self.off_diagonal, -1)
        )


class TopEigenvalues:
    """Bounds the largest eigenvalue of every mode; remembers the vectors for the next time."""

    def __init__(self, shape: tuple[int, ...], rtol: float, max_iterations: int = 100) -> None:
        self._shape = shape
        self._rtol = rtol
        self._max_iterations = max_iterations
        self._vectors: Vectors | None = None

    def bounds(self, multiply: Multiply, factors: Vectors, images: Vectors) -> tuple[float, ...]:
        """σ_k² bounds, given K factors (n_k, r_k) and their known images X_k X_kᵀ U_k."""
        modes = [_Recurrence([start], [], []) for start in self._starts(factors, images)]
        for _ in range(self._max_iterations):
            products = multiply(tuple(mode.basis[-1][:, None] for mode in modes))
            for mode, product in zip(modes, products, strict=True):
                if not mode.exhausted:
                    mode.extend(product[:, 0])
            if all(mode.residual <= self._rtol * mode.value for mode in modes):
                break
        self._vectors = tuple(mode.top_vector() for mode in modes)
        return tuple(mode.value + mode.residual for mode in modes)

    def _starts(self, factors: Vectors, images: Vectors) -> list[NDArray[np.float64]]:
        generator = np.random.default_rng(0)
        starts = []
        for mode, (factor, image) in enumerate(zip(factors, images, strict=True)):
            known = _best_combination(factor, image)
            if self._vectors is not None:
                known = known + self._vectors[mode]
            random = generator.standard_normal(len(known))
            start = known / max(float(np.linalg.norm(known)), 1e-300)
            start = start + RANDOM_SHARE * random / np.linalg.norm(random)
            starts.append(start / np.linalg.norm(start))
        return starts


def _best_combination(
    factor: NDArray[np.float64], image: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The column combination of an image X Xᵀ U along which U has the largest Rayleigh quotient."""
    gram = factor.T @ image
    _, vectors = np.linalg.eigh(0.5 * (gram + gram.T))
    combination: NDArray[np.float64] = image @ vectors[:, -1]
    return combination
