"""Factors of other ranks than they have: what a fit with more columns, or fewer, starts from."""

from __future__ import annotations

import numpy as np

from slrt_dask.dual.start import SpectralProblem
from slrt_dask.engine.base import VectorHandle
from slrt_dask.optim.manifold import Point

NEW_SHARE = 0.005
"""Of a factor's squared norm, the part that new columns begin with."""
SUBSPACE_STEPS = 2


def resized(problem: SpectralProblem, point: Point, dual: VectorHandle | None, seed: int) -> Point:
    """The factors, cut or widened to the ranks of the problem's manifold.

    New columns are leading directions of the dual tensor's unfoldings, along which the cost falls
    the most. Columns are dropped where a factor has the least of its norm.
    """
    ranks = problem.manifold.ranks
    new = tuple(rank - factor.shape[1] for factor, rank in zip(point, ranks, strict=True))
    if not any(new):
        return point
    added = _leading(problem, point, new, dual, seed) if max(new) > 0 else point
    return tuple(
        _widened(factor, columns[:, :more]) if more > 0 else _cut(factor, rank)
        for factor, rank, more, columns in zip(point, ranks, new, added, strict=True)
    )


def _leading(
    problem: SpectralProblem,
    point: Point,
    new: tuple[int, ...],
    dual: VectorHandle | None,
    seed: int,
) -> Point:
    generator = np.random.default_rng(seed)
    matrices = tuple(
        generator.standard_normal((len(factor), max(1, columns)))
        for factor, columns in zip(point, new, strict=True)
    )
    for _ in range(SUBSPACE_STEPS):
        images = problem.row_sums(dual, matrices)
        matrices = tuple(np.linalg.qr(image)[0] for image in images)
    return matrices


def _widened(factor: np.ndarray, columns: np.ndarray) -> np.ndarray:
    each = np.sqrt(NEW_SHARE / columns.shape[1])
    wide = np.hstack([np.sqrt(1.0 - NEW_SHARE) * factor, each * columns])
    unit: np.ndarray = wide / np.linalg.norm(wide)
    return unit


def _cut(factor: np.ndarray, rank: int) -> np.ndarray:
    if rank == factor.shape[1]:
        return factor
    left, values, _ = np.linalg.svd(factor, full_matrices=False)
    kept: np.ndarray = left[:, :rank] * values[:rank]
    unit: np.ndarray = kept / np.linalg.norm(kept)
    return unit
