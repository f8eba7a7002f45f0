"""Settings that are found: as good as the best that are known, and used for all observations."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.data import low_rank_tensor, sample_entries
from slrt_dask.engine.base import VectorHandle
from slrt_dask.errors import InvalidInput
from slrt_dask.optim.stopping import StopReason
from slrt_dask.request import Request
from slrt_dask.tuning import remote, trials, tuning
from tests.waiting import soon

SHAPE, TRUE = (24, 20, 12), (3, 2, 2)


ALIKE = 14
"""Trials; among later ones are settings of which neither is the better one, but for rounding."""


class Listener:
    def __init__(self):
        self.trials = []

    def on_record(self, record, state):
        pass

    def on_trial(self, tried):
        self.trials.append(tried)


@pytest.fixture(scope="module")
def tensor():
    return low_rank_tensor(SHAPE, TRUE, seed=3, noise=0.0)


@pytest.fixture(scope="module")
def store(tensor, tmp_path_factory):
    noisy = tensor + 0.1 * np.std(tensor) * np.random.default_rng(4).standard_normal(SHAPE)
    indices, values = sample_entries(noisy, 0.25, seed=5)
    return slrt.from_coo(tmp_path_factory.mktemp("tuned") / "store", indices, values, SHAPE)


@pytest.fixture
def few_trials(monkeypatch):
    """Searches that end soon, for what holds of any search."""
    monkeypatch.setattr(tuning, "MOST_TRIALS", 7)


@pytest.fixture(scope="module")
def found(store):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "MOST_TRIALS", ALIKE)
        listener = Listener()
        return slrt.complete(store, "auto", threads=1, observers=[listener]), listener.trials


def error_of(done, tensor):
    return float(np.sqrt(np.mean((np.asarray(done.to_dask()) - tensor) ** 2)) / np.std(tensor))


def test_what_is_found_is_as_good_as_the_best_setting_tried_by_hand(found, store, tensor):
    by_hand = [
        error_of(
            slrt.complete(store, ranks, C=C, center=True, threads=1, max_iterations=60), tensor
        )
        for ranks in (TRUE, (5, 5, 5))
        for C in (0.1, 1.0, 10.0)
    ]
    assert error_of(found[0], tensor) <= 1.02 * min(by_hand)


def test_it_ends_with_a_certificate_and_its_reason_and_reports_what_was_chosen(found):
    done, trials = found
    assert done.stop_reason is StopReason.CHOSEN
    assert done.certificate.dual <= done.certificate.primal < np.inf
    best = min(trials, key=lambda tried: tried.error)
    assert done.ranks == best.candidate.ranks
    weights = [done.header.cost_weight * weight for weight in done.header.lambdas]
    np.testing.assert_allclose(weights, best.candidate.strengths, rtol=1e-12)
    event = done.records[0].event
    assert f"chosen among {len(trials)} settings: ranks {done.ranks}" in event
    assert f"{best.error:.4g} ± " in event


def test_the_factors_chosen_are_kept_and_all_observations_are_used(found, store):
    done, trials = found
    best = min(trials, key=lambda tried: tried.error)
    for one, other in zip(done.factors, best.point, strict=True):
        np.testing.assert_array_equal(one, other)
    assert done.header.observations == store.digest
    assert done.header.offset == store.mean


def test_the_search_can_be_repeated_and_does_not_depend_on_partitions(
    found, store, tmp_path, monkeypatch
):
    monkeypatch.setattr(tuning, "MOST_TRIALS", ALIKE)
    parts = slrt.from_coo(
        tmp_path / "parts", store.indices(), store.values(), SHAPE, partition_entries=400,
        slab_mode=store.slab_mode,
    )  # fmt: skip
    assert len(parts.partitions) > 1
    listener = Listener()
    again = slrt.complete(parts, "auto", threads=1, observers=[listener])
    # Rounding depends on the partitions. Trials start from each other, and their inner systems
    # are solved loosely, so that it grows from one to the next, to what those are solved to.
    assert [t.candidate for t in listener.trials] == [t.candidate for t in found[1]]
    errors = np.array([[t.error for t in tried] for tried in (listener.trials, found[1])])
    np.testing.assert_allclose(errors[0, :3], errors[1, :3], rtol=1e-9)
    np.testing.assert_allclose(errors[0], errors[1], rtol=10 * trials.JUDGED_AT)
    primal = found[0].certificate.primal
    assert again.certificate.primal == pytest.approx(primal, rel=10 * trials.JUDGED_AT)


def test_workers_find_the_same(store, lone_client, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_TRIALS", 2)
    done = slrt.complete(store, "auto", C=2.0, client=lone_client)
    here = slrt.complete(store, "auto", C=2.0, threads=1)
    assert done.ranks == here.ranks
    assert done.certificate.primal == pytest.approx(here.certificate.primal, rel=1e-6)


def test_given_ranks_are_kept_and_so_are_given_weights(store, few_trials):
    listener = Listener()
    done = slrt.complete(store, TRUE, center=True, threads=1, observers=[listener])
    assert done.ranks == TRUE
    assert len({tried.candidate.strengths for tried in listener.trials}) > 3
    assert {tried.candidate.ranks for tried in listener.trials} == {TRUE}
    listener = Listener()
    done = slrt.complete(store, "auto", C=2.0, threads=1, observers=[listener])
    wanted = tuple(2.0 * length for length in SHAPE)
    assert {tried.candidate.strengths for tried in listener.trials} == {wanted}
    assert len({tried.candidate.ranks for tried in listener.trials}) > 3


def test_held_out_observations_that_are_given_judge_and_none_of_the_others_is_left_out(
    store, few_trials, tmp_path
):
    train, test = store.split(0.2, 7, tmp_path / "train", tmp_path / "test")
    listener = Listener()
    done = slrt.complete(train, "auto", validation=test, threads=1, observers=[listener])
    best = min(tried.error for tried in listener.trials)
    assert done.records[-1].validation_rmse == pytest.approx(best, rel=1e-2)
    assert f"predict {test.nnz:,} held-out" in done.records[0].event


def test_a_run_keeps_what_was_tried_and_can_be_resumed(store, few_trials, tmp_path):
    class Crash(Exception):
        pass

    class Stop(Listener):
        def on_record(self, record, state):
            raise Crash

    run = tmp_path / "run"
    with pytest.raises(Crash):
        slrt.complete(store, "auto", C=2.0, threads=1, run_directory=run, observers=[Stop()])
    done = slrt.resume(run, threads=1)
    whole = slrt.complete(store, "auto", C=2.0, threads=1, run_directory=tmp_path / "whole")
    assert done.certificate == whole.certificate
    assert done.stop_reason is StopReason.CHOSEN
    assert "chosen among" in done.records[0].event
    table = json.loads((tmp_path / "whole" / "search.json").read_text())["tried"]
    assert min(row["error"] for row in table) > 0.0
    assert {tuple(row["strengths"]) for row in table} == {tuple(2.0 * n for n in SHAPE)}


def test_bounds_hold_for_settings_that_were_found_without_them(store, tensor, few_trials):
    lowest = float(np.quantile(tensor, 0.05))
    done = slrt.complete(store, "auto", C=2.0, constraint=slrt.Bounds(lowest, None), threads=1)
    whole = np.asarray(done.to_dask(enforce=True))
    assert whole.min() >= lowest
    assert done.certificate.violation < 1e-5
    assert np.asarray(done.to_dask()).min() >= lowest - done.certificate.violation - 1e-9


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_data_that_are_all_the_same_are_no_trouble(value, store, tmp_path):
    flat = slrt.from_coo(tmp_path / "flat", store.indices(), np.full(store.nnz, value), SHAPE)
    done = slrt.complete(flat, "auto", threads=1)
    np.testing.assert_allclose(np.asarray(done.to_dask()), value, atol=1e-12)


def test_data_without_noise_are_fitted_closely_and_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_TRIALS", 10)
    exact = low_rank_tensor((24, 20, 16), ranks=(2, 2, 2), seed=0)
    indices, values = sample_entries(exact, 0.3, seed=0)
    store = slrt.from_coo(tmp_path / "s", indices, values, exact.shape)
    tuned = slrt.tune(store)
    assert tuned.error < 0.1 * exact.std()
    # Without a limit single trials take tens of thousands.
    assert max(tried.sweeps for tried in tuned.history) < 2 * trials.MOST_SWEEPS


def test_a_search_holds_nothing_on_the_engine_between_trials(store, few_trials):
    held = []

    class Counting(Listener):
        def on_trial(self, tried):
            gc.collect()
            held.append(sum(isinstance(one, VectorHandle) for one in gc.get_objects()))

    gc.collect()  # or what earlier tests left is counted now, and not later
    before = sum(isinstance(one, VectorHandle) for one in gc.get_objects())
    slrt.complete(store, "auto", C=2.0, threads=1, observers=[Counting()])
    assert len(held) > 3
    assert max(held) <= before


def test_workers_that_try_settings_at_the_same_time_find_the_same(
    store, thread_client, caplog, monkeypatch
):
    """Three workers of one problem that fits each of them."""
    monkeypatch.setattr(tuning, "MOST_TRIALS", 5)
    caplog.set_level("INFO", logger="slrt_dask")
    found = slrt.tune(store, C=2.0, client=thread_client)
    here = slrt.tune(store, C=2.0, threads=1)
    assert "every trial is made by one worker, 2 at the same time" in caplog.text
    assert [one.candidate for one in found.history] == [one.candidate for one in here.history]
    for one, other in zip(found.history, here.history, strict=True):
        assert one.error == pytest.approx(other.error, rel=1e-9)


def test_a_trial_that_times_out_by_itself_is_not_waited_for(store, thread_client, monkeypatch):
    def fail(errand):
        raise TimeoutError("of its own")

    monkeypatch.setattr(remote, "run_errand", fail)
    with pytest.raises(TimeoutError, match="of its own"):
        soon(lambda: slrt.tune(store, C=2.0, client=thread_client))


def test_a_series_with_a_gap_is_filled_with_nothing_but_its_structure(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_TRIALS", 12)
    time = np.arange(200)
    wave = np.cos(0.11 * time + 1.0) + 0.5 * np.cos(0.47 * time)
    seen = wave.copy()
    seen[90:104] = np.nan
    store = slrt.from_array(tmp_path / "series", seen)
    done = slrt.complete(store, "auto", constraint=slrt.Hankel(80), threads=1)
    filled = done.predict([time[90:104]])
    wrong = np.linalg.norm(filled - wave[90:104]) / np.linalg.norm(wave[90:104])
    assert wrong < 5e-3
    assert done.stop_reason is not StopReason.CHOSEN


@pytest.mark.parametrize("shape", [(30, 20), (9, 8, 7, 6)], ids=["order2", "order4"])
def test_other_orders_are_searched_too(shape, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_TRIALS", 12)
    tensor = low_rank_tensor(shape, (2,) * len(shape), seed=1, noise=0.0)
    indices, values = sample_entries(tensor, 0.5, seed=2)
    store = slrt.from_coo(tmp_path / "store", indices, values, shape)
    done = slrt.complete(store, "auto", threads=1)
    assert error_of(done, tensor) < 0.35
    assert len(done.ranks) == len(shape)


def test_too_few_observations_are_refused(tmp_path):
    indices = np.array(np.unravel_index(np.arange(0, 400, 20), (10, 10, 4)))
    store = slrt.from_coo(tmp_path / "few", indices, np.ones(20), (10, 10, 4))
    with pytest.raises(InvalidInput, match=r"20 observations are too few .* give both"):
        slrt.complete(store, "auto")


def test_a_time_limit_ends_the_search_with_the_best_so_far(store):
    listener = Listener()
    done = slrt.complete(store, "auto", threads=1, max_seconds=1e-3, observers=[listener])
    assert len(listener.trials) == 1
    assert "the time limit ended the search" in done.records[0].event
    assert done.ranks == listener.trials[0].candidate.ranks


def test_workers_elsewhere_need_held_out_observations_that_they_see(lone_client, tensor):
    indices, values = sample_entries(tensor, 0.25, seed=5)
    store = slrt.from_coo("memory://tuned/store", indices, values, SHAPE)
    with pytest.raises(InvalidInput, match=r"is a URL, .* give one part as validation"):
        slrt.complete(store, "auto", client=lone_client)


def test_held_out_observations_of_another_tensor_are_refused(store, tmp_path):
    indices, values = np.array([[0, 1], [1, 0]]), np.ones(2)
    other = slrt.from_coo(tmp_path / "other", indices, values, (2, 2))
    with pytest.raises(InvalidInput, match=r"validation store has shape \(2, 2\)"):
        slrt.tune(store, validation=other)


def test_a_search_of_streamed_observations_begins_with_the_widest_factors(monkeypatch, store_of):
    monkeypatch.setattr("slrt_dask.engine.plan.SMALLEST_STREAMED_BLOCK", 500)
    monkeypatch.setattr("slrt_dask.engine.plan.LARGEST_STREAMED_BLOCK", 2000)
    monkeypatch.setattr(tuning, "FIRST_RANKS", (8, 5, 2))
    rng = np.random.default_rng(3)
    store = store_of(rng.random((60, 30, 25)) < 0.5, rng.standard_normal((60, 30, 25)))
    wide, narrow = (slrt.plan(store, (rank,) * 3, threads=1).largest.total for rank in (8, 2))
    began = []
    for limit in (wide, narrow, narrow - 1):
        request = Request(store, FitSettings(ranks=(2, 2, 2), C=1.0), None, limit, 1, None)
        began.append(tuning._first(request, store.shape, (1.0, 1.0, 1.0)).ranks[0])
    assert began == [8, 2, 8]
