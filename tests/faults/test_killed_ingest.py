"""Ingest and split whose workers or whose own process is killed: the same store, or none."""

from __future__ import annotations

import os
import shutil

import dask
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

import slrt_dask as slrt
from slrt_dask.cli import main
from slrt_dask.data.arrays import array_source
from slrt_dask.data.coo import coo_source
from slrt_dask.errors import StoreCorrupt, StoreExists, StoreNotFound
from tests.data.helpers import ingested
from tests.faults.killing import deaths

SHAPE = (24, 10, 8)
INGEST = {"partition_entries": 300, "batch_entries": 350}


def cells(block_info=None):
    """One block of a tensor of which every seventh entry is missing."""
    place = block_info[None]["array-location"]
    grid = np.meshgrid(*(np.arange(first, stop) for first, stop in place), indexing="ij")
    values = np.sin(grid[0] + 3.0 * grid[1]) + grid[2]
    values[(grid[0] + grid[1] + grid[2]) % 7 == 0] = np.nan
    return values


def lazy_array():
    chunks = da.core.normalize_chunks((2, 10, 8), SHAPE)
    return da.map_blocks(cells, chunks=chunks, dtype=float, meta=np.zeros((0, 0, 0)))


def lazy_columns():
    whole = lazy_array().compute(scheduler="synchronous")
    indices = np.array(np.nonzero(~np.isnan(whole)))
    return da.from_array(indices, chunks=(3, 160)), da.from_array(
        whole[tuple(indices)], chunks=160
    ).map_blocks(np.negative)


def source_of(kind):
    return array_source(lazy_array()) if kind == "array" else coo_source(*lazy_columns(), SHAPE)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("kind", "task"), [("array", "observed_entries"), ("columns", "negative")])
def test_a_worker_killed_while_it_computes_a_source_leaves_the_store_unchanged(
    kind, task, seed, doomed, tmp_path
):  # fmt: skip
    with dask.config.set(scheduler="synchronous"):
        undisturbed = ingested(tmp_path / "undisturbed", source_of(kind), **INGEST)
    doomed(np.random.default_rng(seed), task, 8)
    store = ingested(tmp_path / "store", source_of(kind), **INGEST)
    assert store.digest == undisturbed.digest
    store.verify()


# ---- the process itself ---------------------------------------------------------------------


def make_store(path, source):
    slrt.from_file(path, source, partition_entries=300)


def split_store(path):
    slrt.open_store(path).split(0.3)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A store, and its two parts."""
    path = tmp_path_factory.mktemp("undisturbed") / "store"
    whole = lazy_array().compute(scheduler="synchronous")
    store = slrt.from_array(path, whole, partition_entries=300)
    return store, *store.split(0.3)


def test_a_killed_ingest_leaves_nothing_that_opens_and_can_be_repeated(undisturbed, tmp_path):
    np.savez(tmp_path / "x.npz", X=lazy_array().compute(scheduler="synchronous"))
    work = tmp_path / "work"
    work.mkdir()
    path = work / "store"
    for _ in deaths(1, work, make_store, path, tmp_path / "x.npz", times=5):
        # Nothing beside it: what was unpacked and sorted lay in files that have no names.
        assert os.listdir(work) in ([], ["store"])
        with pytest.raises((StoreCorrupt, StoreNotFound), match="store"):
            slrt.open_store(path)
        if path.exists():
            with pytest.raises(StoreExists, match=r"work/store already exists; .*remove it"):
                make_store(path, tmp_path / "x.npz")
    make_store(path, tmp_path / "x.npz")
    assert slrt.open_store(path).digest == undisturbed[0].digest


def test_a_killed_split_leaves_neither_part_and_can_be_repeated(undisturbed, tmp_path):
    store, train, test = undisturbed
    path = tmp_path / "work" / "store"
    shutil.copytree(store.path, path)
    # Between the last two changes of files the first part is complete, and the second is not.
    for _ in deaths(2, path.parent, split_store, path, spared=2):
        left = sorted({"store-train", "store-test"} & set(os.listdir(path.parent)))
        for part in ("store-train", "store-test"):
            with pytest.raises((StoreCorrupt, StoreNotFound), match=part):
                slrt.open_store(path.parent / part)
        again = CliRunner().invoke(main, ["split", str(path), "--test", "0.3"])
        assert again.exit_code != 0
        assert all(str(path.parent / part) in again.output for part in left)
        assert "already exist" in again.output
    split_store(path)
    digests = [slrt.open_store(f"{path}-{part}").digest for part in ("train", "test")]
    assert digests == [train.digest, test.digest]
