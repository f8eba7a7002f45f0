"""What a run takes is kept with it: causes add up to the time, and parts of a run to the whole."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.errors import ClusterLost, StateLost
from slrt_dask.request import Request
from slrt_dask.spending import Cause, Stopwatch, peak_bytes
from slrt_dask.usage import PlaceUsage, Usage, UsageKeeper, read_usage, read_versions
from tests.oracles.dense import random_problem

RANKS = (3, 2, 1)
OPTIONS = {"C": 5.0, "threads": 1, "max_iterations": 6, "gap_tolerance": 0.0}


class Clock:
    """A time that passes when it is set."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def store(store_of):
    dense = random_problem((12, 6, 5), RANKS, C=5.0, fraction=0.4, seed=1)
    return store_of(dense.mask, dense.values, parts=3)


def test_a_stopwatch_runs_for_one_cause_at_a_time():
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now = 1.0
    with watch.on(Cause.LOADING):
        clock.now = 3.0
        with watch.on(Cause.ROUNDS), watch.unless_named(Cause.VISITS):
            clock.now = 7.0
    with contextlib.suppress(KeyError), watch.unless_named(Cause.VISITS):
        clock.now = 15.0
        raise KeyError
    clock.now = 16.0
    wanted = {Cause.DRIVER: 2.0, Cause.LOADING: 2.0, Cause.ROUNDS: 4.0, Cause.VISITS: 8.0}
    assert {cause: spent for cause, spent in watch.seconds.items() if spent} == wanted


def test_a_fit_in_this_process_says_what_it_took(store, tmp_path):
    done = slrt.complete(store, RANKS, run_directory=tmp_path / "run", **OPTIONS)
    usage = read_usage(tmp_path / "run")
    assert usage.starts == 1
    assert usage.wall >= done.records[-1].seconds
    for cause in ("computing", "driver", "loading", "checkpoints", "result"):
        assert usage.seconds[cause] > 0.0, cause
    assert min(usage.seconds.values()) >= 0.0
    assert usage.seconds["files"] == 0.0
    (place,) = usage.places
    assert place.rounds >= sum(record.sweeps for record in done.records) > 0
    assert place.entries == store.nnz
    assert place.planned > 0
    assert 10e6 < place.before <= place.peak <= peak_bytes()
    assert read_versions(tmp_path / "run")["slrt-dask"] == slrt.__version__


def test_every_worker_and_the_driver_are_listed(store, tmp_path, process_client):
    options = {**OPTIONS, "threads": None, "max_iterations": 3, "client": process_client}
    slrt.complete(store, RANKS, run_directory=tmp_path / "run", **options)
    usage = read_usage(tmp_path / "run")
    workers = {place.place: place for place in usage.places}
    driver = workers.pop("driver")
    assert set(workers) == set(process_client.scheduler_info()["workers"])
    assert (driver.entries, driver.rounds) == (0, 0)
    assert sum(place.entries for place in workers.values()) == store.nnz
    assert all(place.computing > 0.0 < place.waiting for place in workers.values())
    assert usage.seconds["exchange"] > 0.0


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_a_resumed_run_adds_up(store, tmp_path, kind):
    def stop(record, state):
        if record.iteration == 2:
            raise kind

    run = tmp_path / "run"
    with contextlib.suppress(RuntimeError):
        observers = [SimpleNamespace(on_record=stop)]
        slrt.complete(store, RANKS, run_directory=run, observers=observers, **OPTIONS)
    before = read_usage(run)
    slrt.resume(run, threads=1)
    after = read_usage(run)
    assert (before.starts, after.starts) == (1, 2)
    assert all(after.seconds[cause] >= spent for cause, spent in before.seconds.items())
    assert after.wall > before.wall > 0.0
    (first,), (both,) = before.places, after.places
    assert both.rounds > first.rounds
    assert both.computing > first.computing


def test_the_same_place_in_two_processes_has_the_larger_peak():
    def used(rounds, before, peak):
        return Usage(places=(PlaceUsage("w", 1, 5, False, 10, None, before, peak, rounds),))

    (place,) = used(4, 1, 7).plus(used(5, 2, 9)).plus(used(1, 3, 8)).places
    assert (place.rounds, place.before, place.peak) == (10, 2, 9)


def kept(store, path, engine, clock=None):
    plan = Request(store, FitSettings(ranks=RANKS, C=5.0), None, None, 1, None).plan()
    return UsageKeeper(clock or Clock()).attempt(path, engine, plan)


class Idle:
    """An engine that spends nothing, and may be lost."""

    error = None

    def __init__(self):
        self.stopwatch = Stopwatch(Clock())

    def spending(self):
        if self.error is not None:
            raise self.error
        return []


def test_usage_is_written_at_once_every_ten_seconds_and_at_the_end(store, tmp_path):
    clock, written = Clock(), []
    with kept(store, tmp_path, Idle(), clock) as attempt:
        for second in range(25):
            clock.now = float(second)
            attempt.on_record(None, None)
            written.append(read_usage(tmp_path).wall)
    assert sorted(set(written)) == [0.0, 10.0, 20.0]
    assert read_usage(tmp_path).seconds["driver"] == clock.now


@pytest.mark.parametrize("kind", [StateLost, ClusterLost, OSError])
def test_workers_that_are_lost_when_all_is_written_do_not_undo_it(store, tmp_path, kind):
    engine = Idle()
    with kept(store, tmp_path, engine):
        engine.error = kind("gone")
    assert read_usage(tmp_path).starts == 1
    with pytest.raises(kind), kept(store, tmp_path, engine) as attempt:
        attempt.on_record(None, None)  # while there is work to do it matters


def test_what_is_not_usage_is_not_read(store, tmp_path):
    with kept(store, tmp_path, Idle()):
        pass
    content = json.loads((tmp_path / "usage.json").read_text())
    for other in ("{", "[]", json.dumps({**content, "format_version": 99})):
        (tmp_path / "usage.json").write_text(other)
        assert read_usage(tmp_path) is None
        assert read_versions(tmp_path) == {}
