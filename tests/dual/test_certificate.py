"""Certificates are valid at any point for inexact solves too, and sharp near the optimum."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from slrt_dask.dual.start import spectral_start
from slrt_dask.optim import ConjugateGradient, LimitedMemory, StopRules, TrustRegion, minimise
from tests.dual.helpers import densely, robust_problem
from tests.engine.helpers import ORDERS, SHAPES, dense_problem, dual_problem
from tests.oracles.convex import solve_convex
from tests.oracles.dense import random_problem, unfold
from tests.oracles.robust import RobustDenseProblem, with_outliers

RTOLS = (1e-1, 1e-2, 1e-6, 1e-10)
every_order = pytest.mark.parametrize("order", ORDERS)


def best_dual_bound(dense, Z):
    """max over t of t⟨Z, Y⟩ − t² (‖Z‖²/4C + Σ λ_k/2 σ_k²), from singular values.

    With Huber's loss t Z has to stay within its bounds.
    """
    top = [np.linalg.norm(unfold(Z, k), 2) for k in range(Z.ndim)]
    quadratic = np.vdot(Z, Z) / (4 * dense.C)
    quadratic += sum(w / 2 * s**2 for w, s in zip(dense.lambdas, top, strict=True))
    linear = np.vdot(Z, dense.values)
    most = getattr(dense, "most", np.inf) / np.abs(Z).max()
    t = np.clip(linear / (2 * quadratic), 0.0, most)
    return t * linear - t**2 * quadratic


@every_order
@pytest.mark.parametrize("C", [0.3, 30.0])
def test_bounds_equal_dense_computations(order, C, of_each_loss):
    made = of_each_loss(order, C=C)
    for rtol in RTOLS:
        evaluation = made.problem.evaluate(made.point, rtol=rtol, warm=None)
        certificate = made.problem.certify(evaluation)
        dense = densely(made, evaluation)
        primal = made.dense.primal(made.dense.parts(dense))
        assert certificate.primal == pytest.approx(primal, rel=1e-9)
        exact = best_dual_bound(made.dense, dense.dual)
        assert certificate.dual <= exact * (1 + 1e-7)
        # What is not known of the eigenvalues is a small part of the gap.
        assert exact - certificate.dual <= 0.021 * certificate.gap + 1e-5 * primal
        assert certificate.gap == pytest.approx(certificate.primal - certificate.dual)
        assert certificate.relative_gap == pytest.approx(certificate.gap / certificate.primal)
        assert certificate.violation == 0.0


@every_order
def test_the_papers_gap_equals_its_dense_formula(order, pair):
    made = pair(order)
    evaluation = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    dense = densely(made, evaluation)
    exact, found = made.dense.certify(dense).paper_gap, made.problem.certify(evaluation).paper_gap
    squares = [np.linalg.norm(unfold(dense.dual, k), 2) ** 2 for k in range(order)]
    scale = sum(w / 2 * square for w, square in zip(made.dense.lambdas, squares, strict=True))
    assert abs(found - exact) <= 0.021 * scale
    assert found >= 0.0


@every_order
def test_weak_duality_holds_at_random_points(order, of_each_loss):
    made = of_each_loss(order, C=20.0)
    rng = np.random.default_rng(1)
    for rtol, _ in itertools.product(RTOLS, range(3)):
        point = made.dense.manifold.random_point(rng)
        certificate = made.problem.certify(made.problem.evaluate(point, rtol=rtol, warm=None))
        assert certificate.dual >= 0.0
        assert certificate.gap >= 0.0
        assert 0.0 <= certificate.relative_gap <= 1.0


@every_order
@pytest.mark.parametrize("delta", [None, 0.4])
def test_no_certificate_contradicts_the_optimum_of_the_convex_problem(order, delta, held):
    shape = {2: (7, 6), 3: (5, 4, 3), 4: (4, 3, 3, 2)}[order]
    dense = random_problem(shape, shape, C=1.0, fraction=0.5, seed=2)
    second = LimitedMemory() if delta else TrustRegion()  # which needs a Hessian
    if delta:
        dense = with_outliers(dense, delta)
    optimum = solve_convex(
        dense.mask, dense.values, C=1.0, lambdas=dense.lambdas, delta=delta or np.inf, rtol=1e-6
    )
    slack, rng = 1e-9 * optimum.primal, np.random.default_rng(3)
    engine = held(dense, parts=2)
    for ranks in ((1,) * order, shape):
        if delta:
            low = RobustDenseProblem(
                dense.mask, dense.values, ranks, C=1.0, lambdas=dense.lambdas, delta=delta
            )
            problem = robust_problem(engine, low, certificate_rtol=1e-9)
        else:
            low = random_problem(shape, ranks, C=1.0, fraction=0.5, seed=2)
            problem = dual_problem(engine, low, certificate_rtol=1e-9)
        point = problem.manifold.random_point(rng)
        found = [problem.certify(problem.evaluate(point, rtol=rtol, warm=None)) for rtol in RTOLS]
        for method in (ConjugateGradient(), second):
            rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=4)
            found.append(minimise(problem, method, point, rules).certificate)
        for certificate in found:
            assert certificate.dual <= optimum.primal + slack
            assert certificate.primal >= optimum.dual - slack
    # With full ranks the method finds that optimum itself.
    rules = StopRules(gap_tolerance=1e-6, gradient_tolerance=0.0, max_iterations=300)
    last = minimise(problem, second, spectral_start(problem, 0), rules).certificate
    assert last.relative_gap <= 1e-6
    assert last.primal == pytest.approx(optimum.primal, rel=3e-6)


def test_a_certificate_costs_few_sweeps_changes_nothing_and_reads_as_a_sentence(pair):
    made = pair(3)
    evaluation = made.problem.evaluate(made.point, rtol=1e-3, warm=None)
    before, sweeps = made.dual(evaluation), made.problem.sweeps
    first = made.problem.certify(evaluation)
    assert made.problem.sweeps - sweeps <= 3 + max(SHAPES[3])
    np.testing.assert_array_equal(made.dual(evaluation), before)
    again = made.problem.certify(evaluation)
    assert again.primal == first.primal
    assert again.dual == pytest.approx(first.dual, rel=0.02)
    assert f"{first.primal:.6g}" in str(first)


def test_a_certificate_of_nothing_is_zero(held):
    dense = dense_problem(3)
    dense.values[:] = 0.0
    problem = dual_problem(held(dense), dense)
    point = spectral_start(problem, 0)
    certificate = problem.certify(problem.evaluate(point, rtol=1e-3, warm=None))
    assert dataclasses.astuple(certificate) == (0.0,) * 7
