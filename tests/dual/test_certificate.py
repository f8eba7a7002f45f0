"""The certificate holds at any point, however loosely solved, and is sharp near the optimum."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from slrt_dask.dual.start import spectral_start
from slrt_dask.optim import ConjugateGradient, StopRules, TrustRegion, minimise
from tests.engine.helpers import SHAPES, dense_problem, dual_problem, local_engine
from tests.oracles.convex import solve_convex
from tests.oracles.dense import DenseEvaluation, DenseInner, random_problem, unfold


def densely(made, evaluation):
    """The same evaluation for the dense problem, with the dual that the blocks hold."""
    inner = DenseInner(0, evaluation.inner.residual, True)
    return DenseEvaluation(evaluation.point, evaluation.cost, inner, made.dual(evaluation))


def best_dual_bound(dense, Z):
    """max over t of t⟨Z, Y⟩ − t² (‖Z‖²/4C + Σ λ_k/2 σ_k²), from singular values."""
    top = [np.linalg.norm(unfold(Z, k), 2) for k in range(Z.ndim)]
    quadratic = np.vdot(Z, Z) / (4 * dense.C)
    quadratic += sum(w / 2 * s**2 for w, s in zip(dense.lambdas, top, strict=True))
    return max(np.vdot(Z, dense.values), 0.0) ** 2 / (4 * quadratic)


def square_scale(made, Z):
    return sum(
        w / 2 * np.linalg.norm(unfold(Z, k), 2) ** 2 for k, w in enumerate(made.dense.lambdas)
    )


RTOLS = (1e-1, 1e-2, 1e-6, 1e-10)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("C", [0.3, 30.0])
def test_bounds_equal_dense_computations(order, C, pair):
    made = pair(order, C=C)
    for rtol in RTOLS:
        evaluation = made.problem.evaluate(made.point, rtol=rtol, warm=None)
        certificate = made.problem.certify(evaluation)
        dense = densely(made, evaluation)
        primal = made.dense.primal(made.dense.parts(dense))
        assert certificate.primal == pytest.approx(primal, rel=1e-9)
        exact = best_dual_bound(made.dense, dense.dual)
        assert certificate.dual <= exact * (1 + 1e-9)
        # What is not known of the eigenvalues is a small part of the gap.
        assert exact - certificate.dual <= 0.021 * certificate.gap + 1e-5 * primal
        assert certificate.dual >= made.dense.certify(dense).dual - 0.03 * certificate.gap
        assert certificate.gap == pytest.approx(certificate.primal - certificate.dual)
        assert certificate.relative_gap == pytest.approx(certificate.gap / certificate.primal)
        assert certificate.violation == 0.0


@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_papers_gap_equals_its_dense_formula(order, pair):
    made = pair(order)
    evaluation = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    dense = densely(made, evaluation)
    exact = made.dense.certify(dense).paper_gap
    found = made.problem.certify(evaluation).paper_gap
    assert abs(found - exact) <= 0.021 * square_scale(made, dense.dual)
    assert found >= 0.0


@pytest.mark.parametrize("order", [2, 3, 4])
def test_weak_duality_holds_at_random_points(order, pair):
    made = pair(order, C=20.0)
    rng = np.random.default_rng(1)
    for rtol, _ in itertools.product(RTOLS, range(4)):
        point = made.dense.manifold.random_point(rng)
        certificate = made.problem.certify(made.problem.evaluate(point, rtol=rtol, warm=None))
        assert certificate.dual >= 0.0
        assert certificate.gap >= 0.0
        assert 0.0 <= certificate.relative_gap <= 1.0


@pytest.mark.parametrize("order", [2, 3, 4])
def test_no_certificate_contradicts_the_optimum_of_the_convex_problem(order, store_of):
    shape = {2: (7, 6), 3: (5, 4, 3), 4: (4, 3, 3, 2)}[order]
    dense = random_problem(shape, shape, C=1.0, fraction=0.5, seed=2)
    optimum = solve_convex(dense.mask, dense.values, C=dense.C, lambdas=dense.lambdas, rtol=1e-6)
    slack = 1e-9 * optimum.primal
    store = store_of(dense.mask, dense.values, parts=2)
    rng = np.random.default_rng(3)
    with local_engine(store) as engine:
        for ranks in ((1,) * order, (2,) * order, shape):
            low = random_problem(shape, ranks, C=1.0, fraction=0.5, seed=2)
            problem = dual_problem(engine, low, certificate_rtol=1e-9)
            point = problem.manifold.random_point(rng)
            found = [
                problem.certify(problem.evaluate(point, rtol=rtol, warm=None)) for rtol in RTOLS
            ]
            for method in (ConjugateGradient(), TrustRegion()):
                rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=4)
                found.append(minimise(problem, method, point, rules).certificate)
            for certificate in found:
                assert certificate.dual <= optimum.primal + slack
                assert certificate.primal >= optimum.dual - slack
        # With full ranks the method finds that optimum itself.
        rules = StopRules(gap_tolerance=1e-6, gradient_tolerance=0.0, max_iterations=200)
        start = spectral_start(problem, 0)
        last = minimise(problem, TrustRegion(), start, rules).certificate
        assert last.relative_gap <= 1e-6
        assert last.primal == pytest.approx(optimum.primal, rel=3e-6)


def test_a_certificate_costs_few_sweeps_and_changes_nothing(pair):
    made = pair(3)
    evaluation = made.problem.evaluate(made.point, rtol=1e-3, warm=None)
    before, held = made.dual(evaluation), made.problem.sweeps
    first = made.problem.certify(evaluation)
    assert made.problem.sweeps - held <= 3 + max(SHAPES[3])
    np.testing.assert_array_equal(made.dual(evaluation), before)
    again = made.problem.certify(evaluation)
    assert again.primal == first.primal
    assert again.dual == pytest.approx(first.dual, rel=0.02)


def test_a_certificate_of_nothing_is_zero(store_of):
    dense = dense_problem(3)
    with local_engine(store_of(dense.mask, 0.0 * dense.values)) as engine:
        problem = dual_problem(engine, dense)
        point = spectral_start(problem, 0)
        certificate = problem.certify(problem.evaluate(point, rtol=1e-3, warm=None))
        assert dataclasses.astuple(certificate) == (0.0,) * 7


def test_a_certificate_reads_as_a_sentence(pair):
    made = pair(3)
    certificate = made.problem.certify(made.problem.evaluate(made.point, rtol=1e-2, warm=None))
    text = str(certificate)
    assert f"{certificate.primal:.6g}" in text
    assert "%" in text
