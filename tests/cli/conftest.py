"""A small file of observations, the stores made from it, and a run: made once for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from slrt_dask.cli import main
from slrt_dask.data import from_file, low_rank_tensor, sample_entries

ROOT = Path(__file__).parents[2]
SHAPE = (12, 10, 8)
FIT = ("--ranks", "4,4,3", "--C", "0.1")


@pytest.fixture(scope="session")
def run_command():
    """Run a command in this process; gives exit_code, stdout and stderr."""

    def run(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def start_process():
    """Start the command line as a process of its own, in a process group of its own."""

    def start(*arguments):
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.Popen(
            [sys.executable, "-m", "slrt_dask.cli", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )

    return start


@pytest.fixture(scope="session")
def run_process(start_process):
    """Run a process to its end; gives exit code, stdout and stderr."""

    def run(*arguments):
        process = start_process(*arguments)
        output, messages = process.communicate(timeout=120)
        return process.returncode, output, messages

    return run


@pytest.fixture(scope="session")
def observations(tmp_path_factory):
    """An .npz with half of a small tensor's entries."""
    tensor = low_rank_tensor(SHAPE, (2, 2, 2), seed=5, noise=0.01)
    indices, values = sample_entries(tensor, 0.5, seed=6)
    path = tmp_path_factory.mktemp("observations") / "half.npz"
    np.savez(path, indices=indices, values=values, shape=np.array(SHAPE))
    return path


@pytest.fixture(scope="session")
def store(observations):
    return from_file(observations.parent / "store", observations, partition_entries=240)


@pytest.fixture(scope="session")
def fitted(run_command, store, tmp_path_factory):
    """A run directory, and what the command said."""
    run = tmp_path_factory.mktemp("fitted") / "run"
    return run, run_command("fit", store.path, *FIT, "--run", run)
