"""Factors of other ranks: still on the manifold, and near what they were."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.dual.growth import resized
from slrt_dask.dual.problem import DualProblem
from tests.engine.helpers import dense_problem, local_engine


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("change", [-1, 1], ids=["fewer", "more"])
def test_columns_are_added_or_dropped(order, change, store_of):
    dense = dense_problem(order)
    with local_engine(store_of(dense.mask, dense.values)) as engine:

        def problem(ranks):
            return DualProblem(engine, ranks, cost_weight=10.0, weights=(1.0,) * order)

        small = problem((2,) * order)
        point = small.manifold.random_point(np.random.default_rng(0))
        evaluation = small.evaluate(point, rtol=1e-10, warm=None)
        other = problem((2 + change, *(2,) * (order - 1)))
        changed = resized(other, point, evaluation.dual, seed=0)
        other.manifold.validate(changed)
        for before, after in zip(point[1:], changed[1:], strict=True):
            np.testing.assert_array_equal(before, after)
        if change > 0:
            # The new column is one along which the cost falls.
            assert other.evaluate(changed, rtol=1e-10, warm=None).cost < evaluation.cost
        else:
            left, values, _ = np.linalg.svd(point[0])
            np.testing.assert_allclose(abs(left[:, 0] @ changed[0][:, 0]), 1.0, rtol=1e-10)
            assert values[0] > values[1]
        assert resized(small, point, evaluation.dual, seed=0) is point
