"""A dense reference of g at a point, for any loss, bounds and rows, solved exactly in the primal.

For a fixed U the parts of W are free in the span of the factors, W = B v with B Bᵀ = L:

    g(U) = min over v of  C Σ w h(B v − Y) + ½ ‖v‖²   subject to  lower ≤ B v ≤ upper

and to least ≤ A B v ≤ most where there are rows besides. With the squared misfit that is a
least-distance problem (Lawson and Hanson, chapter 23): a call of non-negative least squares, which
ends after finitely many steps. With Huber's loss it is one for given entries beyond δ, and Newton's
method finds these. It knows no centres and no penalties, and an equality
is two inequalities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from tests.oracles.convex import huber
from tests.oracles.dense import mode_product


@dataclass(frozen=True)
class InnerSolution:
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


def solve_inner(
    dense, point, lower=-np.inf, upper=np.inf, where=None, rows=None, delta=np.inf, weights=1.0
):
    """g and W at a point, for a DenseProblem.

    lower, upper : numbers, or tensors that can be broadcast to the shape; ±∞ for none
    where : mask of the entries at which the bounds hold; all if None
    rows : (A, least, most), least ≤ A W ≤ most; A is (m, entries)
    weights : of the observations, a number or a tensor
    """
    shape = dense.mask.shape
    L = model_operator(shape, point, dense.lambdas)
    squares, vectors = np.linalg.eigh(0.5 * (L + L.T))
    kept = squares > 1e-13 * squares[-1]
    B = vectors[:, kept] * np.sqrt(squares[kept])
    seen, y = B[dense.mask.reshape(-1)], dense.y
    twice_c = 2 * dense.C * np.broadcast_to(weights, shape)[dense.mask]
    G, h = _conditions(B, shape, lower, upper, where, rows)

    def objective(v):
        return 0.5 * twice_c @ huber(seen @ v - y, delta) + 0.5 * v @ v

    v, beyond = None, np.zeros(len(y))
    for _ in range(200):
        # ½ ‖R v − d‖² + a constant is the objective for these signs of the entries beyond δ.
        near = beyond == 0.0
        inner = seen[near].T * twice_c[near]
        R = np.linalg.cholesky(np.eye(B.shape[1]) + inner @ seen[near]).T
        pull = inner @ y[near]
        if not near.all():
            pull = pull - seen.T @ (twice_c * delta * beyond)
        d = solve_triangular(R, pull, trans=1)
        # u = R v − d: the shortest u with A u ≥ b.
        A = solve_triangular(R, G.T, trans=1).T
        new = solve_triangular(R, _shortest(A, h - A @ d) + d)
        step = 1.0
        while v is not None and step > 1e-9 and objective(v + step * (new - v)) >= objective(v):
            step *= 0.5
        v = new if step == 1.0 else v + step * (new - v)
        misfit = seen @ v - y
        found = np.where(np.abs(misfit) > delta, np.sign(misfit), 0.0)
        if (step == 1.0 and (found == beyond).all()) or step <= 1e-9:
            return InnerSolution(float(objective(v)), (B @ v).reshape(shape))
        beyond = found
    raise AssertionError("the signs of Huber's loss do not settle")


def _conditions(B, shape, lower, upper, where, rows):
    """G and h of G v ≥ h."""
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
    return np.concatenate(conditions), np.concatenate(limits)


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
