"""The convex problem itself, solved in the primal: slow, simple, and nothing like the dual method.

    min over W¹..W^K of  C ‖(ΣW^k)_Ω − Y_Ω‖² + Σ_k 1/(2λ_k) ‖unfold_k(W^k)‖_*²

Accelerated proximal gradient with restarts. The result carries its own duality gap, from the dual
variable Z = 2C (Y − W)_Ω, so it need not be believed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.oracles.dense import unfold


@dataclass(frozen=True)
class ConvexSolution:
    parts: tuple[np.ndarray, ...]
    primal: float
    dual: float


def fold(matrix, mode, shape):
    """The tensor of this shape whose mode unfolding is matrix."""
    rest = [n for k, n in enumerate(shape) if k != mode]
    return np.moveaxis(matrix.reshape([shape[mode], *rest]), 0, mode)


def shrink_singular_values(matrix, weight):
    """argmin over M of ½‖M − matrix‖² + weight/2 ‖M‖_*².

    Singular values are lowered by weight · ‖M‖_*, those below zero dropped. With m left,
    ‖M‖_* = (σ_1 + … + σ_m) / (1 + m weight); the right m is the largest that leaves all positive.
    """
    left, sigma, right = np.linalg.svd(matrix, full_matrices=False)
    count = np.arange(1, len(sigma) + 1)
    nuclear = np.cumsum(sigma) / (1 + count * weight)
    kept = np.flatnonzero(sigma > weight * nuclear)
    level = weight * nuclear[kept[-1]] if len(kept) else 0.0
    return (left * np.maximum(sigma - level, 0.0)) @ right


def huber(misfit, delta):
    """misfit² up to δ, and from there on along the tangent; delta may be infinite."""
    size = np.abs(misfit)
    near = np.minimum(size, delta)
    return near**2 + np.where(size > delta, 2 * near * (size - near), 0.0)


def objectives(mask, values, C, lambdas, parts, delta=np.inf):
    """Primal value of the parts and the dual value of Z = 2C (Y − W)_Ω, clipped at 2Cδ."""
    misfit = np.where(mask, values - sum(parts), 0.0)
    primal, Z = C * np.sum(huber(misfit, delta)), 2 * C * np.clip(misfit, -delta, delta)
    dual = np.sum(Z * np.where(mask, values, 0.0)) - np.sum(Z**2) / (4 * C)
    for k, (part, weight) in enumerate(zip(parts, lambdas, strict=True)):
        primal += np.linalg.norm(unfold(part, k), "nuc") ** 2 / (2 * weight)
        dual -= weight / 2 * np.linalg.norm(unfold(Z, k), 2) ** 2
    return float(primal), float(dual)


def solve_convex(mask, values, *, C, lambdas, delta=np.inf, rtol=1e-7, max_iterations=50_000):
    """The optimum to a relative duality gap of rtol, with Huber's loss if delta is finite."""
    shape, order = mask.shape, mask.ndim
    step = 1.0 / (2 * C * order)
    parts = ahead = tuple(np.zeros(shape) for _ in range(order))
    momentum = 1.0
    for iteration in range(max_iterations):
        slope = 2 * C * np.clip(np.where(mask, sum(ahead) - values, 0.0), -delta, delta)
        new = tuple(
            fold(shrink_singular_values(unfold(W - step * slope, k), step / weight), k, shape)
            for k, (W, weight) in enumerate(zip(ahead, lambdas, strict=True))
        )
        uphill = sum(np.vdot(a - n, n - p) for a, n, p in zip(ahead, new, parts, strict=True)) > 0
        following = 1.0 if uphill else (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        push = 0.0 if uphill else (momentum - 1) / following
        ahead = tuple(n + push * (n - p) for n, p in zip(new, parts, strict=True))
        parts, momentum = new, following
        if iteration % 50 == 0:
            primal, dual = objectives(mask, values, C, lambdas, parts, delta)
            if primal - dual <= rtol * abs(primal):
                return ConvexSolution(parts, primal, dual)
    raise AssertionError(f"the convex oracle did not converge in {max_iterations} iterations")
