"""Products with the rows of a linear constraint are those of the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.kernels.coupling import add_adjoint, add_products

ROWS, ENTRIES = 7, 23


@pytest.fixture(params=[0, 1, 40, 161], ids=lambda count: f"{count} coefficients")
def sparse(request):
    """Positions, rows and coefficients in no order, and the matrix (rows, entries) they mean."""
    rng = np.random.default_rng(request.param)
    places = rng.choice(ROWS * ENTRIES, request.param, replace=False)
    rows, positions = (part.astype(np.int32) for part in np.unravel_index(places, (ROWS, ENTRIES)))
    coefficients = rng.standard_normal(request.param)
    dense = np.zeros((ROWS, ENTRIES))
    dense[rows, positions] = coefficients
    return (positions, rows, coefficients), dense


@pytest.mark.parametrize(("dtype", "precision"), [(np.float64, 1e-13), (np.float32, 1e-6)])
def test_both_products_are_added_to_what_is_there(dtype, precision, sparse):
    triplets, dense = sparse
    rng = np.random.default_rng(5)
    w, there = (rng.standard_normal(ENTRIES).astype(dtype) for _ in range(2))
    multipliers, before = rng.standard_normal(ROWS), rng.standard_normal(ROWS)
    products, out = before.copy(), there.copy()
    add_products(*triplets, w, products)
    np.testing.assert_allclose(products, before + dense @ w, atol=1e-13)
    for factor in (1.0, -0.7):
        out[:] = there
        add_adjoint(*triplets, multipliers, factor, out)
        wanted = there + factor * dense.T @ multipliers
        np.testing.assert_allclose(out, wanted, atol=10 * precision)
        assert out.dtype == dtype


def test_the_two_products_are_adjoint_to_each_other(sparse):
    triplets, _ = sparse
    rng = np.random.default_rng(6)
    w, multipliers = rng.standard_normal(ENTRIES), rng.standard_normal(ROWS)
    products, out = np.zeros(ROWS), np.zeros(ENTRIES)
    add_products(*triplets, w, products)
    add_adjoint(*triplets, multipliers, 1.0, out)
    assert multipliers @ products == pytest.approx(out @ w, abs=1e-12)


def test_entries_that_no_row_couples_and_rows_without_entries_stay_as_they_are():
    triplets = (np.array([3], np.int32), np.array([1], np.int32), np.array([2.0]))
    products, out = np.full(3, 9.0), np.full(5, 9.0)
    add_products(*triplets, np.arange(5.0), products)
    add_adjoint(*triplets, np.array([np.nan, 1.0, np.nan]), 1.0, out)
    np.testing.assert_array_equal(products, [9.0, 15.0, 9.0])
    np.testing.assert_array_equal(out, [9.0, 9.0, 9.0, 11.0, 9.0])
