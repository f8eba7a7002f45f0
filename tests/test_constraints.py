"""Bounds as a caller gives them: what is refused, what is written, and what a fit makes of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask import constraints
from slrt_dask.combining import constraints_of
from slrt_dask.config import FitSettings
from slrt_dask.constraints import Bounds, bounds_of
from slrt_dask.errors import InvalidConfig, InvalidInput
from slrt_dask.request import plan_of

SHAPE = (7, 6, 5)
RANKS = (2, 2, 2)
TIRELESS = {"gap_tolerance": 0.0, "gradient_tolerance": 0.0}


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "offending"),
    [
        ({"lower": 2.0, "upper": 1.0}, "2 .* 1"),
        ({"lower": (0.0, 3.0), "upper": 1.0, "mode": 0}, "3 .* 1 at index 1 of mode 0"),
        ({"lower": np.nan}, "lower .* nan"),
        ({"upper": (0.0, np.nan), "mode": 1}, "upper .*nan"),
        ({"lower": "much"}, "lower .* 'much'"),
        ({"upper": True}, "upper .* True"),
        ({"lower": [[0.0]], "mode": 0}, r"lower .* \[\[0.0\]\]"),
        ({"lower": np.inf}, "lower .* inf"),
        ({"upper": -np.inf}, "upper .* -inf"),
        ({"lower": (np.inf, 0.0), "mode": 0}, "lower .* inf"),
        ({"lower": [[1.0], [1.0, 2.0]], "mode": 0}, "lower"),
        ({"lower": 0.0, "mode": 1.5}, "mode .* 1.5"),
        ({"lower": 0.0, "mode": True}, "mode .* True"),
        ({"lower": 0.0, "where": np.zeros((3, 0), int)}, "where"),
        ({"lower": 0.0, "where": np.full((2, 1), 2**63, np.uint64)}, "tensor"),
        ({}, "bound"),
        ({"lower": -np.inf, "upper": np.inf}, "bound"),
        ({"lower": (0.0, 0.0)}, "mode="),
        ({"lower": (0.0, 0.0), "upper": (1.0,) * 3, "mode": 0}, r"\[2, 3\]"),
        ({"lower": 0.0, "where": [0, 1, 2]}, "where"),
        ({"lower": 0.0, "where": [[0.5], [1.0]]}, r"\(K, m\)"),
        ({"lower": 0.0, "where": [[1, 2], [1]]}, "where"),
        ({"lower": 0.0, "where": None}, "where"),
    ],
    ids=str,
)
def test_what_cannot_be_bounds_is_refused_with_its_value(arguments, offending):
    with pytest.raises(InvalidInput, match=offending):
        Bounds(**arguments)


def test_more_places_than_settings_can_hold_belong_into_a_store(monkeypatch):
    monkeypatch.setattr(constraints, "MOST_PLACES", 1000)
    slrt.Nonnegative(where=np.zeros((3, 1000), dtype=int))
    with pytest.raises(InvalidInput, match=r"names 1,001 places, more than 1,000; put them into a"):
        slrt.Nonnegative(where=np.zeros((3, 1001), dtype=int))


@pytest.mark.parametrize(
    ("bounds", "offending"),
    [
        (Bounds(lower=0.0, mode=3), "mode 3 .* 3 modes"),
        (Bounds(lower=0.0, mode=-1), "mode -1 .* 3 modes"),
        (Bounds(lower=(0.0, 0.0), mode=1), "lower has 2 numbers, mode 1 6"),
        (Bounds(upper=(1.0,) * 8, mode=0), "upper has 8 numbers, mode 0 7"),
        (slrt.Nonnegative(where=[[0, 1], [0, 1]]), "2 rows .* order 3"),
        (slrt.Nonnegative(where=[[0, 1], [0, 6], [0, 1]]), "place 1 .* index 6 in mode 1"),
        (slrt.Nonnegative(where=[[-1], [0], [0]]), "place 0 .* index -1 in mode 0"),
        (0.0, "Nonnegative"),
        ("nonnegative", "Nonnegative"),
        ([0.0, 1.0], "Nonnegative"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_tensor_is_refused_before_anything_is_computed(
    bounds, offending, observed
):
    with pytest.raises(InvalidInput, match=offending):
        slrt.complete(observed(), RANKS, C=5.0, constraint=bounds)


def test_unknown_keys_and_methods_that_need_a_hessian_are_refused(observed):
    with pytest.raises(InvalidConfig, match=r"'least'.*lower, upper, where"):
        constraints_of({"least": 0.0})
    rows = slrt.Linear.rising(SHAPE, 0)
    with pytest.raises(InvalidConfig, match="'rtr'"):
        slrt.complete(observed(), RANKS, C=5.0, method="rtr", constraint=rows)


# ---- what is written ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bounds",
    [
        slrt.Nonnegative(),
        slrt.Nonnegative(where="observed"),
        slrt.Nonnegative(where="/somewhere/else"),
        slrt.Nonnegative(where=np.array([[0, 1], [2, 3], [4, 0]])),
        Bounds(upper=3),
        Bounds(lower=-1.5, upper=np.float32(2.5)),
        Bounds(lower=np.arange(5.0), mode=2),
        Bounds(lower=(-np.inf, 0.0), upper=(1.0, np.inf), mode=0),
    ],
    ids=str,
)
def test_a_constraint_is_read_as_it_was_written(bounds):
    table = bounds.to_dict()
    assert bounds_of(table) == bounds
    assert bounds_of(json.loads(json.dumps(table))) == bounds
    assert constraints_of(bounds).bounds is bounds
    assert hash(bounds_of(table)) == hash(bounds)


def test_bounds_are_vectors_along_their_mode():
    assert slrt.Nonnegative() == Bounds(lower=0.0)
    mode, lower, upper = Bounds(lower=range(6), upper=9.0, mode=1).vectors(SHAPE)
    assert mode == 1
    np.testing.assert_array_equal(lower, np.arange(6.0))
    np.testing.assert_array_equal(upper, np.full(6, 9.0))
    mode, lower, upper = Bounds(lower=-1.0).vectors(SHAPE)
    np.testing.assert_array_equal(lower, np.full(SHAPE[mode], -1.0))
    np.testing.assert_array_equal(upper, np.full(SHAPE[mode], np.inf))


def test_a_store_is_known_by_its_path(observed):
    store = observed()
    assert slrt.Nonnegative(store) == slrt.Nonnegative(store.path)
    assert slrt.Nonnegative(store).where_store == store.path
    assert slrt.Nonnegative("observed").where_store is None
    assert slrt.Nonnegative().where_store is None


# ---- what a fit makes of them ---------------------------------------------------------------


def nonnegative_tensor(shape=SHAPE, seed=1):
    """A tensor with many entries near zero, and noise that takes observations below."""
    rng = np.random.default_rng(seed)
    parts = [[rng.random(n) ** 3 for n in shape] for _ in range(2)]
    exact = sum(np.einsum("i,j,k->ijk", *vectors) for vectors in parts)
    exact /= exact.max()
    return exact + 0.1 * rng.standard_normal(shape), rng.random(shape) < 0.5


@pytest.fixture
def observed(store_of):
    def make(parts=2, shift=0.0):
        noisy, mask = nonnegative_tensor()
        return store_of(mask, noisy + shift, parts=parts)

    return make


def completed(store, constraint, **options):
    options = {"C": 1.0, "threads": 1, "max_iterations": 3, "method": "rcg", **options}
    options.setdefault("ranks", RANKS)
    return slrt.complete(store, **TIRELESS, constraint=constraint, **options)


def missed_by(fit, lower=-np.inf, upper=np.inf, held=True):
    """By how much the completed tensor is outside, where the bounds hold."""
    W = fit.to_dask().compute(scheduler="synchronous")
    return float(np.max(np.where(held, np.maximum(lower - W, W - upper), 0.0)))


MODE_BOUNDS = (-np.inf, 0.0, 0.05, 0.0, -0.1, 0.02)


@pytest.mark.parametrize(
    ("constraint", "lower", "upper", "center"),
    [
        (slrt.Nonnegative(), 0.0, np.inf, False),
        (slrt.Nonnegative(), 0.0, np.inf, True),
        (Bounds(lower=0.0, upper=0.5), 0.0, 0.5, True),
        (Bounds(upper=0.4), -np.inf, 0.4, False),
        (Bounds(lower=MODE_BOUNDS, mode=1), np.reshape(MODE_BOUNDS, (1, 6, 1)), np.inf, True),
    ],
    ids=["nonnegative", "nonnegative centred", "two-sided centred", "upper", "vector centred"],
)
def test_no_entry_misses_its_bounds_by_more_than_the_certificate_says(
    constraint, lower, upper, center, observed
):
    store = observed()
    free = completed(store, None, center=center)
    fit = completed(store, constraint, center=center)
    # Observed values may lie outside: they are noisy.
    noisy, mask = nonnegative_tensor()
    assert np.maximum(lower - noisy, noisy - upper)[mask].max() > 0.05
    missed = missed_by(fit, lower, upper)
    assert missed <= fit.certificate.violation * (1 + 1e-9) + 1e-12
    # Bounds are in the units of the data, and without them they would not be kept.
    assert missed_by(free, lower, upper) > 10 * max(missed, 1e-3)
    assert fit.certificate.dual <= fit.certificate.primal
    assert fit.certificate.primal >= free.certificate.dual


@pytest.mark.parametrize("kind", ["observed", "store", "places"])
def test_bounds_hold_where_they_were_asked_for_and_not_elsewhere(kind, observed, store_of):
    store = observed()
    _, mask = nonnegative_tensor()
    held = mask if kind == "observed" else np.random.default_rng(3).random(SHAPE) < 0.3
    elsewhere = store_of(held, np.ones(SHAPE), parts=2, slab_mode=1)
    where = {
        "observed": "observed",
        "store": elsewhere,
        "places": np.argwhere(held).T,
    }[kind]
    fit = completed(store, slrt.Nonnegative(where))
    assert missed_by(fit, 0.0, held=held) <= fit.certificate.violation * (1 + 1e-9) + 1e-12
    assert missed_by(fit, 0.0) > 2 * fit.certificate.violation


def test_a_fit_with_bounds_is_written_and_read_again(observed, tmp_path):
    fit = completed(observed(), slrt.Nonnegative(), max_iterations=3)
    fit.save(tmp_path / "saved")
    again = slrt.load_completion(tmp_path / "saved")
    places = np.indices(SHAPE).reshape(3, -1)
    np.testing.assert_array_equal(again.predict(places), fit.predict(places))
    W = fit.to_dask().compute(scheduler="synchronous")
    np.testing.assert_allclose(fit.predict(places), W.reshape(-1), atol=1e-12)


# ---- elsewhere, out of core ----------------------------------------------------


def test_a_streamed_fit_gives_the_answer_of_a_resident_one(store_of, monkeypatch, caplog):
    monkeypatch.setattr("slrt_dask.engine.plan.SMALLEST_STREAMED_BLOCK", 500)
    monkeypatch.setattr("slrt_dask.engine.plan.LARGEST_STREAMED_BLOCK", 2000)
    shape = (30, 20, 20)
    noisy, _ = nonnegative_tensor(shape)
    mask = np.random.default_rng(3).random(shape) < 0.3
    store = store_of(mask, noisy)
    constraint = Bounds(lower=0.0, upper=0.5, where="observed")
    settings = FitSettings(ranks=RANKS, C=1.0, constraint=constraint.to_dict())
    needed = plan_of(store, settings, threads=1).largest.total
    options = {"C": 1.0, "max_iterations": 2}
    resident = completed(store, constraint, **options)
    with caplog.at_level("INFO", logger="slrt_dask"):
        streamed = completed(store, constraint, memory_limit=needed - 1, **options)
    assert caplog.text.count("streamed from disk") == 1
    np.testing.assert_allclose(
        [record.cost for record in streamed.records],
        [record.cost for record in resident.records],
        rtol=1e-8,
    )
    places = np.indices(shape).reshape(3, -1)[:, ::7]
    np.testing.assert_allclose(streamed.predict(places), resident.predict(places), atol=1e-8)
