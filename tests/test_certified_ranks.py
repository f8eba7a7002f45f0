"""Ranks that grow until the gap closes end at a global optimum of the convex problem."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import InvalidConfig, InvalidInput
from slrt_dask.optim import StopReason
from tests.oracles.dense import random_problem

SHAPES = {2: (10, 8), 3: (9, 8, 5), 4: (6, 5, 4, 3)}
CLOSE = {"gap_tolerance": 1e-4, "gradient_tolerance": 1e-9, "max_iterations": 300, "threads": 1}


@pytest.fixture
def noisy(store_of):
    """A store of a low-rank tensor with noise, and the dense problem of it."""

    def make(order, parts=2):
        shape = SHAPES[order]
        dense = random_problem(shape, shape, C=0.5, fraction=0.5, seed=3)
        truth = slrt.low_rank_tensor(shape, ranks=(2,) * order, seed=4)
        values = truth / truth.std() + 0.1 * np.random.default_rng(5).standard_normal(shape)
        return store_of(dense.mask, values, parts=parts)

    return make


def never_rises(costs, slack=1e-9):
    return all(after <= before * (1 + slack) for before, after in itertools.pairwise(costs))


@pytest.mark.parametrize("method", ["lbfgs", "rtr"])
def test_from_rank_one_the_gap_closes_and_the_cost_never_rises(method, store_of):
    shape = (30, 20, 6)
    generator = np.random.default_rng(0)
    truth = slrt.low_rank_tensor(shape, ranks=(3, 3, 2), seed=1)
    values = truth / truth.std() + 0.1 * generator.standard_normal(shape)
    store = store_of(generator.random(shape) < 0.3, values)
    done = slrt.complete(
        store, "certified", C=20.0, lambdas=(1.0, 1.0, 1.0), method=method, gap_tolerance=1e-6,
        gradient_tolerance=0.0, max_iterations=500, threads=1,
    )  # fmt: skip
    assert done.stop_reason is StopReason.GAP
    assert done.certificate.relative_gap <= 1e-6
    assert done.records[0].ranks == (1, 1, 1)
    assert done.ranks == done.records[-1].ranks != (1, 1, 1)
    # A trust region stays longer with loose solves, whose costs are lower than they should be.
    slack = 1e-9 if method == "lbfgs" else 1e-3
    assert never_rises([record.cost for record in done.records], slack)
    if method == "lbfgs":
        assert sum(record.sweeps for record in done.records) <= 700


@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_optimum_is_that_of_full_ranks(order, noisy):
    store = noisy(order)
    full = slrt.complete(store, store.shape, C=0.5, **CLOSE)
    grown = slrt.complete(store, "certified", C=0.5, **CLOSE)
    assert grown.stop_reason is StopReason.GAP
    assert grown.certificate.primal == pytest.approx(full.certificate.primal, rel=2e-4)
    assert sum(grown.ranks) < sum(store.shape)


def test_ranks_stay_within_their_caps_and_the_gap_shows_what_that_costs(noisy):
    done = slrt.complete(noisy(3), "certified", C=5.0, max_ranks=(2, 1, 2), **CLOSE)
    assert all(rank <= most for rank, most in zip(done.ranks, (2, 1, 2), strict=True))
    assert done.stop_reason is not StopReason.GAP
    assert done.certificate.relative_gap > 1e-4
    one = slrt.complete(noisy(3), "certified", C=5.0, max_ranks=1, **CLOSE)
    assert one.ranks == (1, 1, 1)
    assert one.certificate.primal > done.certificate.primal


def test_weights_may_be_searched_for_first(noisy, monkeypatch):
    monkeypatch.setattr("slrt_dask.searching.RANKS_TO_SEARCH_WITH", 2)
    monkeypatch.setattr("slrt_dask.tuning.tuning.MOST_TRIALS", 6)
    done = slrt.complete(noisy(3), "certified", **{**CLOSE, "max_iterations": 40})
    assert "held-out" in done.records[0].event
    assert done.records[0].ranks == (2, 2, 2) != done.ranks
    gaps = [record.relative_gap for record in done.records if record.relative_gap is not None]
    assert done.certificate.relative_gap < gaps[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ranks": (2, 2, 2), "max_ranks": 3}, "max_ranks goes with"),
        ({"ranks": "certified", "max_ranks": 0}, "max_ranks is"),
        ({"ranks": "certified", "max_ranks": (2, 2)}, "max_ranks is"),
        ({"ranks": "certified", "max_ranks": "many"}, "max_ranks must be"),
        ({"ranks": "certain"}, "'auto' or 'certified'"),
    ],
)
def test_what_makes_no_sense_is_refused(options, named, noisy):
    with pytest.raises(InvalidConfig, match=named):
        slrt.complete(noisy(3), C=1.0, **options)
    with pytest.raises(InvalidInput, match="grow during a fit"):
        slrt.tune(noisy(3), "certified")
