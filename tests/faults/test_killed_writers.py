"""Ingests, splits, exports and predictions that are killed: the same numbers, or nothing."""

from __future__ import annotations

import os
import shutil

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import slrt_dask as slrt
from slrt_dask.errors import SlrtError, StoreExists
from tests.faults.killing import Killer, deaths, one_of

SHAPE = (24, 10, 8)


@pytest.fixture(scope="module")
def done(problem, tmp_path_factory):
    """A completion where workers see it."""
    return problem.undisturbed.save(tmp_path_factory.mktemp("export") / "completion")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file with a tensor of which every seventh entry is missing."""
    path = tmp_path_factory.mktemp("source") / "x.npz"
    np.savez(path, X=tensor())
    return path


def tensor():
    grid = np.indices(SHAPE)
    values = np.sin(grid[0] + 3.0 * grid[1]) + grid[2]
    values[grid.sum(axis=0) % 7 == 0] = np.nan
    return values


# ---- workers --------------------------------------------------------------------------------


def computed(done, path):
    return done.to_dask((5, 8, 16)).compute()


def predicted(done, path):
    return done.predict(np.indices(done.shape).reshape(3, -1))


def ingested_array(done, path):
    return stored(slrt.from_array(path, da.from_array(tensor(), chunks=(2, 10, 8))))


def ingested_columns(done, path):
    indices, values = np.indices(SHAPE).reshape(3, -1), np.arange(float(np.prod(SHAPE)))
    columns = da.from_array(indices, chunks=(3, 160)), da.from_array(values, chunks=160)
    return stored(slrt.from_coo(path, *columns, SHAPE))


def stored(store):
    store.verify()
    return store.digest


def used_on_workers(use, done, path):
    return use(done, path)


@pytest.mark.parametrize("use", [computed, predicted, ingested_array, ingested_columns])
def test_workers_killed_meanwhile_leave_the_numbers_unchanged(use, done, client, cluster, tmp_path):
    with dask.config.set(scheduler="synchronous"):
        undisturbed = use(done, tmp_path / "undisturbed")
    times = 0
    with Killer(["use"] * 4, 0, one_of(cluster)) as killer, client.as_current():
        while killer.left:
            times += 1
            found = used_on_workers(use, done, tmp_path / f"disturbed{times}")
            np.testing.assert_array_equal(found, undisturbed)
    assert times > 1


# ---- the process itself ---------------------------------------------------------------------


def ingest(done, source, path):
    slrt.from_file(path, source, partition_entries=300)


def export(done, source, path):
    with dask.config.set(scheduler="threads"):
        slrt.load_completion(done).to_zarr(path, chunks=(5, 8, 16))


def save(done, source, path):
    slrt.load_completion(done).save(path)


def opened(path):
    """Something equal for equal contents; None where nothing opens."""
    for read in (
        lambda: slrt.open_store(path).digest,
        lambda: slrt.load_completion(path).header.digest,
        lambda: zarr.open_array(path, mode="r")[...].tolist(),
    ):
        try:
            return read()
        except (SlrtError, FileNotFoundError, zarr.errors.NodeTypeValidationError):
            continue
    return None


@pytest.mark.parametrize("write", [ingest, export, save])
def test_a_killed_writer_leaves_nothing_that_opens_and_can_be_repeated(
    write, done, source, tmp_path
):
    work = tmp_path / "work"
    work.mkdir()
    path, arguments = work / "written", (done.path, source)
    write(*arguments, tmp_path / "undisturbed")
    for _ in deaths(7, work, write, *arguments, path):
        # Nothing else either: what was sorted lay in files that have no names.
        assert os.listdir(work) in ([], ["written"])
        assert opened(path) is None
        if path.exists():
            with pytest.raises(StoreExists, match="written"):
                write(*arguments, path)
    write(*arguments, path)
    assert opened(path) == opened(tmp_path / "undisturbed") is not None


def split_store(path):
    slrt.open_store(path).split(0.3)


def test_a_killed_split_leaves_neither_part_and_can_be_repeated(problem, tmp_path):
    path = tmp_path / "work" / "store"
    shutil.copytree(problem.store.path, path)
    parts = [f"{path}-train", f"{path}-test"]
    # Between the last two changes of files the first part is complete, and the second is not.
    for _ in deaths(2, path.parent, split_store, path, spared=2):
        assert [opened(part) for part in parts] == [None, None]
        if any(map(os.path.exists, parts)):
            with pytest.raises(StoreExists):
                split_store(path)
    split_store(path)
    assert None not in [opened(part) for part in parts]
