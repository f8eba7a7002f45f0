"""Offsets per mode are used where they help on held-out observations, and only there."""

from __future__ import annotations

import json

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.data import low_rank_tensor
from slrt_dask.errors import InvalidInput
from slrt_dask.show.text import describe_trial
from slrt_dask.tuning import trials, tuning
from slrt_dask.tuning.running import Searching

SHAPE = (24, 20, 12)


class Listener:
    def __init__(self):
        self.trials = []

    def on_record(self, record, state):
        pass

    def on_trial(self, tried):
        self.trials.append(tried)


def stored(path, tensor, fraction=0.3):
    mask = np.random.default_rng(7).random(SHAPE) < fraction
    return slrt.from_array(path, np.where(mask, tensor, np.nan))


@pytest.fixture(scope="module")
def additive():
    """Effects, a little of low rank, and noise."""
    rng = np.random.default_rng(0)
    effects = sum(np.meshgrid(*(rng.standard_normal(n) for n in SHAPE), indexing="ij"))
    low_rank = low_rank_tensor(SHAPE, (2, 2, 2), seed=3, noise=0.0)
    truth = 5.0 + effects + 0.3 * low_rank / np.std(low_rank)
    return truth, truth + 0.5 * rng.standard_normal(SHAPE)


@pytest.fixture(scope="module")
def ratings(additive, tmp_path_factory):
    return stored(tmp_path_factory.mktemp("ratings") / "store", additive[1])


@pytest.fixture(scope="module", autouse=True)
def short_search():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "MOST_TRIALS", 8)
        patch.setattr(trials, "MOST_ITERATIONS", 3)
        yield


@pytest.fixture(scope="module")
def found(ratings, short_search, tmp_path_factory):
    listener, run = Listener(), tmp_path_factory.mktemp("found") / "run"
    done = slrt.complete(ratings, "auto", threads=1, run_directory=run, observers=[listener])
    return done, listener.trials, run


def test_offsets_are_used_where_they_help_and_that_is_recorded(found, additive, ratings):
    done, tried, run = found
    assert len(done.effects) == 3
    kept = json.loads((run / "search.json").read_text())
    errors = kept["offsets"]["path"]
    assert kept["offsets"]["used"]
    assert errors["modes"] < 0.99 * errors["mean"]
    event = f"used: held-out error {errors['modes']:.4g} instead of {errors['mean']:.4g}"
    assert event in done.records[0].event
    assert f"chosen among {len(tried)} settings" in done.records[0].event
    assert len(kept["tried"]) == len(tried)
    assert {row["center"] for row in kept["tried"]} == {"mean", "modes"}
    with_mean = slrt.complete(ratings, "auto", center=True, threads=1)
    error, before = (np.asarray(one.to_dask()) - additive[0] for one in (done, with_mean))
    assert np.linalg.norm(error) < np.linalg.norm(before)


def test_lines_of_trials_are_numbered_and_say_what_was_subtracted(found):
    lines = [describe_trial(tried) for tried in found[1]]
    assert [int(line.split()[1]) for line in lines] == list(range(1, len(lines) + 1))
    said = [line.partition(" s, ")[2] for line in lines]
    assert set(said) == {"with the mean", "with offsets per mode"}
    assert said == sorted(said, key=("with the mean", "with offsets per mode").index)


def test_the_answer_has_the_offset_of_all_observations(found, ratings):
    done, _, run = found
    settings = json.loads((run / "settings.json").read_text())["settings"]
    assert settings["center"] == "modes"
    again = slrt.complete(ratings, (1, 1, 1), C=1e-6, center="modes", max_iterations=0, threads=1)
    for one, other in zip(done.effects, again.effects, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_a_page_shows_both_paths(found, tmp_path):
    text = slrt.report(found[2], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "offsets per mode were used: held-out error" in text.lower()
    shown = text.count(">the mean</td>"), text.count(">offsets per mode</td>")
    assert sum(shown) == len(found[1])


def test_offsets_are_not_used_where_they_do_not_help(tmp_path):
    noisy = low_rank_tensor(SHAPE, (3, 2, 2), seed=3, noise=0.1)
    done = slrt.complete(stored(tmp_path / "store", noisy), "auto", threads=1)
    assert done.effects == ()
    assert "offsets per mode were not used: held-out error" in done.records[0].event


def test_a_search_that_is_killed_with_either_offset_goes_on_and_decides_the_same(
    ratings, found, tmp_path, monkeypatch
):
    make, made = Searching._make, []

    def kill(self, lanes, batch):
        made.append(self.divided.request.settings.center)
        if len(made) in (3, len(made) if made.count("modes") == 3 else 0):
            raise KeyboardInterrupt
        make(self, lanes, batch)

    options = {"threads": 1, "run_directory": tmp_path / "run"}
    monkeypatch.setattr(Searching, "_make", kill)
    with pytest.raises(KeyboardInterrupt):
        slrt.complete(ratings, "auto", **options)
    with pytest.raises(KeyboardInterrupt):
        slrt.resume(tmp_path / "run", threads=1)
    assert set(made) == {True, "modes"}
    monkeypatch.setattr(Searching, "_make", make)
    listener = Listener()
    again = slrt.resume(tmp_path / "run", threads=1, observers=[listener])
    assert listener.trials[-1].number == found[1][-1].number  # those of before are counted
    for one, other in zip(again.factors, found[0].factors, strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.records[0].event.removeprefix("resumed; ") == found[0].records[0].event


def test_offsets_can_be_all_that_is_searched_for(ratings, tmp_path):
    listener = Listener()
    done = slrt.complete(
        ratings, (2, 2, 2), C=0.5, center="auto", threads=1, max_iterations=5,
        run_directory=tmp_path / "run", observers=[listener],
    )  # fmt: skip
    assert len(done.effects) == 3
    assert len(listener.trials) == 2
    assert (done.ranks, done.C) == ((2, 2, 2), 0.5)
    assert len(done.records) > 1  # it is fitted until it ends by itself
    assert slrt.resume(tmp_path / "run").header.digest == done.header.digest


def test_a_search_alone_finds_offsets_and_takes_given_ones(ratings):
    found = slrt.tune(ratings, (2, 2, 2), C=0.5, center="auto", threads=1)
    assert found.offsets.used
    assert found.settings.center == "modes"
    given = slrt.tune(ratings, C=0.5, center="modes", threads=1)
    assert given.offsets is None
    assert given.settings.center == "modes"
    with pytest.raises(InvalidInput, match="nothing to search for"):
        slrt.tune(ratings, (2, 2, 2), C=0.5, center="modes")


def test_with_constraints_the_mean_is_taken(ratings):
    done = slrt.complete(
        ratings, (1, 1, 1), C=0.1, center="auto", constraint=slrt.Bounds(-9.0, 19.0), threads=1,
        max_iterations=1,
    )  # fmt: skip
    assert done.effects == ()
    assert done.header.offset == ratings.mean


def test_a_time_limit_leaves_the_mean(ratings):
    done = slrt.complete(ratings, "auto", threads=1, max_seconds=1e-3)
    assert done.effects == ()
    assert "offsets per mode were not tried, for want of time" in done.records[0].event
