"""How many observations stand behind an entry, counted from the model alone."""

from __future__ import annotations

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.cli.supporting import resting_on_nothing
from slrt_dask.errors import InvalidInput
from tests.oracles.dense import random_problem

SHAPE = (8, 6, 5)
EVERYWHERE = np.indices(SHAPE).reshape(3, -1)


@pytest.fixture(scope="module", params=["free", "bounded"])
def fitted(request, store_of, tmp_path_factory):
    """A completion, and where it was observed: not in a slice, nor in some fibres of others."""
    dense = random_problem(SHAPE, (2, 2, 2), C=5.0, fraction=0.4, seed=4)
    mask = dense.mask.copy()
    mask[3], mask[:, 2, 1], mask[1, 4] = False, False, False
    store = store_of(mask, dense.values, parts=3)
    spread = float(np.std(dense.values))
    bounds = slrt.Bounds(-spread, spread) if request.param == "bounded" else None
    directory = tmp_path_factory.mktemp("run") / "run"
    done = slrt.complete(
        store, (2, 2, 2), C=5.0, max_iterations=2, constraint=bounds, run_directory=directory
    )
    if bounds is not None:
        assert done.header.dual.nnz > mask.sum()
    return done, mask


@pytest.mark.parametrize("scheduler", ["threads", "workers"])
def test_support_is_the_number_of_observations_in_each_fibre(fitted, scheduler, request):
    if scheduler == "workers":
        request.getfixturevalue("thread_client")
    done, mask = fitted
    found = done.support(EVERYWHERE)
    for mode in range(3):
        wanted = np.broadcast_to(mask.sum(axis=mode, keepdims=True), SHAPE)
        np.testing.assert_array_equal(found[mode].reshape(SHAPE), wanted)
        for chunks in (None, (3, 4, 2)):
            lazy = done.support_map(mode, chunks)
            assert lazy.dtype == np.int64
            np.testing.assert_array_equal(np.asarray(lazy), wanted)


def test_entries_of_a_slice_without_observations_rest_on_nothing(fitted):
    done, mask = fitted
    nothing = done.rests_on_nothing(EVERYWHERE).reshape(SHAPE)
    filled = [mask.any(axis=tuple({0, 1, 2} - {mode})) for mode in range(3)]
    parts = [
        np.broadcast_to(mask.any(axis=mode, keepdims=True), SHAPE)
        & np.expand_dims(filled[mode], tuple({0, 1, 2} - {mode}))
        for mode in range(3)
    ]
    np.testing.assert_array_equal(nothing, ~np.any(parts, axis=0))
    assert nothing[3].all()
    if done.header.constraint is None:
        assert np.all(done.predict(EVERYWHERE)[nothing.ravel()] == done.header.offset)


def test_what_nothing_was_observed_about_is_said_to_be_the_offset_only_without_a_constraint(fitted):
    done, _ = fitted
    said = resting_on_nothing(3, 1000, done)
    assert said.startswith("3 of 1,000 predictions")
    assert (f"they are {done.header.offset:.6g}" in said) == (done.header.constraint is None)


def test_a_saved_copy_knows_it_too(fitted, tmp_path):
    done, _ = fitted
    copy = done.save(tmp_path / "copy")
    np.testing.assert_array_equal(copy.support(EVERYWHERE), done.support(EVERYWHERE))
    assert copy.support(np.zeros((3, 0), dtype=int)).shape == (3, 0)


def test_what_cannot_be_counted_is_refused(fitted, tmp_path):
    done, _ = fitted
    with pytest.raises(InvalidInput, match="mode is 3; give one from 0 to 2"):
        done.support_map(3)
    series = slrt.from_array(tmp_path / "series", np.cos(0.3 * np.arange(30)))
    hankel = slrt.complete(series, (2,), C=1.0, constraint=slrt.Hankel(10), max_iterations=1)
    with pytest.raises(InvalidInput, match="a Hankel completion keeps the tensor"):
        hankel.support([[1]])
