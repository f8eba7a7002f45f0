"""Imported where processes are forked from: a small fit loads whatever fits need."""

from __future__ import annotations

import tempfile

import dask.array
import distributed  # noqa: F401
import numpy as np
import pytest  # noqa: F401

import slrt_dask

with tempfile.TemporaryDirectory() as directory:
    indices = np.array(np.nonzero(np.random.default_rng(0).random((6, 5, 4)) < 0.5))
    store = slrt_dask.from_coo(f"{directory}/store", indices, indices.sum(axis=0) * 1.0, (6, 5, 4))
    slrt_dask.complete(store, (2, 2, 2), C=1.0, threads=1, max_iterations=1)
    # As workers and drivers do that read arrays, and write them.
    dask.array.ones((2, 2), chunks=1).sum().compute(scheduler="synchronous")
