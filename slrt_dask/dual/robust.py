"""The dual problem with Huber's loss, which a few absurd observations cannot spoil.

    g(U) = max_Z ⟨Z, Y⟩ − ‖Z‖²/(4C) − Σ_k λ_k/2 ‖U_kᵀ Z_k‖²,     Z on the observations, |Z| ≤ 2Cδ

Its primal has C Σ h(W − Y) in the place of the squared misfit: h(t) = t² where |t| ≤ δ, and
2δ|t| − δ² beyond. The bound is all that differs. Z is still the only maximiser and moves
continuously with U, so the gradient is the same function of it; which entries are at their bounds
changes from one U to the next, so there is no Hessian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slrt_dask.data.holding_out import Kind, SquaredErrors
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.certificate import Bounds, Certificate, captured, nuclear_norm
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.problem import (
    MOST_INNER_ITERATIONS,
    DualProblem,
    Evaluation,
    InnerSummary,
    checked_norm,
)
from slrt_dask.dual.robust_measures import Limited, MeasureRobust, RobustProducts, RobustSize
from slrt_dask.dual.robust_steps import RobustOutcome, RobustSolve
from slrt_dask.dual.sampling import ValidationErrors
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.errors import InvalidInput
from slrt_dask.optim.manifold import Point


@dataclass(frozen=True)
class RobustBounds(Bounds):
    """Bounds of a certificate; a multiple of Z that leaves its own bounds proves nothing."""

    largest_multiple: float = math.inf

    def _dual(self, eigenvalues: tuple[float, ...]) -> float:
        pairs = zip(self.weights, eigenvalues, strict=True)
        quadratic = self.energy + sum(0.5 * weight * largest for weight, largest in pairs)
        if quadratic <= 0.0 or self.overlap <= 0.0:
            return 0.0
        multiple = min(self.overlap / (2 * quadratic), self.largest_multiple)
        return multiple * (self.overlap - multiple * quadratic)


class RobustProblem(DualProblem):
    """g with Huber's loss, for the observations that an engine holds.

    delta : δ, in the units of the data
    """

    def __init__(
        self,
        engine: Engine,
        ranks: tuple[int, ...],
        *,
        cost_weight: float,
        weights: tuple[float, ...],
        delta: float,
        certificate_rtol: float = 1e-5,
        max_inner_iterations: int = MOST_INNER_ITERATIONS,
    ) -> None:
        super().__init__(
            engine,
            ranks,
            cost_weight=cost_weight,
            weights=weights,
            certificate_rtol=certificate_rtol,
            max_inner_iterations=max_inner_iterations,
        )
        if not (math.isfinite(delta) and delta > 0.0):
            raise InvalidInput(f"delta must be a positive number, not {delta}")
        self.delta = delta
        # Residuals are relative to this: with ‖y‖ a few absurd values would loosen all solves.
        (size,) = engine.run(RobustSize(delta))
        self._norm = checked_norm(math.sqrt(size))

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        solution = self.engine.new_vector()
        outcome: RobustOutcome = self.engine.run(
            RobustSolve(
                Factors.of(point),
                self.weights,
                self._slab_mode,
                2.0 * self.cost_weight,
                self.delta,
                solution.name,
                None if warm is None else warm.dual.name,
                rtol * self._norm,
                self._max_inner_iterations,
            )
        )
        self.sweeps += outcome.sweeps
        residual = math.sqrt(outcome.r_dot_r) / self._norm if self._norm > 0.0 else 0.0
        inner = InnerSummary(
            outcome.iterations,
            residual,
            outcome.converged,
            noise_scale=outcome.missed * self._norm**2,
        )
        return Evaluation(point, outcome.cost, inner, solution)

    def hessian(self, evaluation: Evaluation, direction: Point, *, rtol: float) -> Point:
        raise InvalidInput("Huber's loss has no Hessian; use method='lbfgs' or 'rcg'")

    def _observed(self) -> VectorHandle:
        """The observed values, but none larger than δ."""
        limited = self.engine.new_vector()
        self.engine.run(Limited(self.delta, limited.name))
        return limited

    def certify(self, evaluation: Evaluation, *, rough: bool = False) -> Certificate:
        self.sweeps += 1
        products: RobustProducts = self.engine.run(
            MeasureRobust(
                evaluation.dual.name, Factors.of(evaluation.point), self.weights, self.delta
            )
        )
        row_sums = self.row_sums(evaluation.dual, evaluation.point)
        bounds = self._bounds(evaluation.point, row_sums, products)
        lower, upper = self._eigenvalues.bounds(
            lambda vectors: self.row_sums(evaluation.dual, vectors),
            evaluation.point,
            row_sums,
            lambda low, high: bounds.are_settled(low, high, self._certificate_rtol, rough),
        )
        return bounds.certificate(lower, upper)

    def _bounds(self, point: Point, row_sums: Point, products: RobustProducts) -> Bounds:
        """What a certificate is made of, but for the largest eigenvalues."""
        primal = self.cost_weight * products.loss
        for factor, totals, weight in zip(point, row_sums, self.weights, strict=True):
            primal += 0.5 * weight * nuclear_norm(factor, totals) ** 2
        most = 2.0 * self.cost_weight * self.delta
        return RobustBounds(
            primal,
            products.z_dot_z / (4 * self.cost_weight),
            products.overlap,
            captured(point, row_sums),
            self.weights,
            largest_multiple=most / products.largest if products.largest > 0.0 else math.inf,
        )

    def validation_errors(
        self, evaluation: Evaluation, validation: ObservationStore, kind: Kind
    ) -> SquaredErrors:
        """Huber's loss of held-out observations: absurd ones among them must not decide either."""
        factors = Factors.of(evaluation.point)
        program = ValidationErrors(evaluation.dual.name, factors, self.weights, kind, self.delta)
        errors: SquaredErrors = self.engine.run(program)
        return errors
