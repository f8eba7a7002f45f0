"""The geometry: a product of unit-trace spectrahedra, written through their square roots.

The cost sees only Θ_k = U_k U_kᵀ with trace Θ_k = 1, so a point is a tuple of factors U_k with
‖U_k‖_F = 1, and U_k and U_k Q are the same point for every orthogonal Q. Tangent vectors are kept
horizontal: orthogonal to U_k and to every direction U_k Ω with Ω skew. The names are those of
pymanopt, so that its optimisers can run on this object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import InvalidInput

Matrix: TypeAlias = NDArray[np.float64]
Point: TypeAlias = tuple[Matrix, ...]
"""K arrays (n_k, r_k): factors, or a tangent vector at them."""

UNIT_TOLERANCE = 1e-6


def combine(a: float, first: Point, b: float, second: Point) -> Point:
    """The linear combination a·first + b·second, factor by factor."""
    return tuple(a * x + b * y for x, y in zip(first, second, strict=True))


def scale(a: float, vector: Point) -> Point:
    """The multiple a·vector, factor by factor."""
    return tuple(a * x for x in vector)


def ranks_of(point: Point) -> tuple[int, ...]:
    """The K numbers of columns."""
    return tuple(factor.shape[1] for factor in point)


@dataclass(frozen=True)
class SpectrahedronProduct:
    """Product over k of {U in R^(n_k × r_k) : ‖U‖_F = 1} / O(r_k).

    shapes : K pairs (n_k, r_k) with 1 ≤ r_k ≤ n_k.
    """

    shapes: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.shapes:
            raise InvalidInput("a manifold needs at least one factor; shapes is empty")
        for mode, (rows, rank) in enumerate(self.shapes):
            if not 1 <= rank <= rows:
                raise InvalidInput(
                    f"mode {mode} has rank {rank} and {rows} rows; choose a rank from 1 to {rows}"
                )

    @property
    def dim(self) -> int:
        """Degrees of freedom at a point of full rank."""
        return sum(n * r - 1 - r * (r - 1) // 2 for n, r in self.shapes)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The K ranks r_k."""
        return tuple(rank for _, rank in self.shapes)

    def with_ranks(self, ranks: tuple[int, ...]) -> SpectrahedronProduct:
        """The same for other ranks."""
        lengths = (rows for rows, _ in self.shapes)
        return SpectrahedronProduct(tuple(zip(lengths, ranks, strict=True)))

    def validate(self, point: Point) -> None:
        """Raise InvalidInput unless point has these shapes, is finite and has unit factors."""
        found = tuple(np.shape(factor) for factor in point)
        if found != self.shapes:
            raise InvalidInput(f"a point has factors of shapes {found}; expected {self.shapes}")
        for mode, factor in enumerate(point):
            size = float(np.linalg.norm(factor))
            if not abs(size - 1.0) <= UNIT_TOLERANCE:
                raise InvalidInput(
                    f"factor {mode} has Frobenius norm {size}; divide it by its norm to make it 1"
                )

    def inner_product(self, point: Point, first: Point, second: Point) -> float:
        """⟨first, second⟩, the sum of the Euclidean products of the factors."""
        return math.fsum(float(np.vdot(x, y)) for x, y in zip(first, second, strict=True))

    def norm(self, point: Point, vector: Point) -> float:
        """Length of a tangent vector."""
        return math.sqrt(self.inner_product(point, vector, vector))

    def projection(self, point: Point, vector: Point) -> Point:
        """The horizontal vector at point nearest to any vector of the same shapes."""
        return tuple(_horizontal(U, V) for U, V in zip(point, vector, strict=True))

    def retraction(self, point: Point, vector: Point) -> Point:
        """Move from point along vector: each U_k + ξ_k, brought back to norm one."""
        return tuple(_unit(U + V) for U, V in zip(point, vector, strict=True))

    def transport(self, start: Point, end: Point, vector: Point) -> Point:
        """Carry a tangent vector at start to end, by projecting it there."""
        return self.projection(end, vector)

    def zero_vector(self, point: Point) -> Point:
        """The tangent vector of length zero."""
        return tuple(np.zeros_like(U) for U in point)

    def random_point(self, rng: np.random.Generator) -> Point:
        """A point drawn evenly over the spheres."""
        return tuple(_unit(rng.standard_normal(shape)) for shape in self.shapes)

    def random_tangent_vector(self, point: Point, rng: np.random.Generator) -> Point:
        """A horizontal vector of length one in a random direction."""
        drawn = tuple(rng.standard_normal(shape) for shape in self.shapes)
        vector = self.projection(point, drawn)
        size = self.norm(point, vector)
        return scale(1.0 / size, vector) if size > 0.0 else vector

    def euclidean_to_riemannian_gradient(self, point: Point, gradient: Point) -> Point:
        """Riemannian gradient from K Euclidean ones (n_k, r_k)."""
        return self.projection(point, gradient)

    def euclidean_to_riemannian_hessian(
        self, point: Point, gradient: Point, hessian: Point, direction: Point
    ) -> Point:
        """Riemannian Hessian along direction from the Euclidean gradient and D∇g[direction]."""
        curved = tuple(
            H - V * float(np.vdot(U, G))
            for U, G, H, V in zip(point, gradient, hessian, direction, strict=True)
        )
        return self.projection(point, curved)


def _unit(U: Matrix) -> Matrix:
    return np.asarray(U / np.linalg.norm(U), dtype=np.float64)


def _horizontal(U: Matrix, V: Matrix) -> Matrix:
    """Remove from V its part along U and its part along U Ω, Ω skew.  All (n, r)."""
    tangent: Matrix = V - U * (float(np.vdot(U, V)) / float(np.vdot(U, U)))
    if U.shape[1] == 1:
        return tangent
    values, vectors = np.linalg.eigh(U.T @ U)
    for _ in range(2):  # UᵀU squares small singular values of U; the second pass wins them back
        tangent = tangent - U @ _skew_solution(values, vectors, U.T @ tangent)
    return tangent


def _skew_solution(values: Matrix, vectors: Matrix, B: Matrix) -> Matrix:
    """The skew Ω with SΩ + ΩS = B − Bᵀ, least in norm where S is singular.  All (r, r).

    S is given by its eigenvalues (r,) and eigenvectors. In their basis the equation divides by
    d_i + d_j. Where both vanish U has lost those two directions, UΩ does not see the entry, and
    zero is the right value for it.
    """
    values = np.maximum(values, 0.0)
    sums = values[:, None] + values[None, :]
    rotated = vectors.T @ (B - B.T) @ vectors
    kept = sums > len(values) * np.finfo(np.float64).eps * values[-1]
    solved = np.where(kept, rotated / np.where(kept, sums, 1.0), 0.0)
    return np.asarray(vectors @ (0.5 * (solved - solved.T)) @ vectors.T, dtype=np.float64)
