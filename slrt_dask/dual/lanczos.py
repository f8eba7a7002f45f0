"""Upper bounds of the largest eigenvalues of all modes' `X_k X_kᵀ`, by Lanczos on the driver.

One sweep over the observations multiplies some vectors in every mode at once. A Ritz value θ bounds
the largest eigenvalue from below. An upper bound follows from a start's random part: after j steps
the Lanczos polynomial p_j satisfies |p_j(λ_max)| · |component of the start along the top
eigenvector| ≤ 1, and p_j grows beyond θ, so λ_max is at most the point where p_j reaches one over
the smallest component that a random start has, but for a chance (van Dorsselaer, Hochstenbach and
van der Vorst, 2000). Several starts at once cost little more than one, and need only that not all
of them are unlucky: the largest of their bounds holds, and each may take a chance of UNLUCKY to the
power of one over their number, so that fewer steps do. Bounds hold however few were made; more
tighten them. A mode with few rows is multiplied row by row instead, until it is known exactly.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.costs import CERTIFICATE_WIDTH
from slrt_dask.dual.solve import TimeLimit

Vectors = tuple[NDArray[np.float64], ...]
Multiply = Callable[[Vectors], Vectors]
Values = tuple[float, ...]
Enough = Callable[[Values, Values], bool]

UNLUCKY = 1e-6
"""Chance, over random starts, that any of a certificate's bounds does not hold."""
WIDTH = CERTIFICATE_WIDTH
"""Vectors of each mode that are multiplied together."""
FEW, MANY = 64, 4096
"""Rows up to which a mode is multiplied out; beyond which it has one start, for want of room."""
RANDOM_SHARE = 0.5
"""Length of the random part of a start vector beside the best known direction's 1."""
ROUNDING = 1e-13
INDEPENDENT = 1e-7
"""Vectors of different starts whose combinations are shorter than this tell nothing new."""


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


class _Mode(ABC):
    """What is known of one mode's largest eigenvalue."""

    @property
    @abstractmethod
    def value(self) -> float:
        """A lower bound."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """An upper bound."""

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether nothing more can be learnt."""

    @property
    @abstractmethod
    def block(self) -> NDArray[np.float64]:
        """The vectors to multiply next, (n, some)."""

    @abstractmethod
    def extend(self, image: NDArray[np.float64]) -> None:
        """Take the products with them."""

    @abstractmethod
    def spectrum(self, caught: float) -> Spectrum:
        """Ritz values and vectors in the space that was seen."""


@dataclass
class _Whole(_Mode):
    """A mode with few rows, multiplied out some columns at a time."""

    matrix: NDArray[np.float64]
    known: int = 0
    value: float = 0.0
    bound: float = math.inf

    @property
    def exhausted(self) -> bool:
        return self.known == len(self.matrix)

    @property
    def block(self) -> NDArray[np.float64]:
        return np.eye(len(self.matrix), WIDTH, -self.known)

    def extend(self, image: NDArray[np.float64]) -> None:
        new = min(WIDTH, len(self.matrix) - self.known)
        self.matrix[:, self.known : self.known + new] = image[:, :new]
        self.known += new
        if new and self.exhausted:
            self.value = max(0.0, float(self.spectrum(0.0).values[0]))
            self.bound = self.value * (1.0 + ROUNDING)

    def spectrum(self, caught: float) -> Spectrum:
        seen = self.matrix[: self.known, : self.known]
        values, combinations = np.linalg.eigh(0.5 * (seen + seen.T))
        vectors = np.eye(len(self.matrix), self.known) @ combinations
        return Spectrum(values[::-1], np.ascontiguousarray(vectors[:, ::-1]), caught)


