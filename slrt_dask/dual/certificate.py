"""How far from the global optimum of the convex problem a point can be.

For any factors U and any dual Z, however loosely solved, with `W^k = λ_k Z ×_k U_kU_kᵀ`:

    primal  P = C ‖W_Ω − Y‖² + Σ_k 1/(2λ_k) ‖W^k_(k)‖_*²   the objective at the answer given
    dual    D = max_t { t⟨Z, Y⟩ − t² (‖Z‖²/(4C) + Σ_k λ_k/2 σ_k²) }   no answer can be below this

P − D bounds the distance to the optimum. The dual bound holds for every multiple of Z, so the best
multiple is taken: it costs nothing and is much tighter far from the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slrt_dask.dual.inner import InnerOutcome
from slrt_dask.optim.manifold import Point


@dataclass(frozen=True)
class Certificate:
    """Bounds on the optimum of the convex problem, and how the answer stands to them.

    primal : objective at the answer, an upper bound of the optimum
    dual : a lower bound of the optimum
    gap : primal − dual; the answer's objective is at most this far above the optimum
    relative_gap : gap / primal, between 0 and 1
    paper_gap : Σ_k λ_k/2 (σ_k² − ‖U_kᵀ Z_k‖²), the gap of an exactly solved inner problem
    violation : by how much the answer had to be moved to satisfy its constraints
    """

    primal: float
    dual: float
    gap: float
    relative_gap: float
    paper_gap: float
    violation: float = 0.0

    def __str__(self) -> str:
        return (
            f"objective {self.primal:.6g}; the global optimum of the convex problem lies at most "
            f"{100 * self.relative_gap:.3g} % below (at {self.dual:.6g} or above)"
        )


def certificate_of(
    point: Point,
    row_sums: Point,
    eigenvalues: tuple[float, ...],
    products: InnerOutcome,
    cost_weight: float,
    weights: tuple[float, ...],
) -> Certificate:
    """Join what the sweeps gave.

    row_sums : K matrices Z_k (Z_kᵀ U_k)
    eigenvalues : K upper bounds of σ_k², the largest eigenvalues of Z_k Z_kᵀ
    products : inner products of z, y and the true residual r = y − A z
    """
    zy, zz = products.b_dot_x, products.x_dot_x
    # W_Ω − Y = −(r + z/2C), because A z = W_Ω + z/2C.
    misfit = products.r_dot_r + products.r_dot_x / cost_weight + zz / (4 * cost_weight**2)
    primal = cost_weight * misfit
    spectral, paper_gap = 0.0, 0.0
    for factor, totals, weight, largest in zip(point, row_sums, weights, eigenvalues, strict=True):
        primal += 0.5 * weight * _nuclear_norm(factor, totals) ** 2
        spectral += 0.5 * weight * largest
        paper_gap += 0.5 * weight * (largest - float(np.vdot(factor, totals)))
    quadratic = zz / (4 * cost_weight) + spectral
    dual = max(zy, 0.0) ** 2 / (4 * quadratic) if quadratic > 0.0 else 0.0
    gap = primal - dual
    relative = gap / primal if primal > 0.0 else 0.0
    return Certificate(primal, dual, gap, relative, paper_gap)


def _nuclear_norm(factor: np.ndarray, totals: np.ndarray) -> float:
    """‖U T‖_* for T = UᵀZ_k, given U (n, r) and Z_k Tᵀ (n, r): only r × r matrices are needed."""
    gram = factor.T @ totals
    triangle = np.asarray(np.linalg.qr(factor, mode="r"))
    squared = np.linalg.eigvalsh(triangle @ (0.5 * (gram + gram.T)) @ triangle.T)
    return float(np.sqrt(np.maximum(squared, 0.0)).sum())
