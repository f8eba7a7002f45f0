"""Scores are what numpy says of predictions and observations."""

from __future__ import annotations

import math

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import InvalidInput, SlrtError
from tests.oracles.dense import random_problem


@pytest.fixture(scope="module")
def fitted(store_of, tmp_path_factory):
    """A completion, and a store of other entries in several partitions."""
    dense = random_problem((8, 6, 5), (2, 2, 2), C=5.0, fraction=0.4, seed=4)
    store = store_of(dense.mask, dense.values, parts=2)
    held = ~dense.mask
    values = np.random.default_rng(0).standard_normal(held.shape)
    directory = tmp_path_factory.mktemp("run") / "run"
    done = slrt.complete(store, (2, 2, 2), C=5.0, max_iterations=2, run_directory=directory)
    return done, store_of(held, values, parts=3, slab_mode=1), held, values


def test_scores_equal_numpys(fitted):
    done, test, held, values = fitted
    scores = slrt.evaluate(done, test)
    wanted = values[held]
    errors = done.predict(np.array(np.nonzero(held))) - wanted
    assert scores.count == held.sum()
    assert scores.rmse == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-12)
    assert scores.mae == pytest.approx(np.mean(np.abs(errors)), rel=1e-12)
    relative = np.linalg.norm(errors) / np.linalg.norm(wanted)
    assert scores.relative_error == pytest.approx(relative, rel=1e-12)
    peak = np.abs(wanted).max()
    assert scores.psnr == pytest.approx(20 * np.log10(peak / scores.rmse), rel=1e-12)


def test_a_peak_that_is_given_is_used(fitted):
    done, test, _, _ = fitted
    plain = slrt.evaluate(done, test, peak=1.0)
    louder = slrt.evaluate(done, test, peak=10.0)
    assert louder.psnr == pytest.approx(plain.psnr + 20.0)


def test_perfect_predictions_have_no_error(fitted, store_of):
    done = fitted[0]
    everywhere = np.indices(done.shape).reshape(3, -1)
    predicted = done.predict(everywhere).reshape(done.shape)
    scores = slrt.evaluate(done, store_of(np.ones(done.shape, dtype=bool), predicted))
    assert scores.rmse == scores.mae == scores.relative_error == 0.0
    assert scores.psnr == math.inf


def test_observations_that_are_all_zero_have_no_relative_error(fitted, store_of):
    done = fitted[0]
    scores = slrt.evaluate(done, store_of(np.ones(done.shape, dtype=bool), np.zeros(done.shape)))
    assert scores.rmse > 0.0
    assert scores.relative_error == math.inf


def test_another_shape_is_refused_with_both_shapes(fitted, store_of):
    other = store_of(np.ones((3, 2), dtype=bool), np.ones((3, 2)))
    with pytest.raises(InvalidInput, match=r"\(8, 6, 5\).*\(3, 2\)"):
        slrt.evaluate(fitted[0], other)


def test_a_path_and_an_array_score_as_the_store_of_them(fitted):
    done, test, held, values = fitted
    expected = slrt.evaluate(done, test)
    assert slrt.evaluate(done, test.path) == expected
    scores = slrt.evaluate(done, np.where(held, values, np.nan))
    assert scores.count == expected.count
    assert scores.rmse == pytest.approx(expected.rmse, rel=1e-12)


@pytest.mark.parametrize(
    ("given", "words"),
    [(None, "give at least one"), ("nowhere", "check the path"), (np.ones((3, 2)), "must agree")],
)
def test_what_cannot_be_scored_is_refused_in_a_sentence(given, words, fitted):
    with pytest.raises(SlrtError, match=words):
        slrt.evaluate(fitted[0], given)
