"""When runs end, and what they say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from slrt_dask.optim import (
    Accuracy,
    StopReason,
    StopRules,
    TrustRegion,
    minimise,
)
from tests.oracles.dense import random_problem, solve_by_conjugate_gradients, solve_with_residual


def start_of(problem):
    return problem.manifold.random_point(np.random.default_rng(5))


@dataclass
class FakeClock:
    """Every look at it takes one second."""

    now: float = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_every_reason_is_a_sentence():
    for reason in StopReason:
        assert reason.value[0].isupper()
        assert reason.value.endswith(".")


def test_a_closed_gap_ends_the_run(shape, method):
    problem = random_problem(shape, shape if len(shape) > 2 else (7, 7))
    outcome = minimise(problem, method, start_of(problem), StopRules(), certify_every=2)
    assert outcome.reason is StopReason.GAP
    assert outcome.certificate.relative_gap <= 1e-3
    assert outcome.records[-1].relative_gap == outcome.certificate.relative_gap


def test_a_small_gradient_ends_the_run_when_the_gap_cannot_close(shape, method):
    problem = random_problem(shape, (1,) * len(shape), rank=3)
    rules = StopRules(gradient_tolerance=1e-5)
    outcome = minimise(problem, method, start_of(problem), rules)
    assert outcome.reason is StopReason.GRADIENT
    assert outcome.certificate.relative_gap > rules.gap_tolerance
    assert outcome.state.gradient_norm <= 1e-5 * outcome.state.evaluation.cost


def test_the_gap_is_looked_at_before_the_gradient_ends_the_run(method):
    problem = random_problem((6, 5, 4), (6, 5, 4))
    rules = StopRules(gradient_tolerance=1e-4)
    outcome = minimise(problem, method, start_of(problem), rules, certify_every=10_000)
    assert outcome.reason is StopReason.GAP


@pytest.mark.parametrize("limit", [0, 3])
def test_the_iteration_limit_ends_the_run(method, limit):
    problem = random_problem((6, 5, 4), (2, 2, 2))
    outcome = minimise(problem, method, start_of(problem), StopRules(max_iterations=limit))
    assert outcome.reason is StopReason.ITERATIONS
    assert [row.iteration for row in outcome.records] == list(range(limit + 1))
    assert outcome.records[-1].primal is not None


def test_the_time_limit_ends_the_run(method):
    problem = random_problem((6, 5, 4), (2, 2, 2))
    rules = StopRules(max_seconds=5.0)
    outcome = minimise(problem, method, start_of(problem), rules, clock=FakeClock())
    assert outcome.reason is StopReason.SECONDS
    assert outcome.state.iteration == 4
    assert [row.seconds for row in outcome.records] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_rounding_ends_the_run_when_nothing_else_does(shape, method):
    problem = random_problem(shape, (2,) * len(shape))
    rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=5000)
    outcome = minimise(problem, method, start_of(problem), rules)
    assert outcome.reason in (StopReason.EXHAUSTED, StopReason.GRADIENT)
    assert outcome.state.gradient_norm <= 1e-7 * outcome.state.evaluation.cost


def test_inner_solves_that_stop_early_are_named_when_progress_ends(method):
    def capped(A, y, rtol, start):
        return solve_with_residual(A, y, max(rtol, 0.05), start)

    problem = random_problem((6, 5, 4), (2, 2, 2), solver=capped)
    rules = StopRules(gap_tolerance=0.0, max_iterations=2000)
    outcome = minimise(problem, method, start_of(problem), rules)
    assert outcome.reason is StopReason.INNER_LIMIT
    assert not outcome.records[-1].inner_converged
    assert outcome.records[-1].inner_residual == pytest.approx(0.05)


def test_a_certificate_is_solved_for_as_tightly_as_its_gap_needs():
    problem = random_problem((6, 5, 4), (6, 5, 4), solver=solve_by_conjugate_gradients)
    bound = problem.C * float(np.sum(problem.y**2))
    method = TrustRegion(accuracy=Accuracy(noise_scale=bound))
    outcome = minimise(problem, method, start_of(problem), StopRules(gap_tolerance=1e-4))
    assert outcome.reason is StopReason.GAP
    share = bound * outcome.evaluation.inner.residual**2
    assert share <= 0.1 * 1e-4 * outcome.evaluation.cost * 1.01
