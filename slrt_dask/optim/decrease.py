"""By how much a move lowered the cost, told so that inner noise cannot fool the one who asks.

This file changes when the comparison of two costs does.
"""

from __future__ import annotations

from dataclasses import dataclass

from slrt_dask.optim.manifold import Point
from slrt_dask.optim.measured import Linearised, MeasuredProblem
from slrt_dask.optim.problem import Evaluation


@dataclass(frozen=True)
class Decrease:
    """How far the cost fell, and the gradient at the trial if that was needed to tell."""

    amount: float
    end: Linearised | None


def measure_decrease(
    problem: MeasuredProblem,
    start: Linearised,
    trial: Evaluation,
    move: Point,
) -> Decrease:
    """The cost at start less the cost at trial, where trial is start moved by a tangent vector.

    Costs are compared when they differ by more than their noise. Otherwise the mean slope along the
    move is integrated: gradients see a change to first order where costs see it to second.
    """
    difference = start.evaluation.cost - trial.cost
    if abs(difference) > problem.noise(start.evaluation) + problem.noise(trial):
        return Decrease(difference, None)
    end = problem.linearise(trial)
    manifold, here, there = problem.manifold, start.evaluation.point, trial.point
    carried = manifold.transport(here, there, move)
    slopes = manifold.inner_product(here, start.gradient, move)
    slopes += manifold.inner_product(there, end.gradient, carried)
    return Decrease(-0.5 * slopes, end)
