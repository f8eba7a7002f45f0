"""A fit whose process is killed at any moment goes on to the answer it would have had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask
import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.engine.scratch import PREFIX
from slrt_dask.fit import plan_of

ROOT = Path(__file__).parents[2]
RANKS = (4, 3, 3)
ITERATIONS = 24
OPTIONS = {
    "C": 0.3, "threads": 1, "max_iterations": ITERATIONS,
    "gap_tolerance": 0.0, "gradient_tolerance": 0.0,
}  # fmt: skip
SECONDS_TO_REACH = 60.0

DRIVER = """
import json, sys
import dask
import slrt_dask as slrt
from slrt_dask.engine import plan
what, store, run, scratch, limit, ranks, options = json.loads(sys.argv[1])
plan.SMALLEST_STREAMED_BLOCK, plan.LARGEST_STREAMED_BLOCK = 500, 4000
with dask.config.set({"temporary-directory": scratch}):
    if what == "resume":
        slrt.resume(run, threads=options["threads"], memory_limit=limit)
    else:
        slrt.complete(
            slrt.open_store(store), tuple(ranks), run_directory=run, memory_limit=limit, **options
        )
"""


@pytest.fixture(scope="module")
def store(store_of):
    mask = np.random.default_rng(3).random((60, 50, 40)) < 0.3
    return store_of(mask, np.sin(np.indices(mask.shape).sum(axis=0) / 9.0), parts=2)


@pytest.fixture(scope="module")
def undisturbed(store):
    done = slrt.complete(store, RANKS, **OPTIONS)
    assert len(done.records) == ITERATIONS + 1
    return done


@pytest.fixture
def kill(store, tmp_path):
    """Start or resume the run in a process of its own, and kill that at a drawn moment."""

    def when(random, first, last, limit=None):
        run, scratch = tmp_path / "run", tmp_path / "scratch"
        what = "resume" if run.exists() else "fit"
        before = lines_of(run)
        wanted, delay = int(random.integers(first, last + 1)), float(random.uniform(0.0, 0.06))
        assert before < wanted
        arguments = [what, store.path, str(run), str(scratch), limit, RANKS, OPTIONS]
        with subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(arguments)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_until(lambda: lines_of(run) >= wanted, process, SECONDS_TO_REACH)
            moment = time.perf_counter() + delay
            while time.perf_counter() < moment:
                os.sched_yield()
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (run / "completion").exists()
        return run

    return when


def wait_until(reached, process, seconds):
    end = time.monotonic() + seconds
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        os.sched_yield()


def lines_of(run):
    """How many iterations a run has told of."""
    try:
        return (run / "records.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def assert_same_answer(done, undisturbed):
    assert [record.iteration for record in done.records] == list(range(ITERATIONS + 1))
    for one, other in zip(done.records, undisturbed.records, strict=True):
        assert one.cost == pytest.approx(other.cost, rel=1e-10)
    assert done.stop_reason is undisturbed.stop_reason
    assert done.certificate.primal == pytest.approx(undisturbed.certificate.primal, rel=1e-9)


@pytest.mark.parametrize(
    "moments",
    [[(1, 1)], [(2, 3)], [(19, 22)], [(4, 8), (11, 14), (17, 21)]],
    ids=["at the start", "early", "late", "three times"],
)
def test_a_killed_fit_goes_on_to_the_same_answer(moments, kill, undisturbed):
    random = np.random.default_rng(len(moments) + moments[0][0])
    for first, last in moments:
        run = kill(random, first, last)
    assert_same_answer(slrt.resume(run, threads=1), undisturbed)


def test_a_fit_killed_while_streaming_goes_on_and_its_scratch_is_removed(
    store, kill, undisturbed, tmp_path, monkeypatch
):
    monkeypatch.setattr("slrt_dask.engine.plan.SMALLEST_STREAMED_BLOCK", 500)
    monkeypatch.setattr("slrt_dask.engine.plan.LARGEST_STREAMED_BLOCK", 4000)
    limit = plan_of(store, FitSettings(ranks=RANKS, C=1.0), threads=1).largest.total - 1
    random = np.random.default_rng(8)
    scratch = tmp_path / "scratch"
    left = []
    for first, last in ((1, 3), (6, 12)):
        run = kill(random, first, last, limit)
        left.append(sorted(scratch.iterdir()))
    # Each process removed what the one before it had left, and was then killed itself.
    assert [len(directories) for directories in left] == [1, 1]
    assert left[0] != left[1]
    assert left[1][0].name.startswith(PREFIX)
    with dask.config.set({"temporary-directory": str(scratch)}):
        done = slrt.resume(run, threads=1, memory_limit=limit)
    assert list(scratch.iterdir()) == []
    assert_same_answer(done, undisturbed)
