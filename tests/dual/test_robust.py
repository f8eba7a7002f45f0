"""Huber's loss: the inner optimum, its gradient and its certificate are those of dense formulas."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.dual.problem import DualProblem
from slrt_dask.errors import InvalidInput
from slrt_dask.optim.checks import check_gradient
from tests.dual.helpers import densely
from tests.oracles.convex import huber

ORDERS = (2, 3, 4)
DELTAS = (0.02, 0.3, 3.0)
RTOLS = (1e-1, 1e-2, 1e-6, 1e-10)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("C", [0.3, 300.0])
def test_the_inner_optimum_is_that_of_bounded_least_squares(order, delta, C, robust):
    made = robust(order, delta, C=C)
    exact = made.dense.evaluate(made.point, rtol=0.0, warm=None)
    found = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    assert found.inner.converged
    assert found.cost == pytest.approx(exact.cost, rel=1e-9)
    np.testing.assert_allclose(made.dual(found), exact.dual, atol=1e-7 * made.dense.most)


@pytest.mark.parametrize("order", ORDERS)
def test_entries_are_clipped_residuals_and_primal_equals_dual(order, robust):
    """The conditions of Karush, Kuhn and Tucker: z = 2C (y − w), clipped; and no inner gap."""
    made = robust(order)
    dense, most = made.dense, made.dense.most
    found = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    Z, W = made.dual(found), dense.completed(densely(made, found))
    answers = np.clip(2 * dense.C * (dense.values - W), -most, most)[dense.mask]
    np.testing.assert_allclose(Z[dense.mask], answers, atol=1e-9 * most)
    held = np.abs(Z[dense.mask]) == most
    assert 0 < held.sum() < held.size
    loss = huber((W - dense.values)[dense.mask], dense.delta).sum()
    primal = dense.C * loss + 0.5 * np.vdot(Z, W)
    assert found.cost == pytest.approx(primal, rel=1e-10)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_loose_solve_is_below_g_and_within_the_bounds(order, precision, robust):
    made = robust(order, C=50.0, precision=precision)
    exact = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    for rtol in (0.5, 1e-1, 1e-2, 1e-4):
        found = made.problem.evaluate(made.point, rtol=rtol, warm=None)
        assert found.cost <= exact * (1 + 1e-6)
        assert np.abs(made.dual(found)).max() <= made.dense.most
        assert found.inner.converged == (found.inner.residual <= 2.0 * rtol)


def test_a_solve_that_may_not_end_is_reported_and_stays_within_the_bounds(robust):
    made = robust(3, C=300.0, max_inner_iterations=3)
    found = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    assert not found.inner.converged
    assert found.inner.iterations == 3
    assert np.abs(made.dual(found)).max() <= made.dense.most
    assert made.problem.certify(found).gap >= 0.0


@pytest.mark.parametrize("order", ORDERS)
def test_a_delta_that_nothing_exceeds_is_the_squared_loss(order, robust):
    made = robust(order, 1e6)
    squared = DualProblem(
        made.engine, made.dense.manifold.ranks, cost_weight=made.dense.C,
        weights=made.dense.lambdas,
    )  # fmt: skip
    ours, theirs = (p.evaluate(made.point, rtol=1e-12, warm=None) for p in (made.problem, squared))
    assert ours.cost == pytest.approx(theirs.cost, rel=1e-11)
    np.testing.assert_allclose(made.dual(ours), made.dual(theirs), rtol=1e-8, atol=1e-9)
    for one, other in zip(made.problem.gradient(ours), squared.gradient(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    first, second = made.problem.certify(ours), squared.certify(theirs)
    assert first.primal == pytest.approx(second.primal, rel=1e-9)
    assert first.dual == pytest.approx(second.dual, rel=1e-3)


@pytest.mark.parametrize("order", ORDERS)
def test_a_warm_solve_finds_the_same_with_less_effort(order, robust):
    made = robust(order, C=100.0)
    cold = made.problem.evaluate(made.point, rtol=1e-8, warm=None)
    again = made.problem.evaluate(made.point, rtol=1e-8, warm=cold)
    assert again.inner.iterations <= 1
    moved = made.dense.manifold.retraction(
        made.point, tuple(1e-3 * direction for direction in made.direction)
    )
    warm = made.problem.evaluate(moved, rtol=1e-8, warm=cold)
    afresh = made.problem.evaluate(moved, rtol=1e-8, warm=None)
    assert warm.cost == pytest.approx(afresh.cost, rel=1e-8)
    assert warm.inner.iterations < afresh.inner.iterations


@pytest.mark.parametrize("order", ORDERS)
def test_the_gradient_is_the_derivative_of_the_cost(order, robust):
    made = robust(order)
    assert check_gradient(made.problem, made.point, made.direction) == pytest.approx(2.0, abs=0.1)
    found = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    exact = made.dense.evaluate(made.point, rtol=0.0, warm=None)
    pairs = zip(made.problem.gradient(found), made.dense.gradient(exact), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-7)


def test_there_is_no_hessian(robust):
    made = robust(3)
    found = made.problem.evaluate(made.point, rtol=1e-3, warm=None)
    with pytest.raises(InvalidInput, match="no Hessian"):
        made.problem.hessian(found, made.direction, rtol=1e-3)
