"""With linear rows, g and its multipliers are what dense computations say, wherever blocks are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slrt_dask.errors import InvalidInput
from tests.dual.bounded_cases import settled
from tests.dual.helpers import tensor_of
from tests.dual.linear_cases import Rows, assert_optimal, solve_rows, some_rows, with_rows

TIGHT = 1e-10

every_kind = pytest.mark.parametrize("kind", [">=", "==", "<="])


def assert_solved(made, rows, linear, how="none", same_as=None):
    """Settled multipliers are optimal, and g is the dense one; returns the evaluation.

    same_as : other rows that mean the same
    """
    problem = with_rows(made.engine, made.dense, linear, how)
    evaluation = settled(problem, made.point, TIGHT)
    assert evaluation.inner.converged
    assert_optimal(made, problem, evaluation, rows, how)
    wanted = solve_rows(made.dense, made.point, same_as or rows, how).cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-7)
    return evaluation


@pytest.mark.parametrize(
    ("order", "how"),
    [(2, "none"), (3, "none"), (4, "none"), (2, "scanned"), (3, "scanned"), (4, "observed")],
)
@every_kind
def test_settled_multipliers_are_optimal_and_g_is_the_dense_one(order, kind, how, local, store_of):
    made = local(order)
    rows = some_rows(made.dense, made.point, kind)
    evaluation = assert_solved(made, rows, rows.stored(store_of, made.dense.mask.shape), how)
    # Rows that cost nothing would prove nothing.
    none = np.full(len(rows.A), np.inf)
    free = solve_rows(made.dense, made.point, replace(rows, least=-none, most=none), how).cost
    assert evaluation.cost > free * (1 + 1e-4)


@pytest.mark.parametrize("kind", [">=", "=="])
def test_rows_may_couple_only_entries_that_were_not_observed(kind, local, store_of):
    made = local(3)
    rows = some_rows(made.dense, made.point, kind, where=~made.dense.mask)
    evaluation = assert_solved(made, rows, rows.stored(store_of, made.dense.mask.shape))
    assert tensor_of(made.engine, evaluation.dual.name)[~made.dense.mask].any()


def test_rows_of_two_constraints_of_different_kinds_hold_together(local, store_of):
    made = local(3)
    one, other = (some_rows(made.dense, made.point, kind, seed=3) for kind in ("==", ">="))
    rows = Rows(
        *(np.concatenate([a[:3], b[3:]]) for a, b in zip(one.parts, other.parts, strict=True))
    )
    linear = rows.stored(store_of, made.dense.mask.shape, stores=2)
    assert_solved(made, rows, linear, "scanned")


@pytest.mark.parametrize("kind", [">=", "=="])
@pytest.mark.parametrize("change", ["twice", "sum", "empty", "sizes"])
def test_rows_that_mean_the_same_give_the_same(kind, change, local, store_of):
    """Rows that follow from others, empty ones, and multiples of rows."""
    made = local(3)
    rows, size = some_rows(made.dense, made.point, kind), made.dense.mask.size
    if change == "sizes":
        factors = 10.0 ** np.linspace(-3, 3, len(rows.A))
        other = Rows.of(rows.A * factors[:, None], kind, rows.least * factors)
    else:
        added, number = {
            "twice": (rows.A[:1], rows.least[:1]),
            "sum": (rows.A[:2].sum(axis=0, keepdims=True), rows.least[:2].sum(keepdims=True)),
            "empty": (np.zeros((1, size)), np.zeros(1)),
        }[change]
        other = Rows.of(np.vstack([added, rows.A]), kind, np.concatenate([number, rows.least]))
    assert_solved(made, other, other.stored(store_of, made.dense.mask.shape), same_as=rows)


@pytest.mark.parametrize(("kind", "bound"), [(">=", 0.5), ("==", -0.5), ("<=", -0.5)])
def test_an_empty_row_that_asks_for_something_is_refused_by_number(kind, bound, local, store_of):
    made = local(3)
    rows = some_rows(made.dense, made.point, kind)
    rows.A[4] = 0.0
    for side in (rows.least, rows.most):
        side[4] = bound if np.isfinite(side[4]) else side[4]
    with pytest.raises(InvalidInput, match=rf"row 4 .* no coefficients but asks for .*{bound}"):
        with_rows(made.engine, made.dense, rows.stored(store_of, made.dense.mask.shape))


def test_rows_that_are_satisfied_anyway_change_nothing(local, store_of):
    made = local(3)
    rows = some_rows(made.dense, made.point, ">=")
    rows = replace(rows, least=rows.least - 100.0)
    problem = with_rows(made.engine, made.dense, rows.stored(store_of, made.dense.mask.shape))
    evaluation = settled(problem, made.point, TIGHT)
    free = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    assert evaluation.cost == pytest.approx(free, rel=1e-9)
    assert not evaluation.rows.any()


def test_a_solve_that_did_not_converge_moves_no_multipliers(local, store_of):
    made = local(3)
    rows = some_rows(made.dense, made.point, ">=")
    linear = rows.stored(store_of, made.dense.mask.shape)
    problem = with_rows(made.engine, made.dense, linear, "scanned", max_inner_iterations=2)
    evaluation = problem.evaluate(made.point, rtol=1e-6, warm=None)
    before, centre = problem.rows, tensor_of(made.engine, problem.centre.name)
    penalties = [before.penalty]
    while problem.rows.penalty < problem._most_penalty:
        assert not evaluation.inner.converged
        evaluation = problem.renew(evaluation, rtol=1e-6)
        penalties.append(problem.rows.penalty)
        np.testing.assert_array_equal(problem.rows.centre, before.centre)
        np.testing.assert_array_equal(tensor_of(made.engine, problem.centre.name), centre)
        assert np.isinf(evaluation.inner.violation)  # it is not known, and nothing to stop at
    assert len(penalties) > 2
    assert sorted(set(penalties)) == penalties
    # When it gets no easier, multipliers are moved all the same: a fit has to end.
    evaluation = problem.renew(evaluation, rtol=1e-6)
    assert problem.rows.centre.any()
    assert np.isfinite(evaluation.inner.violation)


def test_in_short_numbers_it_is_so_to_their_precision(local, store_of):
    made = local(3, precision="float32")
    rows = some_rows(made.dense, made.point, ">=")
    linear = rows.stored(store_of, made.dense.mask.shape)
    problem = with_rows(made.engine, made.dense, linear, "scanned", bound_tolerance=1e-5)
    evaluation = settled(problem, made.point, 1e-5)
    assert_optimal(made, problem, evaluation, rows, "scanned", precision=1e-3)
    wanted = solve_rows(made.dense, made.point, rows, "scanned").cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-4)
