"""Splitting holds observations out by their index and the seed, and by nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest

from slrt_dask.data import from_coo, open_store
from slrt_dask.data.holding_out import SINGLY, Kind, SquaredErrors
from slrt_dask.data.split import Division
from slrt_dask.errors import InvalidInput, StoreExists
from tests.data.helpers import coo_store, tensor_with_holes


def is_held_out(indices, test, seed):
    return Division(SINGLY, test, seed).holds_out(indices)


def cells_of(store):
    return {tuple(index) for index in np.argwhere(~np.isnan(store.to_array())).tolist()}


def test_the_parts_are_disjoint_and_together_everything(tmp_path):
    tensor = tensor_with_holes((20, 9, 8), observed=0.6)
    store = coo_store(tmp_path / "store", tensor, slab_mode=1, partition_entries=300)
    train, test = store.split(test=0.25, seed=3)
    assert (train.path, test.path) == (f"{store.path}-train", f"{store.path}-test")
    assert not cells_of(train) & cells_of(test)
    assert cells_of(train) | cells_of(test) == cells_of(store)
    for part in (train, test):
        assert part.shape == store.shape
        assert part.slab_mode == 1
        dense = part.to_array()
        seen = ~np.isnan(dense)
        np.testing.assert_array_equal(dense[seen], tensor[seen])
        assert part.mean == pytest.approx(dense[seen].mean(), rel=1e-12)


def test_a_split_depends_on_the_seed_only(tmp_path):
    tensor = tensor_with_holes((20, 9, 8))
    one = coo_store(tmp_path / "one", tensor, partition_entries=10_000)
    many = coo_store(tmp_path / "many", tensor, slab_mode=2, partition_entries=80, batch_entries=33)
    held = cells_of(one.split(0.3, seed=1)[1])
    assert cells_of(many.split(0.3, seed=1)[1]) == held
    paths = {"train_path": tmp_path / "a", "test_path": tmp_path / "b"}
    assert cells_of(many.split(0.3, seed=2, **paths)[1]) != held


@pytest.mark.parametrize("seed", [0, 1, -5, 2**70])
@pytest.mark.parametrize("test", [0.01, 0.1, 0.5, 0.9])
def test_the_share_held_out_is_near_the_one_asked(test, seed):
    count = 200_000
    indices = np.unravel_index(np.arange(count), (50, 40, 100))
    share = np.count_nonzero(is_held_out(indices, test, seed)) / count
    assert abs(share - test) < 5 * np.sqrt(test * (1 - test) / count)


def test_what_is_held_out_is_spread_over_every_mode():
    shape = (50, 40, 100)
    indices = np.unravel_index(np.arange(np.prod(shape)), shape)
    held = is_held_out(indices, 0.5, 0).reshape(shape)
    for mode in range(3):
        shares = held.mean(axis=tuple(other for other in range(3) if other != mode))
        deviation = np.sqrt(0.25 * shape[mode] / held.size)
        assert np.abs(shares - 0.5).max() < 5 * deviation


def test_the_choice_is_pinned_so_that_old_splits_stay_reproducible():
    indices = np.unravel_index(np.arange(24), (2, 3, 4))
    assert np.flatnonzero(is_held_out(indices, 0.3, 0)).tolist() == [0, 1, 5, 6, 13, 17, 21, 22, 23]


def test_a_smaller_test_part_is_within_a_larger_one():
    indices = np.unravel_index(np.arange(1000), (10, 10, 10))
    small, large = is_held_out(indices, 0.1, 0), is_held_out(indices, 0.4, 0)
    assert (large | ~small).all()


@pytest.mark.parametrize("test", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_share_outside_zero_and_one_is_refused(tmp_path, test):
    store = coo_store(tmp_path / "store", tensor_with_holes((4, 5)))
    with pytest.raises(InvalidInput, match="not a fraction"):
        store.split(test)


def test_an_empty_part_is_refused_and_leaves_nothing(tmp_path):
    store = from_coo(tmp_path / "store", [[0, 1], [1, 0]], [1.0, 2.0])
    for test, part in ((1e-9, "test"), (1 - 1e-9, "train")):
        with pytest.raises(InvalidInput, match=f"the {part} part of 2 observations would be empty"):
            store.split(test)
    assert os.listdir(tmp_path) == ["store"]


def test_an_existing_part_is_refused_before_anything_is_written(tmp_path):
    store = coo_store(tmp_path / "store", tensor_with_holes((9, 8)))
    (tmp_path / "store-test").mkdir()
    with pytest.raises(StoreExists, match="store-test"):
        store.split(0.5)
    assert sorted(os.listdir(tmp_path)) == ["store", "store-test"]
    with pytest.raises(InvalidInput, match="two paths"):
        store.split(0.5, train_path=tmp_path / "x", test_path=tmp_path / "x")


def test_the_paths_can_be_chosen(tmp_path):
    store = coo_store(tmp_path / "store", tensor_with_holes((9, 8)))
    store.split(0.5, train_path=tmp_path / "a", test_path=tmp_path / "b")
    assert open_store(tmp_path / "a").nnz + open_store(tmp_path / "b").nnz == store.nnz


def held_mask(store, **options):
    """Which observations are held out, as an array, and all of them."""
    _, test = store.split(0.2, 3, **options)
    return ~np.isnan(test.to_array()), ~np.isnan(store.to_array())


@pytest.mark.parametrize("kind", [("fibres", 0), "fibres:2", ("slices", 1), "slices:0"])
def test_fibres_and_slices_are_held_out_as_a_whole(tmp_path, kind):
    tensor = tensor_with_holes((20, 19, 18), observed=0.6)
    found = []
    for name, options in (("one", {}), ("many", {"slab_mode": 1, "partition_entries": 1500})):
        store = coo_store(tmp_path / name, tensor, **options)
        found.append(held_mask(store, kind=kind))
    (held, seen), (again, _) = found
    np.testing.assert_array_equal(held, again)
    what, mode = kind.split(":") if isinstance(kind, str) else kind
    across = (int(mode),) if what == "fibres" else tuple({0, 1, 2} - {int(mode)})
    held_of, seen_of = held.sum(axis=across), seen.sum(axis=across)
    assert ((held_of == 0) | (held_of == seen_of)).all()
    assert 0.1 < held.sum() / seen.sum() < 0.35


def test_slices_hold_what_is_wanted_and_at_most_one_of_them_more(tmp_path):
    tensor = tensor_with_holes((20, 9, 8), observed=0.6)
    store = coo_store(tmp_path / "store", tensor)
    counts = (~np.isnan(tensor)).sum(axis=(1, 2))
    for number, test in enumerate((0.01, 0.1, 0.4)):
        paths = (tmp_path / f"a{number}", tmp_path / f"b{number}")
        held = store.split(test, 0, *paths, ("slices", 0))[1].nnz
        assert test * store.nnz <= held <= test * store.nnz + counts.max()


def test_the_kind_of_the_gaps_can_be_found(tmp_path):
    tensor = tensor_with_holes((30, 20, 8), observed=0.99)
    tensor[np.random.default_rng(1).random((30, 20)) < 0.3] = np.nan
    held, seen = held_mask(coo_store(tmp_path / "store", tensor), kind="auto")
    assert set(np.unique(held.sum(axis=2) / np.maximum(seen.sum(axis=2), 1))) == {0.0, 1.0}


def test_a_mode_may_be_named():
    assert Kind.of("slices:hour", 2, ("day", "hour")) == Kind("slices", 1)
    with pytest.raises(InvalidInput, match="or one of day, hour"):
        Kind.of("slices:week", 2, ("day", "hour"))


@pytest.mark.parametrize("kind", ["rows", ("fibres", 2), "slices:-1", ("slices",), "fibres", 3])
def test_other_kinds_are_refused_with_the_possible_ones(tmp_path, kind):
    store = coo_store(tmp_path / "store", tensor_with_holes((9, 8)))
    with pytest.raises(InvalidInput, match=r"'entries', \('fibres', mode\) or .* from 0 to 1"):
        store.split(0.5, kind=kind)
    assert os.listdir(tmp_path) == ["store"]


def test_standard_errors_are_those_of_repeated_draws():
    generator = np.random.default_rng(0)
    kinds, count = (Kind(), Kind("fibres", 1)), 40
    found, told = {kind: [] for kind in kinds}, {kind: [] for kind in kinds}
    columns = np.indices((300, count)).reshape(2, -1)
    for _ in range(60):
        singly = generator.standard_normal(columns.shape[1])
        for kind, spread in zip(kinds, (singly, np.repeat(singly[:300], count)), strict=True):
            errors = SquaredErrors.of(kind, columns, spread)
            assert errors.rmse == pytest.approx(np.sqrt(np.mean(spread**2)), rel=1e-12)
            found[kind].append(errors.rmse)
            told[kind].append(errors.standard_error)
    for kind in kinds:
        assert np.mean(told[kind]) == pytest.approx(np.std(found[kind]), rel=0.3)
    assert np.mean(told[kinds[1]]) > 4 * np.mean(told[kinds[0]])
