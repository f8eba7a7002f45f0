"""With linear rows the gradient is the slope of g, and certificates hold at any tolerance."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from slrt_dask.dual.start import spectral_start
from slrt_dask.optim import ConjugateGradient, StopRules, minimise
from tests.dual.bounded_cases import (
    along,
    bound_vectors,
    drawn_direction,
    nonnegative_point,
    settled,
    slope_along,
    taylor_order,
)
from tests.dual.helpers import tensor_of
from tests.dual.linear_cases import HOW, Rows, solve_rows, some_rows, with_rows
from tests.oracles.dense import unfold

TIGHT = 1e-10

every_kind = pytest.mark.parametrize("kind", [">=", "==", "<="])
every_how = pytest.mark.parametrize("how", HOW)


def stored_problem(made, rows, store_of, how, **options):
    linear = rows.stored(store_of, made.dense.mask.shape)
    return with_rows(made.engine, made.dense, linear, how, **options)


# ---- gradient -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "kind", "how"), [(2, "==", "none"), (3, ">=", "scanned"), (4, "<=", "observed")]
)
def test_the_gradient_is_the_slope_of_the_settled_cost(order, kind, how, local, store_of):
    made = local(order)
    rows = some_rows(made.dense, made.point, kind)
    problem = stored_problem(made, rows, store_of, how)
    at, direction = settled(problem, made.point, 1e-11), drawn_direction(made.point)
    gradient = problem.gradient(at)
    slope = slope_along(gradient, direction)
    step = 1e-4
    ahead, behind = (
        settled(problem, along(made.point, direction, sign * step), 1e-11).cost for sign in (1, -1)
    )
    assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-4)
    # The rows are part of that: without their multipliers it is another slope.
    X = tensor_of(made.engine, at.dual.name)
    X -= (rows.A.T @ (at.rows / problem.rows.lengths)).reshape(X.shape)
    without = [
        -weight * unfold(X, k) @ (unfold(X, k).T @ made.point[k])
        for k, weight in enumerate(made.dense.lambdas)
    ]
    other = slope_along(without, direction)
    assert abs(other - slope) > 1e-3 * abs(slope)


@every_kind
def test_the_gradient_passes_a_taylor_test_while_the_centres_stay(kind, local, store_of):
    made = local(3)
    problem = stored_problem(made, some_rows(made.dense, made.point, kind), store_of, "observed")
    at = problem.renew(problem.evaluate(made.point, rtol=1e-12, warm=None), rtol=1e-12)
    assert taylor_order(problem, at, drawn_direction(made.point)) == pytest.approx(2.0, abs=0.15)


# ---- certificate ----------------------------------------------------------------------------


def best_dual_bound(made, problem, evaluation, rows, how):
    """max over t of the dual objective at t (Z, S, s), from the vectors and singular values."""
    dense, X = made.dense, tensor_of(made.engine, evaluation.dual.name)
    s = evaluation.rows / problem.rows.lengths
    own = X - (rows.A.T @ s).reshape(X.shape)
    W = sum(dense.parts(SimpleNamespace(point=made.point, dual=X)))
    # With no bounds an entry's own part is Z; with them, how much of it is decided by W.
    Z, S = np.where(dense.mask, own, 0.0), np.where(dense.mask, 0.0, own)
    assert how == "none" or how == "scanned"
    if how == "scanned":
        fitting = 2 * dense.C * (dense.values - W)
        Z = np.where(dense.mask, np.minimum(own, fitting), 0.0)
        S = own - Z
    assert (S >= -1e-12).all()
    linear = np.vdot(Z, dense.values) + sum(
        number * (least if number > 0 else most)
        for number, least, most in zip(s, rows.least, rows.most, strict=True)
        if number != 0.0
    )
    quadratic = np.vdot(Z, Z) / (4 * dense.C)
    for k, weight in enumerate(dense.lambdas):
        quadratic += weight / 2 * np.linalg.norm(unfold(X, k), 2) ** 2
    return max(linear, 0.0) ** 2 / (4 * quadratic)


@every_kind
@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_lower_bound_is_the_dual_objective_computed_densely(order, kind, local, store_of):
    made = local(order)
    rows = some_rows(made.dense, made.point, kind)
    problem = stored_problem(made, rows, store_of, "none", certificate_rtol=1e-9)
    for rtol in (1e-1, 1e-4, TIGHT):
        evaluation = problem.evaluate(made.point, rtol=rtol, warm=None)
        certificate = problem.certify(evaluation)
        exact = best_dual_bound(made, problem, evaluation, rows, "none")
        assert certificate.dual <= exact * (1 + 1e-9)
        assert exact - certificate.dual <= 0.021 * certificate.gap + 1e-5 * abs(exact)


def objective(dense, parts):
    return float(dense.primal(parts))


@every_kind
@every_how
def test_the_upper_bound_is_reached_by_a_tensor_that_satisfies_everything(
    kind, how, local, store_of
):
    made = local(3)
    dense, rows = made.dense, some_rows(made.dense, made.point, kind)
    problem = stored_problem(made, rows, store_of, how)
    lower, upper = HOW[how]
    held = {"none": np.zeros(dense.mask.shape, dtype=bool), "observed": dense.mask}
    held = held.get(how, ~held["none"])
    middle = bound_vectors(dense, lower, upper).middle[:, None, None]
    for loosely in (True, False):
        evaluation = problem.evaluate(made.point, rtol=1e-2 if loosely else TIGHT, warm=None)
        if not loosely:
            evaluation = problem.settle(evaluation, rtol=TIGHT)
        certificate, correction = problem.certify(evaluation), problem.correction(evaluation)
        X = tensor_of(made.engine, evaluation.dual.name)
        parts = dense.parts(SimpleNamespace(point=made.point, dual=X))
        missed = missed_by(rows, sum(parts))
        outside = np.max(np.maximum(lower - sum(parts), sum(parts) - upper)[held], initial=0.0)
        assert certificate.violation == pytest.approx(max(missed, outside), rel=1e-6, abs=1e-12)
        assert (certificate.violation > 1e-3) == loosely
        assert correction is not None
        change = tensor_of(made.engine, correction.changes.name)
        candidates = []
        for mode in range(3):
            moved = [(1 - correction.drawn) * part for part in parts]
            moved[mode] = moved[mode] + correction.drawn * middle + change
            candidates.append(objective(dense, moved))
        W = sum(moved)
        assert missed_by(rows, W) <= 1e-10
        assert np.max(np.maximum(lower - W, W - upper)[held], initial=0.0) <= 1e-12
        assert certificate.primal >= min(candidates) * (1 - 1e-12)
        if not loosely:  # then it costs next to nothing
            assert certificate.primal == pytest.approx(objective(dense, parts), rel=1e-4)


def missed_by(rows, W):
    products = rows.A @ W.reshape(-1)
    return float(np.max(np.maximum(rows.least - products, products - rows.most), initial=0.0))


@pytest.mark.parametrize(
    ("order", "kind", "how"), [(2, ">=", "scanned"), (3, "==", "none"), (3, "<=", "observed")]
)
def test_no_certificate_contradicts_the_optimum_of_the_convex_problem(
    order, kind, how, local, store_of
):
    made = local(order, rank=4)
    dense, rows = made.dense, some_rows(made.dense, made.point, kind, count=5)
    problem = stored_problem(made, rows, store_of, how, certificate_rtol=1e-9)
    rng = np.random.default_rng(3)
    found, above = [], []
    for rtol in (1e-1, 1e-5):
        point = nonnegative_point(dense, rng)
        evaluation = problem.evaluate(point, rtol=rtol, warm=None)
        found.append(problem.certify(evaluation))
        found.append(problem.certify(settled(problem, point, rtol)))
        # g is the optimum for some factors, so it is above that for all.
        above.append(solve_rows(dense, point, rows, how).cost)
    rules = StopRules(gap_tolerance=1e-3, gradient_tolerance=0.0, max_iterations=20)
    start = spectral_start(problem, 0)
    found.append(minimise(problem, ConjugateGradient(), start, rules).certificate)
    assert found[-1].relative_gap <= 0.2
    highest, lowest = max(one.dual for one in found), min(one.primal for one in found)
    assert 0.0 < highest <= min(lowest, *above) * (1 + 1e-9)
    for one in found:
        assert one.gap == pytest.approx(one.primal - one.dual)
        assert one.violation >= 0.0


def test_rows_that_contradict_each_other_leave_no_upper_bound(local, store_of):
    made = local(3)
    rows = some_rows(made.dense, made.point, ">=")
    contrary = Rows(
        np.vstack([rows.A, rows.A[:1]]), np.append(rows.least, -np.inf),
        np.append(rows.most, rows.least[0] - 1.0),
    )  # fmt: skip
    problem = stored_problem(made, contrary, store_of, "none", max_inner_iterations=50)
    evaluation = problem.evaluate(made.point, rtol=1e-2, warm=None)
    assert math.isinf(problem.certify(evaluation).primal)
    assert problem.correction(evaluation) is None


def test_a_certificate_changes_nothing(local, store_of):
    made = local(3)
    problem = stored_problem(made, some_rows(made.dense, made.point, ">="), store_of, "scanned")
    evaluation = problem.evaluate(made.point, rtol=1e-3, warm=None)
    before, rows = tensor_of(made.engine, evaluation.dual.name), evaluation.rows.copy()
    first = problem.certify(evaluation)
    problem.correction(evaluation)
    np.testing.assert_array_equal(tensor_of(made.engine, evaluation.dual.name), before)
    np.testing.assert_array_equal(evaluation.rows, rows)
    assert problem.certify(evaluation).primal == first.primal
