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
from slrt_dask.errors import InvalidConfig, InvalidInput, MemoryBudgetExceeded, StoreNotFound
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
    ("arguments", "told"),
    [
        ((np.where(FEW == 2.0, np.nan, FEW),), "A has the coefficient nan"),
        ((sp.csr_array(np.where(FEW == 2.0, -np.inf, FEW)),), "A has the coefficient -inf"),
        ((FEW * 1j,), "A has coefficients of type complex128; give real numbers"),
        ((FEW, [0.0, np.nan, 1.0]), "b has the value nan; give finite numbers"),
        ((FEW, np.inf), "b has the value inf; give finite numbers"),
        ((FEW, [1.0, 2.0]), r"b has shape \(2,\), A has 3 rows; give one number for every row"),
        ((FEW, [[1.0, 2.0, 3.0]]), r"b has shape \(1, 3\), A has 3 rows"),
        ((FEW, object()), "b must be a number, or one for every row"),
        ((FEW, 0.0, ">"), "kind is '>'; give one of '>=', '==' and '<='"),
        ((FEW, 0.0, None), "kind is None; give one of"),
        ((np.zeros((2, SIZE)),), "A has no coefficients; leave the constraint out"),
        ((sp.csr_array((2, SIZE)),), "A has no coefficients; leave the constraint out"),
        ((np.zeros((0, SIZE)),), "A has no coefficients; leave the constraint out"),
        ((np.ones(SIZE),), r"A has shape \(210,\); give one row for every condition"),
        ((3.0,), r"A has shape \(\); give one row for every condition"),
        ((sparse.COO.from_numpy(FEW, fill_value=1.0),), "A is 1.0 where nothing is stored"),
        ((object(),), "A is object; give a scipy sparse matrix, a sparse.COO, an array"),
        (([[1.0, 2.0], [3.0]],), "A is list; give a scipy sparse matrix"),
    ],
)  # fmt: skip
def test_what_cannot_be_rows_is_refused_with_its_value_and_a_remedy(arguments, told):
    with pytest.raises(InvalidInput, match=told):
        slrt.Linear(*arguments)


@pytest.mark.parametrize(
    ("A", "told"),
    [
        (FEW[:, :-1], r"A has 209 columns, a tensor of shape \(7, 6, 5\) has 210 entries"),
        (np.ones((2, 7, 6, 4)), r"A is for tensors of shape \(7, 6, 4\), not of shape \(7, 6, 5\)"),
        (np.ones((2, 7, 30)), r"A is for tensors of shape \(7, 30\), not of shape \(7, 6, 5\)"),
    ],
)
def test_rows_for_another_tensor_are_refused_before_anything_is_computed(
    A, told, observed, tmp_path
):
    with pytest.raises(InvalidInput, match=told):
        completed(observed, slrt.Linear(A), run_directory=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_store_for_another_tensor_is_refused_by_its_path(observed):
    told = rf"rows in {observed.path} are for tensors of shape \(6, 5\), not of shape \(7, 6, 5\)"
    with pytest.raises(InvalidInput, match=told):
        completed(observed, slrt.Linear(observed))


def test_a_path_without_a_store_is_named(observed, tmp_path):
    for given in ((str(tmp_path / "nowhere"),), (FEW, tmp_path / "nowhere")):
        with pytest.raises(StoreNotFound, match=f"no store at {tmp_path}/nowhere"):
            completed(observed, slrt.Linear(*given), run_directory=tmp_path / "run")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("numbers", "shape", "told"),
    [
        ([0, 1], (3, 1), "b has no number for row 2"),
        (
            [0, 1, 2, 3],
            (4, 1),
            r"b has shape \(4, 1\), A has 3 rows; give one number for every row",
        ),
        ([0, 1, 2], (3, 5), r"b has shape \(3, 5\), A has 3 rows"),
    ],
)
def test_a_store_of_bounds_that_does_not_fit_the_rows_is_refused(
    numbers, shape, told, observed, tmp_path
):
    last = [shape[1] - 1] * len(numbers)
    slrt.from_coo(tmp_path / "b", [numbers, last], np.ones(len(numbers)), shape)
    with pytest.raises(InvalidInput, match=told):
        completed(observed, slrt.Linear(FEW, tmp_path / "b"), run_directory=tmp_path / "run")
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_an_empty_row_is_no_condition_or_an_impossible_one(observed, tmp_path):
    A = np.vstack([FEW, np.zeros(SIZE)])
    with pytest.raises(InvalidInput, match=r"row 3 .* no coefficients but asks for 1 ≤ 0 ≤ inf"):
        completed(observed, slrt.Linear(A, 1.0), run_directory=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    with_it = completed(observed, slrt.Linear(A, [1.0, 1.0, 1.0, 0.0]), max_iterations=0)
    without = completed(observed, slrt.Linear(FEW, 1.0), max_iterations=0)
    np.testing.assert_allclose(values_of(with_it), values_of(without), atol=1e-12)


def test_a_method_that_needs_a_hessian_is_refused(observed):
    with pytest.raises(InvalidConfig, match=r"'rtr' takes no constraints but Hankel; use 'rcg'"):
        completed(observed, slrt.Linear(FEW), method="rtr")


# ---- what is joined -------------------------------------------------------------------------


def test_bounds_at_the_same_places_become_the_tighter_of_them():
    joined = constraints_of([Bounds(0.0, 3.0), Bounds(-1.0, 2.0), slrt.Linear(FEW)])
    assert joined.bounds == Bounds(0.0, 2.0)
    assert len(joined.linear) == 1
    along = constraints_of([Bounds((0.0, -2.0), mode=1), Bounds(-1.0, 5.0)]).bounds
    assert along == Bounds((0.0, -1.0), 5.0, mode=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([Bounds(2.0), Bounds(upper=1.0)], "lower bound 2 is above the upper bound 1; no tensor"),
        ([Bounds(0.0), Bounds(upper=1.0, where="observed")], "'all' and 'observed' cannot be comb"),
        (
            [Bounds((0.0,) * 7, mode=0), Bounds(upper=(2.0,) * 6, mode=1)],
            r"along the modes \[0, 1\] cannot be combined",
        ),
        (
            [Bounds((0.0,) * 7, mode=0), Bounds((2.0,) * 6, mode=0)],
            r"along mode 0 have different lengths: \[6, 7\]",
        ),
        ([Bounds(0.0), Bounds(upper=1.0, where=[[0], [1], [2]], mode=7)], "mode 7 of the bounds"),
        ([Bounds(0.0), Bounds(upper=1.0, where=[[-1], [1], [2]])], "has index -1 in mode 0"),
        ([Bounds(0.0), Bounds(upper=1.0, where=[[0], [6], [2]])], "has index 6 in mode 1"),
        ([Bounds(0.0), Bounds(upper=(1.0, 1.0), where=[[5], [1], [2]], mode=0)], "has index 5 in"),
        ([Bounds(0.0), 3], "constraint is 3; give Nonnegative"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_refused(given, told, observed):
    with pytest.raises(InvalidInput, match=told):
        completed(observed, given)


def test_a_table_of_a_file_with_an_unknown_key_is_refused():
    with pytest.raises(InvalidConfig, match=r"no key 'bounds'; known keys are rows, bound, kind"):
        constraints_of({"rows": "somewhere", "bounds": 1.0})


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
