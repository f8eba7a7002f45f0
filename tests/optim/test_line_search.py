"""Step lengths."""

from __future__ import annotations

import pytest

from slrt_dask.optim import Accuracy, LineSearch
from slrt_dask.optim.manifold import scale
from slrt_dask.optim.measured import MeasuredProblem
from tests.oracles.dense import random_problem


@pytest.fixture
def start(shape, rng):
    problem = random_problem(shape, (2,) * len(shape))
    measured = MeasuredProblem(problem, Accuracy(), 0.0)
    return measured, measured.begin(problem.manifold.random_point(rng))


@pytest.mark.parametrize("first", [1e-4, 1.0, 1e3])
def test_an_accepted_step_decreases_the_cost_sufficiently(start, first):
    problem, here = start
    search = LineSearch()
    direction = scale(-1.0 / here.gradient_norm, here.gradient)
    trial = search.search(problem, here, direction, first=first, rtol=1e-12)
    assert trial is not None
    promised = trial.multiplier * here.gradient_norm
    assert trial.decrease >= search.sufficient_decrease * promised
    assert trial.decrease == here.evaluation.cost - trial.evaluation.cost
    assert trial.multiplier <= first


def test_an_uphill_direction_ends_without_a_step(start):
    problem, here = start
    uphill = scale(1.0 / here.gradient_norm, here.gradient)
    assert LineSearch().search(problem, here, uphill, first=1e-2, rtol=1e-12) is None


def test_the_first_step_repeats_the_last_decrease_but_never_leaves_the_ball():
    search = LineSearch(optimism=1.5, longest_length=0.5)
    assert search.first_multiplier(-4.0, 2.0, 0.0, 100.0) == 0.25
    assert search.first_multiplier(-4.0, 2.0, 0.1, 100.0) == pytest.approx(1.5 * 2 * 0.1 / 4)
    assert search.first_multiplier(-4.0, 2.0, 1e9, 100.0) == 0.25
