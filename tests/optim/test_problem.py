"""How accurately problems are solved, what is believed of their costs, and the Taylor tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slrt_dask.errors import InvalidInput, NumericalBreakdown
from slrt_dask.optim import Accuracy, check_gradient, check_hessian
from slrt_dask.optim.manifold import scale
from slrt_dask.optim.problem import MeasuredProblem
from tests.oracles.dense import random_problem, solve_by_conjugate_gradients, solve_with_residual

SHAPE, RANKS = (6, 5, 4), (2, 2, 2)


def test_inner_tolerance_falls_with_the_gradient_between_its_limits():
    policy = Accuracy(factor=0.1, loosest=1e-2, tightest=1e-10)
    found = [policy.inner_tolerance(norm, 1.0, 1.0) for norm in (1e6, 1e-4, 1e-30)]
    assert found == pytest.approx([1e-2, 1e-5, 1e-10])
    assert policy.inner_tolerance(0.0, 0.0, 0.0) == policy.loosest


def test_noisier_problems_are_solved_more_tightly_and_tightening_multiplies():
    policy = Accuracy()
    plain = policy.inner_tolerance(1e-3, 1.0, 1.0)
    assert policy.inner_tolerance(1e-3, 1.0, 1e4) == pytest.approx(plain / 100)
    assert policy.inner_tolerance(1e-3, 1.0, 1.0, 0.1) == pytest.approx(plain / 10)
    assert policy.inner_tolerance(1e9, 1.0, 1.0, 0.1) == pytest.approx(policy.loosest / 10)


def test_the_measured_noise_scale_never_exceeds_the_bound(shape, rng):
    problem = random_problem(shape, (2,) * len(shape), solver=solve_by_conjugate_gradients)
    measured = MeasuredProblem(problem, Accuracy())
    measured.begin(problem.manifold.random_point(rng))
    bound = problem.C * np.sum(problem.y**2)
    assert 1e-3 * bound < measured.noise_scale <= bound


def test_settling_solves_as_tightly_as_the_gradient_asks(rng):
    problem = random_problem(SHAPE, RANKS, solver=solve_by_conjugate_gradients)
    measured = MeasuredProblem(problem, Accuracy())
    point = problem.manifold.random_point(rng)
    rough = measured.linearise(problem.evaluate(point, rtol=0.5, warm=None))
    settled = measured.settle(rough, 1e-3)
    wanted = measured.inner_tolerance(settled, 1e-3)
    assert settled.evaluation.inner.residual <= 3.0 * wanted
    assert measured.settle(settled, 1e-3) is settled


def test_decreases_hidden_in_the_noise_are_read_from_the_slopes_and_clear_ones_are_not(rng):
    truth = random_problem(SHAPE, RANKS)
    point = truth.manifold.random_point(rng)
    noisy = random_problem(SHAPE, RANKS, solver=solve_with_residual)
    measured = MeasuredProblem(noisy, Accuracy(), truth.C * np.sum(truth.y**2))
    start = measured.linearise(noisy.evaluate(point, rtol=1e-4, warm=None))
    for length, rtol, hidden in ((1e-6, 3e-3, True), (0.1, 1e-4, False)):
        move = scale(-length / start.gradient_norm, start.gradient)
        end = truth.manifold.retraction(point, move)
        trial = noisy.evaluate(end, rtol=rtol, warm=None)
        costs = [truth.evaluate(at, rtol=0.0, warm=None).cost for at in (point, end)]
        true, by_cost = costs[0] - costs[1], start.evaluation.cost - trial.cost
        decrease, linearised = measured.decrease(start, trial, move)
        assert abs(decrease - true) < 0.1 * true
        if hidden:
            assert linearised is not None
            assert abs(by_cost - true) > 0.5 * true
        else:
            assert linearised is None
            assert decrease == by_cost


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_costs_and_gradients_that_are_not_finite_are_refused(broken, rng):
    problem = random_problem(SHAPE, RANKS)
    point = problem.manifold.random_point(rng)
    measured = MeasuredProblem(problem, Accuracy())
    evaluation = problem.evaluate(point, rtol=0.0, warm=None)
    problem.evaluate = lambda point, *, rtol, warm: replace(evaluation, cost=broken)
    with pytest.raises(NumericalBreakdown, match=str(broken)):
        measured.evaluate(point, rtol=0.0, warm=None)
    problem.gradient = lambda evaluation: scale(broken, point)
    with pytest.raises(NumericalBreakdown, match="0"):
        measured.linearise(evaluation)


# ---- Taylor tests ---------------------------------------------------------------------------


@pytest.fixture(params=[None, solve_by_conjugate_gradients], ids=["exact", "conjugate-gradients"])
def problem(request, shape):
    ranks = [min(r, n) for r, n in zip(range(1, len(shape) + 1), shape, strict=True)]
    solver = {} if request.param is None else {"solver": request.param}
    return random_problem(shape, ranks, **solver)


@pytest.mark.parametrize(("check", "slope"), [(check_gradient, 2.0), (check_hessian, 3.0)])
def test_slopes_show_whether_derivatives_are_right(problem, rng, check, slope):
    point = problem.manifold.random_point(rng)
    direction = scale(7.0, problem.manifold.random_tangent_vector(point, rng))
    assert check(problem, point, direction) == pytest.approx(slope, abs=0.15)
    gradient, hessian = problem.gradient, problem.hessian
    if check is check_gradient:
        problem.gradient = lambda evaluation: scale(1.01, gradient(evaluation))
    else:
        problem.hessian = lambda e, v, *, rtol: scale(1.1, hessian(e, v, rtol=rtol))
    assert check(problem, point, direction) < slope - 0.5
    with pytest.raises(InvalidInput):
        check(problem, point, problem.manifold.zero_vector(point))


def test_riemannian_hessian_is_symmetric(problem, rng):
    manifold, measured = problem.manifold, MeasuredProblem(problem, Accuracy())
    point = manifold.random_point(rng)
    first, second = (manifold.random_tangent_vector(point, rng) for _ in range(2))
    at = measured.linearise(measured.evaluate(point, rtol=1e-13, warm=None))
    left = manifold.inner_product(point, measured.hessian(at, first, rtol=1e-13), second)
    right = manifold.inner_product(point, first, measured.hessian(at, second, rtol=1e-13))
    assert left == pytest.approx(right, rel=1e-8)
