"""Armijo backtracking along a retraction, and the step of the methods that use it.

A trial costs one warm inner solve and, unless costs are too close to compare, no gradient. The
methods differ in the direction of the next step, in what they remember for it, and in the length
that is tried first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from slrt_dask.optim.manifold import Point, SpectrahedronProduct, scale
from slrt_dask.optim.problem import (
    TIGHTER,
    Accuracy,
    AnyProblem,
    Evaluation,
    Linearised,
    MeasuredProblem,
)
from slrt_dask.optim.records import MethodState

SUFFICIENT_DECREASE = 1e-4
"""A trial is accepted when the cost falls by this part of what the slope promised."""
LEAST_CONTRACTION, MOST_CONTRACTION = 0.1, 0.5
"""A rejected step is interpolated, but kept between these parts of itself."""
OPTIMISM = 1.6
"""Factor on the step that would repeat the last decrease."""
FIRST_FALL = 0.4
"""Part of the cost by which the slope promises that the very first trial lowers it: the cost is
never negative, so where more is promised the slope does not last."""
LONGEST = 0.5
"""Length of any trial: factors have norm one."""
SHORTEST = 1e-13
"""A move shorter than this changes nothing: the search has failed."""
MAX_TRIALS = 15
DOUBTFUL_TRIALS = 3
"""After so many refusals the cost at the start is solved again, more tightly."""


@dataclass(frozen=True)
class Trial:
    """An accepted point of a line search."""

    evaluation: Evaluation
    end: Linearised | None
    """Its gradients, where the search had to compute them."""
    direction: Point
    move: Point
    """The multiple of the direction that led here."""
    decrease: float


def search(
    problem: MeasuredProblem,
    start: Linearised,
    direction: Point,
    tightening: float,
    *,
    last_decrease: float = 0.0,
    natural: bool = False,
) -> Trial | None:
    """The first acceptable trial along a direction, or None when there is none.

    last_decrease : of the cost in the step before; 0 where it does not matter
    natural : whether the direction has the length to try first, as one from pairs has
    """
    manifold, here = problem.manifold, start.evaluation.point
    slope = manifold.inner_product(here, start.gradient, direction)
    if not slope < 0.0:
        return None
    length, cost = manifold.norm(here, direction), start.evaluation.cost
    multiplier = LONGEST / length
    if natural:
        multiplier = min(1.0, multiplier)
    elif last_decrease > 0.0:  # the minimiser of the parabola with this slope and decrease
        multiplier = min(OPTIMISM * 2.0 * last_decrease / -slope, multiplier)
    elif cost:
        multiplier = min(FIRST_FALL * abs(cost) / -slope, multiplier)
    rtol = problem.inner_tolerance(start, tightening)
    for refusals in range(MAX_TRIALS):
        if multiplier < SHORTEST / length:
            return None
        if refusals == DOUBTFUL_TRIALS:
            start = replace(start, evaluation=problem.sharpen(start.evaluation))
            rtol = min(rtol, max(start.evaluation.inner.residual, problem.accuracy.tightest))
        move = scale(multiplier, direction)
        point = manifold.retraction(here, move)
        evaluation = problem.evaluate(point, rtol=rtol, warm=start.evaluation)
        decrease, end = problem.decrease(start, evaluation, move)
        if decrease >= -SUFFICIENT_DECREASE * multiplier * slope:
            return Trial(evaluation, end, direction, move, decrease)
        # the least of a parabola through both ends
        promised = -slope * multiplier
        fraction = 0.5 * promised / (promised - decrease)
        multiplier *= min(max(fraction, LEAST_CONTRACTION), MOST_CONTRACTION)
    return None


@dataclass(frozen=True, kw_only=True)
class DescentState(MethodState):
    """The common state, where to go next, and pairs that hold the curvature of the cost."""

    direction: Point
    """Of the next step, K arrays (n_k, r_k), a descent direction."""
    last_decrease: float = 0.0
    """How far the last step lowered the cost; 0 where there was none."""
    moves: Point = ()
    """K arrays (m, n_k, r_k): the last m steps, the oldest first, as tangent vectors here."""
    changes: Point = ()
    """K arrays (m, n_k, r_k): how the gradient changed over each of them."""


@dataclass(frozen=True)
class LineDescent(ABC):
    """A method that searches along lines: descend, accept, turn."""

    accuracy: Accuracy = field(default_factory=Accuracy)

    @abstractmethod
    def _turn(
        self,
        manifold: SpectrahedronProduct,
        before: DescentState,
        trial: Trial,
        end: Linearised,
        at: Linearised,
    ) -> DescentState:
        """`before` with the direction of the next step, and what is to be remembered for it.

        before : where the search began, and what was remembered there
        end, at : where the trial led, and the same under a cost that may have been renewed there
        """

    def init(
        self, problem: AnyProblem, point: Point, warm: Evaluation | None = None
    ) -> DescentState:
        """The state at a starting point, about to go down the gradient."""
        measured = MeasuredProblem(problem, self.accuracy)
        start = measured.begin(point, warm)
        return DescentState(**measured.facts(start), direction=scale(-1.0, start.gradient))

    def step(self, problem: AnyProblem, state: DescentState) -> DescentState:
        """Search along the direction, then down the gradient, then so with tighter solves."""
        measured = MeasuredProblem(problem, self.accuracy, state.noise_scale)
        start, tightening = state, state.tightening
        found = search(
            measured,
            start,
            state.direction,
            tightening,
            last_decrease=state.last_decrease,
            natural=bool(state.moves and len(state.moves[0])),
        )
        while found is None:
            found = search(measured, start, scale(-1.0, start.gradient), tightening)
            if found is None:
                if measured.inner_tolerance(start, tightening) <= self.accuracy.tightest:
                    break
                tightening *= TIGHTER
                start = replace(state, **measured.facts(measured.settle(start, tightening)))
        if found is None:
            at = measured.renew(start, tightening)
            turned = replace(start, direction=scale(-1.0, at.gradient), moves=(), changes=())
        else:
            end = measured.settle(found.end or measured.linearise(found.evaluation), tightening)
            at = measured.renew(end, tightening)
            turned = self._turn(measured.manifold, start, found, end, at)
        return replace(
            turned,
            **measured.facts(at),
            iteration=state.iteration + 1,
            tightening=tightening,
            step=measured.manifold.norm(start.evaluation.point, found.move) if found else 0.0,
            exhausted=found is None and at is start,
            last_decrease=found.decrease if found else 0.0,
        )
