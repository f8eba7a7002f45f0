"""Linear constraints as a caller gives them: understood, refused, joined, and planned for."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
import sparse

import slrt_dask as slrt
from slrt_dask.combining import constraints_of
from slrt_dask.config import FitSettings
from slrt_dask.constraints import Bounds
from slrt_dask.dual.costs import COEFFICIENT_BYTES
from slrt_dask.errors import InvalidInput, MemoryBudgetExceeded, StoreNotFound
from slrt_dask.request import plan_of
from tests.linear_examples import (
    RANKS,
    SHAPE,
    SIZE,
    bound_store,
    completed,
    noisy_tensor,
    rows_store,
    totals,
    values_of,
)


@pytest.fixture(scope="module")
def observed(store_of):
    noisy, mask = noisy_tensor()
    return store_of(mask, noisy, parts=2)


FEW = np.zeros((3, SIZE))
FEW[0, :4], FEW[1, [5, 9, 11]], FEW[2, 100:104] = 1.0, (1.0, -1.0, 2.0), 1.0


# ---- what is understood ---------------------------------------------------------------------


def twice(A):
    """Every coefficient as two halves."""
    rows, columns = (np.repeat(part, 2) for part in np.nonzero(A))
    return sp.coo_array((0.5 * A[rows, columns], (rows, columns)), A.shape)


GIVEN = {
    "csr matrix": sp.csr_matrix,
    "coo matrix": sp.coo_matrix,
    "csr array": sp.csr_array,
    "coo array": sp.coo_array,
    "csc array": sp.csc_array,
    "duplicates": twice,
    "sparse": sparse.COO.from_numpy,
    "sparse of higher order": lambda A: sparse.COO.from_numpy(A.reshape(-1, *SHAPE)),
    "dictionary": sparse.DOK.from_numpy,
    "array of higher order": lambda A: A.reshape(-1, *SHAPE),
    "lists": lambda A: A.tolist(),
}  # fmt: skip
if hasattr(sp.coo_array(np.ones(1)), "coords"):  # since scipy 1.13, more than two axes since 1.15
    GIVEN["coo array of higher order"] = lambda A: sp.coo_array(A.reshape(-1, *SHAPE))


@pytest.mark.parametrize("kind", GIVEN)
def test_every_kind_of_matrix_means_the_same_rows(kind, tmp_path):
    A, b = totals()
    given = slrt.Linear(GIVEN[kind](A), b, "==")
    given.check_shape(SHAPE)
    stored = given.stored(str(tmp_path / "given"), SHAPE, 0)
    assert stored.digests == slrt.Linear(A, b).stored(str(tmp_path / "dense"), SHAPE, 0).digests
    assert (given.count, stored.count, stored.kind) == (35, 35, "==")
    assert stored.store.digest == rows_store(tmp_path / "rows", A, slab_mode=1).digest


@pytest.fixture(scope="module")
def answer(observed):
    """What a numpy matrix gives."""
    return values_of(completed(observed, slrt.Linear(*totals(), "=="), max_iterations=0))


@pytest.mark.parametrize("kind", ["stores", "paths cut elsewhere"])
def test_stores_of_rows_give_the_answer_of_a_matrix(kind, observed, answer, tmp_path):
    A, b = totals()
    cut = {"slab_mode": 2, "partition_entries": 50} if "cut" in kind else {}
    rows, bound = rows_store(tmp_path / "A", A, **cut), bound_store(tmp_path / "b", b)
    if "paths" in kind:
        rows, bound = str(tmp_path / "A"), tmp_path / "b"
    fit = completed(observed, slrt.Linear(rows, bound, "=="), max_iterations=0)
    np.testing.assert_allclose(values_of(fit), answer, atol=1e-9)


def test_an_unused_matrix_is_not_changed_by_being_given():
    given = sp.coo_array((np.ones(2), ([0, 0], [3, 3])), (1, SIZE))
    slrt.Linear(given)
    assert given.nnz == 2


def test_one_number_is_the_bound_of_every_row():
    for given in (1.5, [1.5] * 3):
        least, most = slrt.Linear(FEW, given, "<=").limits()
        np.testing.assert_array_equal(least, [-np.inf] * 3)
        np.testing.assert_array_equal(most, [1.5] * 3)


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "offending"),
    [
        ((np.where(FEW == 2.0, np.nan, FEW),), "A .* nan"),
        ((sp.csr_array(np.where(FEW == 2.0, -np.inf, FEW)),), "A .* -inf"),
        ((FEW * 1j,), "A .* complex128"),
        ((FEW, [0.0, np.nan, 1.0]), "b .* nan"),
        ((FEW, np.inf), "b .* inf"),
        ((FEW, [1.0, 2.0]), r"b .*\(2,\).* 3 rows"),
        ((FEW, [[1.0, 2.0, 3.0]]), r"b .*\(1, 3\).* 3 rows"),
        ((FEW, object()), "b "),
        ((FEW, 0.0, ">"), "kind .* '>'"),
        ((FEW, 0.0, None), "kind .* None"),
        ((np.zeros((2, SIZE)),), "A "),
        ((sp.csr_array((2, SIZE)),), "A "),
        ((np.zeros((0, SIZE)),), "A "),
        ((np.ones(SIZE),), r"A .*\(210,\)"),
        ((3.0,), r"A .*\(\)"),
        ((sparse.COO.from_numpy(FEW, fill_value=1.0),), "A is 1.0"),
        ((object(),), "A is object"),
        (([[1.0, 2.0], [3.0]],), "A is list"),
    ],
)
def test_what_cannot_be_rows_is_refused_with_its_value(arguments, offending):
    with pytest.raises(InvalidInput, match=offending):
        slrt.Linear(*arguments)


@pytest.mark.parametrize(
    ("A", "offending"),
    [
        (FEW[:, :-1], r"209 .*\(7, 6, 5\).* 210"),
        (np.ones((2, 7, 6, 4)), r"\(7, 6, 4\).*\(7, 6, 5\)"),
        (np.ones((2, 7, 30)), r"\(7, 30\).*\(7, 6, 5\)"),
        (None, r"\(6, 5\).*\(7, 6, 5\)"),
    ],
)
def test_rows_for_another_tensor_are_refused_before_anything_is_computed(
    A, offending, observed, tmp_path
):
    given = slrt.Linear(observed if A is None else A)
    with pytest.raises(InvalidInput, match=offending):
        completed(observed, given, run_directory=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_path_without_a_store_is_named(observed, tmp_path):
    for given in ((str(tmp_path / "nowhere"),), (FEW, tmp_path / "nowhere")):
        with pytest.raises(StoreNotFound, match=f"{tmp_path}/nowhere"):
            completed(observed, slrt.Linear(*given), run_directory=tmp_path / "run")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("numbers", "shape", "offending"),
    [
        ([0, 1], (3, 1), "row 2"),
        ([0, 1, 2, 3], (4, 1), r"\(4, 1\).* 3 rows"),
        ([0, 1, 2], (3, 5), r"\(3, 5\).* 3 rows"),
    ],
)
def test_a_store_of_bounds_that_does_not_fit_the_rows_is_refused(
    numbers, shape, offending, observed, tmp_path
):
    last = [shape[1] - 1] * len(numbers)
    slrt.from_coo(tmp_path / "b", [numbers, last], np.ones(len(numbers)), shape)
    with pytest.raises(InvalidInput, match=offending):
        completed(observed, slrt.Linear(FEW, tmp_path / "b"), run_directory=tmp_path / "run")
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_an_empty_row_is_no_condition_or_an_impossible_one(observed, tmp_path):
    A = np.vstack([FEW, np.zeros(SIZE)])
    with pytest.raises(InvalidInput, match="row 3"):
        completed(observed, slrt.Linear(A, 1.0), run_directory=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    with_it = completed(observed, slrt.Linear(A, [1.0, 1.0, 1.0, 0.0]), max_iterations=0)
    without = completed(observed, slrt.Linear(FEW, 1.0), max_iterations=0)
    np.testing.assert_allclose(values_of(with_it), values_of(without), atol=1e-12)


# ---- what is joined -------------------------------------------------------------------------


def test_bounds_at_the_same_places_become_the_tighter_of_them():
    joined = constraints_of([Bounds(0.0, 3.0), Bounds(-1.0, 2.0), slrt.Linear(FEW)])
    assert joined.bounds == Bounds(0.0, 2.0)
    assert len(joined.linear) == 1
    along = constraints_of([Bounds((0.0, -2.0), mode=1), Bounds(-1.0, 5.0)]).bounds
    assert along == Bounds((0.0, -1.0), 5.0, mode=1)


@pytest.mark.parametrize(
    ("given", "offending"),
    [
        ([Bounds(2.0), Bounds(upper=1.0)], "2 .* 1"),
        ([Bounds(0.0), Bounds(upper=1.0, where="observed")], "'all' and 'observed'"),
        ([Bounds((0.0,) * 7, mode=0), Bounds(upper=(2.0,) * 6, mode=1)], r"\[0, 1\]"),
        ([Bounds((0.0,) * 7, mode=0), Bounds((2.0,) * 6, mode=0)], r"mode 0 .*\[6, 7\]"),
        ([Bounds(0.0), Bounds(upper=1.0, where=[[0], [1], [2]], mode=7)], "mode 7"),
        ([Bounds(0.0), Bounds(upper=1.0, where=[[-1], [1], [2]])], "-1 in mode 0"),
        ([Bounds(0.0), Bounds(upper=1.0, where=[[0], [6], [2]])], "6 in mode 1"),
        ([Bounds(0.0), Bounds(upper=(1.0, 1.0), where=[[5], [1], [2]], mode=0)], "5 in"),
        ([Bounds(0.0), 3], "3"),
    ],
    ids=str,
)
def test_what_cannot_be_joined_is_refused(given, offending, observed):
    with pytest.raises(InvalidInput, match=offending):
        completed(observed, given)


def test_what_is_stored_is_read_as_it_was_written(tmp_path):
    A, b = totals()
    linear = slrt.Linear(rows_store(tmp_path / "A", A), bound_store(tmp_path / "b", b), "==")
    joined = constraints_of([slrt.Nonnegative(), linear]).stored("", SHAPE, 0)
    again = constraints_of(json.loads(json.dumps(joined.to_table())))
    assert again.bounds == slrt.Nonnegative()
    assert again.to_table() == joined.to_table()
    for one, other in zip(again.linear[0].limits(), (b, b), strict=True):
        np.testing.assert_array_equal(one, other)


# ---- what is planned ------------------------------------------------------------------------


def test_a_plan_counts_rows_and_their_coefficients(observed, tmp_path):
    A, _ = totals()
    rows_store(tmp_path / "A", A)
    table = {"rows": str(tmp_path / "A"), "kind": "=="}
    plan = plan_of(observed, FitSettings(ranks=RANKS, C=1.0, constraint=table), threads=1)
    plain = plan_of(observed, FitSettings(ranks=RANKS, C=1.0), threads=1)
    assert (plan.rows, plain.rows) == (35, 0)
    assert plan.largest.rows >= SIZE * COEFFICIENT_BYTES + 35 * 8
    assert plan.extra == int((~noisy_tensor()[1]).sum())  # every entry is coupled
    assert "linear rows" in str(plan)
    assert "35 rows" in str(plan)
    assert "linear rows" not in str(plain)
    assert plan.largest.total > plain.largest.total + plan.largest.rows


def test_a_memory_limit_that_rows_do_not_fit_is_refused_and_leaves_nothing(observed, tmp_path):
    limit = plan_of(observed, FitSettings(ranks=RANKS, C=1.0), threads=1).largest.runtime
    with pytest.raises(MemoryBudgetExceeded, match=r"linear rows .* but may use"):
        completed(
            observed, slrt.Linear(*totals()), memory_limit=limit, run_directory=tmp_path / "run"
        )
    assert list(tmp_path.iterdir()) == []
