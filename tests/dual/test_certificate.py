"""Certificates are valid at any point for inexact solves too, and sharp near the optimum."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from slrt_dask.dual.entries import MARKS, BoundVectors
from slrt_dask.dual.start import spectral_start
from slrt_dask.optim import ConjugateGradient, LimitedMemory, StopRules, TrustRegion, minimise
from tests.dual.cases import KINDS, TIGHT, Case, Kind, Rows, nonnegative_point, settled
from tests.dual.helpers import densely, tensor_of
from tests.engine.helpers import SHAPES, dense_problem, dual_problem
from tests.oracles.convex import solve_convex
from tests.oracles.dense import unfold

SHARP = {"certificate_rtol": 1e-9}
every_order = pytest.mark.parametrize("order", [2, 3, 4])
every_kind = pytest.mark.parametrize("kind", KINDS)


def evaluations(made, rtols=(1e-1, 1e-2, 1e-6)):
    """Loose and tight ones, at some points, settled and not."""
    rng = np.random.default_rng(3)
    for rtol in rtols:
        point = nonnegative_point(made.case.dense, rng)
        yield made.problem.evaluate(point, rtol=rtol, warm=None)
        if made.case.kind.constrained:
            yield settled(made.problem, point, rtol)


def moved(case, bounds, parts, missed, correction, engine):
    """What the answer may have been moved to for its constraints, tensors in parts."""
    middle = np.zeros(case.shape)
    if bounds is not None:
        along = [-1 if k == case.kind.mode else 1 for k in range(len(case.shape))]
        middle = middle + bounds.middle.reshape(along)
    if case.rows is not None:
        change = correction.drawn * middle + tensor_of(engine, correction.changes.name)
        ways = [([(1 - correction.drawn) * part for part in parts], change)]
    elif bounds is not None:
        drawn = missed / (missed + bounds.margin)
        ways = [([(1 - drawn) * part for part in parts], drawn * middle)]
        if bounds.one_sided:  # all entries may be shifted
            ways.append((parts, missed if np.isinf(case.kind.upper) else -missed))
    else:
        ways = [(parts, 0.0)]
    for (start, change), mode in itertools.product(ways, range(len(parts))):
        yield [part + change * (k == mode) for k, part in enumerate(start)]


@every_order
@every_kind
def test_bounds_are_those_of_dense_computations_and_never_contradict_g(order, kind, posed):
    made = posed(order, kind, options=SHARP)
    case, certificates, above = made.case, [], []
    bounds = case.bound_vectors() if case.kind.constrained else None
    for evaluation in evaluations(made):
        certificate = made.problem.certify(evaluation)
        correction = made.problem.correction(evaluation)
        X, t = made.dual(evaluation)
        exact = case.best_dual(X, t)
        assert 0.0 <= certificate.dual <= exact * (1 + 1e-7) + 1e-12
        # What is not known of the eigenvalues is a small part of the gap.
        if math.isfinite(certificate.gap):
            size = abs(certificate.primal)
            assert exact - certificate.dual <= 0.021 * certificate.gap + 1e-5 * size
        parts = case.parts(X, evaluation.point)
        missed = case.violation(sum(parts))
        rows = 0.0 if case.rows is None else case.rows.missed(sum(parts))
        assert certificate.violation == pytest.approx(max(missed, rows), rel=1e-6, abs=1e-12)
        if case.rows is not None and correction is None:  # no tensor was found
            assert math.isinf(certificate.primal)
            continue
        candidates = list(moved(case, bounds, parts, missed, correction, made.engine))
        W = sum(candidates[0])
        assert case.violation(W) <= 1e-11
        assert case.rows is None or case.rows.missed(W) <= 1e-9
        cheapest = min(case.objective(one) for one in candidates)
        assert certificate.primal >= cheapest * (1 - 1e-9)
        if not case.kind.constrained:
            assert certificate.primal == pytest.approx(cheapest, rel=1e-9)
        certificates.append(certificate)
        above.append(case.solution(evaluation.point).cost)  # the optimum for some factors
    assert certificates
    lowest = min(above + [one.primal for one in certificates])
    assert max(one.dual for one in certificates) <= lowest * (1 + 1e-9)


@every_kind
def test_constraints_cost_next_to_nothing_once_the_answer_satisfies_them(kind, posed):
    made = posed(3, kind)
    certificate = made.problem.certify(evaluation := settled(made.problem, made.point, TIGHT))
    parts = made.case.parts(made.dual(evaluation)[0])
    assert certificate.primal == pytest.approx(made.case.objective(parts), rel=1e-4)
    assert certificate.complementarity <= 1e-5 * certificate.primal
    assert certificate.gap == pytest.approx(certificate.primal - certificate.dual)
    assert certificate.relative_gap == pytest.approx(certificate.gap / certificate.primal)


TINY = {2: (7, 6), 3: (5, 4, 3), 4: (4, 3, 3, 2)}


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        *itertools.product((2, 3, 4), ("plain", "huber")),
        (3, "nonnegative"), (2, "huber, nonnegative"), (3, "huber, two-sided, given"),
        (2, "weights, huber"),
    ],
)  # fmt: skip
def test_with_full_ranks_the_gap_closes_at_the_optimum_of_the_convex_problem(order, kind, posed):
    made = posed(order, kind, C=1.0, rank=9, shape=TINY[order], options=SHARP)
    case, rng = made.case, np.random.default_rng(3)
    point = made.problem.manifold.random_point(rng)
    found = [
        made.problem.certify(made.problem.evaluate(point, rtol=rtol, warm=None))
        for rtol in (1e-1, 1e-6)
    ]
    plain = not case.kind.constrained
    gap = 1e-6 if plain else 1e-3
    methods = (TrustRegion(), LimitedMemory()) if plain else (ConjugateGradient(),)
    rules = StopRules(gap_tolerance=gap, gradient_tolerance=0.0, max_iterations=300)
    for method in methods:
        start = spectral_start(made.problem, 0)
        found.append(minimise(made.problem, method, start, rules).certificate)
        assert found[-1].relative_gap <= gap
    assert max(one.dual for one in found) <= min(one.primal for one in found) * (1 + 1e-9)
    if plain and not case.kind.weighted:
        optimum = solve_convex(
            case.dense.mask, case.dense.values, C=1.0, lambdas=case.dense.lambdas,
            delta=case.kind.delta, rtol=1e-6,
        )  # fmt: skip
        assert found[-1].primal == pytest.approx(optimum.primal, rel=3e-6)


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


def test_a_certificate_costs_few_sweeps_and_reads_as_a_sentence(pair):
    made = pair(3)
    evaluation = made.problem.evaluate(made.point, rtol=1e-3, warm=None)
    sweeps = made.problem.sweeps
    first = made.problem.certify(evaluation)
    assert made.problem.sweeps - sweeps <= 3 + max(SHAPES[3])
    assert f"{first.primal:.6g}" in str(first)


@pytest.mark.parametrize("kind", ["plain", "huber, nonnegative", "nonnegative, rows"])
def test_a_certificate_changes_nothing_and_can_be_made_again(kind, posed):
    made = posed(3, kind)
    names = [MARKS] if made.case.kind.constrained else []
    evaluation = made.problem.evaluate(made.point, rtol=1e-3, warm=None)
    names.append(evaluation.dual.name)
    before = [tensor_of(made.engine, name) for name in names]
    first = made.problem.certify(evaluation)
    made.problem.correction(evaluation)
    again = made.problem.certify(evaluation)
    assert (again.primal, again.violation) == (first.primal, first.violation)
    assert again.dual == pytest.approx(first.dual, rel=0.02)
    for name, tensor in zip(names, before, strict=True):
        np.testing.assert_array_equal(tensor_of(made.engine, name), tensor)


def test_a_certificate_of_nothing_is_zero(held):
    dense = dense_problem(3)
    dense.values[:] = 0.0
    problem = dual_problem(held(dense), dense)
    point = spectral_start(problem, 0)
    certificate = problem.certify(problem.evaluate(point, rtol=1e-3, warm=None))
    assert dataclasses.astuple(certificate) == (0.0,) * 7


def test_rows_that_contradict_each_other_leave_no_upper_bound(posed):
    rows = Case.of(3, Kind(rows=">=")).rows
    contrary = Rows(
        np.vstack([rows.A, rows.A[:1]]), np.append(rows.least, -np.inf),
        np.append(rows.most, rows.least[0] - 1.0),
    )  # fmt: skip
    made = posed(3, "rows >=", rows=contrary, options={"max_inner_iterations": 50})
    evaluation = made.problem.evaluate(made.point, rtol=1e-2, warm=None)
    assert math.isinf(made.problem.certify(evaluation).primal)
    assert made.problem.correction(evaluation) is None


@pytest.mark.parametrize(
    ("lower", "upper", "margin", "one_sided"),
    [
        ([0.0, 0.0], [np.inf, np.inf], 1.0, True),
        ([-np.inf, -np.inf], [-3.0, 5.0], 1.0, True),
        ([1.0, 2.0], [2.0, 6.0], 0.5, False),
        ([1.0, -np.inf], [np.inf, 4.0], 1.0, False),
        ([2.0, 0.0], [2.0, 1.0], 0.0, False),
    ],
)
def test_the_middle_keeps_its_margin_from_every_bound(lower, upper, margin, one_sided):
    bounds = BoundVectors(0, np.array(lower), np.array(upper), 1.0)
    assert bounds.margin == margin
    assert bounds.one_sided == one_sided
    assert (bounds.middle - lower >= margin).all()
    assert (upper - bounds.middle >= margin).all()
    # No number that keeps the margin is nearer to zero.
    for nearer in (0.9 * bounds.middle, np.zeros(2)):
        inside = (nearer - lower >= margin) & (upper - nearer >= margin)
        assert not (inside & (bounds.middle != 0.0)).any()
