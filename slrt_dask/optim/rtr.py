"""The Riemannian trust region: a model step, then the verdict of the cost.

This file changes when the order of those two, or what a refusal leads to, does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.accuracy import TIGHTER, Accuracy
from slrt_dask.optim.decrease import measure_decrease
from slrt_dask.optim.manifold import Point
from slrt_dask.optim.measured import Linearised, MeasuredProblem
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.problem import AnyProblem, Evaluation
from slrt_dask.optim.radius import RadiusPolicy, regularised_ratio
from slrt_dask.optim.truncated_cg import ModelStep, forcing, truncated_cg

SMALLEST_RADIUS = 1e-12
"""Below this a move no longer changes factors of norm one."""


@dataclass(frozen=True)
class TrustRegionState(MethodState):
    """The common state, and what the trust region remembers."""

    euclidean: Point
    """Euclidean gradient at the accepted point, K arrays (n_k, r_k)."""
    radius: float
    ratio: float
    """Measured over predicted decrease of the last step, refused or not; 1 at the start."""
    hessian_products: int
    """Hessian products of the last step, each with an inner solve of its own."""


@dataclass(frozen=True)
class TrustRegion:
    """The method and its settings."""

    accuracy: Accuracy = field(default_factory=Accuracy)
    policy: RadiusPolicy = field(default_factory=RadiusPolicy)
    kappa: float = 0.1
    """Relative residual of the model that is always small enough to go on trying for."""
    theta: float = 1.0
    """Exponent of the relative gradient norm in that residual: superlinear when positive."""
    hessian_factor: float = 0.1
    """Inner tolerance of a Hessian product, relative to the model's residual."""
    max_products: int = 100

    def __post_init__(self) -> None:
        if not (0.0 < self.kappa < 1.0 and self.theta >= 0.0 and 0.0 < self.hessian_factor <= 1.0):
            raise InvalidConfig(
                f"kappa is {self.kappa}, theta {self.theta}, hessian_factor {self.hessian_factor}; "
                "give kappa in (0, 1), theta >= 0, hessian_factor in (0, 1]"
            )
        if self.max_products < 1:
            raise InvalidConfig(f"max_products is {self.max_products}; give 1 or more")

    def init(
        self, problem: AnyProblem, point: Point, warm: Evaluation | None = None
    ) -> TrustRegionState:
        """The state at a starting point."""
        problem.manifold.validate(point)
        measured = MeasuredProblem(problem, self.accuracy, self.accuracy.noise_scale or 0.0)
        start = measured.begin(point, warm)
        return TrustRegionState(
            iteration=0,
            evaluation=start.evaluation,
            gradient=start.gradient,
            gradient_norm=start.gradient_norm,
            tightening=1.0,
            noise_scale=measured.noise_scale,
            step=0.0,
            inner_iterations=measured.inner_iterations,
            inner_converged=measured.inner_converged,
            exhausted=False,
            euclidean=start.euclidean,
            radius=self.policy.first(len(point)),
            ratio=1.0,
            hessian_products=0,
        )

    def step(self, problem: AnyProblem, state: TrustRegionState) -> TrustRegionState:
        """Minimise the model, judge the trial, move or stay, and set the next radius."""
        measured = MeasuredProblem(problem, self.accuracy, state.noise_scale)
        manifold, here = measured.manifold, state.evaluation.point
        start = Linearised(state.evaluation, state.euclidean, state.gradient, state.gradient_norm)
        model = self._model(measured, start, state.radius)
        rtol = measured.inner_tolerance(start, tightening=state.tightening)
        trial = measured.evaluate(
            manifold.retraction(here, model.move), rtol=rtol, warm=start.evaluation
        )
        decrease = measure_decrease(measured, start, trial, model.move)
        ratio = regularised_ratio(decrease.amount, model.predicted, start.evaluation.cost)
        radius = self.policy.after(
            state.radius, ratio, on_boundary=model.on_boundary, factors=len(here)
        )
        refused_before = state.ratio <= self.policy.accept_above
        state = replace(state, radius=radius, ratio=ratio)
        if ratio <= self.policy.accept_above:
            if refused_before:  # twice in a row: is it the noise after all?
                start = replace(start, evaluation=measured.sharpen(start.evaluation))
            return self._refuse(measured, state, start, model, rtol)
        end = decrease.end or measured.linearise(trial)
        end = measured.settle(end, tightening=state.tightening)
        return self._next(measured, state, end, step=manifold.norm(here, model.move))

    def _model(self, problem: MeasuredProblem, start: Linearised, radius: float) -> ModelStep:
        """The step the quadratic model asks for, its products as accurate as it needs."""
        size = abs(start.evaluation.cost)
        relative = start.gradient_norm / size if size else 0.0
        rtol = forcing(relative, kappa=self.kappa, theta=self.theta)
        product_rtol = max(self.hessian_factor * rtol, self.accuracy.tightest)
        return truncated_cg(
            problem.manifold,
            start.evaluation.point,
            start.gradient,
            lambda direction: problem.hessian(start, direction, rtol=product_rtol),
            radius=radius,
            rtol=rtol,
            max_products=min(self.max_products, problem.manifold.dim),
        )

    def _refuse(
        self,
        problem: MeasuredProblem,
        state: TrustRegionState,
        start: Linearised,
        model: ModelStep,
        rtol: float,
    ) -> TrustRegionState:
        """Stay. Where noise may have decided, solve more tightly; where it cannot, give up.

        A refusal well above the noise only shrinks the radius, as for an exact cost.
        """
        hidden = model.predicted <= 2.0 * problem.noise(start.evaluation)
        tiny = state.radius < SMALLEST_RADIUS
        if not (hidden or tiny):
            return self._next(problem, state, start, step=0.0)
        if rtol <= self.accuracy.tightest:
            return self._next(problem, replace(state, exhausted=True), start, step=0.0)
        tightening = state.tightening * TIGHTER
        settled = problem.settle(start, tightening=tightening)
        radius = max(state.radius, SMALLEST_RADIUS**0.5)
        state = replace(state, tightening=tightening, radius=radius)
        return self._next(problem, state, settled, step=0.0)

    def _next(
        self, problem: MeasuredProblem, state: TrustRegionState, at: Linearised, *, step: float
    ) -> TrustRegionState:
        return replace(
            state,
            iteration=state.iteration + 1,
            evaluation=at.evaluation,
            gradient=at.gradient,
            gradient_norm=at.gradient_norm,
            noise_scale=problem.noise_scale,
            step=step,
            inner_iterations=problem.inner_iterations,
            inner_converged=problem.inner_converged,
            euclidean=at.euclidean,
            hessian_products=problem.hessian_products,
        )
