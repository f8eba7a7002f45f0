"""Taylor tests of a problem's gradient and Hessian, for whoever writes a new problem.

Along a retraction the cost differs from its first-order model by O(t²) and from its second-order
model by O(t³). The slope of the error on doubly logarithmic axes is therefore about 2, or 3, if
the derivatives are right; one less means they are wrong.
"""

from __future__ import annotations

import sys

import numpy as np

from slrt_dask.errors import InvalidInput
from slrt_dask.optim.manifold import Point, scale
from slrt_dask.optim.problem import Accuracy, AnyProblem, MeasuredProblem

LENGTHS = np.geomspace(1e-1, 1e-4, 25)
"""Of the moves along the direction."""


def check_gradient(
    problem: AnyProblem, point: Point, direction: Point, *, rtol: float = 1e-12
) -> float:
    """Slope of the error of the first-order model: about 2 for a right gradient.

    direction : horizontal vector at point, K arrays (n_k, r_k), of any length but zero
    rtol : inner tolerance of every evaluation; too loose a one hides the slope
    """
    return _slope(problem, point, direction, rtol, second_order=False)


def check_hessian(
    problem: AnyProblem, point: Point, direction: Point, *, rtol: float = 1e-12
) -> float:
    """Slope of the error of the second-order model: about 3 for a right gradient and Hessian.

    The arguments are those of check_gradient.
    """
    return _slope(problem, point, direction, rtol, second_order=True)


def _slope(
    problem: AnyProblem, point: Point, direction: Point, rtol: float, *, second_order: bool
) -> float:
    """Median slope where errors rise above rounding; infinite if none does: the model is exact."""
    problem.manifold.validate(point)
    measured = MeasuredProblem(problem, Accuracy())
    manifold = measured.manifold
    length = manifold.norm(point, direction)
    if not length > 0.0:
        raise InvalidInput(f"the direction has length {length}; give one that is not zero")
    unit = scale(1.0 / length, direction)
    start = measured.linearise(measured.evaluate(point, rtol=rtol, warm=None))
    cost, slope = start.evaluation.cost, manifold.inner_product(point, start.gradient, unit)
    curvature = 0.0
    if second_order:
        curvature = manifold.inner_product(point, measured.hessian(start, unit, rtol=rtol), unit)
    costs = [
        measured.evaluate(
            manifold.retraction(point, scale(t, unit)), rtol=rtol, warm=start.evaluation
        ).cost
        for t in LENGTHS.tolist()
    ]
    errors = np.abs(np.array(costs) - (cost + LENGTHS * slope + 0.5 * LENGTHS**2 * curvature))
    visible = errors > 1e4 * sys.float_info.epsilon * abs(cost)
    if np.count_nonzero(visible) < 3:
        return float("inf")
    slopes = np.diff(np.log(errors[visible])) / np.diff(np.log(LENGTHS[visible]))
    return float(np.median(slopes[-max(3, len(slopes) // 2) :]))
