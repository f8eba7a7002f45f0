"""Armijo backtracking along a retraction, with quadratic interpolation between trials.

A trial costs one warm inner solve and, unless costs are too close to tell, no gradient. This file
changes when the way a step length is found does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.decrease import measure_decrease
from slrt_dask.optim.manifold import Point, scale
from slrt_dask.optim.measured import Linearised, MeasuredProblem
from slrt_dask.optim.problem import Evaluation


@dataclass(frozen=True)
class Trial:
    """An accepted point of a line search."""

    evaluation: Evaluation
    end: Linearised | None
    """Its gradients, where the search had to look at them."""
    multiplier: float
    """The move was multiplier · direction."""
    decrease: float


@dataclass(frozen=True)
class LineSearch:
    """The constants of the search."""

    sufficient_decrease: float = 1e-4
    """Accept when the cost falls by this fraction of what the slope promised."""
    least_contraction: float = 0.1
    most_contraction: float = 0.5
    """A rejected step is interpolated, but kept between these fractions of itself."""
    optimism: float = 1.6
    """Factor on the step that would repeat the last decrease."""
    first_fall: float = 0.4
    """Part of the cost by which the slope promises that the very first trial lowers it: the cost is
    never negative, so where more is promised the slope does not last."""
    longest_length: float = 0.5
    """Of any trial: factors have norm one."""
    shortest_length: float = 1e-13
    """A move shorter than this changes nothing: the search has failed."""
    max_trials: int = 15
    doubtful_trials: int = 3
    """After so many refusals the cost at the start is solved again, more tightly."""

    def __post_init__(self) -> None:
        if not 0.0 < self.sufficient_decrease < 0.5:
            raise InvalidConfig(
                f"sufficient_decrease is {self.sufficient_decrease}; give a number in (0, 0.5)"
            )
        if not 0.0 < self.least_contraction <= self.most_contraction < 1.0:
            raise InvalidConfig(
                f"contractions are {self.least_contraction} and {self.most_contraction}; "
                "give 0 < least_contraction <= most_contraction < 1"
            )
        for name in ("optimism", "first_fall", "longest_length", "shortest_length", "max_trials"):
            value = getattr(self, name)
            if not value > 0:
                raise InvalidConfig(f"{name} is {value}; give a number above 0")

    def first_multiplier(
        self, slope: float, length: float, last_decrease: float, cost: float
    ) -> float:
        """The multiplier to try first on a direction of this length and (negative) slope.

        Were the cost quadratic and the decrease that of the last step, 2·decrease/|slope| would be
        the minimiser. last_decrease is 0 where there was no last step.
        """
        longest = self.longest_length / length
        if last_decrease <= 0.0:
            return min(self.first_fall * abs(cost) / -slope, longest) if cost else longest
        return min(self.optimism * 2.0 * last_decrease / -slope, longest)

    def search(
        self,
        problem: MeasuredProblem,
        start: Linearised,
        direction: Point,
        *,
        first: float,
        rtol: float,
    ) -> Trial | None:
        """The first acceptable trial along a descent direction, or None when there is none."""
        manifold, here = problem.manifold, start.evaluation.point
        slope = manifold.inner_product(here, start.gradient, direction)
        shortest = self.shortest_length / manifold.norm(here, direction)
        multiplier = first
        for refusals in range(self.max_trials):
            if multiplier < shortest:
                return None
            if refusals == self.doubtful_trials:
                start = replace(start, evaluation=problem.sharpen(start.evaluation))
                rtol = min(rtol, max(start.evaluation.inner.residual, problem.accuracy.tightest))
            move = scale(multiplier, direction)
            point = manifold.retraction(here, move)
            evaluation = problem.evaluate(point, rtol=rtol, warm=start.evaluation)
            measured = measure_decrease(problem, start, evaluation, move)
            if measured.amount >= -self.sufficient_decrease * multiplier * slope:
                return Trial(evaluation, measured.end, multiplier, measured.amount)
            multiplier *= self._contraction(measured.amount, -slope * multiplier)
        return None

    def _contraction(self, decrease: float, promised: float) -> float:
        """The fraction of a rejected step where a parabola through both ends has its least."""
        fraction = 0.5 * promised / (promised - decrease)
        return min(max(fraction, self.least_contraction), self.most_contraction)
