"""The rules that tie inner accuracy to outer progress."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from slrt_dask.errors import NumericalBreakdown
from slrt_dask.optim import Accuracy
from slrt_dask.optim.accuracy import measured_scale
from slrt_dask.optim.decrease import measure_decrease
from slrt_dask.optim.manifold import scale
from slrt_dask.optim.measured import MeasuredProblem
from tests.oracles.dense import random_problem, solve_by_conjugate_gradients, solve_with_residual


@dataclass(frozen=True)
class Inner:
    residual: float
    iterations: int = 1
    converged: bool = True
    noise_scale: float = 0.0


@dataclass(frozen=True)
class Known:
    cost: float
    inner: Inner
    point: tuple = ()


def test_inner_tolerance_falls_with_the_gradient_between_its_limits():
    policy = Accuracy(factor=0.1, loosest=1e-2, tightest=1e-10)
    assert policy.inner_tolerance(1e6, 1.0, 1.0) == 1e-2
    assert policy.inner_tolerance(1e-4, 1.0, 1.0) == pytest.approx(1e-5)
    assert policy.inner_tolerance(1e-30, 1.0, 1.0) == 1e-10


def test_noisier_problems_are_solved_more_tightly_and_tightening_multiplies():
    policy = Accuracy()
    plain = policy.inner_tolerance(1e-3, 1.0, 1.0)
    assert policy.inner_tolerance(1e-3, 1.0, 1e4) == pytest.approx(plain / 100)
    assert policy.inner_tolerance(1e-3, 1.0, 1.0, 0.1) == pytest.approx(plain / 10)
    assert policy.inner_tolerance(1e9, 1.0, 1.0, 0.1) == pytest.approx(policy.loosest / 10)


def test_certificate_tolerance_keeps_the_inner_share_of_the_gap_to_a_tenth():
    rtol = Accuracy().certificate_tolerance(1e-3, 2.0, 800.0)
    assert 800.0 * rtol**2 == pytest.approx(0.1 * 1e-3 * 2.0)


def test_the_noise_scale_is_measured_from_two_solves_and_never_from_rounding():
    loose, tight = Known(1.0, Inner(1e-2)), Known(1.5, Inner(1e-3))
    assert measured_scale(loose, tight) == pytest.approx(0.5 / (1e-4 - 1e-6))
    assert measured_scale(tight, loose) == 0.0
    assert measured_scale(Known(1.0, Inner(1e-14)), Known(1.0 + 1e-15, Inner(1e-15))) == 0.0


def test_the_measured_noise_scale_never_exceeds_the_bound(shape, rng):
    problem = random_problem(shape, (2,) * len(shape), solver=solve_by_conjugate_gradients)
    measured = MeasuredProblem(problem, Accuracy(), 0.0)
    measured.begin(problem.manifold.random_point(rng))
    bound = problem.C * np.sum(problem.y**2)
    assert 1e-3 * bound < measured.noise_scale <= bound


def test_settling_solves_as_tightly_as_the_gradient_asks(rng):
    problem = random_problem((6, 5, 4), (2, 2, 2), solver=solve_by_conjugate_gradients)
    measured = MeasuredProblem(problem, Accuracy(), 0.0)
    point = problem.manifold.random_point(rng)
    rough = measured.linearise(problem.evaluate(point, rtol=0.5, warm=None))
    settled = measured.settle(rough, tightening=1e-3)
    wanted = measured.inner_tolerance(settled, tightening=1e-3)
    assert settled.evaluation.inner.residual <= 3.0 * wanted
    assert measured.settle(settled, tightening=1e-3) is settled


def test_settling_gives_up_on_solves_that_do_not_get_better(rng):
    def stuck(A, y, rtol, start):
        return solve_with_residual(A, y, 0.1, start)

    problem = random_problem((6, 5, 4), (2, 2, 2), solver=stuck)
    measured = MeasuredProblem(problem, Accuracy(), 0.0)
    settled = measured.begin(problem.manifold.random_point(rng))
    assert settled.evaluation.inner.residual == pytest.approx(0.1)
    assert not measured.inner_converged


def test_decreases_hidden_in_the_noise_are_read_from_the_slopes(rng):
    truth = random_problem((6, 5, 4), (2, 2, 2))
    point = truth.manifold.random_point(rng)
    noisy = random_problem((6, 5, 4), (2, 2, 2), solver=solve_with_residual)
    s = truth.C * np.sum(truth.y**2)
    measured = MeasuredProblem(noisy, Accuracy(noise_scale=s), s)
    start = measured.linearise(noisy.evaluate(point, rtol=1e-4, warm=None))
    move = scale(-1e-6 / start.gradient_norm, start.gradient)
    end = truth.manifold.retraction(point, move)
    trial = noisy.evaluate(end, rtol=3e-3, warm=None)
    true = (
        truth.evaluate(point, rtol=0.0, warm=None).cost
        - truth.evaluate(end, rtol=0.0, warm=None).cost
    )
    found = measure_decrease(measured, start, trial, move)
    by_cost = start.evaluation.cost - trial.cost
    assert found.end is not None
    assert abs(found.amount - true) < 0.1 * true < 0.2 * abs(by_cost - true)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_costs_and_gradients_that_are_not_finite_are_refused(broken, rng):
    problem = random_problem((6, 5, 4), (2, 2, 2))
    point = problem.manifold.random_point(rng)
    measured = MeasuredProblem(problem, Accuracy(), 0.0)
    evaluation = problem.evaluate(point, rtol=0.0, warm=None)
    problem.evaluate = lambda point, *, rtol, warm: replace(evaluation, cost=broken)
    with pytest.raises(NumericalBreakdown, match="cost"):
        measured.evaluate(point, rtol=0.0, warm=None)
    problem.gradient = lambda evaluation: scale(broken, point)
    with pytest.raises(NumericalBreakdown, match="gradient of mode 0"):
        measured.linearise(evaluation)
