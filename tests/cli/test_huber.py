"""Huber's loss on the command line: flags, files, and what is said of it."""

from __future__ import annotations

import json

import pytest

from slrt_dask.runs import open_run
from tests.cli.conftest import FIT

ARGUMENTS = (*FIT, "--max-iterations", "2", "--threads", "1")


def test_a_fit_with_a_delta_says_so_everywhere(run_command, store, tmp_path):
    run, page = tmp_path / "run", tmp_path / "page.html"
    said = run_command("fit", store.path, *ARGUMENTS, "--huber", "0.25", "--run", run)
    assert said.exit_code == 0, said.stderr
    assert "loss         Huber's, delta 0.25" in said.stdout
    assert open_run(run).settings.huber == 0.25
    said = run_command("resume", run)
    assert "loss         Huber's, delta 0.25" in said.stdout
    assert run_command("report", run, "-o", page).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "h is Huber's loss" in text.replace("&#x27;", "'").replace("&#39;", "'")
    assert 'value="0.25"' in text


@pytest.mark.parametrize("delta", [0.25, "auto"])
def test_a_file_may_set_delta_and_flags_win(run_command, store, tmp_path, delta):
    config = tmp_path / "fit.toml"
    settings = {"store": store.path, "run": "run", "ranks": [4, 4, 3], "C": 0.1, "huber": delta}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    config.write_text("[fit]\nmax_iterations = 1\n" + "\n".join(lines) + "\n")
    assert run_command("fit", "--config", config).exit_code == 0
    kept = open_run(tmp_path / "run").settings.huber
    assert kept == 0.25 if delta == 0.25 else kept > 0.0
    other = tmp_path / "other"
    said = run_command("fit", "--config", config, "--huber", "3", "--run", other)
    assert said.exit_code == 0, said.stderr
    assert open_run(other).settings.huber == 3.0


@pytest.mark.parametrize("delta", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("command", ["fit", "plan"])
def test_a_delta_that_makes_no_sense_is_named(run_command, store, tmp_path, command, delta):
    where = ("--C", "1", "--run", tmp_path / "run") if command == "fit" else ()
    said = run_command(command, store.path, "--ranks", "2,2,2", "--huber", delta, *where)
    assert said.exit_code != 0
    assert f"delta of Huber's loss is {float(delta)!r}" in said.stderr
    assert not (tmp_path / "run").exists()


def test_text_for_delta_is_named(run_command, store, tmp_path):
    said = run_command("fit", store.path, *FIT, "--huber", "large", "--run", tmp_path / "run")
    assert "'large' is neither a number nor auto" in said.stderr


def test_bounds_go_with_it_and_hankel_is_refused_before_anything_is_made(
    run_command, store, tmp_path
):
    huber = ("fit", store.path, *ARGUMENTS, "--huber", "1")
    said = run_command(*huber, "--nonnegative", "--run", tmp_path / "bounded")
    assert said.exit_code == 0, said.stderr
    windows = ",".join(["2"] + ["1"] * (store.order - 1))
    said = run_command(*huber, "--hankel", windows, "--run", tmp_path / "run")
    assert said.exit_code != 0
    assert "Huber's loss and Hankel structure do not go together" in said.stderr
    assert not (tmp_path / "run").exists()


def test_a_plan_and_a_search_take_it(run_command, store, tmp_path):
    said = run_command("plan", store.path, "--ranks", "2,2,2", "--huber", "auto")
    assert "This fits." in said.stdout, said.stderr
    said = run_command(
        "tune", store.path, "--ranks", "2,2,2", "--lambdas", "12,10,8", "--huber", "0.5",
        "--threads", "1", "--quiet", "--max-seconds", "0.2",
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    assert "root mean Huber loss (from 0.5)" in said.stdout
    assert "--huber 0.5" in said.stdout
