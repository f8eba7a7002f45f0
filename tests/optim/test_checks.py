"""The Taylor tests pass on right derivatives and fail on wrong ones."""

from __future__ import annotations

import pytest

from slrt_dask.errors import InvalidInput
from slrt_dask.optim import check_gradient, check_hessian
from slrt_dask.optim.manifold import scale
from tests.oracles.dense import random_problem, solve_by_conjugate_gradients


@pytest.fixture(params=[None, solve_by_conjugate_gradients], ids=["exact", "conjugate-gradients"])
def problem(request, shape):
    ranks = tuple(range(1, len(shape) + 1))
    solver = {} if request.param is None else {"solver": request.param}
    return random_problem(shape, [min(r, n) for r, n in zip(ranks, shape, strict=True)], **solver)


def start(problem, rng):
    point = problem.manifold.random_point(rng)
    return point, scale(7.0, problem.manifold.random_tangent_vector(point, rng))


def test_gradient_has_slope_two(problem, rng):
    assert check_gradient(problem, *start(problem, rng)) == pytest.approx(2.0, abs=0.1)


def test_hessian_has_slope_three(problem, rng):
    assert check_hessian(problem, *start(problem, rng)) == pytest.approx(3.0, abs=0.15)


def test_a_wrong_gradient_shows_as_slope_one(problem, rng):
    right = problem.gradient
    problem.gradient = lambda evaluation: scale(1.01, right(evaluation))
    assert check_gradient(problem, *start(problem, rng)) < 1.5


def test_a_wrong_hessian_shows_as_slope_two(problem, rng):
    right = problem.hessian
    problem.hessian = lambda e, v, *, rtol: scale(1.1, right(e, v, rtol=rtol))
    assert check_hessian(problem, *start(problem, rng)) < 2.5


def test_a_zero_direction_is_refused(problem, rng):
    point, _ = start(problem, rng)
    with pytest.raises(InvalidInput, match="not zero"):
        check_gradient(problem, point, problem.manifold.zero_vector(point))


def test_riemannian_hessian_is_symmetric(problem, rng):
    manifold = problem.manifold
    point, first = start(problem, rng)
    second = manifold.random_tangent_vector(point, rng)
    evaluation = problem.evaluate(point, rtol=1e-13, warm=None)
    gradient = problem.gradient(evaluation)

    def along(v):
        product = problem.hessian(evaluation, v, rtol=1e-13)
        return manifold.euclidean_to_riemannian_hessian(point, gradient, product, v)

    left = manifold.inner_product(point, along(first), second)
    right = manifold.inner_product(point, first, along(second))
    assert left == pytest.approx(right, rel=1e-8)
