"""What a run takes is kept with it: causes add up to the time, and parts of a run to the whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from types import SimpleNamespace

import pytest
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.spending import Cause, ProcessMemory, Stopwatch, peak_bytes

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.errors import ClusterLost, StateLost
from slrt_dask.request import Request
from slrt_dask.usage import PlaceUsage, Seconds, Usage, read_usage, read_versions, write_usage
from slrt_dask.usage_keeping import WRITE_SECONDS, UsageKeeper
from tests.engine.helpers import dense_problem, results

OPTIONS = {"C": 5.0, "threads": 1, "max_iterations": 6, "gap_tolerance": 0.0}
CLOSE = 1e-6


class Clock:
    """A time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def dense():
    return dense_problem(3)


@pytest.fixture
def store(store_of, dense):
    return store_of(dense.mask, dense.values, parts=3)


def ending(kind, when):
    def stop(record, state):
        if record.iteration == when:
            raise kind

    return SimpleNamespace(on_record=stop)


def assert_adds_up(usage):
    seconds = usage.seconds
    assert all(value >= 0.0 for value in vars(seconds).values())
    on_workers = seconds.computing + seconds.files + seconds.exchange
    assert on_workers <= seconds.rounds + CLOSE
    named = seconds.rounds + seconds.visits + seconds.loading
    named += seconds.checkpoints + seconds.result
    assert named <= seconds.wall + CLOSE
    whole = on_workers + seconds.starting + named - seconds.rounds + seconds.driver
    assert whole == pytest.approx(seconds.wall, abs=1e-3)


def test_a_stopwatch_runs_for_one_cause_at_a_time():
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now = 1.0
    with watch.on(Cause.LOADING):
        clock.now = 3.0
        with watch.on(Cause.ROUNDS), watch.unless_named(Cause.VISITS):
            clock.now = 7.0
        with watch.unless_named(Cause.VISITS):
            clock.now = 8.0
    with contextlib.suppress(KeyError), watch.unless_named(Cause.VISITS):
        clock.now = 16.0
        raise KeyError
    clock.now = 17.0
    wanted = {Cause.DRIVER: 2.0, Cause.LOADING: 3.0, Cause.ROUNDS: 4.0, Cause.VISITS: 8.0}
    assert {cause: spent for cause, spent in watch.seconds.items() if spent} == wanted
    assert sum(watch.seconds.values()) == clock.now


def test_the_causes_of_a_fit_add_up_to_its_time(store, tmp_path):
    done = slrt.complete(store, (3, 2, 1), run_directory=tmp_path / "run", **OPTIONS)
    usage = read_usage(tmp_path / "run")
    assert_adds_up(usage)
    for cause in ("computing", "loading", "checkpoints", "result"):
        assert getattr(usage.seconds, cause) > 0.0, cause
    assert (usage.seconds.exchange, usage.seconds.files) == (0.0, 0.0)
    assert usage.starts == 1
    (worker,) = usage.workers
    assert worker.rounds >= sum(record.sweeps for record in done.records) > 0
    assert usage.drivers == ()
    assert read_versions(tmp_path / "run")["slrt-dask"] == slrt.__version__


def test_memory_is_measured_where_it_is_used(store, tmp_path):
    slrt.complete(store, (3, 2, 1), run_directory=tmp_path / "run", **OPTIONS)
    (worker,) = read_usage(tmp_path / "run").workers
    assert worker.memory.process.endswith(f":{os.getpid()}")
    assert 10e6 < worker.memory.before <= worker.memory.peak <= peak_bytes()
    assert worker.planned > 0
    assert worker.entries == store.nnz


def test_worker_processes_exchange_and_each_is_told_of(store, tmp_path, process_client):
    options = {**OPTIONS, "threads": None, "max_iterations": 3, "client": process_client}
    slrt.complete(store, (3, 2, 1), run_directory=tmp_path / "run", **options)
    usage = read_usage(tmp_path / "run")
    assert_adds_up(usage)
    assert usage.seconds.exchange > 0.0
    assert {use.place for use in usage.workers} == set(process_client.scheduler_info()["workers"])
    processes = {use.memory.process for use in (*usage.workers, *usage.drivers)}
    assert len(processes) == 3
    assert sum(use.entries for use in usage.workers) == store.nnz
    for worker in usage.workers:
        assert worker.exchange > 0.0
        assert worker.memory.peak > 10e6


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_a_resumed_run_adds_up(store, tmp_path, kind):
    run = tmp_path / "run"
    options = {**OPTIONS, "run_directory": run, "observers": [ending(kind, 2)]}
    if kind is KeyboardInterrupt:
        slrt.complete(store, (3, 2, 1), **options)
    else:
        with pytest.raises(kind):
            slrt.complete(store, (3, 2, 1), **options)
    before = read_usage(run)
    assert_adds_up(before)
    slrt.resume(run, threads=1)
    after = read_usage(run)
    assert_adds_up(after)
    assert (before.starts, after.starts) == (1, 2)
    for cause, spent in vars(before.seconds).items():
        assert getattr(after.seconds, cause) >= spent, cause
    assert after.seconds.wall > before.seconds.wall
    (first,), (both,) = before.workers, after.workers  # one process did both
    assert both.rounds > first.rounds