@dataclass
class _Krylov(_Mode):
    """The recurrences of one mode, from different starts."""

    starts: list[_Recurrence]
    vectors: list[NDArray[np.float64]] = field(default_factory=list)
    images: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def value(self) -> float:
        return max(start.value for start in self.starts)

    @property
    def bound(self) -> float:
        """Holds unless every start was unlucky; never below a value that was seen."""
        return max(start.bound for start in self.starts)

    @property
    def exhausted(self) -> bool:
        return all(start.exhausted for start in self.starts)

    @property
    def block(self) -> NDArray[np.float64]:
        """The vectors to multiply next, (n, starts)."""
        return np.stack([start.basis[-1] for start in self.starts], axis=1)

    def extend(self, image: NDArray[np.float64]) -> None:
        for start, product in zip(self.starts, image.T, strict=True):
            if not start.exhausted:
                if len(self.starts) > 1:
                    self.vectors.append(start.basis[-1])
                    self.images.append(product)
                start.extend(product)

    def spectrum(self, caught: float) -> Spectrum:
        if len(self.starts) == 1:
            return self.starts[0].spectrum(caught)
        left, lengths, right = np.linalg.svd(np.array(self.vectors).T, full_matrices=False)
        kept = lengths > INDEPENDENT * lengths[0]
        back = right[kept].T / lengths[kept]
        projected = left[:, kept].T @ (np.array(self.images).T @ back)
        values, combinations = np.linalg.eigh(0.5 * (projected + projected.T))
        vectors = left[:, kept] @ combinations
        return Spectrum(values[::-1], np.ascontiguousarray(vectors[:, ::-1]), caught)


class TopEigenvalues:
    """Bounds the largest eigenvalue of every mode."""

    def __init__(self, max_iterations: int = 100) -> None:
        self._max_iterations = max_iterations
        self.seen: tuple[Spectrum, ...] = ()
        """What the last call saw of every mode."""

    def bounds(
        self,
        multiply: Multiply,
        factors: Vectors,
        images: Vectors,
        enough: Enough,
        limit: TimeLimit,
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower and upper bounds of the σ_k².

        factors, images : K matrices (n_k, r_k), U_k and the known products X_k X_kᵀ U_k
        enough : told the values so far, from below and from above; whether that will do
        """
        modes = _modes(factors, images)
        for _ in range(self._max_iterations):
            products = multiply(tuple(mode.block for mode in modes))
            for mode, product in zip(modes, products, strict=True):
                mode.extend(product)
            lower = tuple(mode.value for mode in modes)
            upper = tuple(mode.bound for mode in modes)
            if all(mode.exhausted for mode in modes) or enough(lower, upper) or limit.is_over:
                break
        self.seen = tuple(
            mode.spectrum(float(np.vdot(factor, image)))
            for mode, factor, image in zip(modes, factors, images, strict=True)
        )
        return lower, upper


def _modes(factors: Vectors, images: Vectors) -> list[_Mode]:
    # Seeded by the point: starts of different certificates are independent, and a certificate
    # that is made again, after a resume, is the same.
    generator = np.random.default_rng([zlib.crc32(np.ascontiguousarray(U).data) for U in factors])
    modes: list[_Mode] = []
    for factor, image in zip(factors, images, strict=True):
        if len(factor) <= FEW:
            modes.append(_Whole(np.zeros((len(factor), len(factor)))))
            continue
        known, count = _best_combinations(factor, image), WIDTH if len(factor) <= MANY else 1
        # A coordinate of a random unit vector is below δ with a chance of δ √(2n/π) at most.
        unlucky = (UNLUCKY / len(factors)) ** (1.0 / count)
        smallest = unlucky * math.sqrt(math.pi / (2 * len(factor)))
        starts = []
        for number in range(count):
            random = generator.standard_normal(len(factor))
            start = RANDOM_SHARE * random / np.linalg.norm(random)
            if number < known.shape[1]:
                start = start + known[:, number]
            length = float(np.linalg.norm(start))
            starts.append(_Recurrence([start / length], RANDOM_SHARE * smallest / length))
        modes.append(_Krylov(starts))
    return modes


def _best_combinations(
    factor: NDArray[np.float64], image: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Unit combinations of an image's columns, those with the factor's largest quotients first."""
    gram = factor.T @ image
    _, vectors = np.linalg.eigh(0.5 * (gram + gram.T))
    combinations = image @ vectors[:, ::-1]
    lengths = np.maximum(np.linalg.norm(combinations, axis=0), np.finfo(float).tiny)
    unit: NDArray[np.float64] = combinations / lengths
    return unit
