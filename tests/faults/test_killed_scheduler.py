"""A scheduler that is killed and started again at its address: the fit reconnects and goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import distributed
import pytest

import slrt_dask as slrt
from slrt_dask import connection, recovery
from slrt_dask.errors import ClusterLost
from tests.faults.conftest import OPTIONS, RANKS, at_iteration, events_of
from tests.faults.phases import Phases
from tests.faults.processes import SECONDS_TO_REACH, wait_until

ROOT = Path(__file__).parents[2]


def restart(cluster):
    cluster.start_scheduler()
    for _ in range(2):
        cluster.start_worker()


@pytest.mark.parametrize("phase", ["line search", "result"])
def test_a_client_that_reconnects_goes_on(
    phase, store, client, cluster, assert_same_answer, monkeypatch, tmp_path
):
    def kill_and_restart(engine):
        cluster.kill_scheduler()
        restart(cluster)

    happened = Phases(monkeypatch, [(phase, 2)], kill_and_restart).happened
    done = slrt.complete(store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run")
    assert happened == [phase]
    assert_same_answer(done)
    assert len(events_of(done)) == 1


def test_a_client_that_gave_up_is_replaced(store, cluster, assert_same_answer, tmp_path):
    for _ in range(2):
        cluster.start_worker()
    client = distributed.Client(cluster.address, timeout=2, set_as_default=False)

    def kill_and_restart():
        cluster.kill_scheduler()
        wait_until(lambda: client.status == "closed")
        restart(cluster)

    done = slrt.complete(
        store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run",
        observers=[at_iteration(2, kill_and_restart)],
    )  # fmt: skip
    assert_same_answer(done)
    (event,) = events_of(done)
    assert re.fullmatch(r"the connection to the scheduler .*; began again from iteration 2", event)
    assert not [thread for thread in threading.enumerate() if "Client" in thread.name]


def test_when_the_scheduler_stays_away_the_run_ends_with_a_usable_checkpoint(
    store, cluster, assert_same_answer, monkeypatch, tmp_path
):
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 1.0)
    cluster.start_worker()
    client = distributed.Client(cluster.address, timeout=1, set_as_default=False)
    with pytest.raises(ClusterLost, match=r"1 seconds of waiting .*scheduler.*resume the run"):
        slrt.complete(
            store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run",
            observers=[at_iteration(1, cluster.kill_scheduler)],
        )  # fmt: skip
    wait_until(lambda: client.status == "closed")
    assert_same_answer(slrt.resume(tmp_path / "run", threads=1))


# ---- by command ---------------------------------------------------------------------------------


@pytest.fixture
def command():
    """Start a command of this environment; whatever still runs at the end is killed."""
    started = []

    def start_command(*words):
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start_command
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def lines_of(run):
    with contextlib.suppress(FileNotFoundError):
        return (run / "records.jsonl").read_text().splitlines()
    return []


def test_the_command_goes_on_when_its_scheduler_is_started_again(
    command, store, cluster, assert_same_answer, tmp_path
):
    run = tmp_path / "run"
    cluster.start_worker()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    fit = command(
        "slrt_dask.cli", "fit", store.path, "--ranks", ",".join(map(str, RANKS)), *flags,
        "--run", str(run), "--scheduler", cluster.address,
    )  # fmt: skip
    end = time.monotonic() + SECONDS_TO_REACH
    while len(lines_of(run)) < 2:
        assert fit.poll() is None, fit.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)  # between looks; the command needs the processor
    cluster.kill_scheduler()
    cluster.start_scheduler()
    cluster.start_worker()
    output, messages = fit.communicate(timeout=SECONDS_TO_REACH)
    assert fit.returncode == 0, messages
    assert "certificate" in output
    assert "Traceback" not in messages
    assert_same_answer(slrt.load_completion(run / "completion"))
    assert any("began again" in json.loads(line)["event"] for line in lines_of(run))
