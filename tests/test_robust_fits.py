"""Fits with Huber's loss: outliers do little harm, and runs are what they are without it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.dual.costs import KEPT_VECTORS, SOLVER_VECTORS
from slrt_dask.errors import InvalidConfig, InvalidInput
from slrt_dask.losses import spread_delta
from slrt_dask.optim import StopReason
from slrt_dask.runs import open_run
from slrt_dask.tuning import candidate

SHAPE, RANKS, NOISE = (20, 16, 12), (3, 3, 3), 0.05
DELTA = 0.2
QUICK = {"C": 1.0, "loss": slrt.Huber(DELTA), "max_iterations": 4, "threads": 1}
TIRELESS = {"gap_tolerance": 0.0, "gradient_tolerance": 0.0}


@pytest.fixture(scope="module")
def spoilt(store_of):
    """A low-rank tensor, and stores of half of it, one observation in twenty being absurd."""
    generator = np.random.default_rng(0)
    truth = slrt.low_rank_tensor(SHAPE, ranks=(2, 2, 2), seed=1)
    truth = truth / truth.std()
    values = truth + NOISE * generator.standard_normal(SHAPE)
    absurd = generator.random(SHAPE) < 0.05
    values = np.where(absurd, 10.0 * generator.choice([-1.0, 1.0], SHAPE), values)
    mask = generator.random(SHAPE) < 0.5
    return SimpleNamespace(
        truth=truth, mask=mask, values=values,
        store=lambda parts=1: store_of(mask, values, parts=parts),
    )  # fmt: skip


def error(done, spoilt):
    """Of what was not observed."""
    found = done.predict(np.nonzero(~spoilt.mask))
    return float(np.sqrt(np.mean((found - spoilt.truth[~spoilt.mask]) ** 2)))


def same(one, other, rtol=1e-9):
    for left, right in zip(one.factors, other.factors, strict=True):
        np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol)
    assert one.certificate.primal == pytest.approx(other.certificate.primal, rel=rtol)


def test_outliers_do_several_times_less_harm(spoilt):
    options = {"C": 1.0, "max_iterations": 20, "threads": 1}
    squared = slrt.complete(spoilt.store(), RANKS, **options)
    robust = slrt.complete(spoilt.store(), RANKS, loss=slrt.Huber(DELTA), **options)
    assert 4.0 * error(robust, spoilt) < error(squared, spoilt)


def test_a_large_delta_is_the_squared_loss(spoilt):
    options = {"C": 0.02, "gap_tolerance": 1e-6, "threads": 1}
    squared = slrt.complete(spoilt.store(), RANKS, **options)
    robust = slrt.complete(spoilt.store(), RANKS, **options, loss=slrt.Huber(1e6))
    assert robust.certificate.primal == pytest.approx(squared.certificate.primal, rel=1e-5)
    places = np.nonzero(~spoilt.mask)
    np.testing.assert_allclose(robust.predict(places), squared.predict(places), atol=2e-3)


@pytest.mark.parametrize("center", [True, "modes"])
def test_what_is_subtracted_cannot_be_spoilt_either(center, spoilt, store_of):
    absurd = np.random.default_rng(4).random(SHAPE) < 0.02
    values = np.where(absurd, 1e6, spoilt.truth + 3.0)
    store = store_of(spoilt.mask, values, parts=2)
    done = slrt.complete(store, RANKS, center=center, **QUICK)
    offset = done.offset.on_box(tuple(map(range, SHAPE)))
    assert np.abs(offset - 3.0).max() < 3.0
    if center is True:
        assert done.header.offset == np.median(values[spoilt.mask])


def test_a_search_uses_offsets_although_some_observations_are_absurd(store_of):
    rng = np.random.default_rng(0)
    effects = sum(np.meshgrid(*(rng.standard_normal(n) for n in SHAPE), indexing="ij"))
    absurd = rng.random(SHAPE) < 0.02
    values = np.where(absurd, 60.0, effects + 0.1 * rng.standard_normal(SHAPE))
    store = store_of(rng.random(SHAPE) < 0.5, values)
    options = {"center": "auto", "C": 0.01, "threads": 1, "max_iterations": 2}
    done = slrt.complete(store, (1, 1, 1), loss=slrt.Huber(0.5), **options)
    assert len(done.effects) == 3


def test_a_run_keeps_its_loss(spoilt, tmp_path):
    slrt.complete(spoilt.store(), RANKS, **QUICK, run_directory=tmp_path / "run")
    assert open_run(tmp_path / "run").settings.huber == DELTA
    loaded = slrt.load_completion(tmp_path / "run").save(tmp_path / "copy")
    assert loaded.loss == slrt.Huber(DELTA)
    assert "Huber" in repr(loaded)
    assert "Huber" in loaded._repr_html_()
    assert loaded.header.described()["slrt_huber"] == DELTA


def test_settings_without_a_loss_are_kept_as_before(spoilt, tmp_path):
    done = slrt.complete(
        spoilt.store(), RANKS, C=1.0, max_iterations=1, threads=1, run_directory=tmp_path / "run"
    )
    assert done.loss is None
    assert "huber" not in json.dumps(open_run(tmp_path / "run").binding)
    assert "huber" not in done.header.to_block()


def test_certified_ranks_grow_until_the_gap_closes(spoilt):
    done = slrt.complete(
        spoilt.store(), "certified", C=0.03, loss=slrt.Huber(DELTA), center=True, threads=1
    )
    assert done.stop_reason is StopReason.GAP
    assert done.certificate.relative_gap <= 1e-3


def test_settings_are_searched_for_with_the_same_loss(spoilt, monkeypatch):
    monkeypatch.setattr(candidate, "LADDER", (1, 2, 3, 5))
    weights = {"lambdas": tuple(map(float, SHAPE)), "threads": 1}
    done = slrt.complete(spoilt.store(), RANKS, **weights, loss=slrt.Huber(DELTA))
    assert done.loss == slrt.Huber(DELTA)
    assert "root mean Huber loss (from 0.2)" in done.records[0].event
    squared = slrt.complete(spoilt.store(), RANKS, **weights)
    assert 2.0 * error(done, spoilt) < error(squared, spoilt)


def test_held_out_errors_are_the_root_of_the_mean_loss(spoilt, store_of):
    held_out = store_of(~spoilt.mask, spoilt.values)
    done = slrt.complete(spoilt.store(), RANKS, **QUICK, validation=held_out)
    size = np.abs(done.predict(np.nonzero(~spoilt.mask)) - spoilt.values[~spoilt.mask])
    loss = np.where(size <= DELTA, size**2, 2 * DELTA * size - DELTA**2)
    shown = done.records[-1].validation_rmse
    assert shown == pytest.approx(np.sqrt(loss.mean()), rel=2e-2)
    assert shown < 0.5 * np.sqrt(np.mean(size**2))
    assert "robust RMSE" in done._repr_html_()


def test_blocks_hold_no_more_vectors_than_are_planned(spoilt, vectors_held):
    slrt.complete(spoilt.store(), RANKS, **QUICK)
    assert 0 < max(vectors_held) <= SOLVER_VECTORS + KEPT_VECTORS


# ---- delta -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0, 0.0, -1.0, np.nan, np.inf, "large", None, True, (1.0,)])
def test_a_delta_that_makes_no_sense_is_named(delta):
    with pytest.raises(InvalidConfig, match=r"delta of Huber's loss is .*; give a positive number"):
        slrt.Huber(delta)


def test_something_else_than_a_loss_is_named(spoilt):
    with pytest.raises(InvalidConfig, match=r"loss is 0\.5; give Huber"):
        slrt.complete(spoilt.store(), RANKS, C=1.0, loss=0.5)


def test_delta_comes_from_the_spread_of_the_values(spoilt):
    observed = spoilt.values[spoilt.mask]
    deviation = np.median(np.abs(observed - np.median(observed)))
    assert spread_delta(spoilt.store(parts=3)) == pytest.approx(1.345 * 1.4826 * deviation)
    done = slrt.complete(spoilt.store(), RANKS, **{**QUICK, "loss": slrt.Huber()})
    assert done.loss.delta == pytest.approx(1.345 * 1.4826 * deviation)


def test_values_without_a_spread_need_a_delta(store_of):
    mask = np.ones((4, 3), dtype=bool)
    values = np.zeros((4, 3))
    values[0, 0] = 1.0
    with pytest.raises(InvalidInput, match="median absolute deviation is 0; give a number"):
        slrt.complete(store_of(mask, values), (1, 1), C=1.0, loss=slrt.Huber())


# ---- with constraints and second derivatives -------------------------------------------------


CONVEX = {"C": 0.05, "threads": 1, "gap_tolerance": 1e-3, "max_iterations": 100}


@pytest.mark.parametrize("method", ["rcg", "rtr"])
@pytest.mark.parametrize(
    ("loss", "constraint"),
    [
        (slrt.Huber(DELTA), slrt.Nonnegative()), (slrt.Huber(DELTA), None),
        (None, slrt.Bounds(-0.5, 1.0)),
    ],
    ids=["Huber, nonnegative", "Huber", "bounds"],
)  # fmt: skip
def test_losses_and_bounds_go_together_and_every_method_finds_the_same(
    loss, constraint, method, spoilt, store_of
):
    """The gap is certified, so answers of different methods are as close as their gaps say."""
    part = tuple(slice(n) for n in (8, 7, 6))
    store = store_of(spoilt.mask[part], spoilt.values[part])
    done = slrt.complete(
        store, (8, 7, 6), loss=loss, constraint=constraint, method=method, **CONVEX
    )
    certificate = done.certificate
    assert done.stop_reason is StopReason.GAP
    assert 0.0 <= certificate.relative_gap <= CONVEX["gap_tolerance"]
    lower, upper = {None: (-np.inf, np.inf)}.get(constraint) or (
        -np.inf if constraint.lower is None else constraint.lower,
        np.inf if constraint.upper is None else constraint.upper,
    )
    W = done.to_dask().compute()
    missed = max(float((lower - W).max()), float((W - upper).max()), 0.0)
    assert certificate.violation == pytest.approx(missed, abs=1e-9)
    assert missed <= 1e-2
    if method == "rtr":
        other = slrt.complete(
            store, (8, 7, 6), loss=loss, constraint=constraint, method="rcg", **CONVEX
        )
        assert other.certificate.dual <= certificate.primal * (1 + 1e-12)
        assert certificate.dual <= other.certificate.primal * (1 + 1e-12)
        assert other.certificate.primal == pytest.approx(certificate.primal, rel=2e-3)


def test_what_there_is_no_solver_for_is_refused(spoilt):
    with pytest.raises(InvalidConfig, match="Hankel"):
        slrt.complete(spoilt.store(), RANKS, **QUICK, constraint=slrt.Hankel((3, 1, 1)))
    rows = slrt.Linear.rising(SHAPE, 0)
    with pytest.raises(InvalidConfig, match="'rtr'"):
        slrt.complete(spoilt.store(), RANKS, **QUICK, method="rtr", constraint=rows)
