"""Exports and predictions whose workers or whose own process is killed: the same, or nothing."""

from __future__ import annotations

import os

import dask
import numpy as np
import pytest
import zarr

import slrt_dask as slrt
from slrt_dask.errors import SlrtError, StoreExists
from tests.faults.killing import deaths

CHUNKS = (5, 8, 16)


@pytest.fixture(scope="module")
def done(undisturbed, tmp_path_factory):
    """A completion where workers see it."""
    return undisturbed.save(tmp_path_factory.mktemp("export") / "completion")


@pytest.fixture(autouse=True)
def _many_small_tasks(monkeypatch):
    monkeypatch.setattr("slrt_dask.queries.QUERIES_AT_ONCE", 200)
    # A partition has some 1900 places, so that it stays on a worker from one graph to the next.
    monkeypatch.setattr("slrt_dask.queries.GRAPH_BYTES", 700 * 3 * 4)


def exported(done, path):
    done.to_zarr(path, chunks=CHUNKS)
    return zarr.open_array(path, mode="r")[...]


def computed(done, path):
    return done.to_dask(CHUNKS).compute()


def predicted(done, path):
    return done.predict(np.indices(done.shape).reshape(3, -1))


@pytest.mark.parametrize(
    ("use", "task", "seed"),
    [
        (exported, "slrt-export", 0),
        (exported, "slrt-export", 1),
        (computed, "slrt-complete", 2),
        (computed, "slrt-complete", 3),
        (predicted, "slrt-predict", 4),
        (predicted, "slrt-predict", 5),
        (predicted, "slrt-dual", 6),
    ],
)
def test_a_worker_killed_meanwhile_leaves_the_numbers_unchanged(
    use, task, seed, done, doomed, tmp_path
):  # fmt: skip
    undisturbed = use(done, tmp_path / "undisturbed")
    doomed(np.random.default_rng(seed), task, 4 if task == "slrt-dual" else 12)
    np.testing.assert_array_equal(use(done, tmp_path / "disturbed"), undisturbed)


# ---- the process itself ---------------------------------------------------------------------


def export(source, path):
    slrt.load_completion(source).to_zarr(path, chunks=CHUNKS)


def save(source, path):
    slrt.load_completion(source).save(path)


def opens(path):
    """Whether there is an array, or a completion that answers."""
    try:
        if isinstance(zarr.open(path, mode="r"), zarr.Group):
            slrt.load_completion(path).predict([[0], [0], [0]])
    except (SlrtError, FileNotFoundError):
        return False
    return True


@pytest.mark.parametrize("write", [export, save])
def test_a_killed_export_leaves_nothing_that_opens_and_can_be_repeated(write, done, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    path = work / "written"
    with dask.config.set(scheduler="threads"):
        for _ in deaths(7, work, write, done.path, path):
            assert not opens(path)
            assert os.listdir(work) in ([], ["written"])
            if path.exists():
                with pytest.raises(StoreExists, match=r"work/written already exists; .*remove it"):
                    write(done.path, path)
        write(done.path, path)
        if write is export:
            wanted = done.to_dask(CHUNKS).compute()
            np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)
        else:
            assert slrt.load_completion(path).header.digest == done.header.digest
