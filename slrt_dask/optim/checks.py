"""Taylor tests of a problem's gradient and Hessian, for whoever writes a new problem.

Along a retraction the cost differs from its first-order model by O(t²) and from its second-order
model by O(t³). The slope of the error on doubly logarithmic axes is therefore about 2, or 3, if
the derivatives are right; one less means they are wrong. This file changes when the tests do.
"""

from __future__ import annotations

import sys

import numpy as np

from slrt_dask.errors import InvalidInput
from slrt_dask.optim.accuracy import Accuracy
from slrt_dask.optim.manifold import Point, scale
from slrt_dask.optim.measured import MeasuredProblem
from slrt_dask.optim.problem import AnyProblem

LONGEST = 10.0**-1.0
SHORTEST = 10.0**-4.0
LENGTHS = 25


def check_gradient(
    problem: AnyProblem, point: Point, direction: Point, *, rtol: float = 1e-12
) -> float:
    """Slope of the error of the first-order model: about 2 for a right gradient.

    direction : horizontal vector at point, K arrays (n_k, r_k), of any length but zero.
    rtol : inner tolerance of every evaluation; too loose a one hides the slope.
    """
    return _slope(problem, point, direction, rtol=rtol, second_order=False)


def check_hessian(
    problem: AnyProblem, point: Point, direction: Point, *, rtol: float = 1e-12
) -> float:
    """Slope of the error of the second-order model: about 3 for a right gradient and Hessian.

    The arguments are those of check_gradient.
    """
    return _slope(problem, point, direction, rtol=rtol, second_order=True)


def _slope(
    problem: AnyProblem, point: Point, direction: Point, *, rtol: float, second_order: bool
) -> float:
    problem.manifold.validate(point)
    measured = MeasuredProblem(problem, Accuracy(), 0.0)
    manifold = measured.manifold
    length = manifold.norm(point, direction)
    if not length > 0.0:
        raise InvalidInput(f"the direction has length {length}; give one that is not zero")
    unit = scale(1.0 / length, direction)
    start = measured.linearise(measured.evaluate(point, rtol=rtol, warm=None))
    slope = manifold.inner_product(point, start.gradient, unit)
    curvature = 0.0
    if second_order:
        curvature = manifold.inner_product(point, measured.hessian(start, unit, rtol=rtol), unit)
    lengths = np.geomspace(LONGEST, SHORTEST, LENGTHS)
    cost = start.evaluation.cost
    errors = [
        measured.evaluate(
            manifold.retraction(point, scale(t, unit)), rtol=rtol, warm=start.evaluation
        ).cost
        - (cost + t * slope + 0.5 * t**2 * curvature)
        for t in lengths.tolist()
    ]
    return _steepness(lengths, np.abs(errors), floor=1e4 * sys.float_info.epsilon * abs(cost))


def _steepness(
    lengths: np.ndarray[tuple[int], np.dtype[np.float64]],
    errors: np.ndarray[tuple[int], np.dtype[np.float64]],
    *,
    floor: float,
) -> float:
    """Median slope between neighbours whose errors rise above rounding; infinite if none does.

    An error that never does belongs to a model that is exact.
    """
    visible = errors > floor
    if np.count_nonzero(visible) < 3:
        return float("inf")
    slopes = np.diff(np.log(errors[visible])) / np.diff(np.log(lengths[visible]))
    return float(np.median(slopes[-max(3, len(slopes) // 2) :]))
