"""How far from the global optimum of the convex problem a point can be.

For any factors U and any dual numbers x = z + s that their boxes allow, however loosely solved,
with `W^t = λ_t X ×_k P_t P_tᵀ` and W their sum:

    primal  P = C Σ w h(W − Y) + Σ_t 1/(2λ_t) ‖W^t_(k)‖_*²     at a tensor that is allowed
    dual    D = max_α { α (⟨z, Y⟩ + ⟨s, b⟩) − α² (Σ z²/(4Cw) + Σ_t λ_t/2 σ_t²) }

No tensor that is allowed has an objective below D, so P − D bounds the distance to the optimum. The
dual bound holds for every multiple of x that the boxes allow, so the best one is taken: it costs
nothing and is much tighter far from the optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.entries import NONE, EntryModel
from slrt_dask.dual.operator import Operator, Sums
from slrt_dask.dual.rows import RowVector, add_multipliers, products_of
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.kernels import entries as passes
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
    """What a certificate is made of, except for the largest eigenvalues.

    energy : Σ z²/(4Cw);  overlap : ⟨z, Y⟩ + ⟨s, b⟩;  captured : values ‖U_tᵀ X_k‖² of the terms
    largest_multiple : of x that the boxes still allow
    """

    primal: float
    energy: float
    overlap: float
    captured: tuple[float, ...]
    weights: tuple[float, ...]
    largest_multiple: float = math.inf

    def certificate(
        self,
        lower: tuple[float, ...],
        upper: tuple[float, ...],
        violation: float = 0.0,
        complementarity: float = 0.0,
    ) -> Certificate:
        """The certificate, given what bounds the terms' largest eigenvalues σ_t² of X_k X_kᵀ.

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
        pairs = zip(self.weights, eigenvalues, strict=True)
        quadratic = self.energy + sum(0.5 * weight * largest for weight, largest in pairs)
        if quadratic <= 0.0 or self.overlap <= 0.0:
            return 0.0
        multiple = min(self.overlap / (2 * quadratic), self.largest_multiple)
        return multiple * (self.overlap - multiple * quadratic)


@dataclass(frozen=True)
class Products:
    """What a certificate needs of a dual vector: see `kernels.entries.certified_sums`.

    rows : what the model says of the rows of a linear constraint, A W
    """

    misfit: float
    middle_misfit: float
    energy: float
    overlap: float
    slack: float
    largest: float
    violation: float
    rows: RowVector


ADDED = 5
"""The first products are added up over entries; the others are the largest of any."""


@dataclass(frozen=True)
class Measure(Program):
    """The products of the vector `dual` and of w = L x that a certificate is made of; w stays.

    rows : the multipliers of a linear constraint that are part of `dual`
    """

    operator: Operator
    model: EntryModel
    dual: str
    rows: RowVector | None = None

    def rounds(self) -> Rounds:
        (sums,) = yield Sweep(Measure._product)
        rows, added, largest = yield Sweep(Measure._measure, (sums,))
        misfit, middle_misfit, energy, overlap, slack = map(float, added)
        most, violation = map(float, largest)
        return Products(misfit, middle_misfit, energy, overlap, slack, most, violation, rows)

    def _product(self, block: Block, total: Any) -> tuple[Sums]:
        x, w = block.vector(self.dual), block.fresh("w")
        self.operator.add_local(block, x, w, shift=0.0)
        return (self.operator.crossing_sums(block, x, total and total[0]),)

    def _measure(self, block: Block, total: Any, sums: Sums) -> tuple[RowVector, Any, Any]:
        w, bounds = block.changing("w"), self.model.bounds
        self.operator.add_crossing(block, sums, w)
        middle = NONE if bounds is None else bounds.middle
        own = own_part(block, self.model, self.dual, self.rows)
        found = passes.certified_sums(self.model.of(block), middle, self.model.delta, own, w)
        count = 0 if self.rows is None else len(self.rows)
        rows = products_of(block, w, count, None)
        part = rows, np.array(found[:ADDED]), np.array(found[ADDED:])
        return part if total is None else self.combine(total, part)

    def combine(self, left: Any, right: Any) -> Any:
        if len(left) == 1:
            return super().combine(left, right)
        rows, added = super().combine(left[:2], right[:2])
        return rows, added, np.maximum(left[2], right[2])


def own_part(block: Block, model: EntryModel, dual: str, rows: RowVector | None) -> Vector:
    """The entries' own part of a dual vector, in which the multipliers of rows have a part too."""
    if rows is None:
        return block.vector(dual)
    own = block.fresh("seen")
    own[:] = block.vector(dual)
    add_multipliers(block, rows, own, -1.0)
    passes.begin(model.of(block), own)
    return own


def captured(point: Point, row_sums: Point) -> tuple[float, ...]:
    """Values ‖U_kᵀ X_k‖², given matrices X_k (X_kᵀ U_k)."""
    pairs = zip(point, row_sums, strict=True)
    return tuple(float(np.vdot(factor, totals)) for factor, totals in pairs)


def nuclear_norm(factor: NDArray[Any], totals: NDArray[Any]) -> float:
    """‖U T‖_* for T = UᵀX_k, given U (n, r) and X_k Tᵀ (n, r): only r × r matrices are needed."""
    gram = factor.T @ totals
    triangle = np.asarray(np.linalg.qr(factor, mode="r"))
    squared = np.linalg.eigvalsh(triangle @ (0.5 * (gram + gram.T)) @ triangle.T)
    return float(np.sqrt(np.maximum(squared, 0.0)).sum())
