"""How far from the global optimum of the convex problem a point can be.

For any factors U and any dual Z, however loosely solved, with `W^k = λ_k Z ×_k U_kU_kᵀ`:

    primal  P = C ‖W_Ω − Y‖² + Σ_k 1/(2λ_k) ‖W^k_(k)‖_*²   the objective at the answer given
    dual    D = max_t { t⟨Z, Y⟩ − t² (‖Z‖²/(4C) + Σ_k λ_k/2 σ_k²) }   no answer can be below this

P − D bounds the distance to the optimum. The dual bound holds for every multiple of Z, so the best
multiple is taken: it costs nothing and is much tighter far from the optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slrt_dask.dual.solve import InnerOutcome
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
    complementarity : Σ |multiplier · (W − bound)|, which vanishes at the optimum
    """

    primal: float
    dual: float
    gap: float
    relative_gap: float
    paper_gap: float
    violation: float = 0.0
    complementarity: float = 0.0

    def __str__(self) -> str:
        missed = f"; constraints are missed by {self.violation:.2g}" if self.violation else ""
        return (
            f"objective {self.primal:.6g}; the global optimum of the convex problem lies at most "
            f"{100 * self.relative_gap:.3g} % below (at {self.dual:.6g} or above){missed}"
        )


SHARPNESS, ROUGHNESS = 0.02, 0.25
"""Eigenvalues and gap are known well enough when at most this part of them is not known: in the
end; and on the way, as long as the gap is surely open."""
SURELY = 10.0
"""A gap is surely open at this many times the precision that it could ever be asked for."""


@dataclass(frozen=True)
class Bounds:
    """What a certificate is made of, but for the largest eigenvalues.

    energy : ‖Z‖²/(4C);  overlap : ⟨Z, Y⟩;  captured : K values ‖U_kᵀ Z_k‖²
    """

    primal: float
    energy: float
    overlap: float
    captured: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(
        cls,
        point: Point,
        row_sums: Point,
        products: InnerOutcome,
        cost_weight: float,
        weights: tuple[float, ...],
    ) -> Bounds:
        """Join what the sweeps gave.

        row_sums : K matrices Z_k (Z_kᵀ U_k)
        products : inner products of z, y and the true residual r = y − A z
        """
        energy = products.x_dot_x / (4 * cost_weight)
        # W_Ω − Y = −(r + z/2C), because A z = W_Ω + z/2C.
        primal = cost_weight * products.r_dot_r + products.r_dot_x + energy
        captured = []
        for factor, totals, weight in zip(point, row_sums, weights, strict=True):
            primal += 0.5 * weight * nuclear_norm(factor, totals) ** 2
            captured.append(float(np.vdot(factor, totals)))
        return cls(primal, energy, products.b_dot_x, tuple(captured), weights)

    def certificate(
        self,
        lower: tuple[float, ...],
        upper: tuple[float, ...],
        violation: float = 0.0,
        complementarity: float = 0.0,
    ) -> Certificate:
        """The certificate, given what bounds the K largest eigenvalues σ_k² of Z_k Z_kᵀ.

        Only the upper bounds decide what is promised; the paper's gap is an estimate.
        """
        dual = self._dual(upper)
        gap = self.primal - dual
        relative = gap / self.primal if self.primal > 0.0 else 0.0
        if math.isinf(gap):
            relative = 1.0
        paper_gap = sum(
            0.5 * weight * (largest - known)
            for weight, largest, known in zip(self.weights, lower, self.captured, strict=True)
        )
        return Certificate(self.primal, dual, gap, relative, paper_gap, violation, complementarity)

    def are_settled(
        self, lower: tuple[float, ...], upper: tuple[float, ...], rtol: float, rough: bool
    ) -> bool:
        """Whether eigenvalues known to lie between two bounds tell the gap well enough."""
        worst, best = self._dual(upper), self._dual(lower)
        is_open = self.primal - best > SURELY * rtol * self.primal
        unknown = ROUGHNESS if rough and is_open else SHARPNESS
        if any(high > (1.0 + unknown) * low for low, high in zip(lower, upper, strict=True)):
            return False
        return best - worst <= max(unknown * (self.primal - worst), rtol * self.primal)

    def _dual(self, eigenvalues: tuple[float, ...]) -> float:
        spectral = sum(
            0.5 * w * largest for w, largest in zip(self.weights, eigenvalues, strict=True)
        )
        quadratic = self.energy + spectral
        return max(self.overlap, 0.0) ** 2 / (4 * quadratic) if quadratic > 0.0 else 0.0


def captured(point: Point, row_sums: Point) -> tuple[float, ...]:
    """K values ‖U_kᵀ Z_k‖², given K matrices Z_k (Z_kᵀ U_k)."""
    pairs = zip(point, row_sums, strict=True)
    return tuple(float(np.vdot(factor, totals)) for factor, totals in pairs)


def nuclear_norm(factor: np.ndarray, totals: np.ndarray) -> float:
    """‖U T‖_* for T = UᵀZ_k, given U (n, r) and Z_k Tᵀ (n, r): only r × r matrices are needed."""
    gram = factor.T @ totals
    triangle = np.asarray(np.linalg.qr(factor, mode="r"))
    squared = np.linalg.eigvalsh(triangle @ (0.5 * (gram + gram.T)) @ triangle.T)
    return float(np.sqrt(np.maximum(squared, 0.0)).sum())
