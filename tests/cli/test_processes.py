"""Commands as processes: exit codes, an interrupt, worker processes, a cluster, no terminal."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import slrt_dask
from tests.cli.conftest import FIT

FEW = (*FIT, "--max-iterations", "1", "--gap-tolerance", "0")


def wait_until(condition, process, seconds=60):
    began = time.monotonic()
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < seconds
        time.sleep(0.005)


def has_checkpoint(run):
    """Whether one is whole; which one it is changes quickly."""
    return any(path.name.isdigit() for path in (run / "checkpoints").glob("*"))


@pytest.fixture(scope="module")
def in_this_process(run_command, store, tmp_path_factory):
    run = tmp_path_factory.mktemp("alone") / "run"
    assert run_command("fit", store.path, *FEW, "--run", run).exit_code == 0
    return slrt_dask.load_completion(run / "completion")


def everywhere(completion):
    return completion.predict(np.indices(completion.shape).reshape(3, -1))


def test_an_interrupted_fit_writes_its_result_and_exits_130(start_process, store, tmp_path):
    run = tmp_path / "run"
    process = start_process(
        "fit", store.path, *FIT, "--run", run, "--gap-tolerance", "0",
        "--gradient-tolerance", "0", "--max-iterations", "1000000", "--ranks", "2,2,2",
        "--C", "100", "--checkpoint-every", "1000000",
    )  # fmt: skip
    wait_until(lambda: has_checkpoint(run), process)
    os.killpg(process.pid, signal.SIGINT)
    output, messages = process.communicate(timeout=60)
    assert process.returncode == 130, messages
    done = slrt_dask.load_completion(run / "completion")
    assert f"certificate  {done.certificate}" in output
    assert "interrupted" in messages
    assert "Traceback" not in messages
    assert f"next         slrt-dask resume {run} to go on" in output


def test_worker_processes_predict_what_one_process_does_and_say_it_plainly(
    run_process, store, tmp_path, in_this_process
):
    run = tmp_path / "run"
    code, output, messages = run_process(
        "fit", store.path, *FEW, "--run", run, "--workers", "2", "--threads", "1"
    )
    assert code == 0, messages
    assert "certificate" in output
    done = slrt_dask.load_completion(run / "completion")
    np.testing.assert_allclose(everywhere(done), everywhere(in_this_process), rtol=1e-5, atol=1e-7)
    # Without a terminal.
    assert "\x1b" not in output + messages
    assert "\r" not in output + messages
    assert messages
    assert all(line.startswith("iteration") for line in messages.splitlines()), messages
