"""Checkpoints by command: how far apart, and for one process at a time."""

from __future__ import annotations

import pytest

from slrt_dask.runs import open_run
from tests.cli.conftest import FIT
from tests.cli.test_errors import is_one_sentence

FEW = (*FIT, "--gap-tolerance", "0", "--max-iterations", "3")


@pytest.mark.parametrize(("every", "kept"), [("2", ["000002", "000003"]), ("1h", ["000003"])])
def test_checkpoints_are_some_iterations_or_some_time_apart(
    every, kept, run_command, store, tmp_path
):
    run = tmp_path / "run"
    said = run_command("fit", store.path, *FEW, "--run", run, "--checkpoint-every", every)
    assert said.exit_code == 0, said.stderr
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == kept


@pytest.mark.parametrize("every", ["soon", "-1", "0s"])
def test_what_is_neither_is_refused_with_an_example(every, run_command):
    said = run_command("resume", "run", f"--checkpoint-every={every}")
    assert said.exit_code == 2
    assert "10 or 30s" in said.stderr


def test_a_run_that_another_process_works_on_is_refused_in_a_sentence(run_command, store, tmp_path):
    run = tmp_path / "run"
    run_command("fit", store.path, *FEW, "--run", run)
    (run / "completion" / "zarr.json").unlink()
    with open_run(run).locked():
        said = run_command("resume", run)
    assert (said.exit_code, said.stdout) == (1, "")
    assert is_one_sentence(said.stderr)
    assert f"another process is at work on the run {run}" in said.stderr
    assert run_command("resume", run).exit_code == 0
