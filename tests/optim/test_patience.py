"""A run that waits for its validation error ends at the point where that was the least."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim import ConjugateGradient, StopReason, StopRules, minimise
from slrt_dask.optim.patience import Patience
from tests.oracles.dense import random_problem

LEAST = 4


def run(patience, *, rules=None, least=LEAST, **options):
    """A run whose error falls until an iteration and rises from it; and its points."""
    problem = random_problem((6, 5, 4), (3, 3, 3))
    start = problem.manifold.random_point(np.random.default_rng(5))
    points, rules = [], rules or StopRules(gap_tolerance=0.0)

    def validate(evaluation):
        points.append(evaluation.point)
        return abs(len(points) - 1 - least) + 1.0

    outcome = minimise(
        problem, ConjugateGradient(), start, rules, validate=validate, patience=patience, **options
    )
    return outcome, points


@pytest.mark.parametrize("wait", [1, 3])
def test_it_ends_after_so_many_iterations_without_a_smaller_error_at_the_best_point(wait):
    outcome, points = run(Patience(wait))
    assert outcome.reason is StopReason.VALIDATION
    assert [row.iteration for row in outcome.records] == list(range(LEAST + wait + 2))
    for found, wanted in zip(outcome.state.evaluation.point, points[LEAST], strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert outcome.records[-1].event == f"went back to iteration {LEAST}"
    # The certificate is of what is returned.
    assert outcome.records[-1].primal == outcome.certificate.primal
    assert outcome.evaluation.point is outcome.state.evaluation.point


def test_a_limit_ends_it_at_the_best_point_too_and_keeps_its_reason():
    rules = StopRules(gap_tolerance=0.0, max_iterations=6)
    outcome, points = run(Patience(100), rules=rules)
    assert outcome.reason is StopReason.ITERATIONS
    np.testing.assert_array_equal(outcome.state.evaluation.point[0], points[LEAST][0])


def test_a_run_that_ends_at_its_best_point_does_not_go_back():
    rules = StopRules(gap_tolerance=0.0, max_iterations=6)
    outcome, _ = run(Patience(2), rules=rules, least=100)
    assert outcome.reason is StopReason.ITERATIONS
    assert len(outcome.records) == 7


def test_another_goes_on_from_what_one_has_seen():
    first = Patience(3)
    run(first, rules=StopRules(gap_tolerance=0.0, max_iterations=2), least=1)
    second = Patience(3)
    second.go_on(first.progress())
    assert (second.error, second.iteration, second.ended) == (1.0, 1, StopReason.ITERATIONS)
    np.testing.assert_array_equal(second.point[2], first.point[2])
    assert Patience(3).progress() == {}


def test_errors_that_are_no_numbers_are_not_the_least():
    patience = Patience(2)
    outcome, _ = run(patience, least=float("nan"))
    assert outcome.reason is not StopReason.VALIDATION
    assert patience.iteration == -1


@pytest.mark.parametrize("wait", [0, -1])
def test_no_patience_at_all_is_refused(wait):
    with pytest.raises(InvalidConfig, match="patience is"):
        Patience(wait)
