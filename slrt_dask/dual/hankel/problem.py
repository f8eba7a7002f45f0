"""The dual problem of Hankel completion.

    g(U) = max_S ⟨H*(S), Y⟩ − ‖H*(S)‖²/(4C) − δ/2 ‖S‖² − Σ_k λ_k/2 ‖U_kᵀ S_{2k}‖²

subject to H*(S) = 0 where nothing was observed. Its primal lets the parts V^k of the embedded
tensor miss the Hankel tensor H(W) at a price of 1/(2δ) a square; δ = 0 is the exact constraint. The
completed tensor is W = D⁻¹ H*(Ŵ + δS), Ŵ = Σ_k λ_k S ×_{2k} U_kU_kᵀ.
"""

from __future__ import annotations

import math
from typing import Any

from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.certificate import Bounds, Certificate, captured, nuclear_norm
from slrt_dask.dual.hankel.answers import HankelValidationError, WithTensor, WriteTensor
from slrt_dask.dual.hankel.inner import HankelSolve, Setting
from slrt_dask.dual.hankel.observed import Tensor
from slrt_dask.dual.hankel.sums import (
    HankelDerivativeRowSums,
    HankelProducts,
    HankelRightHandSide,
    HankelRowSums,
    MeasureHankel,
)
from slrt_dask.dual.inner import InnerOutcome
from slrt_dask.dual.lanczos import TopEigenvalues
from slrt_dask.dual.problem import (
    Correction,
    Evaluation,
    InnerSummary,
    check_settings,
    checked_norm,
)
from slrt_dask.dual.sums import NormOfObservations
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.engine.embedded import EmbeddedStore
from slrt_dask.errors import InvalidInput
from slrt_dask.optim.manifold import Point, SpectrahedronProduct

STAGE_LOOSENESS = 1e4
CLOSE = 1e-3
"""A relative deviation from Hankel that needs no further stages."""


