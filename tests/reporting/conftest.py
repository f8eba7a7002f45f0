"""A run with everything on its page, made once for all tests."""

from __future__ import annotations

import numpy as np
import pytest

import slrt_dask as slrt

SHAPE, RANKS = (24, 20, 9), (3, 3, 2)
NAMES = ("row", "column", "<b>band & more</b>")


@pytest.fixture(scope="session")
def cube():
    """A tensor with a third observed, one of its slices empty, and some values below 0."""
    random = np.random.default_rng(0)
    tensor = np.abs(slrt.low_rank_tensor(SHAPE, (2, 2, 2), seed=1)) + 0.1
    tensor += 0.1 * random.standard_normal(SHAPE)
    tensor[random.random(SHAPE) > 0.35] = np.nan
    tensor[5] = np.nan
    return tensor


@pytest.fixture(scope="session")
def stores(cube, tmp_path_factory):
    """Observations, and some that are held out."""
    xarray = pytest.importorskip("xarray")
    named = xarray.DataArray(cube, dims=NAMES)
    path = tmp_path_factory.mktemp("reported") / "cube"
    return slrt.from_array(path, named).split(test=0.15)


@pytest.fixture(scope="session")
def fitted(stores, tmp_path_factory):
    """A nonnegative fit with validation: its run directory and its completion."""
    train, test = stores
    run = tmp_path_factory.mktemp("runs") / "run"
    done = slrt.complete(
        train, RANKS, C=1.0, constraint=slrt.Nonnegative(), validation=test, run_directory=run,
        max_iterations=12, threads=1,
    )  # fmt: skip
    return run, done


@pytest.fixture(scope="session")
def page(fitted, tmp_path_factory):
    """The page of that run."""
    return slrt.report(fitted[0], tmp_path_factory.mktemp("pages") / "report.html")
