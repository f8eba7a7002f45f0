"""A search for settings that is killed at any moment goes on to the same choice, trying no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import slrt_dask as slrt
from slrt_dask.errors import StateLost
from slrt_dask.tuning import candidate, trials, tuning
from tests.faults.killing import deaths

MOST_TRIALS = 3


def few(patch):
    """Few settings, of ranks that other tests have kernels compiled for."""
    patch.setattr(candidate, "LADDER", (1, 2, 3, 5))
    patch.setattr(tuning, "MOST_TRIALS", MOST_TRIALS)


class Told:
    def __init__(self):
        self.trials = []

    def on_record(self, record, state):
        pass

    def on_trial(self, tried):
        self.trials.append(tried.candidate)


def searched(store, directory, observers=()):
    """Begin a run that searches, or go on with it; in a process that may die of it."""
    few(pytest.MonkeyPatch())
    run = Path(directory) / "run"
    if (run / "settings.json").exists() or (run / "search" / "asked.json").exists():
        return slrt.resume(run, threads=1, observers=observers)
    opened = slrt.open_store(store)
    options = {"threads": 1, "observers": observers, "run_directory": run}
    return slrt.complete(opened, "auto", C=2.0, **options)


@pytest.fixture(autouse=True)
def few_settings(monkeypatch):
    few(monkeypatch)


@pytest.fixture(scope="module")
def undisturbed_search(store, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        few(patch)
        told, place = Told(), tmp_path_factory.mktemp("undisturbed")
        options = {"threads": 1, "observers": [told], "run_directory": place / "run"}
        return slrt.complete(store, "auto", C=2.0, **options), told.trials


def test_a_search_killed_while_it_writes_goes_on_to_the_same_choice(
    store, undisturbed_search, tmp_path
):
    whole, tried = undisturbed_search
    assert len(tried) == MOST_TRIALS
    repeated = []
    for _ in deaths(1, tmp_path, searched, store.path, str(tmp_path), times=2):
        kept = len(list((tmp_path / "run" / "search").glob("[0-9]*.json")))
        is_over = (tmp_path / "run" / "settings.json").exists()
        told = Told()
        done = searched(store.path, tmp_path, [told])
        repeated.append(len(told.trials))
        assert told.trials == ([] if is_over else tried[kept:])
        assert done.certificate == whole.certificate
        assert [factor.tolist() for factor in done.factors] == [
            factor.tolist() for factor in whole.factors
        ]
        assert "chosen among 3 settings" in done.records[0].event
        table = json.loads((tmp_path / "run" / "search.json").read_text())["tried"]
        assert [tuple(row["ranks"]) for row in table] == [one.ranks for one in tried]
        assert not (tmp_path / "run" / "search").exists()
    assert min(repeated) < MOST_TRIALS


def test_workers_lost_during_a_search_do_not_begin_it_anew(
    store, undisturbed_search, lone_client, monkeypatch
):
    attempt, calls = trials.Trials.attempt, []

    def failing(self, candidate, warm):
        calls.append(candidate)
        if len(calls) == 3:
            raise StateLost("a worker was lost")
        return attempt(self, candidate, warm)

    monkeypatch.setattr(trials.Trials, "attempt", failing)
    done = slrt.complete(store, "auto", C=2.0, client=lone_client)
    assert calls == [*undisturbed_search[1][:3], *undisturbed_search[1][2:]]
    assert "began again from trial 2" in done.records[0].event
    assert done.ranks == undisturbed_search[0].ranks
