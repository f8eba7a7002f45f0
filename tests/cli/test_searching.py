"""A fit without ranks and weights: these are searched for, and the search is shown."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest

import slrt_dask
from slrt_dask.locking import locked
from slrt_dask.tuning import candidate, search, trials


@pytest.fixture(autouse=True)
def short_search(monkeypatch):
    """Ranks for which other tests have kernels compiled already, and few trials, soon over."""
    monkeypatch.setattr(candidate, "LADDER", (1, 2, 3, 5))
    monkeypatch.setattr(search, "PATIENCE", 1)
    monkeypatch.setattr(trials, "MOST_ITERATIONS", 3)


def test_a_fit_with_nothing_but_a_store_finds_its_settings(run_command, store, tmp_path):
    said = run_command(
        "fit", store.path, "--run", tmp_path / "run", "--threads", "1", "--max-iterations", "3"
    )
    assert said.exit_code == 0, said.stderr
    table = json.loads((tmp_path / "run" / "search.json").read_text())["tried"]
    lines = [line for line in said.stderr.splitlines() if line.startswith("trial ")]
    assert [int(line.split()[1]) for line in lines] == list(range(1, len(table) + 1))
    done = slrt_dask.load_completion(tmp_path / "run")
    assert f"ranks {done.ranks}" in "\n".join(lines)
    assert f"settings     {done.records[0].event}" in said.stdout
    assert "held-out" in said.stdout


def test_a_file_and_flags_say_what_is_searched_for(run_command, store, tmp_path):
    config = tmp_path / "fit.toml"
    config.write_text(f'[fit]\nstore = "{store.path}"\nrun = "run"\nranks = "auto"\nC = 0.1\n')
    said = run_command(
        "fit",
        "--config",
        config,
        "--ranks",
        "4,4,3",
        "--C",
        "auto",
        "--quiet",
        "--threads",
        "1",
        "--lambdas",
        "1,1,1",
        "--max-iterations",
        "3",
    )
    assert (said.exit_code, said.stderr) == (0, "")
    table = json.loads((tmp_path / "run" / "search.json").read_text())["tried"]
    assert {tuple(row["ranks"]) for row in table} == {(4, 4, 3)}


def test_chosen_is_no_setting_of_a_file(run_command, store, tmp_path):
    config = tmp_path / "fit.toml"
    config.write_text(f'[fit]\nstore = "{store.path}"\nrun = "run"\nchosen = true\n')
    said = run_command("fit", "--config", config)
    assert said.exit_code == 1
    assert "fit.chosen, which is unknown" in said.stderr


def test_the_search_alone_shows_what_it_tried_and_the_next_command(run_command, store, tmp_path):
    said = run_command(
        "tune", store.path, "--ranks", "4,4,3", "--lambdas", "1,1,1", "--threads", "1",
        "--max-seconds", "60",
        "--output", tmp_path / "tried.json", "--plot", tmp_path / "tried.png",
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    tried = json.loads((tmp_path / "tried.json").read_text())["tried"]
    *rows, chosen, following = said.stdout.splitlines()
    assert len(rows) == len(tried) > 3
    errors = [float(row.split("rmse")[1].split()[0]) for row in rows]
    assert errors == sorted(errors, reverse=True)
    assert chosen.startswith(f"chosen among {len(tried)} settings: ranks (4, 4, 3)")
    assert (tmp_path / "tried.png").stat().st_size > 5000
    flags = following.split("converge, with ")[1].split()
    again = run_command(
        "fit", store.path, *flags, "--run", tmp_path / "run", "--max-iterations", "1"
    )
    assert again.exit_code == 0, again.stderr


def test_a_picture_that_cannot_be_made_is_refused_before_the_search(
    run_command, store, tmp_path, monkeypatch
):
    monkeypatch.setattr("slrt_dask.tuning.api.tune", lambda *a, **k: pytest.fail("it searched"))
    for flags, words in (
        (("--plot", tmp_path / "s.xyz"), "s.xyz ends in .xyz, which no picture does"),
        (("--plot", tmp_path / "no" / "s.png"), "is in a directory that does not exist"),
        (("--output", tmp_path / "no" / "s.json"), "is in a directory that does not exist"),
    ):
        said = run_command("tune", store.path, *flags)
        assert said.exit_code in (1, 2)
        assert words in said.stderr
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = run_command("tune", store.path, "--plot", tmp_path / "s.png")
    assert said.exit_code == 1
    assert "matplotlib is not installed; install slrt-dask[plot]" in said.stderr


def test_a_search_that_is_kept_is_not_made_again_and_what_it_held_out_is_said(
    run_command, store, tmp_path
):
    flags = (
        "tune", store.path, "--ranks", "4,4,3", "--lambdas", "1,1,1", "--threads", "1",
        "--run", tmp_path / "kept", "--held-out", "fibres:2", "--output", tmp_path / "tried.json",
    )  # fmt: skip
    first, again = run_command(*flags), run_command(*flags)
    assert first.exit_code == again.exit_code == 0, again.stderr
    assert first.stdout == again.stdout
    assert "held out were fibres of mode 2, as was asked" in first.stdout
    assert " ± " in first.stdout.splitlines()[0]
    assert json.loads((tmp_path / "tried.json").read_text())["held_out"]["kind"] == "fibres:2"
    said = run_command("resume", tmp_path / "kept")
    assert said.exit_code == 1
    assert "holds a search and no fit" in said.stderr


def test_a_fit_that_was_stopped_in_its_search_is_resumed(run_command, store, tmp_path, monkeypatch):
    stop = trials.Trials.attempt
    made = []

    def stopping(self, candidate, warm):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(candidate)
        return stop(self, candidate, warm)

    flags = (store.path, "--ranks", "4,4,3", "--lambdas", "1,1,1", "--threads", "1", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(trials.Trials, "attempt", stopping)
        said = run_command("fit", *flags, "--run", tmp_path / "run")
        assert said.exit_code != 0
    assert (tmp_path / "run" / "search" / "0001.json").exists()
    page = ("report", tmp_path / "run", "-o", tmp_path / "page.html")
    stopped = run_command(*page)
    assert stopped.exit_code == 1
    assert "a fit, after 2 trials; slrt-dask resume goes on with it" in stopped.stderr
    for command in (("evaluate", store.path), ("export", tmp_path / "out")):
        unused = run_command(command[0], tmp_path / "run", command[1])
        assert unused.exit_code == 1
        assert "still in its search for settings" in unused.stderr
        assert "slrt-dask resume goes on with it" in unused.stderr
    with locked(tmp_path / "run"):
        assert "is still searching for its settings, with 2 trials" in run_command(*page).stderr
    resumed = run_command("resume", tmp_path / "run", "--threads", "1", "--quiet")
    assert resumed.exit_code == 0, resumed.stderr
    assert " s after a search of " in resumed.stdout
    ended = run_command("resume", tmp_path / "run")
    assert ended.stdout.splitlines()[1:] == resumed.stdout.splitlines()
    whole = run_command("fit", *flags, "--run", tmp_path / "whole")
    ends = [said.stdout.split("\n")[1] for said in (resumed, whole)]
    assert ends[0] == ends[1]
    assert ends[0].startswith("certificate")


def test_there_must_be_something_to_search_for(run_command, store):
    said = run_command("tune", store.path, "--ranks", "4,4,3", "--C", "1")
    assert said.exit_code == 1
    assert "nothing to search for" in said.stderr


def test_certified_ranks_grow_up_to_what_is_allowed(run_command, store, tmp_path):
    said = run_command(
        "fit", store.path, "--ranks", "certified", "--max-ranks", "2,3,2", "--C", "5",
        "--run", tmp_path / "run", "--threads", "1", "--quiet",
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    done = slrt_dask.load_completion(tmp_path / "run")
    assert done.records[0].ranks == (1, 1, 1)
    assert all(rank <= most for rank, most in zip(done.ranks, (2, 3, 2), strict=True))
    assert f"ranks        {done.ranks}, grown from (1, 1, 1)\n" in said.stdout


def words_of_an_interrupt(said):
    return [line for line in said.stderr.splitlines() if re.match("(error: )?interrupted", line)]


def test_an_interrupted_search_says_how_to_go_on_and_does(
    run_command, store, tmp_path, monkeypatch
):
    from slrt_dask.show.progress import LiveProgress

    told, trial = [], LiveProgress.on_trial

    def interrupting(self, tried):
        trial(self, tried)
        told.append(tried)
        if len(told) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LiveProgress, "on_trial", interrupting)
    run = tmp_path / "run"
    asked = ("--ranks", "4,4,3", "--lambdas", "1,1,1", "--threads", "1")
    said = run_command("fit", store.path, *asked, "--run", run)
    assert said.exit_code == 130
    assert f"slrt-dask resume {run} goes on" in said.stderr
    assert words_of_an_interrupt(said) == ["error: interrupted."]
    told.clear()
    alone = run_command("tune", store.path, *asked, "--run", tmp_path / "alone")
    assert alone.exit_code == 130
    assert "settings tried so far are kept: the same slrt-dask tune goes on" in alone.stderr
    assert words_of_an_interrupt(alone) == ["error: interrupted."]
    again = run_command("resume", run, "--threads", "1")
    assert again.exit_code == 0, again.stderr
    table = json.loads((run / "search.json").read_text())["tried"]
    assert len(table) > 2
