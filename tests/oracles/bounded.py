"""A dense reference of the dual problem with bounds, solved exactly and in the primal.

For a fixed U the parts of W are free in the span of the factors, W = B v with B Bᵀ = L:

    g(U) = min over v of  C ‖(B v − Y)_Ω‖² + ½ ‖v‖²   subject to  lower ≤ B v ≤ upper

and to least ≤ A B v ≤ most where there are rows besides. That is a least-distance problem (Lawson
and Hanson, chapter 23): one call of non-negative least squares, which ends after finitely many
steps. It knows no centres and no penalties, and an equality is two inequalities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from tests.oracles.dense import mode_product


@dataclass(frozen=True)
class BoundedSolution:
    cost: float
    W: np.ndarray


def model_operator(shape, point, lambdas):
    """L = Σ_k λ_k ×_k U_kU_kᵀ as a matrix over all entries of the tensor."""
    size = int(np.prod(shape))
    identity = np.eye(size).reshape(*shape, size)
    total = np.zeros((*shape, size))
    for mode, (U, weight) in enumerate(zip(point, lambdas, strict=True)):
        total += weight * mode_product(identity, U @ U.T, mode)
    return total.reshape(size, size)


def solve_bounded(dense, point, lower, upper, where=None, rows=None):
    """g and W at a point, for a DenseProblem.

    lower, upper : numbers, or tensors that can be broadcast to the shape; ±∞ for none
    where : mask of the entries at which the bounds hold; all if None
    rows : (A, least, most), least ≤ A W ≤ most; A is (m, entries)
    """
    shape, twice_c = dense.mask.shape, 2 * dense.C
    L = model_operator(shape, point, dense.lambdas)
    squares, vectors = np.linalg.eigh(0.5 * (L + L.T))
    kept = squares > 1e-13 * squares[-1]
    B = vectors[:, kept] * np.sqrt(squares[kept])
    seen = B[dense.mask.reshape(-1)]
    # ½ ‖R v − d‖² + a constant is the objective.
    R = np.linalg.cholesky(np.eye(B.shape[1]) + twice_c * seen.T @ seen).T
    d = solve_triangular(R, twice_c * seen.T @ dense.y, trans=1)
    constant = dense.C * dense.y @ dense.y - 0.5 * d @ d
    held = np.ones(shape, dtype=bool) if where is None else where
    conditions, limits = [], []
    for sign, bound in ((1.0, lower), (-1.0, upper)):
        numbers = np.broadcast_to(np.asarray(bound, dtype=float), shape)
        chosen = (held & np.isfinite(numbers)).reshape(-1)
        conditions.append(sign * B[chosen])
        limits.append(sign * numbers.reshape(-1)[chosen])
    if rows is not None:
        matrix, *both = rows
        for sign, bound in zip((1.0, -1.0), both, strict=True):
            chosen = np.isfinite(bound)
            conditions.append(sign * matrix[chosen] @ B)
            limits.append(sign * bound[chosen])
    G, h = np.concatenate(conditions), np.concatenate(limits)
    # u = R v − d: the shortest u with A u ≥ b.
    A = solve_triangular(R, G.T, trans=1).T
    b = h - A @ d
    u = _shortest(A, b)
    v = solve_triangular(R, u + d)
    return BoundedSolution(float(constant + 0.5 * u @ u), (B @ v).reshape(shape))


def _shortest(A, b):
    """argmin ‖u‖ subject to A u ≥ b."""
    if not (b > 0.0).any():
        return np.zeros(A.shape[1])
    scale = np.abs(b).max()
    system = np.vstack([A.T, b / scale])
    target = np.zeros(len(system))
    target[-1] = 1.0
    multipliers, distance = nnls(system, target, maxiter=100 * len(b))
    assert distance > 1e-6, "the bounds cannot be satisfied, or only just"
    r = system @ multipliers - target
    return -scale * r[:-1] / r[-1]
