"""A full disk is named by the error, and nothing that was committed is lost."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import DiskFull
from tests.faults.conftest import at_iteration


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be made here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk):
    """Take all the space that there is."""
    with open(disk / "filler", "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.parametrize("on_workers", [False, True])
def test_a_fit_goes_on_from_its_last_checkpoint_when_there_is_room(
    on_workers, problem, small_disk, request
):
    run, full = small_disk / "run", [at_iteration(2, lambda: fill(small_disk))]
    where = {"client": request.getfixturevalue("client")} if on_workers else {"threads": 1}
    with pytest.raises(DiskFull, match=str(run)):
        problem.fit(**where, run_directory=run, observers=full)
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept
    assert all(name.isdigit() for name in kept)
    (small_disk / "filler").unlink()
    problem.assert_answer(slrt.resume(run, **where))


@pytest.mark.parametrize("ahead", [0, 300_000], ids=["before", "while it is sorted"])
def test_an_ingest_leaves_nothing(ahead, small_disk):
    fill(small_disk)
    os.truncate(small_disk / "filler", os.path.getsize(small_disk / "filler") - ahead)
    dense = np.random.default_rng(0).random((60, 50, 40))
    with pytest.raises(DiskFull, match=str(small_disk / "store")):
        slrt.from_array(small_disk / "store", dense)
    assert os.listdir(small_disk) == ["filler"]
