"""Riemannian conjugate gradients, Hestenes–Stiefel with restarts.

This file changes when the choice of direction does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.accuracy import TIGHTER, Accuracy
from slrt_dask.optim.line_search import LineSearch, Trial
from slrt_dask.optim.manifold import Point, SpectrahedronProduct, combine, scale
from slrt_dask.optim.measured import Linearised, MeasuredProblem
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.problem import AnyProblem, Evaluation


@dataclass(frozen=True)
class ConjugateGradientState(MethodState):
    """The common state, and what conjugacy remembers."""

    euclidean: Point
    """Euclidean gradient at the accepted point, K arrays (n_k, r_k)."""
    direction: Point
    """Where the next step goes, K arrays (n_k, r_k), a descent direction."""
    last_decrease: float
    """How far the last step lowered the cost; 0 where there was none."""


@dataclass(frozen=True)
class _Descent:
    """An accepted trial, and where and under what tolerance it was searched for."""

    start: Linearised
    direction: Point
    trial: Trial | None
    tightening: float


@dataclass(frozen=True)
class ConjugateGradient:
    """The method and its settings."""

    accuracy: Accuracy = field(default_factory=Accuracy)
    line_search: LineSearch = field(default_factory=LineSearch)
    orthogonality: float = 1.0
    """Restart when |⟨grad, last grad⟩| exceeds this fraction of ‖grad‖²."""

    def __post_init__(self) -> None:
        if not self.orthogonality > 0.0:
            raise InvalidConfig(f"orthogonality is {self.orthogonality}; give a number above 0")

    def init(
        self, problem: AnyProblem, point: Point, warm: Evaluation | None = None
    ) -> ConjugateGradientState:
        """The state at a starting point, about to go down the gradient."""
        problem.manifold.validate(point)
        measured = MeasuredProblem(problem, self.accuracy, self.accuracy.noise_scale or 0.0)
        start = measured.begin(point, warm)
        return ConjugateGradientState(
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
            direction=scale(-1.0, start.gradient),
            last_decrease=0.0,
        )

    def step(self, problem: AnyProblem, state: ConjugateGradientState) -> ConjugateGradientState:
        """Search along the direction; accept; turn."""
        measured = MeasuredProblem(problem, self.accuracy, state.noise_scale)
        found = self._descend(measured, state)
        start, trial = found.start, found.trial
        if trial is None:
            renewed = measured.renew(start, tightening=found.tightening)
            return self._next(
                measured,
                state,
                renewed,
                step=0.0,
                direction=scale(-1.0, renewed.gradient),
                tightening=found.tightening,
                last_decrease=0.0,
                exhausted=renewed is start,
            )
        end = trial.end or measured.linearise(trial.evaluation)
        end = measured.settle(end, tightening=found.tightening)
        end = measured.renew(end, tightening=found.tightening)
        length = trial.multiplier * measured.manifold.norm(start.evaluation.point, found.direction)
        return self._next(
            measured,
            state,
            end,
            step=length,
            direction=self._turn(measured.manifold, start, end, found.direction),
            tightening=found.tightening,
            last_decrease=trial.decrease,
            exhausted=False,
        )

    def _descend(self, problem: MeasuredProblem, state: ConjugateGradientState) -> _Descent:
        """Search along the direction, then down the gradient, then so with tighter solves."""
        start = Linearised(state.evaluation, state.euclidean, state.gradient, state.gradient_norm)
        direction, tightening = state.direction, state.tightening
        last_decrease, conjugate = state.last_decrease, True
        while True:
            trial = self._search(problem, start, direction, tightening, last_decrease)
            if trial is not None:
                return _Descent(start, direction, trial, tightening)
            if not conjugate:
                rtol = problem.inner_tolerance(start, tightening=tightening)
                if rtol <= self.accuracy.tightest:
                    return _Descent(start, direction, None, tightening)
                tightening *= TIGHTER
                start = problem.settle(start, tightening=tightening)
            direction = scale(-1.0, start.gradient)
            last_decrease, conjugate = 0.0, False

    def _search(
        self,
        problem: MeasuredProblem,
        start: Linearised,
        direction: Point,
        tightening: float,
        last_decrease: float,
    ) -> Trial | None:
        manifold, point = problem.manifold, start.evaluation.point
        slope = manifold.inner_product(point, start.gradient, direction)
        if not slope < 0.0:
            return None
        first = self.line_search.first_multiplier(
            slope, manifold.norm(point, direction), last_decrease
        )
        rtol = problem.inner_tolerance(start, tightening=tightening)
        return self.line_search.search(problem, start, direction, first=first, rtol=rtol)

    def _turn(
        self, manifold: SpectrahedronProduct, start: Linearised, end: Linearised, direction: Point
    ) -> Point:
        """The next direction: −grad + max(0, β) · the last one carried along, or just −grad."""
        here, there = start.evaluation.point, end.evaluation.point
        downhill = scale(-1.0, end.gradient)
        last_gradient = manifold.transport(here, there, start.gradient)
        overlap = abs(manifold.inner_product(there, end.gradient, last_gradient))
        if overlap > self.orthogonality * end.gradient_norm**2:
            return downhill
        carried = manifold.transport(here, there, direction)
        change = combine(1.0, end.gradient, -1.0, last_gradient)
        curvature = manifold.inner_product(there, carried, change)
        if not curvature > 0.0:
            return downhill
        beta = manifold.inner_product(there, end.gradient, change) / curvature
        turned = combine(1.0, downhill, max(0.0, beta), carried)
        descends = manifold.inner_product(there, end.gradient, turned) < 0.0
        return turned if descends else downhill

    def _next(
        self,
        measured: MeasuredProblem,
        state: ConjugateGradientState,
        at: Linearised,
        *,
        step: float,
        direction: Point,
        tightening: float,
        last_decrease: float,
        exhausted: bool,
    ) -> ConjugateGradientState:
        return replace(
            state,
            iteration=state.iteration + 1,
            evaluation=at.evaluation,
            gradient=at.gradient,
            gradient_norm=at.gradient_norm,
            tightening=tightening,
            noise_scale=measured.noise_scale,
            step=step,
            inner_iterations=measured.inner_iterations,
            inner_converged=measured.inner_converged,
            exhausted=exhausted,
            euclidean=at.euclidean,
            direction=direction,
            last_decrease=last_decrease,
        )
