"""Where a fit begins: factors that already see the largest directions of the tensor.

A random point knows nothing of the data. The leading eigenvectors of the observed unfoldings'
products `Y_k Y_kᵀ` do, but they see what was observed as well as the tensor itself: two rows of an
unfolding meet only where both are observed, while a row meets itself wherever it is. The diagonal
is therefore too large beside the rest, by as much as the pattern of observations tells
(`ObservedRows`), and is put right before eigenvectors are looked for. On a tenth of a hyperspectral
cube that takes the first error from 0.067 to 0.025.

Eigenvectors come from a few products with blocks of vectors, all of which are kept (a block Krylov
space): as many sweeps, which save many more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slrt_dask.engine.base import VectorHandle
from slrt_dask.optim.manifold import Point, SpectrahedronProduct

KRYLOV_STEPS = 2
SMALLEST_WEIGHT = 1e-8
INDEPENDENT = 1e-7
"""Vectors whose combinations are shorter than this tell nothing new."""


@dataclass(frozen=True)
class ObservedRows:
    """How often rows of the unfoldings are observed, and meet; K vectors (n_k,) each.

    counts : entries of a row;  squares : the sum of their squares
    meetings : in how many places any row, itself included, is observed where this one is, in all
    """

    counts: Point
    squares: Point
    meetings: Point

    def diagonal_excess(self) -> Point:
        """By how much the diagonals of the Y_k Y_kᵀ are too large beside the rest.

        Where a row is observed, another one is with a certain chance; so much of its own square
        would be on the diagonal if it, too, were observed a second time by chance.
        """
        excess = []
        for counts, squares, meetings in zip(self.counts, self.squares, self.meetings, strict=True):
            others = np.maximum(counts * (len(counts) - 1), 1.0)
            chance = np.clip((meetings - counts) / others, 0.0, 1.0)
            excess.append((1.0 - chance) * squares if len(counts) > 1 else 0.0 * squares)
        return tuple(excess)


class SpectralProblem(Protocol):
    """What a start needs of a problem."""

    @property
    def manifold(self) -> SpectrahedronProduct:
        """Where the points live."""

    def row_sums(self, dual: VectorHandle | None, matrices: Point) -> Point:
        """Y_k (Y_kᵀ F_k) for K matrices F_k, dual being None."""

    def observed_rows(self) -> ObservedRows | None:
        """What the pattern of observations does to the unfoldings' rows; None if nothing."""


def spectral_start(problem: SpectralProblem, seed: int) -> Point:
    """K factors (n_k, r_k) of norm one: leading directions of the observed unfoldings.

    Directions are weighted by the square roots of their singular values, which is what minimises
    the cost for an unfolding that is known (U Uᵀ ∝ (W_k W_kᵀ)^½).
    """
    rows = problem.observed_rows()
    excess = None if rows is None else rows.diagonal_excess()

    def multiply(block: Point) -> Point:
        images = problem.row_sums(None, block)
        if excess is None:
            return images
        parts = zip(images, excess, block, strict=True)
        return tuple(image - much[:, None] * columns for image, much, columns in parts)

    images = multiply(problem.manifold.random_point(np.random.default_rng(seed)))
    blocks, products = [], []
    for _ in range(KRYLOV_STEPS):
        blocks.append(tuple(np.linalg.qr(image)[0] for image in images))
        images = multiply(blocks[-1])
        products.append(images)
    return tuple(
        _leading(np.hstack(vectors), np.hstack(images), rank)
        for vectors, images, rank in zip(
            zip(*blocks, strict=True),
            zip(*products, strict=True),
            problem.manifold.ranks,
            strict=True,
        )
    )


def _leading(vectors: np.ndarray, images: np.ndarray, rank: int) -> np.ndarray:
    """The factor of the largest Ritz values in a space of which the products are known.

    vectors, images : (n, some), the latter being the products with the former
    """
    left, lengths, right = np.linalg.svd(vectors, full_matrices=False)
    kept = lengths > INDEPENDENT * lengths[0]
    projected = left[:, kept].T @ (images @ (right[kept].T / lengths[kept]))
    squares, combinations = np.linalg.eigh(0.5 * (projected + projected.T))
    squares, combinations = squares[::-1][:rank], combinations[:, ::-1][:, :rank]
    largest = max(float(squares[0]), np.finfo(float).tiny)
    # No direction starts at exactly zero: it could then not be found by a gradient.
    weights = np.maximum(squares / largest, SMALLEST_WEIGHT) ** 0.25
    factor = left[:, kept] @ (combinations * weights)
    unit: np.ndarray = factor / np.linalg.norm(factor)
    return unit