class Snapshot:
    """Leaves behind what a process would that is killed at an iteration, without a word."""

    def __init__(self, run, to, when):
        self.run, self.to, self.when, self.seconds = run, to, when, None

    def on_record(self, record, state):
        if record.iteration == self.when:
            shutil.copytree(self.run, self.to)
            self.seconds = record.seconds


def test_what_a_killed_process_had_recorded_is_counted_and_stays_so(store, tmp_path):
    killed = tmp_path / "killed"
    snapshot = Snapshot(tmp_path / "run", killed, 4)
    options = {**OPTIONS, "run_directory": tmp_path / "run", "observers": [snapshot]}
    slrt.complete(store, (3, 2, 1), **options)
    assert read_usage(tmp_path / "run").seconds.untold == 0.0
    written = json.loads((killed / "usage.json").read_text())
    since = snapshot.seconds - written["recorded"]  # it was written with the first iteration only
    before = read_usage(killed).seconds
    assert before.untold == pytest.approx(since) != 0.0
    assert before.wall == pytest.approx(written["seconds"]["wall"] + since)
    assert before.wall > snapshot.seconds
    done = slrt.resume(killed, threads=1)
    after = read_usage(killed).seconds
    assert after.untold == pytest.approx(before.untold)
    assert after.wall > max(before.wall, done.records[-1].seconds)


def test_a_run_of_an_earlier_release_took_at_least_as_long_as_its_history(store, tmp_path):
    run = tmp_path / "run"
    done = slrt.complete(store, (3, 2, 1), run_directory=run, **OPTIONS)
    content = json.loads((run / "usage.json").read_text())
    del content["recorded"], content["idle"], content["seconds"]["untold"]
    content["seconds"]["wall"] = 0.0
    (run / "usage.json").write_text(json.dumps(content))
    assert read_usage(run).seconds.wall == done.records[-1].seconds


def test_streamed_blocks_are_waited_for(store, dense, tmp_path):
    streaming = Streaming(20, str(tmp_path))
    with LocalEngine(store, threads=2, streaming=streaming) as engine:
        results(engine, dense, validated=False)
        (spent,) = engine.spending()
        rounds = engine.stopwatch.seconds[Cause.ROUNDS]
    assert spent.files > 0.0
    assert spent.files + spent.computing <= rounds
    assert spent.rounds > 10


def test_usage_is_read_as_it_was_written(tmp_path):
    place = PlaceUsage("tcp://w:1", 2, 70, True, 10, 20, ProcessMemory("host:7", 3, 9), 4, 1.0)
    usage = Usage(Seconds(wall=5.0, rounds=2.0), 3, (), (place,))
    write_usage(tmp_path, usage)
    assert read_usage(tmp_path) == usage
    content = json.loads((tmp_path / "usage.json").read_text())
    (tmp_path / "usage.json").write_text(json.dumps({**content, "format_version": 99}))
    assert read_usage(tmp_path) is None
    (tmp_path / "usage.json").write_text("{")
    assert read_usage(tmp_path) is None


def test_one_place_is_told_of_once_for_each_time_it_was_started(tmp_path):
    def used(process, rounds, peak):
        memory = ProcessMemory(process, 1, peak)
        return Usage(workers=(PlaceUsage("", 1, 5, False, 10, None, memory, rounds),))

    usage = used("host:1", 4, 7).plus(used("host:2", 5, 8)).plus(used("host:1", 2, 9))
    told = {use.memory.process: (use.rounds, use.memory.peak) for use in usage.workers}
    assert told == {"host:1": (6, 9), "host:2": (5, 8)}


def test_usage_is_written_at_once_and_then_now_and_then(store, tmp_path):
    clock = Clock()
    keeper, written = UsageKeeper(clock), []
    plan = Request(store, FitSettings(ranks=(3, 2, 1), C=5.0), None, None, 1, None).plan()
    with (
        LocalEngine(store, threads=1) as engine,
        keeper.attempt(tmp_path, engine, plan) as attempt,
    ):
        for second in range(25):
            clock.now = float(second)
            attempt.on_record(None, None)
            written.append(read_usage(tmp_path).seconds.wall)
    assert sorted(set(written)) == [0.0, WRITE_SECONDS, 2 * WRITE_SECONDS]
    assert read_usage(tmp_path).seconds.wall == clock.now


@pytest.mark.parametrize("kind", [StateLost, ClusterLost, OSError])
def test_workers_that_are_lost_when_all_is_written_do_not_undo_it(store, tmp_path, kind):
    def lost():
        raise kind("gone")

    plan = Request(store, FitSettings(ranks=(3, 2, 1), C=5.0), None, None, 1, None).plan()
    with LocalEngine(store, threads=1) as engine:
        with UsageKeeper().attempt(tmp_path, engine, plan):
            engine.spending = lost
        assert read_usage(tmp_path).starts == 1
        with pytest.raises(kind), UsageKeeper().attempt(tmp_path, engine, plan) as attempt:
            attempt.on_record(None, None)  # while there is work to do it matters