class HankelProblem:
    """g on the product of spectrahedra, for an engine that holds the embedding's chunks.

    deviation : δ, at the last of the stages
    stages : larger values of it that lead there, the first one first; the last may not be reached
        when the parts come close enough to a Hankel tensor before
    offset : what was subtracted from the observations
    """

    def __init__(
        self,
        engine: Engine,
        ranks: tuple[int, ...],
        *,
        cost_weight: float,
        weights: tuple[float, ...],
        deviation: float,
        stages: tuple[float, ...] = (),
        offset: float = 0.0,
        certificate_rtol: float = 1e-5,
        max_inner_iterations: int = 1000,
    ) -> None:
        assert isinstance(engine.store, EmbeddedStore)
        self._store = engine.store
        window = self._store.embedding.window
        check_settings(window, ranks, cost_weight, weights)
        if not (math.isfinite(deviation) and deviation >= 0.0):
            raise InvalidInput(f"the deviation is {deviation}; give a number, at least 0")
        self.engine = engine
        self.cost_weight = cost_weight
        self.weights = weights
        self._stages = (*stages, deviation)
        self.deviation = self._stages[0]
        self._close = self._final = False
        self.sweeps = 0
        self._offset = offset
        self._max_inner_iterations = max_inner_iterations
        self._manifold = SpectrahedronProduct(tuple(zip(window, ranks, strict=True)))
        self._certificate_rtol = certificate_rtol
        self._eigenvalues = TopEigenvalues()
        self._norm = checked_norm(float(engine.run(NormOfObservations())))

    @property
    def manifold(self) -> SpectrahedronProduct:
        return self._manifold

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        """Solve the inner problem at a point to ‖r‖ ≤ rtol ‖H(Y)‖, from the dual of `warm`."""
        outcome, dual = self._solve(
            self._setting(point), None if warm is None else warm.dual, rtol * self._norm
        )
        cost = 0.5 * (outcome.b_dot_x + outcome.r_dot_x)
        residual = math.sqrt(outcome.r_dot_r) / self._norm if self._norm > 0.0 else 0.0
        inner = InnerSummary(outcome.iterations, residual, outcome.converged)
        return Evaluation(point, cost, inner, dual)

    def renew(self, evaluation: Evaluation, *, rtol: float) -> Evaluation | None:
        return None

    @property
    def looseness(self) -> float:
        """Stages before the last one are solved less exactly; which that is, shows as they end."""
        last = self._final or self.deviation == self._stages[-1]
        return 1.0 if last else STAGE_LOOSENESS

    def next_stage(self) -> bool:
        if self.looseness == 1.0:
            return False
        self._final = self._close
        if not self._final:
            self.deviation = max(value for value in self._stages if value < self.deviation)
        return True

    @property
    def notice(self) -> str:
        return ""

    @property
    def kept_vectors(self) -> tuple[VectorHandle, ...]:
        return ()

    def progress(self) -> dict[str, Any]:
        return {"deviation": self.deviation, "final": float(self._final)}

    def go_on(self, progress: dict[str, Any], kept: tuple[VectorHandle, ...]) -> None:
        self.deviation, self._final = progress["deviation"], bool(progress["final"])

    def correction(self, evaluation: Evaluation) -> Correction | None:
        return None

    def gradient(self, evaluation: Evaluation) -> Point:
        """∇_k g = −λ_k S_{2k} (S_{2k}ᵀ U_k)."""
        return self._weighted(self.row_sums(evaluation.dual, evaluation.point))

    def hessian(self, evaluation: Evaluation, direction: Point, *, rtol: float) -> Point:
        """The derivative of the gradient along a direction; one more solve of the same system."""
        setting, target = self._setting(evaluation.point), self.engine.new_vector()
        norm = float(
            self.engine.run(
                HankelRightHandSide(evaluation.dual.name, target.name, setting, direction)
            )
        )
        _, dual_dot = self._solve(setting, None, rtol * norm, target)
        self.sweeps += 4
        totals = self.engine.run(
            HankelDerivativeRowSums(
                evaluation.dual.name, dual_dot.name, evaluation.point, direction,
                self._store.embedding,
            )
        )  # fmt: skip
        return self._weighted(totals)

    def row_sums(self, dual: VectorHandle | None, matrices: Point) -> Point:
        """S_{2k} (S_{2k}ᵀ F_k) for K matrices F_k; H(Y) takes the place of S if None."""
        self.sweeps += 1
        name = None if dual is None else dual.name
        totals: Point = self.engine.run(HankelRowSums(name, matrices, self._store.embedding))
        return totals

    # ---- certificate and answer --------------------------------------------------------------

    def tensor(self, evaluation: Evaluation) -> Tensor:
        """W at a point, less the offset; for tensors that the caller wants here."""
        tensor: Tensor = self.engine.run(
            WithTensor(evaluation.dual.name, self._setting(evaluation.point))
        )
        return tensor

    def validation_error(self, evaluation: Evaluation, validation: ObservationStore) -> float:
        """Root mean square error on held-out observations."""
        setting = self._setting(evaluation.point)
        program = HankelValidationError(evaluation.dual.name, setting, validation)
        return float(self.engine.run(program))

    def write_tensor(self, evaluation: Evaluation, group: str) -> None:
        """Write W as an array of a group."""
        self.engine.run(WriteTensor(evaluation.dual.name, self._setting(evaluation.point), group))

    def certify(self, evaluation: Evaluation) -> Certificate:
        """Bounds on the distance to the optimum; nothing has to be repaired where δ > 0."""
        products = self._measured(evaluation)
        row_sums = self.row_sums(evaluation.dual, evaluation.point)
        bounds = Bounds(
            self._primal(evaluation.point, row_sums, products),
            products.z_dot_z / (4 * self.cost_weight) + 0.5 * self.deviation * products.squares,
            products.overlap,
            captured(evaluation.point, row_sums),
            self.weights,
        )
        lower, upper = self._eigenvalues.bounds(
            lambda vectors: self.row_sums(evaluation.dual, vectors),
            evaluation.point,
            row_sums,
            lambda lower, upper: bounds.are_settled(lower, upper, self._certificate_rtol),
        )
        missed = math.sqrt(products.deviation / products.embedded) if products.embedded else 0.0
        self._close = missed <= CLOSE
        return bounds.certificate(lower, upper, missed)

    def _primal(self, point: Point, row_sums: Point, products: HankelProducts) -> float:
        """P at W and the parts V^k; with δ = 0 what they lack of H(W) is added to one of them."""
        window, norms = self._store.embedding.window, []
        for factor, totals, weight in zip(point, row_sums, self.weights, strict=True):
            norms.append(weight * nuclear_norm(factor, totals))
        plain = sum(n**2 / (2 * weight) for n, weight in zip(norms, self.weights, strict=True))
        misfit = self.cost_weight * products.misfit
        if self.deviation > 0.0:
            return misfit + plain + products.deviation / (2 * self.deviation)
        left = math.sqrt(products.deviation)
        return (
            misfit
            + plain
            + min(
                ((norm + math.sqrt(length) * left) ** 2 - norm**2) / (2 * weight)
                for norm, length, weight in zip(norms, window, self.weights, strict=True)
            )
        )

    def _measured(self, evaluation: Evaluation) -> HankelProducts:
        self.sweeps += 1
        products: HankelProducts = self.engine.run(
            MeasureHankel(evaluation.dual.name, self._setting(evaluation.point))
        )
        return products

    def _setting(self, point: Point) -> Setting:
        twice_c = 2.0 * self.cost_weight
        return Setting(self._store, point, self.weights, twice_c, self.deviation, self._offset)

    def _solve(
        self,
        setting: Setting,
        start: VectorHandle | None,
        tolerance: float,
        right_hand_side: VectorHandle | None = None,
    ) -> tuple[InnerOutcome, VectorHandle]:
        solution = self.engine.new_vector()
        outcome: InnerOutcome = self.engine.run(
            HankelSolve(
                setting,
                solution.name,
                None if start is None else start.name,
                None if right_hand_side is None else right_hand_side.name,
                tolerance,
                self._max_inner_iterations,
            )
        )
        self.sweeps += outcome.sweeps
        return outcome, solution

    def _weighted(self, totals: Point) -> Point:
        return tuple(-weight * t for weight, t in zip(self.weights, totals, strict=True))
