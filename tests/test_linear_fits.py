"""Fits with linear constraints: what they come to, what is enforced, kept, resumed and refused."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import slrt_dask as slrt
from slrt_dask.errors import CheckpointMismatch, InvalidInput, StoreNotFound
from slrt_dask.optim import StopReason
from tests.linear_examples import (
    SHAPE,
    SIZE,
    bound_store,
    completed,
    exact_tensor,
    noisy_tensor,
    rising,
    rows_store,
    totals,
    values_of,
)


@pytest.fixture(scope="module")
def observed(store_of):
    def make(shift=0.0):
        noisy, mask = noisy_tensor()
        return store_of(mask, noisy + shift, parts=2)

    return make


@pytest.fixture(scope="module")
def whole(observed):
    """A fit with all of them that has just begun."""
    return completed(observed(), everything(), max_iterations=1)


def error_of(W):
    mask = noisy_tensor()[1]
    return float(np.sqrt(np.mean((W - exact_tensor())[~mask] ** 2)))


# ---- what fits come to ----------------------------------------------------------------------


def symmetric_rows(shape):
    """W[i, j, k] = W[j, i, k]."""
    places = np.arange(np.prod(shape)).reshape(shape)
    pairs = [(places[i, j, k], places[j, i, k]) for i, j, k in np.ndindex(shape) if i < j]
    A = np.zeros((len(pairs), places.size))
    for row, (one, other) in zip(A, pairs, strict=True):
        row[one], row[other] = 1.0, -1.0
    return A


EXAMPLES = {
    "totals": (lambda: slrt.Linear(*totals(), "=="), lambda W: totals()[0] @ W - totals()[1]),
    "rising": (lambda: slrt.Linear(rising()), lambda W: np.minimum(rising() @ W, 0.0)),
    "falling": (lambda: slrt.Linear(-rising(), kind="<="), lambda W: np.minimum(rising() @ W, 0.0)),
}


@pytest.mark.parametrize(
    ("name", "center"), [("totals", False), ("rising", True), ("falling", False)]
)
def test_rows_hold_as_well_as_the_certificate_says_and_help(name, center, observed):
    make, missed = EXAMPLES[name]
    store = observed()
    free = completed(store, None, max_iterations=4, center=center)
    fit = completed(store, make(), max_iterations=4, center=center)
    left = np.abs(missed(values_of(fit).reshape(-1))).max()
    assert left <= fit.certificate.violation * (1 + 1e-6) + 1e-12
    assert np.abs(missed(values_of(free).reshape(-1))).max() > 10 * max(left, 1e-3)
    assert error_of(values_of(fit)) < error_of(values_of(free))
    assert free.certificate.dual <= fit.certificate.primal
    assert 0.0 < fit.certificate.dual <= fit.certificate.primal


def test_symmetry_may_be_asked_for(store_of):
    rng = np.random.default_rng(4)
    shape = (6, 6, 4)
    mask = rng.random(shape) < 0.4
    store = store_of(mask, rng.random(shape), parts=2)
    fit = completed(store, slrt.Linear(sp.csr_array(symmetric_rows(shape)), kind="=="))
    W = fit.to_dask().compute(scheduler="synchronous")
    assert np.abs(W - W.transpose(1, 0, 2)).max() <= fit.certificate.violation + 1e-12
    W = fit.to_dask(enforce=True).compute(scheduler="synchronous")
    np.testing.assert_allclose(W, W.transpose(1, 0, 2), atol=1e-12)


def test_conditions_are_in_the_units_of_the_data_also_when_they_are_centred(observed):
    """A shift of the data and of what is asked for shifts the answer."""
    A, b = totals()
    fits = []
    for shift in (0.0, 5.0):
        conditions = [slrt.Linear(A, b + 6 * shift, "=="), slrt.Bounds(lower=shift)]
        fits.append(completed(observed(shift), conditions, center=True, max_iterations=1))
    one, other = (values_of(fit) for fit in fits)
    np.testing.assert_allclose(other - 5.0, one, atol=1e-6)
    np.testing.assert_allclose(
        A @ other.reshape(-1), b + 30.0, atol=2 * fits[1].certificate.violation
    )


def everything():
    """Totals, rising values, no negative ones, and a few low ones: conditions of every kind."""
    chosen = np.array([[0, 0, 1], [0, 1, 2], [0, 1, 2]])
    return [
        slrt.Linear(sp.csr_array(totals()[0]), totals()[1], "=="),
        slrt.Nonnegative(),
        slrt.Bounds(upper=0.9 * exact_tensor()[tuple(chosen)].max() + 0.1, where=chosen),
        slrt.Linear(rising()),
    ]


def test_a_list_of_constraints_holds_all_of_it(whole):
    W = values_of(whole)
    missed = max(
        np.abs(totals()[0] @ W.reshape(-1) - totals()[1]).max(),
        -(rising() @ W.reshape(-1)).min(),
        -W.min(),
    )
    assert 0.0 < missed <= whole.certificate.violation * (1 + 1e-6) + 1e-12


# ---- enforced -------------------------------------------------------------------------------


def assert_enforced(V):
    chosen = ([0, 0, 1], [0, 1, 2], [0, 1, 2])
    np.testing.assert_allclose(totals()[0] @ V.reshape(-1), totals()[1], atol=1e-10)
    assert (rising() @ V.reshape(-1)).min() >= -1e-10
    assert V.min() >= 0.0
    assert V[chosen].max() <= 0.9 * exact_tensor()[chosen].max() + 0.1 + 1e-10


@pytest.mark.parametrize("center", [False, True])
def test_an_enforced_export_satisfies_everything_chunk_by_chunk(center, observed, whole, tmp_path):
    fit = whole
    if center:
        fit = completed(observed(), everything(), center=True, max_iterations=0)
    assert fit.certificate.violation > 1e-4
    V = values_of(fit, enforce=True)
    assert_enforced(V)
    fit.to_zarr(tmp_path / "V.zarr", chunks=(2, 6, 3), enforce=True)
    np.testing.assert_allclose(zarr.open(tmp_path / "V.zarr")[:], V, atol=1e-13)


def test_bounds_where_there_are_observations_are_enforced_beside_rows(observed):
    store, mask = observed(), noisy_tensor()[1]
    A, b = totals()
    fit = completed(
        store, [slrt.Linear(A, b, "=="), slrt.Nonnegative("observed")], max_iterations=1
    )
    V = values_of(fit, enforce=True)
    np.testing.assert_allclose(A @ V.reshape(-1), b, atol=1e-10)
    assert V[mask].min() >= -1e-15


def test_what_was_saved_is_enforced_as_before(whole, tmp_path):
    whole.save(tmp_path / "saved")
    wanted, plain = values_of(whole, enforce=True), values_of(whole)
    again = slrt.load_completion(tmp_path / "saved")
    np.testing.assert_array_equal(values_of(again, enforce=True), wanted)
    np.testing.assert_array_equal(values_of(again), plain)
    assert np.abs(wanted - plain).max() > 1e-6


def test_what_cannot_be_satisfied_cannot_be_enforced(observed):
    A, b = totals()
    contrary = [slrt.Linear(A, b, ">="), slrt.Linear(A[:1], b[:1] - 1.0, "<=")]
    fit = completed(observed(), contrary, max_iterations=0)
    assert np.isinf(fit.certificate.primal)
    assert fit.certificate.relative_gap == 1.0
    with pytest.raises(InvalidInput, match=r"linear constraint cannot be enforced: .* contradicts"):
        fit.to_dask(enforce=True)


# ---- interrupted and resumed ----------------------------------------------------------------


def interrupting(when):
    def stop(record, state):
        if record.iteration == when:
            raise KeyboardInterrupt

    return SimpleNamespace(on_record=stop)


def stopped(store, constraint, run, when=1):
    fit = completed(
        store,
        constraint,
        run_directory=run,
        checkpoint_every=1,
        max_iterations=2,
        observers=[interrupting(when)],
    )
    assert fit.stop_reason is StopReason.INTERRUPTED


def test_rows_given_in_memory_are_kept_in_the_run(observed, tmp_path):
    stopped(observed(), slrt.Linear(*totals(), "=="), tmp_path / "run", 0)
    table = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]["constraint"]
    for key in ("rows", "bound"):
        assert table[key].startswith(str(tmp_path / "run"))
        assert slrt.open_store(table[key]).shape[0] == 35
    shutil.rmtree(table["rows"])
    with pytest.raises(StoreNotFound, match=f"no store at {table['rows']}"):
        slrt.resume(tmp_path / "run", threads=1)


@pytest.mark.parametrize("altered", ["A", "b", "where"])
def test_a_store_that_was_altered_since_is_named(altered, observed, tmp_path):
    A, b = totals()
    constraint = slrt.Linear(rows_store(tmp_path / "A", A), bound_store(tmp_path / "b", b), "==")
    if altered == "where":
        places = np.stack(np.unravel_index(np.arange(0, SIZE, 3), SHAPE))
        where = slrt.from_coo(tmp_path / "where", places, np.ones(places.shape[1]), SHAPE)
        constraint = slrt.Nonnegative(where)
    stopped(observed(), constraint, tmp_path / "run", 0)
    shutil.rmtree(tmp_path / altered)
    if altered == "A":
        A[3, :] *= 2.0
        rows_store(tmp_path / "A", A)
    elif altered == "b":
        bound_store(tmp_path / "b", b + 1.0)
    else:
        slrt.from_coo(tmp_path / "where", places[:, 1:], np.ones(places.shape[1] - 1), SHAPE)
    with pytest.raises(CheckpointMismatch, match=rf"{tmp_path}/{altered} holds other .* new run"):
        slrt.resume(tmp_path / "run", threads=1)


# ---- many rows ------------------------------------------------------------------------------


def test_there_may_be_very_many_rows(tmp_path):
    """Neighbours in one slice of the last mode differ by little: two rows for every pair.

    One iteration and small weights, which make the inner solves easy, for the sake of time.
    """
    shape, rng = (1000, 200, 2), np.random.default_rng(7)
    places = np.unique(rng.integers(0, np.prod(shape), 3000))
    indices = np.stack(np.unravel_index(places, shape))
    values = indices[0] / 1000.0 + 0.1 * rng.standard_normal(len(places))
    store = slrt.from_coo(tmp_path / "s", indices, values, shape)
    count = 1000 * 200
    numbers = np.arange(count)
    columns = np.stack([2 * numbers, 2 * (numbers ^ 1)], axis=1).reshape(-1)
    starts = np.arange(0, 2 * count + 1, 2)
    A = sp.csr_array((np.tile([1.0, -1.0], count), columns, starts), (count, 2 * count))
    fit = slrt.complete(
        store, (2, 2, 2), C=1.0, lambdas=(1.0, 1.0, 1.0), constraint=slrt.Linear(A, -0.01),
        threads=1, max_iterations=1,
    )  # fmt: skip
    assert len(fit.records) == 2
    assert all(record.inner_converged for record in fit.records)
    slice_ = fit.to_dask((1000, 200, 1)).blocks[0, 0, 0].compute(scheduler="synchronous")
    differences = np.abs(slice_[:, ::2, 0] - slice_[:, 1::2, 0])
    assert differences.max() <= 0.01 + fit.certificate.violation * (1 + 1e-6) + 1e-12
    assert fit.certificate.dual <= fit.certificate.primal < np.inf
