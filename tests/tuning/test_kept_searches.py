"""What a search has tried is kept in a directory, and what it holds out is what is missing."""

from __future__ import annotations

import json

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.data import low_rank_tensor, sample_entries
from slrt_dask.data.holding_out import Kind
from slrt_dask.errors import CheckpointMismatch, InvalidInput, StoreExists
from slrt_dask.tuning import trials, tuning

SHAPE = (20, 18, 16)


@pytest.fixture(autouse=True)
def few_trials(monkeypatch):
    monkeypatch.setattr(tuning, "MOST_TRIALS", 3)


@pytest.fixture(scope="module")
def tensor():
    return low_rank_tensor(SHAPE, (2, 2, 2), seed=3, noise=0.0)


@pytest.fixture(scope="module")
def store(tensor, tmp_path_factory):
    indices, values = sample_entries(tensor, 0.3, seed=5)
    return slrt.from_coo(tmp_path_factory.mktemp("kept") / "store", indices, values, SHAPE)


@pytest.fixture(scope="module")
def striped(tensor, tmp_path_factory):
    """A store of which whole fibres of the last mode are missing."""
    mask = np.random.default_rng(0).random(SHAPE[:2]) < 0.6
    path = tmp_path_factory.mktemp("striped") / "store"
    return slrt.from_array(path, np.where(mask[:, :, None], tensor, np.nan))


class Watching:
    def __init__(self):
        self.trials = []

    def on_trial(self, tried):
        self.trials.append(tried.candidate)


def test_a_search_that_is_asked_for_again_is_read_and_not_repeated(store, tmp_path):
    first, second = Watching(), Watching()
    found = slrt.tune(store, C=2.0, threads=1, run_directory=tmp_path / "s", observers=[first])
    again = slrt.tune(store, C=2.0, threads=1, run_directory=tmp_path / "s", observers=[second])
    assert (len(first.trials), len(second.trials)) == (3, 0)
    assert again.settings == found.settings
    assert str(again) == str(found)
    np.testing.assert_array_equal(again.point[0], found.point[0])
    assert [one.error for one in again.history] == [one.error for one in found.history]
    assert len(list((tmp_path / "s" / "search").glob("*.npz"))) <= 2


@pytest.mark.parametrize("torn", ["0002.json", "0002.npz"])
def test_a_trial_that_is_torn_is_made_again_to_the_last_bit(torn, store, tmp_path):
    options = {"C": 2.0, "threads": 1, "run_directory": tmp_path / "s"}
    found = slrt.tune(store, **options)
    content = (tmp_path / "s" / "search" / torn).read_bytes()
    (tmp_path / "s" / "search" / torn).write_bytes(content[:-20])
    watching = Watching()
    again = slrt.tune(store, observers=[watching], **options)
    assert len(watching.trials) >= 1
    assert [one.error for one in again.history] == [one.error for one in found.history]


