"""What methods that search along a line have in common: descend, accept, turn.

Such methods differ in the direction that they turn to, in what they remember for that, and in the
length of step that they try first. This file changes when the order of a step does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from slrt_dask.optim.accuracy import TIGHTER, Accuracy
from slrt_dask.optim.line_search import LineSearch, Trial
from slrt_dask.optim.manifold import Point, SpectrahedronProduct, scale
from slrt_dask.optim.measured import Linearised, MeasuredProblem
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.problem import AnyProblem, Evaluation


@dataclass(frozen=True)
class DescentState(MethodState):
    """The common state, and where to go next."""

    euclidean: Point
    """Euclidean gradient at the accepted point, K arrays (n_k, r_k)."""
    direction: Point
    """Where the next step goes, K arrays (n_k, r_k), a descent direction."""
    last_decrease: float
    """How far the last step lowered the cost; 0 where there was none."""


DescentType = TypeVar("DescentType", bound=DescentState)


@dataclass(frozen=True)
class Step:
    """A step that was accepted.

    move : the tangent vector at `start` that led to `end`
    at : where the next one begins: `end`, perhaps under a cost that has changed with what was
        learnt there
    """

    start: Linearised
    direction: Point
    move: Point
    end: Linearised
    at: Linearised


@dataclass(frozen=True)
class _Descent:
    """An accepted trial, and where and under what tolerance it was searched for."""

    start: Linearised
    direction: Point
    trial: Trial | None
    tightening: float


@dataclass(frozen=True)
class LineDescent(ABC, Generic[DescentType]):
    """The settings that such methods share, and the step itself."""

    accuracy: Accuracy = field(default_factory=Accuracy)
    line_search: LineSearch = field(default_factory=LineSearch)

    @abstractmethod
    def _first(self, state: DescentState) -> DescentType:
        """The state as this method keeps it, with nothing to remember yet."""

    @abstractmethod
    def _turn(self, manifold: SpectrahedronProduct, state: DescentType, step: Step) -> DescentType:
        """The state with the direction of the next step, and what is to be remembered."""

    @abstractmethod
    def _forget(self, state: DescentType) -> DescentType:
        """The state with nothing to remember, after a search that found no step."""

    def _multiplier(self, state: DescentType, slope: float, length: float) -> float:
        """The multiple of the state's direction to try first, of this length and slope."""
        cost = state.evaluation.cost
        return self.line_search.first_multiplier(slope, length, state.last_decrease, cost)

    def init(
        self, problem: AnyProblem, point: Point, warm: Evaluation | None = None
    ) -> DescentType:
        """The state at a starting point, about to go down the gradient."""
        problem.manifold.validate(point)
        measured = MeasuredProblem(problem, self.accuracy, self.accuracy.noise_scale or 0.0)
        start = measured.begin(point, warm)
        return self._first(
            DescentState(
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
        )

    def step(self, problem: AnyProblem, state: DescentType) -> DescentType:
        """Search along the direction; accept; turn."""
        measured = MeasuredProblem(problem, self.accuracy, state.noise_scale)
        found = self._descend(measured, state)
        start, trial, tightening = found.start, found.trial, found.tightening
        if trial is None:
            at = measured.renew(start, tightening=tightening)
            downhill = replace(self._forget(state), direction=scale(-1.0, at.gradient))
            return self._next(measured, downhill, at, tightening, exhausted=at is start)
        end = trial.end or measured.linearise(trial.evaluation)
        end = measured.settle(end, tightening=tightening)
        at = measured.renew(end, tightening=tightening)
        move = scale(trial.multiplier, found.direction)
        step = Step(start, found.direction, move, end, at)
        return self._next(
            measured,
            self._turn(measured.manifold, state, step),
            at,
            tightening,
            step=measured.manifold.norm(start.evaluation.point, move),
            decrease=trial.decrease,
        )

    def _descend(self, problem: MeasuredProblem, state: DescentType) -> _Descent:
        """Search along the direction, then down the gradient, then so with tighter solves."""
        start = Linearised(state.evaluation, state.euclidean, state.gradient, state.gradient_norm)
        direction, tightening, known = state.direction, state.tightening, True
        while True:
            trial = self._search(problem, start, direction, tightening, state if known else None)
            if trial is not None:
                return _Descent(start, direction, trial, tightening)
            if not known:
                rtol = problem.inner_tolerance(start, tightening=tightening)
                if rtol <= self.accuracy.tightest:
                    return _Descent(start, direction, None, tightening)
                tightening *= TIGHTER
                start = problem.settle(start, tightening=tightening)
            direction, known = scale(-1.0, start.gradient), False

    def _search(
        self,
        problem: MeasuredProblem,
        start: Linearised,
        direction: Point,
        tightening: float,
        state: DescentType | None,
    ) -> Trial | None:
        """A step along a direction, whose length the state tells something of, unless None."""
        manifold, point = problem.manifold, start.evaluation.point
        slope = manifold.inner_product(point, start.gradient, direction)
        if not slope < 0.0:
            return None
        length = manifold.norm(point, direction)
        if state is None:
            cost = start.evaluation.cost
            first = self.line_search.first_multiplier(slope, length, 0.0, cost)
        else:
            first = self._multiplier(state, slope, length)
        rtol = problem.inner_tolerance(start, tightening=tightening)
        return self.line_search.search(problem, start, direction, first=first, rtol=rtol)

    def _next(
        self,
        measured: MeasuredProblem,
        state: DescentType,
        at: Linearised,
        tightening: float,
        *,
        step: float = 0.0,
        decrease: float = 0.0,
        exhausted: bool = False,
    ) -> DescentType:
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
            last_decrease=decrease,
        )


def descends(
    manifold: SpectrahedronProduct, at: Linearised, direction: Point, steepness: float = 0.0
) -> bool:
    """Whether the cost falls along a direction, by this part of the most that it could, or more."""
    point = at.evaluation.point
    slope = manifold.inner_product(point, at.gradient, direction)
    return slope < -steepness * at.gradient_norm * manifold.norm(point, direction)
