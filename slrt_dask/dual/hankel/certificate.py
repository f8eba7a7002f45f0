"""What a certificate of a Hankel problem is made of.

For any W, with S = M⁻¹ H(W) and V^k = λ_k S ×_{2k} U_kU_kᵀ the parts miss H(W) by δS exactly, so

    P = C ‖W_Ω − Y‖² + δ/2 ‖S‖² + Σ_k 1/(2λ_k) ‖(V^k)_{2k}‖_*²
    D = Σ_i min_w { C 1_Ω (w − y_i)² + t c_i w } − t² (δ/2 ‖S'‖² + Σ_k λ_k/2 σ_k²),  c = H*(S')

for any t, w running over what the bounds allow. Where that has no minimum c must vanish: S' is S
less H of what is left there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.certificate import Bounds
from slrt_dask.dual.hankel.embedding import overlap_add
from slrt_dask.dual.hankel.inner import OnTensors
from slrt_dask.dual.hankel.observed import Observed, Tensor
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Rounds, Sweep
from slrt_dask.kernels import vectors

MULTIPLES = tuple(float(t) for t in np.linspace(0.0, 1.2, 25))
"""Of S', that are tried for the lower bound where there are bounds on W."""
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class HankelProducts:
    """What the tensor and its dual give.

    misfit : ‖W_Ω − Y‖²;  squares, feasible_squares : ‖S‖² and ‖S'‖²
    embedded, deviation : ‖H(W)‖², and ‖H(W) − Σ_k V^k‖² over all copies
    z_dot_z, overlap : ‖c‖² and ⟨c, Y⟩ on the observations
    curve : the sum of minima for multiples t, where there are bounds
    """

    misfit: float
    embedded: float
    deviation: float
    squares: float
    feasible_squares: float
    z_dot_z: float
    overlap: float
    curve: Curve | None


@dataclass(frozen=True)
class HankelBounds(Bounds):
    """Bounds of a certificate; with bounds on W the best multiple is looked for among some."""

    curve: Curve | None = None

    def _dual(self, eigenvalues: tuple[float, ...]) -> float:
        if self.curve is None:
            return super()._dual(eigenvalues)
        pairs = zip(self.weights, eigenvalues, strict=True)
        quadratic = self.energy + sum(0.5 * weight * largest for weight, largest in pairs)
        return max(minima - t**2 * quadratic for t, minima in self.curve)


@dataclass(frozen=True)
class MeasureHankel(OnTensors):
    """Products of W and its dual; what S' lacks of S is H of a tensor, left under `less`."""

    vector: str
    less: str

    def rounds(self) -> Rounds:
        (tensor,) = yield from self.gathered(self.vector)
        sums, squares = yield Sweep(MeasureHankel._sums, (tensor,))
        seen = self.setting.observed
        left = unsupported(seen, sums)
        yield from self.kept(self.less, left)
        misfit, c = seen.within(tensor - seen.values), sums - seen.copies * left
        z, curve = seen.within(c), None
        if seen.lower is not None:
            half = 0.5 * self.setting.twice_c
            curve = tuple((t, sum_of_minima(seen, half, t * c)) for t in MULTIPLES)
        return HankelProducts(
            misfit=float(np.vdot(misfit, misfit)),
            embedded=float(np.vdot(seen.copies, tensor**2)),
            deviation=self.setting.model.deviation**2 * squares,
            squares=squares,
            feasible_squares=squares + float(np.vdot(left, seen.copies * left - 2.0 * sums)),
            z_dot_z=float(np.vdot(z, z)),
            overlap=float(np.vdot(z, seen.values)),
            curve=curve,
        )

    def _sums(self, block: Block, total: Any, tensor: Tensor) -> tuple[Tensor, float]:
        """H*(S) and ‖S‖²."""
        embedding = self.setting.store.embedding
        sums, squares = (np.zeros(embedding.shape), 0.0) if total is None else total
        for offsets, dual in self.setting.duals(block, (tensor,)):
            overlap_add(embedding, dual, offsets, sums)
            flat = dual.reshape(-1)
            squares += float(vectors.dot(flat, flat))
        return sums, squares


def unsupported(seen: Observed, sums: Tensor) -> Tensor:
    """D⁻¹ H*(S) where nothing lets it differ from zero; elsewhere zero."""
    wrong: NDArray[np.bool_] = ~seen.seen
    if seen.lower is not None and seen.upper is not None:
        wrong &= np.isinf(np.where(sums > 0.0, seen.lower, seen.upper))
    return np.where(wrong, sums / seen.copies, 0.0)


def sum_of_minima(seen: Observed, cost_weight: float, c: Tensor) -> float:
    """Σ_i min_w C 1_Ω (w − y_i)² + c_i w, over w within the bounds."""
    assert seen.lower is not None
    assert seen.upper is not None
    at = np.clip(seen.values - c / (2.0 * cost_weight), seen.lower, seen.upper)
    observed = cost_weight * (at - seen.values) ** 2 + c * at
    with np.errstate(invalid="ignore"):
        other = np.where(c == 0.0, 0.0, c * np.where(c > 0.0, seen.lower, seen.upper))
    return float(np.where(seen.seen, observed, other).sum())
