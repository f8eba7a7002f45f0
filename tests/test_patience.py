"""Fits that end where the error on held-out observations is the least, also after a crash."""

from __future__ import annotations

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.data import low_rank_tensor, sample_entries
from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.stopping import StopReason

SHAPE, RANKS = (12, 10, 8), (3, 3, 3)
OPTIONS = {"C": 1000.0, "patience": 3, "gap_tolerance": 0.0, "threads": 1}


class Crash(Exception):
    pass


class CrashAt:
    def __init__(self, iteration):
        self.iteration = iteration

    def on_record(self, record, state):
        if record.iteration == self.iteration:
            raise Crash


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Few noisy observations, which are soon fitted too closely, and some held out."""
    tensor = low_rank_tensor(SHAPE, (2, 2, 2), seed=3, noise=0.0)
    noisy = tensor + 0.3 * np.random.default_rng(4).standard_normal(SHAPE)
    indices, values = sample_entries(noisy, 0.4, seed=5)
    place = tmp_path_factory.mktemp("patience")
    store = slrt.from_coo(place / "store", indices, values, SHAPE, partition_entries=120)
    return store.split(0.3, 0, place / "train", place / "test")


@pytest.fixture(scope="module")
def undisturbed(parts):
    return slrt.complete(parts[0], RANKS, validation=parts[1], **OPTIONS)


def test_the_best_iteration_is_returned_with_its_certificate(undisturbed, parts):
    errors = [record.validation_rmse for record in undisturbed.records[:-1]]
    best = int(np.argmin(errors))
    assert undisturbed.stop_reason is StopReason.VALIDATION
    assert len(errors) - 1 - best == OPTIONS["patience"]
    assert undisturbed.records[-1].event == f"went back to iteration {best}"
    scores = slrt.evaluate(undisturbed, parts[1])
    assert scores.rmse == pytest.approx(errors[best], rel=1e-2)
    assert scores.rmse < errors[-1]
    assert undisturbed.certificate.dual <= undisturbed.certificate.primal < np.inf


@pytest.mark.parametrize("after", [2, -2, -1])
def test_a_crash_at_any_iteration_leaves_the_answer_unchanged(after, undisturbed, parts, tmp_path):
    crash = CrashAt(undisturbed.records[after].iteration)
    options = {**OPTIONS, "run_directory": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(Crash):
        slrt.complete(parts[0], RANKS, validation=parts[1], observers=[crash], **options)
    done = slrt.resume(tmp_path / "run", threads=1)
    assert done.stop_reason is undisturbed.stop_reason
    assert done.certificate == undisturbed.certificate
    np.testing.assert_array_equal(done.factors[0], undisturbed.factors[0])


def test_bounds_hold_at_the_best_iteration(parts):
    bounds = slrt.Bounds(-0.5, 0.5, where="observed")
    done = slrt.complete(parts[0], RANKS, validation=parts[1], constraint=bounds, **OPTIONS)
    assert done.stop_reason is StopReason.VALIDATION
    assert done.certificate.violation < 1e-5


@pytest.mark.parametrize(("given", "message"), [(0, "patience is 0"), (True, "patience is True")])
def test_impossible_patience_is_refused(given, message, parts):
    with pytest.raises(InvalidConfig, match=message):
        slrt.complete(parts[0], RANKS, validation=parts[1], **{**OPTIONS, "patience": given})


def test_patience_needs_held_out_observations(parts):
    for asked in ({"ranks": RANKS}, {"ranks": "auto"}, {"ranks": "certified", "C": "auto"}):
        with pytest.raises(InvalidConfig, match=r"patience is 3, .* patience needs `validation`"):
            slrt.complete(parts[0], **{**OPTIONS, **asked})
