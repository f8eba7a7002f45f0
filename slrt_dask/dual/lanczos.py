"""Upper bounds of the largest eigenvalues of all modes' `X_k X_kᵀ`, by Lanczos on the driver.

One sweep over the observations multiplies a vector in every mode at once. A Ritz value θ bounds the
largest eigenvalue from below. An upper bound follows from the start's random part: after j steps
the Lanczos polynomial p_j satisfies |p_j(λ_max)| · |component of the start along the top
eigenvector| ≤ 1, and p_j grows beyond θ, so λ_max is at most the point where p_j reaches one over
the smallest component that a random start has, but for a chance of UNLUCKY (van Dorsselaer,
Hochstenbach and van der Vorst, 2000). The bound holds however few steps were made; more tighten it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vectors = tuple[NDArray[np.float64], ...]
Multiply = Callable[[Vectors], Vectors]
Enough = Callable[[tuple[float, ...], tuple[float, ...]], bool]

UNLUCKY = 1e-6
"""Chance, over random starts, that any of a certificate's bounds does not hold."""
RANDOM_SHARE = 0.5
"""Length of the random part of a start vector beside the best known direction's 1."""
ROUNDING = 1e-13


@dataclass(frozen=True)
class Spectrum:
    """What was seen of one mode's X_k X_kᵀ, beside what its factor catches of it.

    values : Ritz values, the largest first
    vectors : (n_k, values), the unit vectors whose products they are
    caught : ‖U_kᵀ X_k‖²
    """

    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    caught: float


@dataclass
class _Recurrence:
    """One mode's Lanczos basis and tridiagonal matrix, with full reorthogonalisation."""

    basis: list[NDArray[np.float64]]
    smallest_component: float
    diagonal: list[float] = field(default_factory=list)
    off_diagonal: list[float] = field(default_factory=list)
    value: float = 0.0
    bound: float = math.inf
    exhausted: bool = False

    def extend(self, image: NDArray[np.float64]) -> None:
        """Take the product with the last basis vector; update the Ritz value and its bound."""
        matrix = np.array(self.basis)
        self.diagonal.append(float(self.basis[-1] @ image))
        for _ in range(2):  # twice is enough to be orthogonal to working precision
            image = image - matrix.T @ (matrix @ image)
        length = float(np.linalg.norm(image))
        self.value = max(0.0, float(np.linalg.eigvalsh(self._tridiagonal())[-1]))
        if length <= ROUNDING * self.value or len(self.basis) == len(image):
            # The basis spans everything that the start can reach: the value is exact.
            self.exhausted, self.bound = True, self.value * (1.0 + ROUNDING)
            return
        self.off_diagonal.append(length)
        self.basis.append(image / length)
        self.bound = min(self.bound, self._upper_bound())

    def spectrum(self, caught: float) -> Spectrum:
        values, combinations = np.linalg.eigh(self._tridiagonal())
        vectors = np.array(self.basis[: len(values)]).T @ combinations
        return Spectrum(values[::-1], np.ascontiguousarray(vectors[:, ::-1]), caught)

    def _tridiagonal(self) -> NDArray[np.float64]:
        beside = self.off_diagonal[: len(self.diagonal) - 1]
        return np.diag(self.diagonal) + np.diag(beside, 1) + np.diag(beside, -1)

    def _upper_bound(self) -> float:
        """The point right of all Ritz values where p_j reaches 1 / smallest_component."""
        target = -math.log(self.smallest_component)
        low = self.value
        high = low + max(low, self.off_diagonal[-1])
        while self._log_polynomial(high) < target:
            high = low + 2.0 * (high - low)
        for _ in range(60):
            middle = 0.5 * (low + high)
            if self._log_polynomial(middle) < target:
                low = middle
            else:
                high = middle
        return high

    def _log_polynomial(self, place: float) -> float:
        """log p_j, the orthonormal Lanczos polynomial, at a place right of its zeros."""
        before, current, scale = 0.0, 1.0, 0.0
        last = 0.0
        for alpha, beta in zip(self.diagonal, self.off_diagonal, strict=True):
            before, current = current, ((place - alpha) * current - last * before) / beta
            if current <= 0.0:  # left of a zero, by rounding
                return -math.inf
            last = beta
            scale += math.log(current)
            before, current = before / current, 1.0
        return scale


class TopEigenvalues:
    """Bounds the largest eigenvalue of every mode."""

    def __init__(self, max_iterations: int = 100) -> None:
        self._max_iterations = max_iterations
        self.seen: tuple[Spectrum, ...] = ()
        """What the last call saw of every mode."""

    def bounds(
        self, multiply: Multiply, factors: Vectors, images: Vectors, enough: Enough
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower and upper bounds of the σ_k².

        factors, images : K matrices (n_k, r_k), U_k and the known products X_k X_kᵀ U_k
        enough : told the values so far, from below and from above; whether that will do
        """
        modes = self._starts(factors, images)
        for _ in range(self._max_iterations):
            products = multiply(tuple(mode.basis[-1][:, None] for mode in modes))
            for mode, product in zip(modes, products, strict=True):
                if not mode.exhausted:
                    mode.extend(product[:, 0])
            lower = tuple(mode.value for mode in modes)
            upper = tuple(mode.bound for mode in modes)
            if all(mode.exhausted for mode in modes) or enough(lower, upper):
                break
        self.seen = tuple(
            mode.spectrum(float(np.vdot(factor, image)))
            for mode, factor, image in zip(modes, factors, images, strict=True)
        )
        return lower, upper

    def _starts(self, factors: Vectors, images: Vectors) -> list[_Recurrence]:
        # Seeded by the point: starts of different certificates are independent, and a certificate
        # that is made again, after a resume, is the same.
        generator = np.random.default_rng(zlib.crc32(np.ascontiguousarray(factors[0]).data))
        modes = []
        for factor, image in zip(factors, images, strict=True):
            known = _best_combination(factor, image)
            random = generator.standard_normal(len(known))
            start = known / max(float(np.linalg.norm(known)), np.finfo(float).tiny)
            start = start + RANDOM_SHARE * random / np.linalg.norm(random)
            length = float(np.linalg.norm(start))
            # A coordinate of a random unit vector is below δ with a chance of δ √(2n/π) at most.
            smallest = UNLUCKY / len(factors) * math.sqrt(math.pi / (2 * len(known)))
            modes.append(_Recurrence([start / length], RANDOM_SHARE * smallest / length))
        return modes


def _best_combination(
    factor: NDArray[np.float64], image: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The unit combination of an image's columns along which the factor's quotient is largest."""
    gram = factor.T @ image
    _, vectors = np.linalg.eigh(0.5 * (gram + gram.T))
    combination: NDArray[np.float64] = image @ vectors[:, -1]
    return combination / max(float(np.linalg.norm(combination)), np.finfo(float).tiny)
