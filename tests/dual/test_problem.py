"""The cost, its gradient and its Hessian are those of the dense formulas."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from slrt_dask.dual.problem import DualProblem
from slrt_dask.errors import InvalidInput
from tests.engine.helpers import ORDERS


@pytest.mark.parametrize("order", ORDERS)
def test_the_cost_is_below_g_by_half_the_energy_of_the_residual(order, pair):
    made = pair(order)
    exact = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    A = made.dense.system(made.point)
    for rtol in (0.5, 1e-1, 1e-3, 1e-12):
        evaluation = made.problem.evaluate(made.point, rtol=rtol, warm=None)
        r = made.dense.y - A @ made.dual(evaluation)[made.dense.mask]
        energy = 0.5 * r @ np.linalg.solve(A, r)
        assert evaluation.cost == pytest.approx(exact - energy, rel=1e-10)
        assert evaluation.cost <= exact * (1 + 1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_gradient_equals_the_dense_one(order, pair):
    made = pair(order, parts=3)
    evaluation = made.problem.evaluate(made.point, rtol=1e-13, warm=None)
    dense = made.dense.evaluate(made.point, rtol=0.0, warm=None)
    pairs = zip(made.problem.gradient(evaluation), made.dense.gradient(dense), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", ORDERS)
def test_hessian_equals_the_dense_one(order, pair):
    made = pair(order, parts=3)
    evaluation = made.problem.evaluate(made.point, rtol=1e-13, warm=None)
    ours = made.problem.hessian(evaluation, made.direction, rtol=1e-13)
    dense = made.dense.evaluate(made.point, rtol=0.0, warm=None)
    theirs = made.dense.hessian(dense, made.direction, rtol=0.0)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


def test_the_cost_sees_only_the_span_of_the_factors(pair):
    made = pair(3)
    rng = np.random.default_rng(8)
    turned = tuple(U @ np.linalg.qr(rng.standard_normal((U.shape[1],) * 2))[0] for U in made.point)
    one, other = (made.problem.evaluate(p, rtol=1e-13, warm=None) for p in (made.point, turned))
    assert one.cost == pytest.approx(other.cost, rel=1e-11)


def test_row_sums_of_the_observations_are_the_grams_of_their_unfoldings(pair):
    made = pair(3)
    found = made.problem.row_sums(None, made.point)
    for mode, (U, part) in enumerate(zip(made.point, found, strict=True)):
        Y = np.moveaxis(made.dense.values, mode, 0).reshape(len(U), -1)
        np.testing.assert_allclose(part, Y @ (Y.T @ U), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ranks": (2, 2)}, "2 ranks"),
        ({"ranks": (2, 2, 9)}, "rank 9 of mode 2"),
        ({"ranks": (0, 2, 2)}, "rank 0 of mode 0"),
        ({"cost_weight": -1.0}, "-1.0"),
        ({"cost_weight": float("nan")}, "nan"),
        ({"weights": (1.0, 2.0)}, "3 positive numbers"),
        ({"weights": (1.0, 0.0, 2.0)}, "0.0"),
    ],
)
def test_settings_that_cannot_be_used_are_named(change, named, pair):
    made = pair(3)
    settings = {"ranks": (2, 2, 1), "cost_weight": 1.0, "weights": (1.0, 1.0, 1.0), **change}
    with pytest.raises(InvalidInput, match=named):
        DualProblem(made.engine, **settings)


@pytest.mark.parametrize("order", [3, 4])
def test_indices_without_observations_change_nothing(order, pair, held):
    """Their rows of the factors are zero, so only the fibres that occur have to get numbers."""
    made = pair(order)
    dense, longer = made.dense, [(0, 0), (0, 300), (0, 300), (0, 0)][:order]
    mask, values = (np.pad(array, longer) for array in (dense.mask, dense.values))
    point = tuple(np.pad(U, (more, (0, 0))) for U, more in zip(made.point, longer, strict=True))
    store = SimpleNamespace(mask=mask, values=values)
    problem = DualProblem(
        held(store, slab_mode=0, parts=2), dense.manifold.ranks, cost_weight=dense.C,
        weights=dense.lambdas,
    )  # fmt: skip
    ours, theirs = (
        one.evaluate(at, rtol=1e-12, warm=None)
        for one, at in ((problem, point), (made.problem, made.point))
    )
    assert ours.cost == pytest.approx(theirs.cost, rel=1e-12)
    gradients = problem.gradient(ours), made.problem.gradient(theirs)
    for found, wanted, more in zip(*gradients, longer, strict=True):
        np.testing.assert_allclose(found, np.pad(wanted, (more, (0, 0))), rtol=1e-8, atol=1e-8)
