"""The references, held against each other and against weak duality."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.optim.problem import Accuracy, MeasuredProblem
from tests.oracles.convex import solve_convex
from tests.oracles.dense import (
    mode_product,
    random_problem,
    solve_with_residual,
)


def test_the_dense_system_is_the_operator_of_the_formula(shape, rng):
    problem = random_problem(shape, (2,) * len(shape))
    point = problem.manifold.random_point(rng)
    z = rng.standard_normal(problem.y.shape)
    Z = problem.scatter(z)
    expected = Z / (2 * problem.C)
    for k, (U, weight) in enumerate(zip(point, problem.lambdas, strict=True)):
        expected = expected + weight * mode_product(Z, U @ U.T, k)
    np.testing.assert_allclose(problem.system(point) @ z, expected[problem.mask], atol=1e-12)


def test_a_truncated_solve_gives_a_lower_estimate_within_the_noise_scale(shape, rng):
    problem = random_problem(shape, (2,) * len(shape), solver=solve_with_residual)
    point = problem.manifold.random_point(rng)
    exact = problem.evaluate(point, rtol=1e-14, warm=None).cost
    scale = problem.C * np.sum(problem.y**2)
    for rtol in (1e-1, 1e-2, 1e-3):
        rough = problem.evaluate(point, rtol=rtol, warm=None)
        assert rough.inner.residual == pytest.approx(rtol)
        assert 0.0 < exact - rough.cost <= MeasuredProblem(problem, Accuracy(), scale).noise(rough)


@pytest.mark.parametrize("rtol", [0.3, 1e-2, 1e-10])
def test_the_bounds_enclose_the_convex_optimum_however_loose_the_solve(shape, rng, rtol):
    problem = random_problem(shape, (2,) * len(shape), solver=solve_with_residual)
    best = solve_convex(problem.mask, problem.values, C=problem.C, lambdas=problem.lambdas)
    point = problem.manifold.random_point(rng)
    certificate = problem.certify(problem.evaluate(point, rtol=rtol, warm=None))
    assert certificate.dual <= best.primal
    assert certificate.primal >= best.dual
    assert certificate.gap >= 0.0
