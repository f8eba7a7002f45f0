"""Ranks and weights that are searched for or grow, with every kind of constraint and loss.

Without constraints this is held by test_certified_ranks and tuning; here by every constraint.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.optim import StopReason
from slrt_dask.tuning import candidate, trials, tuning
from tests.linear_examples import RANKS, SHAPE, exact_tensor, noisy_tensor, rising, totals

CAPS = (3, 2, 4)
FEW = 10
PLACES = np.indices(SHAPE).reshape(3, -1)


class Crash(Exception):
    """What ends a process without a word."""


def outside(lower, upper, where=True):
    def missed(W):
        return np.where(where, np.maximum(lower - W, W - upper), 0.0).max()

    return missed


def miss_sums(W):
    A, b = totals()
    return np.abs(A @ W.reshape(-1) - b).max()


def miss_some(W):
    return max(miss_sums(W), -(rising()[:FEW] @ W.reshape(-1)).min(), -W.min())


def several():
    return [slrt.Linear(*totals(), "=="), slrt.Nonnegative(), slrt.Linear(rising()[:FEW])]


OBSERVED = noisy_tensor()[1]
KINDS = {
    "nonnegative": ({"constraint": slrt.Nonnegative()}, outside(0.0, np.inf)),
    "bounds where observed": (
        {"constraint": slrt.Bounds(0.0, 0.5, where="observed")}, outside(0.0, 0.5, OBSERVED),
    ),
    "rows and bounds": ({"constraint": several()}, miss_some),
    "hankel and bounds": (
        {"constraint": [slrt.Hankel((3, 1, 1)), slrt.Bounds(0.0, 0.5)]}, outside(0.0, 0.5),
    ),
    "huber": ({"loss": slrt.Huber(0.1)}, None),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def short_searches(monkeypatch):
    monkeypatch.setattr(candidate, "LADDER", (1, 2, 3, 5))
    monkeypatch.setattr(tuning, "FIRST_RANKS", (5,))
    monkeypatch.setattr(tuning, "MOST_TRIALS", 2)
    monkeypatch.setattr(trials, "STAGED_ITERATIONS", 5)
    monkeypatch.setattr("slrt_dask.searching.RANKS_TO_SEARCH_WITH", 2)


@pytest.fixture
def fit(store_of):
    noisy, mask = noisy_tensor()

    def run(kind, ranks, **options):
        store = store_of(mask, noisy, parts=2)
        return slrt.complete(store, ranks, **KINDS[kind][0], threads=1, **options)

    return run


def stopping(at, trial=None):
    """An observer that ends the process at an iteration, or at a trial of a search."""
    trials_made = itertools.count(1)

    def on_record(record, state):
        if record.iteration == at:
            raise Crash

    def on_trial(tried):
        if next(trials_made) == trial:
            raise Crash

    return SimpleNamespace(on_record=on_record, on_trial=on_trial)


def completed(done, **options):
    return done.to_dask((3, 4, 5), **options).compute(scheduler="synchronous")


def assert_certified(done, kind, most=0.0):
    """It has a certificate, says why it ended, and misses what was asked for by no more than that.

    most : by how much of the largest value that may be
    """
    bounds, missed = done.certificate, KINDS[kind][1]
    assert 0.0 < bounds.dual <= bounds.primal * (1 + 1e-9) < np.inf
    assert bounds.gap >= -1e-9 * bounds.primal
    assert done.stop_reason.value in str(done)
    assert bounds.violation <= most * exact_tensor().max()
    if missed is not None:
        assert missed(completed(done)) <= bounds.violation * (1 + 1e-6) + 1e-12
        assert missed(completed(done, enforce=True)) <= 1e-10


def assert_same(resumed, undisturbed):
    """To the last bit, but for the time, and that it was resumed."""
    for column in ("iteration", "ranks", "cost", "gradient_norm", "sweeps", "relative_gap"):
        assert [getattr(record, column) for record in resumed.records] == [
            getattr(record, column) for record in undisturbed.records
        ]
    assert resumed.certificate == undisturbed.certificate
    assert resumed.stop_reason is undisturbed.stop_reason
    np.testing.assert_array_equal(resumed.predict(PLACES), undisturbed.predict(PLACES))


def growths(done):
    """Records before and after ranks changed."""
    pairs = itertools.pairwise(done.records)
    return [(before, after) for before, after in pairs if before.ranks != after.ranks]


# ---- certified ranks -------------------------------------------------------------------------


@every_kind
def test_ranks_grow_to_the_optimum_of_full_ones(kind, fit):
    done = fit(kind, "certified", C=1.0, gap_tolerance=1e-2)
    assert done.stop_reason is StopReason.GAP
    assert done.certificate.relative_gap <= 1e-2
    assert_certified(done, kind, 0.0 if kind == "huber" else 5e-3)
    assert done.records[0].ranks == (1, 1, 1)
    assert done.records[-1].ranks == done.ranks
    assert sum(done.ranks) > 3
    lengths = (5, 6, 5) if "hankel" in kind else SHAPE
    full = fit(kind, lengths, C=1.0, gap_tolerance=1e-2)
    assert full.certificate.dual <= done.certificate.primal * (1 + 1e-9)
    assert done.certificate.dual <= full.certificate.primal * (1 + 1e-9)


@every_kind
def test_growth_within_its_caps_lowers_the_cost_and_is_checkpointed(kind, fit, tmp_path):
    options = {"C": 1.0, "max_ranks": CAPS, "gap_tolerance": 1e-4, "max_iterations": 7}
    undisturbed = fit(kind, "certified", **options)
    assert undisturbed.stop_reason is StopReason.ITERATIONS
    assert_certified(undisturbed, kind, 0.0 if kind == "huber" else 0.2)
    (before, after), *_ = growths(undisturbed)
    assert all(later.cost < earlier.cost for earlier, later in growths(undisturbed))
    for record in undisturbed.records:
        assert all(rank <= most for rank, most in zip(record.ranks, CAPS, strict=True))
    run, observers = tmp_path / "run", [stopping(before.iteration)]
    with pytest.raises(Crash):
        fit(kind, "certified", **options, run_directory=run, observers=observers)
    with pytest.raises(Crash):
        slrt.resume(run, threads=1, observers=[stopping(after.iteration)])
    assert_same(slrt.resume(run, threads=1), undisturbed)


@pytest.mark.parametrize("kind", ["huber", "one stage"])
def test_where_the_problem_stays_the_same_the_cost_never_rises(kind, fit, monkeypatch):
    """Multipliers of bounds and rows, and stages of a structure, change what the cost is."""
    one_stage = {"constraint": slrt.Hankel((3, 1, 1), deviation=0.1)}
    monkeypatch.setitem(KINDS, "one stage", (one_stage, None))
    done = fit(kind, "certified", C=1.0, gap_tolerance=1e-3)
    assert growths(done)
    pairs = itertools.pairwise(record.cost for record in done.records)
    assert all(after <= before * (1 + 1e-9) for before, after in pairs)


# ---- searched for ----------------------------------------------------------------------------


@every_kind
def test_what_was_found_is_recorded_and_checkpointed(kind, fit, tmp_path):
    ranks = RANKS if kind in ("nonnegative", "huber") else "auto"
    undisturbed = fit(kind, ranks, max_iterations=25)
    assert_found(undisturbed, kind)
    assert ranks == "auto" or undisturbed.ranks == ranks
    run = tmp_path / "run"
    observers = [stopping(None, trial=1)]
    with pytest.raises(Crash):
        fit(kind, ranks, max_iterations=25, run_directory=run, observers=observers)
    with pytest.raises(Crash):
        slrt.resume(run, threads=1, observers=[stopping(0)])
    resumed = slrt.resume(run, threads=1)
    assert_same(resumed, undisturbed)
    assert undisturbed.records[0].event in resumed.records[0].event


def assert_found(done, kind):
    event = done.records[0].event
    assert f"settings: ranks {done.ranks}, C·λ = (" in event
    assert "held-out observations with a root mean" in event
    is_start = "hankel" in kind  # of which only the factors are kept to begin with
    assert (done.stop_reason is StopReason.CHOSEN) != is_start
    assert_certified(done, kind, 5e-3 if is_start else 2e-6)


@pytest.mark.parametrize("kind", ["rows and bounds", "huber"])
def test_ranks_grow_with_weights_that_were_found_and_are_checkpointed(kind, fit, tmp_path):
    options = {"max_ranks": CAPS, "gap_tolerance": 1e-4, "max_iterations": 8}
    undisturbed = fit(kind, "certified", **options)
    assert "settings: ranks (2, 2, 2), C·λ = (" in undisturbed.records[0].event
    assert undisturbed.records[0].ranks == (2, 2, 2)
    assert_certified(undisturbed, kind, 0.0 if kind == "huber" else 0.2)
    (_, after), *_ = growths(undisturbed)
    run = tmp_path / "run"
    observers = [stopping(None, trial=1)]
    with pytest.raises(Crash):
        fit(kind, "certified", **options, run_directory=run, observers=observers)
    with pytest.raises(Crash):
        slrt.resume(run, threads=1, observers=[stopping(after.iteration)])
    assert_same(slrt.resume(run, threads=1), undisturbed)
