"""Gradients and Hessians are the slopes of what they are derivatives of, for every kind."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.errors import InvalidInput
from tests.dual.cases import KINDS, along, drawn_direction, settled, slope_along
from tests.oracles.dense import unfold

every_order = pytest.mark.parametrize("order", [2, 3, 4])
CURVED = [kind for kind in KINDS if not KINDS[kind].rows]


def with_a_centre(made, rtol):
    """An evaluation for multipliers whose centre is not zero, where there are some."""
    first = made.problem.evaluate(made.point, rtol=rtol, warm=None)
    return made.problem.renew(first, rtol=rtol) or first


@pytest.mark.parametrize("kind", KINDS)
@every_order
def test_the_gradient_is_the_slope_while_the_centre_stays(order, kind, posed):
    made = posed(order, kind)
    at, direction = with_a_centre(made, 1e-12), drawn_direction(made.point)
    gradient, steps, left = made.problem.gradient(at), [2e-4, 2e-5], []
    for step in steps:
        there = made.problem.evaluate(along(at.point, direction, step), rtol=1e-12, warm=at)
        left.append(abs(there.cost - at.cost - step * slope_along(gradient, direction)))
    order = np.log(left[0] / left[1]) / np.log(steps[0] / steps[1])
    assert order == pytest.approx(2.0, abs=0.15)
    X, _ = made.dual(at)
    for mode, (part, weight) in enumerate(zip(gradient, made.case.dense.lambdas, strict=True)):
        wanted = -weight * unfold(X, mode) @ (unfold(X, mode).T @ made.point[mode])
        np.testing.assert_allclose(part, wanted, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", ["nonnegative", "rows ==", "huber, nonnegative, rows"])
def test_the_gradient_is_the_slope_of_the_settled_cost(kind, posed):
    made, step = posed(3, kind), 1e-4
    at, direction = settled(made.problem, made.point, 1e-11), drawn_direction(made.point)
    slope = slope_along(made.problem.gradient(at), direction)
    ahead, behind = (
        settled(made.problem, along(made.point, direction, sign * step), 1e-11).cost
        for sign in (1, -1)
    )
    assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("kind", CURVED)
@every_order
def test_the_hessian_is_the_slope_of_the_gradient_and_symmetric(order, kind, posed):
    made, step = posed(order, kind), 1e-6
    at = with_a_centre(made, 1e-13)
    one, other = (drawn_direction(made.point, seed) for seed in (6, 7))
    product, second = (made.problem.hessian(at, way, rtol=1e-12) for way in (one, other))
    ahead, behind = (
        made.problem.gradient(
            made.problem.evaluate(along(at.point, one, sign * step), rtol=1e-13, warm=at)
        )
        for sign in (1, -1)
    )
    size = max(np.abs(part).max() for part in product)
    for found, after, before in zip(product, ahead, behind, strict=True):
        np.testing.assert_allclose((after - before) / (2 * step), found, atol=1e-4 * size)
    assert slope_along(product, other) == pytest.approx(slope_along(second, one), rel=1e-8)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].rows])
def test_rows_have_no_hessian(kind, posed):
    made = posed(3, kind)
    evaluation = made.problem.evaluate(made.point, rtol=1e-3, warm=None)
    with pytest.raises(InvalidInput, match="rcg"):
        made.problem.hessian(evaluation, made.point, rtol=1e-3)
