"""Going on with a run by command: the same answer and words as a fit, and plain errors."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask
from slrt_dask.data import from_file
from tests.cli.test_errors import is_one_sentence

OPTIONS = {"ranks": (4, 4, 3), "C": 0.1, "gap_tolerance": 0.0, "max_iterations": 11, "threads": 1}


class Crash(Exception):
    """What ends a run without a word."""


@pytest.fixture
def stopped(store, tmp_path):
    """A run that crashed at its iteration 3, or was interrupted there."""

    def make(kind=Crash, name="run", where=store, **options):
        def stop(record, state):
            if record.iteration == 3:
                raise kind

        run = tmp_path / name
        try:
            observers = [SimpleNamespace(on_record=stop)]
            options = {**OPTIONS, **options}
            slrt_dask.complete(where, **options, run_directory=run, observers=observers)
        except Crash:
            assert not (run / "completion").exists()
        return run

    return make


@pytest.fixture(scope="module")
def undisturbed(store):
    return slrt_dask.complete(store, **OPTIONS)


@pytest.mark.parametrize("kind", [Crash, KeyboardInterrupt])
def test_a_stopped_run_goes_on_and_ends_as_a_fit_does(kind, run_command, stopped, undisturbed):
    run = stopped(kind)
    said = run_command("resume", run, "--threads", "1")
    assert said.exit_code == 0, said.stderr
    done = slrt_dask.load_completion(run / "completion")
    for one, other in zip(done.factors, undisturbed.factors, strict=True):
        np.testing.assert_array_equal(one, other)
    assert f"certificate  {done.certificate}" in said.stdout
    assert f"stop         {done.stop_reason.value}" in said.stdout
    assert "effort       11 iterations" in said.stdout
    assert f"next         slrt-dask report {run}, evaluate {run} STORE" in said.stdout
    assert [line.split()[1] for line in said.stderr.splitlines()] == ["10", "11"]


def test_a_resumed_run_can_be_quiet_or_show_its_log(run_command, stopped):
    quiet = run_command("resume", stopped(), "--quiet")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    log = run_command("resume", stopped(name="other"), "--verbose")
    assert log.stderr.count("iteration    4") == 1
    assert "iteration    3" not in log.stderr


def test_a_run_goes_on_with_worker_processes(run_command, store, stopped, process_client):
    fewer = {"max_iterations": 5}
    undisturbed = slrt_dask.complete(store, **{**OPTIONS, **fewer})
    run = stopped(**fewer)
    said = run_command("resume", run, "--scheduler", process_client.scheduler.address)
    assert said.exit_code == 0, said.stderr
    done = slrt_dask.load_completion(run / "completion")
    assert len(done.records) == 6
    assert done.records[-1].cost == pytest.approx(undisturbed.records[-1].cost, rel=1e-8)


def test_a_run_that_had_ended_is_shown_and_left_alone(run_command, fitted):
    run, fit = fitted
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    said = run_command("resume", run)
    assert said.exit_code == 0, said.stderr
    first, *rest = said.stdout.splitlines()
    assert "already ended" in first
    assert rest == fit.stdout.splitlines()  # with its time
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_directory_without_a_run_is_refused_in_a_sentence(run_command, store, tmp_path):
    for place in (tmp_path / "nowhere", tmp_path, store.path):
        said = run_command("resume", place)
        assert (said.exit_code, said.stdout) == (1, "")
        assert is_one_sentence(said.stderr)
        assert f"{place} holds no run" in said.stderr


def test_other_observations_at_the_stores_path_are_refused_in_a_sentence(
    run_command, observations, stopped, tmp_path
):
    mine = from_file(tmp_path / "mine", observations)
    run = stopped(where=mine)
    shutil.rmtree(mine.path)
    from_file(tmp_path / "mine", observations, partition_entries=100)
    said = run_command("resume", run)
    assert (said.exit_code, said.stdout) == (1, "")
    assert is_one_sentence(said.stderr)
    assert f"{mine.path} holds other observations" in said.stderr
    shutil.rmtree(mine.path)
    said = run_command("resume", run)
    assert said.exit_code == 1
    assert is_one_sentence(said.stderr)