def test_a_search_that_is_stopped_again_and_again_goes_on(store, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_TRIALS", 9)
    monkeypatch.setattr(trials, "MOST_ITERATIONS", 1)
    options = {"C": "auto", "ranks": (2, 2, 2), "threads": 1, "run_directory": tmp_path / "s"}

    class Stop:
        def on_trial(self, tried):
            raise KeyboardInterrupt

    stops = 0
    while stops < 20:
        try:
            again = slrt.tune(store, observers=[Stop()], **options)
            break
        except KeyboardInterrupt:
            stops += 1
    whole = slrt.tune(store, **{**options, "run_directory": None})
    assert 3 < stops < 20
    assert [one.error for one in again.history] == [one.error for one in whole.history]


def test_a_search_belongs_to_its_observations_and_settings(store, striped, tmp_path):
    slrt.tune(store, C=2.0, threads=1, run_directory=tmp_path / "s")
    for other, options in (
        (striped, {}),
        (store, {"seed": 1}),
        (store, {"held_out": "entries"}),
        (store, {"loss": slrt.Huber(1.0)}),
    ):
        with pytest.raises(CheckpointMismatch, match="other observations or settings"):
            slrt.tune(other, C=2.0, threads=1, run_directory=tmp_path / "s", **options)
    with pytest.raises(InvalidInput, match="holds a search and no fit"):
        slrt.resume(tmp_path / "s")
    with pytest.raises(StoreExists, match="already exists"):
        slrt.complete(store, "auto", threads=1, run_directory=tmp_path / "s")


def test_a_search_that_a_time_limit_ended_goes_on_when_it_is_asked_for_again(store, tmp_path):
    options = {"C": 2.0, "threads": 1, "run_directory": tmp_path / "s"}
    short = slrt.tune(store, max_seconds=1e-3, **options)
    assert short.cut_short
    assert len(short.history) == 1
    watching = Watching()
    found = slrt.tune(store, max_seconds=60, observers=[watching], **options)
    assert len(watching.trials) == 2
    whole = slrt.tune(store, C=2.0, threads=1)
    assert [one.error for one in found.history] == [one.error for one in whole.history]
    again = slrt.tune(store, max_seconds=1e-3, **options)
    assert not again.cut_short  # it was finished
    assert str(again) == str(found)


def test_a_search_that_fails_before_it_tried_anything_leaves_nothing(store, tmp_path):
    few = slrt.from_coo(tmp_path / "few", [[0, 1], [1, 0], [0, 1]], [1.0, 2.0], SHAPE)
    with pytest.raises(InvalidInput, match="too few"):
        slrt.tune(few, run_directory=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_fibres_are_held_out_where_fibres_are_missing_and_that_is_reported(striped, tmp_path):
    found = slrt.tune(striped, C=2.0, threads=1, run_directory=tmp_path / "s")
    assert found.kind == Kind("fibres", 2)
    assert "held out were fibres of mode 2, because 100% of what is missing" in str(found)
    held = ~np.isnan(slrt.open_store(tmp_path / "s" / "search" / "test").to_array())
    assert set(np.unique(held.sum(axis=2))) == {0, SHAPE[2]}
    table = found.start.held_out
    assert (table["kind"], table["count"]) == ("fibres:2", held.sum())


def test_the_caller_may_choose_what_is_held_out(striped, tmp_path):
    options = {"C": 2.0, "threads": 1, "max_seconds": 1e-3}
    found = slrt.tune(striped, held_out="entries", **options)
    assert (found.kind, found.why) == (Kind(), "as was asked")
    done = slrt.complete(
        striped, "auto", held_out=("fibres", 0), run_directory=tmp_path / "run", **options
    )
    assert "held out were fibres of mode 0, as was asked" in done.records[0].event
    assert json.loads((tmp_path / "run" / "search.json").read_text())["held_out"]["kind"] == (
        "fibres:0"
    )


def test_errors_come_with_standard_errors(store):
    found = slrt.tune(store, C=2.0, threads=1, max_seconds=1e-3)
    assert 0.0 < found.standard_error < found.error
    assert found.to_table()[0]["standard_error"] == found.standard_error
    assert f"± {found.standard_error:.1g}" in str(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": "rows"}, "'rows' is nothing that can be held out"),
        ({"held_out": ("slices", 0)}, "low rank predicts nothing of a slice"),
        ({"held_out": "entries", "ranks": (2, 2, 2), "C": 1.0}, "nothing is searched for"),
    ],
)
def test_what_cannot_be_held_out_is_refused(options, message, store):
    with pytest.raises(InvalidInput, match=message):
        slrt.complete(store, **{"ranks": "auto", **options})


def test_fibres_of_a_matrix_are_slices_and_a_structure_may_have_them(tmp_path):
    matrix = slrt.from_array(tmp_path / "matrix", np.random.default_rng(0).random((9, 8)))
    with pytest.raises(InvalidInput, match="fibres of mode 0 cannot be held out"):
        slrt.tune(matrix, held_out=("fibres", 0))
    with pytest.raises(InvalidInput, match="slices of mode 0 cannot be held out"):
        slrt.tune(matrix, held_out="slices:0", constraint=slrt.Hankel((1, 3)))


def test_held_out_observations_that_are_given_need_no_others(store, tmp_path):
    train, test = store.split(0.2, 7, tmp_path / "train", tmp_path / "test")
    with pytest.raises(InvalidInput, match="validation is given"):
        slrt.tune(train, validation=test, held_out="entries")
