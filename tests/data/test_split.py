"""Splitting holds out what resembles the gaps, by index and seed and by nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest

from slrt_dask.data import from_coo, open_store
from slrt_dask.data.holding_out import SINGLY, Kind, SquaredErrors
from slrt_dask.data.split import Division, FibreSample, observe, shape_of_gaps
from slrt_dask.errors import InvalidInput, StoreExists
from tests.data.helpers import coo_store, tensor_with_holes

SHAPE = (30, 24, 16)


def is_held_out(indices, test, seed):
    return Division(SINGLY, test, seed).holds_out(indices)


def seen(store):
    return ~np.isnan(store.to_array())


@pytest.mark.parametrize(
    "kind", ["entries", ("fibres", 0), "fibres:2", ("slices", 1), "slices:0", "auto"]
)
def test_the_parts_are_disjoint_and_together_everything_however_it_is_stored(tmp_path, kind):
    tensor = tensor_with_holes((20, 19, 18), observed=0.6)
    one = coo_store(tmp_path / "one", tensor)
    options = {"slab_mode": 1, "partition_entries": 1500, "batch_entries": 1000}
    many = coo_store(tmp_path / "many", tensor, **options)
    train, test = many.split(0.2, 3, kind=kind)
    assert (train.path, test.path) == (f"{many.path}-train", f"{many.path}-test")
    assert train.slab_mode == test.slab_mode == 1
    held = seen(test)
    np.testing.assert_array_equal(held, seen(one.split(0.2, 3, kind=kind)[1]))
    np.testing.assert_array_equal(seen(train) ^ held, seen(one))
    np.testing.assert_array_equal(test.to_array()[held], tensor[held])
    np.testing.assert_array_equal(train.to_array()[seen(train)], tensor[seen(train)])
    assert 0.1 < held.sum() / one.nnz < 0.35
    if kind not in ("entries", "auto"):
        what, mode = kind.split(":") if isinstance(kind, str) else kind
        across = (int(mode),) if what == "fibres" else tuple({0, 1, 2} - {int(mode)})
        held_of, seen_of = held.sum(axis=across), seen(one).sum(axis=across)
        assert ((held_of == 0) | (held_of == seen_of)).all()
    paths = {"train_path": tmp_path / "a", "test_path": tmp_path / "b"}
    many.split(0.2, 4, kind=kind, **paths)
    assert open_store(tmp_path / "a").nnz + open_store(tmp_path / "b").nnz == many.nnz
    assert (seen(open_store(tmp_path / "b")) != held).any()


@pytest.mark.parametrize("seed", [0, 1, -5, 2**70])
def test_the_share_held_out_is_the_one_asked_in_every_slice_and_within_larger_ones(seed):
    shape, smaller = (50, 40, 100), np.zeros((50, 40, 100), dtype=bool)
    indices = np.unravel_index(np.arange(smaller.size), shape)
    for test in (0.01, 0.1, 0.5, 0.9):
        held = is_held_out(indices, test, seed).reshape(shape)
        assert (held | ~smaller).all()
        smaller = held
        for mode in range(3):
            shares = held.mean(axis=tuple(other for other in range(3) if other != mode))
            deviation = np.sqrt(test * (1 - test) * shape[mode] / held.size)
            assert np.abs(shares - test).max() < 5 * deviation
            assert abs(shares.mean() - test) < 5 * deviation / np.sqrt(shape[mode])


def test_the_choice_is_pinned_so_that_old_splits_stay_reproducible():
    indices = np.unravel_index(np.arange(24), (2, 3, 4))
    assert np.flatnonzero(is_held_out(indices, 0.3, 0)).tolist() == [0, 1, 5, 6, 13, 17, 21, 22, 23]


@pytest.mark.parametrize("test", [0.01, 0.1, 0.4])
def test_slices_hold_what_is_wanted_and_at_most_one_of_them_more(tmp_path, test):
    tensor = tensor_with_holes((20, 9, 8), observed=0.6)
    store = coo_store(tmp_path / "store", tensor)
    largest = (~np.isnan(tensor)).sum(axis=(1, 2)).max()
    held = store.split(test, kind=("slices", 0))[1].nnz
    assert test * store.nnz <= held <= test * store.nnz + largest


def test_the_kind_of_the_gaps_can_be_found(tmp_path):
    tensor = tensor_with_holes((30, 20, 8), observed=0.99)
    tensor[np.random.default_rng(1).random((30, 20)) < 0.3] = np.nan
    store = coo_store(tmp_path / "store", tensor)
    share = seen(store.split(0.2, kind="auto")[1]).sum(axis=2) / np.maximum(seen(store).sum(2), 1)
    assert set(np.unique(share)) == {0.0, 1.0}


def test_a_mode_may_be_named():
    assert Kind.of("slices:hour", 2, ("day", "hour")) == Kind("slices", 1)
    with pytest.raises(InvalidInput, match="day, hour"):
        Kind.of("slices:week", 2, ("day", "hour"))


@pytest.mark.parametrize(
    "options",
    [
        *({"test": test} for test in (0.0, 1.0, -0.1, 1.5, float("nan"), 1e-9, 1 - 1e-9)),
        *(
            {"kind": kind}
            for kind in ("rows", ("fibres", 2), "slices:-1", ("slices",), "fibres", 3)
        ),
        {"train_path": "x", "test_path": "x"},
    ],
    ids=str,
)
def test_splits_that_make_no_sense_are_refused_and_leave_nothing(tmp_path, options, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = from_coo(tmp_path / "store", [[0, 1], [1, 0]], [1.0, 2.0])
    named = "x" if len(options) > 1 else repr(*options.values())
    with pytest.raises(InvalidInput) as caught:
        store.split(**options)
    assert named in str(caught.value)
    assert os.listdir(tmp_path) == ["store"]


def test_an_existing_part_is_refused_before_anything_is_written(tmp_path):
    store = coo_store(tmp_path / "store", tensor_with_holes((9, 8)))
    (tmp_path / "store-test").mkdir()
    with pytest.raises(StoreExists, match="store-test"):
        store.split(0.5)
    assert sorted(os.listdir(tmp_path)) == ["store", "store-test"]


def test_standard_errors_are_those_of_repeated_draws():
    generator = np.random.default_rng(0)
    kinds, count = (Kind(), Kind("fibres", 1)), 40
    found, expected = {kind: [] for kind in kinds}, {kind: [] for kind in kinds}
    columns = np.indices((300, count)).reshape(2, -1)
    for _ in range(60):
        singly = generator.standard_normal(columns.shape[1])
        for kind, spread in zip(kinds, (singly, np.repeat(singly[:300], count)), strict=True):
            errors = SquaredErrors.of(kind, columns, spread)
            assert errors.rmse == pytest.approx(np.sqrt(np.mean(spread**2)), rel=1e-12)
            expected[kind].append(errors.rmse)
            found[kind].append(errors.standard_error)
    for kind in kinds:
        assert np.mean(found[kind]) == pytest.approx(np.std(expected[kind]), rel=0.3)
    assert np.mean(found[kinds[1]]) > 4 * np.mean(found[kinds[0]])


# ---- the shape of gaps ----------------------------------------------------------------------


@pytest.fixture
def gaps(tmp_path):
    """The kind of gaps that a store of a mask has, and why."""

    def of(mask, foreseen=None, **options):
        indices = np.array(np.nonzero(mask))
        store = from_coo(tmp_path / "store", indices, np.ones(mask.sum()), mask.shape, **options)
        return shape_of_gaps(observe(store.path, store.header), foreseen)

    return of


def random(fraction, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random(shape) < fraction


def without_fibres(mode, kept, shape=SHAPE):
    others = [1 if k == mode else length for k, length in enumerate(shape)]
    return np.broadcast_to(random(kept, others), shape)


def without_slices(*numbers, shape=SHAPE):
    mask = np.ones(shape, dtype=bool)
    mask[list(numbers)] = False
    return mask


@pytest.mark.parametrize("shape", [SHAPE, (60, 50, 3), (40, 30), (12, 10, 8, 2), (300,)])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.95, 1.0])
def test_entries_that_are_missing_at_random_are_entries(shape, fraction, gaps):
    assert gaps(random(fraction, shape)).kind == Kind()


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("kept", [0.3, 0.9])
@pytest.mark.parametrize("entries", [500, 10**6])
def test_whole_fibres_are_fibres_even_if_a_few_entries_are_missing_too(mode, kept, entries, gaps):
    found = gaps(without_fibres(mode, kept) & random(0.97), partition_entries=entries)
    assert found.kind == Kind("fibres", mode)
    assert f"mode {mode}" in found.why


@pytest.mark.parametrize(
    ("mask", "foreseen", "kind"),
    [
        (without_fibres(2, 0.1, (60, 50, 3)), None, Kind("fibres", 2)),
        (without_fibres(1, 0.9) & random(0.4), None, Kind()),
        (without_fibres(2, 0.8) & without_slices(3, 4, 11), None, Kind("fibres", 2)),
        (without_slices(3, 4, 11), (True, False, False), Kind("slices", 0)),
        (without_slices(3, 4, 11), (False, True, True), Kind()),
        (without_slices(3, 4, 11), None, Kind()),
    ],
)
def test_slices_count_only_where_they_can_be_predicted(mask, foreseen, kind, gaps):
    found = gaps(mask, foreseen)
    assert found.kind == kind
    unpredictable = not mask[3].any() and foreseen != (True, False, False)
    assert ("3 slices without observations" in found.why) == unpredictable


@pytest.mark.parametrize("runs", [[(40, 70)], [(40, 70), (250, 300)]])
def test_runs_that_a_series_misses_are_named(runs, gaps):
    mask = without_slices(*(n for run in runs for n in range(*run)), shape=(300,))
    found = gaps(mask, (True,))
    assert found.kind == Kind()
    assert f"{max(stop - start for start, stop in runs)} in a row" in found.why


@pytest.mark.parametrize("mode", range(3))
def test_of_many_fibres_a_drawn_part_tells_how_many_there_are(mode):
    mask = random(0.2, (50, 40, 30))
    samples = FibreSample(mode), FibreSample(mode, most=300)
    for part in np.array_split(np.array(np.nonzero(mask)), 7, axis=1):
        for sample in samples:
            sample.see(tuple(part))
    exact = np.count_nonzero(mask.any(axis=mode))
    assert samples[0].fibres == exact
    assert samples[1].fibres == pytest.approx(exact, rel=0.25)
    assert samples[1].fibres != exact
