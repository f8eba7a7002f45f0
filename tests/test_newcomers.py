"""Workers that join are used where that pays, and not otherwise."""

from __future__ import annotations

import pytest

from slrt_dask.engine.placement import Place
from slrt_dask.engine.plan import plan_fit
from slrt_dask.errors import ClusterLost, MemoryBudgetExceeded, NoWorkers
from slrt_dask.newcomers import LOADINGS, LOOK_SECONDS, ROUND_SECONDS, Newcomers
from tests.oracles.dense import random_problem


@pytest.fixture
def plan(store_of):
    """A plan for workers with so many threads, of a store with so many partitions."""

    def make(*threads, parts=60):
        dense = random_problem((60, 6, 5), (2, 2, 2), fraction=0.4, seed=6)
        header = store_of(dense.mask, dense.values, parts=parts).header
        places = [Place(f"tcp://{number}", count, None) for number, count in enumerate(threads)]
        return plan_fit(header, (2, 2, 2), places=places)

    return make


def judged(before, now, *, loading=0.0, seconds=1e6, sweep=10.0):
    """What is said so many seconds after loading, when a sweep takes so many."""
    times = iter([0.0, seconds, seconds])
    return Newcomers(lambda: now, before, loading, clock=times.__next__).worth_moving(sweep)


@pytest.mark.parametrize(
    ("before", "now"), [((1,), (1, 1)), ((2, 2), (2, 2, 2)), ((4,), (4, 2)), ((2,), (2, 1, 1, 1))]
)
def test_workers_that_make_sweeps_clearly_shorter_are_worth_it(before, now, plan):
    joined = ", ".join(f"tcp://{number}" for number in range(len(before), len(now)))
    plural = "s" if len(now) - len(before) > 1 else ""
    assert judged(plan(*before), plan(*now)) == f"the worker{plural} {joined} joined"


@pytest.mark.parametrize(
    ("before", "now"), [((1,), (1,)), ((1, 1), (1,)), ((1,) * 9, (1,) * 10), ((8,), (8, 1))]
)
def test_what_changes_little_is_not_worth_it(before, now, plan):
    assert judged(plan(*before), plan(*now)) == ""


@pytest.mark.parametrize(
    ("before", "sweep", "worth"),
    [
        ((1,), 1.0 * ROUND_SECONDS, False),
        ((1,), 5.0 * ROUND_SECONDS, True),
        ((1, 1), 1.3 * ROUND_SECONDS, False),
        ((1, 1), 9.0 * ROUND_SECONDS, True),
    ],
)
def test_problems_for_which_sending_takes_longest_stay_where_they_are(before, sweep, worth, plan):
    assert bool(judged(plan(*before), plan(1, 1, 1), sweep=sweep)) == worth


def test_a_worker_for_which_there_is_no_partition_is_not_worth_it(plan):
    assert judged(plan(1, parts=1), plan(1, 1, parts=1)) == ""


@pytest.mark.parametrize("loading", [0.0, 0.1, 100.0])
def test_a_placement_is_kept_some_times_as_long_as_its_loading_took(loading, plan):
    least = max(LOOK_SECONDS, LOADINGS * loading)
    before, now = plan(1), plan(1, 1)
    assert judged(before, now, loading=loading, seconds=0.99 * least) == ""
    assert judged(before, now, loading=loading, seconds=1.01 * least) != ""


def test_looks_are_some_time_apart(plan):
    asked = []

    def look():
        asked.append(True)
        return plan(1)

    times = iter([0.0, 10.0, 10.0, 10.0 + 0.5 * LOOK_SECONDS, 10.0 + 2 * LOOK_SECONDS, 20.0])
    newcomers = Newcomers(look, plan(1), 0.0, clock=times.__next__)
    assert [newcomers.worth_moving(1.0) for _ in range(3)] == ["", "", ""]
    assert len(asked) == 2


@pytest.mark.parametrize("error", [ClusterLost, NoWorkers, MemoryBudgetExceeded])
def test_trouble_with_the_cluster_is_left_to_those_who_need_it(error, plan):
    def fail():
        raise error("no")

    times = iter([0.0, 10.0, 10.0])
    assert Newcomers(fail, plan(1), 0.0, clock=times.__next__).worth_moving(1.0) == ""
