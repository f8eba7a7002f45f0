"""A fit or a search whose process is killed at any moment goes on to the same answer."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.cli import main
from tests.faults.killing import deaths
from tests.faults.processes import start, wait_until


def fit_or_resume(store, ranks, options, run):
    """A driver on one thread."""
    if (run / "settings.json").exists():
        slrt.resume(run, threads=1)
    else:
        slrt.complete(slrt.open_store(store), ranks, **options, run_directory=run, threads=1)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_driver_killed_by_the_clock_again_and_again_goes_on(order, problems, tmp_path):
    problem, run = problems[order], tmp_path / "run"
    for delay in np.random.default_rng(order).uniform(0.02, 0.15, 6):
        driver = start(fit_or_resume, problem.store.path, problem.ranks, problem.options, run)
        wait_until((run / "settings.json").exists, driver)
        driver.join(delay)
        driver.kill()
        driver.join()
    done = slrt.resume(run, threads=1)
    problem.assert_answer(done)
    written = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert [line["cost"] for line in written] == [record.cost for record in done.records]


@pytest.mark.parametrize("seed", range(2))
def test_a_driver_killed_at_any_change_of_a_file_goes_on(seed, problem, tmp_path):
    where = problem.store.path, problem.ranks, problem.options, tmp_path / "run"
    for _ in deaths(seed, tmp_path, fit_or_resume, *where, times=4):
        fit_or_resume(*where)
        problem.assert_answer(slrt.load_completion(tmp_path / "run" / "completion"))


def searched(store, run, observers=()):
    """Begin a run that searches for its C, or go on with it."""
    if (run / "settings.json").exists() or (run / "search" / "asked.json").exists():
        return slrt.resume(run, threads=1, observers=observers)
    options = {"threads": 1, "observers": observers, "run_directory": run, "lambdas": (1, 1, 1)}
    return slrt.complete(slrt.open_store(store), (1, 1, 1), **options)


class Trials:
    """An observer of a search."""

    def __init__(self):
        self.seen = []

    def on_record(self, record, state):
        pass

    def on_trial(self, tried):
        self.seen.append(tried.candidate)


def test_a_killed_search_goes_on_to_the_same_choice_and_tries_nothing_twice(problem, tmp_path):
    whole = Trials()
    undisturbed = searched(problem.store.path, tmp_path / "whole", [whole])
    assert len(whole.seen) > 2
    work = tmp_path / "work"
    work.mkdir()
    for _ in deaths(1, work, searched, problem.store.path, work / "run", times=2):
        kept = len(list((work / "run" / "search").glob("[0-9]*.json")))
        is_over = (work / "run" / "settings.json").exists()
        rest = Trials()
        done = searched(problem.store.path, work / "run", [rest])
        assert rest.seen == ([] if is_over else whole.seen[kept:])
        assert done.certificate == undisturbed.certificate
        assert done.ranks == undisturbed.ranks


def fit_by_command(store, run):
    endless = ("--max-iterations", "1000000", "--gap-tolerance", "0", "--gradient-tolerance", "0")
    main(["fit", store, "--ranks", "3,3,2", "--C", "100", *endless, "--run", run, "--threads", "1"])


def test_a_command_that_is_asked_to_end_leaves_a_run_that_goes_on(problem, tmp_path):
    process = start(fit_by_command, problem.store.path, str(tmp_path / "run"))
    wait_until((tmp_path / "run" / "checkpoints" / "000003").exists, process)
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM
    assert list((tmp_path / "run" / "checkpoints").iterdir())
