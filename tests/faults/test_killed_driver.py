"""A fit whose process is killed at any moment goes on to the answer it would have had."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import dask
import numpy as np
import pytest
from slrt_dask.engine.scratch import PREFIX

import slrt_dask as slrt
from slrt_dask.cli import main
from slrt_dask.config import FitSettings
from slrt_dask.engine import plan
from slrt_dask.request import plan_of
from tests.faults.conftest import OPTIONS, RANKS
from tests.faults.phases import Phases
from tests.faults.processes import kill, start, wait_until

# What a driver is killed in, the first ones in any order, with the most steps before it is.
FIRST = {"loading": 2, "line search": 8, "inner solve": 6, "gradient": 2, "checkpoint files": 12}
LAST = {"certificate": 10, "result files": 30}


def fit_or_resume(store, run, told=None, doom=None, streamed=None, **options):
    """A driver; it tells of its doom, a phase and a number of steps in it, and dies of it."""

    def die(_):
        Path(told).write_text(doom[0])
        os.kill(os.getpid(), signal.SIGKILL)

    if doom is not None:
        Phases(pytest.MonkeyPatch(), [doom], die).watch_files()
    if streamed is not None:
        stream(pytest.MonkeyPatch(), streamed["scratch"])
        options["memory_limit"] = streamed["limit"]
    if (Path(run) / "settings.json").exists():
        slrt.resume(run, threads=1, memory_limit=options.get("memory_limit"))
    else:
        options = {**OPTIONS, "threads": 1, **options}
        slrt.complete(slrt.open_store(store), RANKS, run_directory=run, **options)


def stream(monkeypatch, scratch):
    """Small blocks in files are worth it already for small problems."""
    monkeypatch.setattr(plan, "SMALLEST_STREAMED_BLOCK", 50)
    monkeypatch.setattr(plan, "LARGEST_STREAMED_BLOCK", 200)
    monkeypatch.setitem(dask.config.config, "temporary-directory", scratch)


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def die_of(store, run, tmp_path):
    """Start or resume the run in a process that is killed in a phase."""

    def once(doom, **options):
        told = tmp_path / "told"
        told.unlink(missing_ok=True)
        process = start(fit_or_resume, store.path, str(run), told=str(told), doom=doom, **options)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert told.read_text() == doom[0]

    return once


@pytest.mark.parametrize("seed", range(2))
def test_drivers_killed_in_every_phase_leave_the_answer_unchanged(
    seed, run, die_of, assert_same_answer
):
    generator = np.random.default_rng(seed)
    phases = [*generator.permutation(list(FIRST)), *LAST]
    for phase in phases:
        die_of((str(phase), int(generator.integers(1, {**FIRST, **LAST}[phase] + 1))))
    done = slrt.resume(run, threads=1)
    assert_same_answer(done)
    written = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert [line["cost"] for line in written] == [record.cost for record in done.records]
    events = [record.event for record in done.records]
    assert "; ".join(events).count("resumed") >= 4


LONGER = {**OPTIONS, "max_iterations": 24, "gap_tolerance": 0.0}


@pytest.fixture(scope="module")
def longer_undisturbed(store):
    return slrt.complete(store, RANKS, **LONGER, threads=1)


@pytest.mark.parametrize("seed", range(3))
def test_a_driver_killed_by_the_clock_goes_on(seed, store, run, longer_undisturbed):
    generator = np.random.default_rng(seed)
    wanted, delay = int(generator.integers(1, 15)), float(generator.uniform(0.0, 0.02))
    driver = start(fit_or_resume, store.path, str(run), **LONGER)
    records = run / "records.jsonl"
    wait_until(lambda: records.exists() and records.read_bytes().count(b"\n") >= wanted, driver)
    moment = time.perf_counter() + delay
    while time.perf_counter() < moment:
        os.sched_yield()
    kill(driver)
    done = slrt.resume(run, threads=1)
    assert [record.cost for record in done.records] == [
        record.cost for record in longer_undisturbed.records
    ]
    assert done.certificate == longer_undisturbed.certificate


def test_a_fit_killed_while_streaming_goes_on_and_its_scratch_is_removed(
    store, run, die_of, assert_same_answer, tmp_path, monkeypatch
):
    scratch, left = tmp_path / "scratch", []
    stream(monkeypatch, str(scratch))
    limit = plan_of(store, FitSettings(ranks=RANKS, C=1.0), threads=1).largest.total - 1
    for doom in (("line search", 3), ("gradient", 2)):
        die_of(doom, streamed={"limit": limit, "scratch": str(scratch)})
        left.append(sorted(scratch.iterdir()))
    # Each process removed what the one before it had left, and was then killed itself.
    assert [len(directories) for directories in left] == [1, 1]
    assert left[0] != left[1]
    assert left[1][0].name.startswith(PREFIX)
    done = slrt.resume(run, threads=1, memory_limit=limit)
    assert list(scratch.iterdir()) == []
    assert_same_answer(done)


def fit_by_command(store, run, scratch, limit):
    stream(pytest.MonkeyPatch(), scratch)
    endless = ("--max-iterations", "1000000", "--gap-tolerance", "0", "--gradient-tolerance", "0")
    ranks = ",".join(map(str, RANKS))
    command = ["fit", store, "--ranks", ranks, "--C", "100", *endless, "--run", run]
    main([*command, "--threads", "1", "--memory-limit", str(limit)])


def test_a_command_that_is_told_to_end_takes_its_scratch_along(store, run, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    stream(monkeypatch, str(scratch))
    limit = plan_of(store, FitSettings(ranks=RANKS, C=100.0), threads=1).largest.total - 1
    process = start(fit_by_command, store.path, str(run), str(scratch), limit)
    records = run / "records.jsonl"
    wait_until(lambda: records.exists() and records.read_bytes().count(b"\n") > 2, process)
    assert [path.name.startswith(PREFIX) for path in scratch.iterdir()] == [True]
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM
    assert list(scratch.iterdir()) == []
    assert list((run / "checkpoints").iterdir())


def test_a_run_left_by_a_killed_process_is_not_locked(run, die_of, assert_same_answer):
    die_of(("checkpoint files", 1))
    assert_same_answer(slrt.resume(run, threads=1))
