"""Of every kind of problem, g and its dual numbers are what exact dense computations say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slrt_dask.dual.entries import MARKS
from slrt_dask.dual.start import spectral_start
from slrt_dask.dual.working_set import Places
from slrt_dask.errors import InvalidInput, MemoryBudgetExceeded
from slrt_dask.kernels.entries import BOUNDED, OBSERVED
from tests.dual.cases import KINDS, NONNEGATIVE, SHAPES, Case, Kind, Rows, settled, some_rows
from tests.dual.helpers import tensor_of

every_order = pytest.mark.parametrize("order", [2, 3, 4])
TWO_SIDED, HUBER = KINDS["two-sided, given"], KINDS["huber"]


def assert_solved(made, *, rtol=1e-10, precision=1e-6, same_as=None):
    """Settled, the problem is at the optimum of the dense one, whose constraints cost something.

    same_as : another case that means the same
    """
    case, evaluation = made.case, settled(made.problem, made.point, rtol)
    case = replace(case, point=made.point)
    assert evaluation.inner.converged
    X, t = made.dual(evaluation)
    case.assert_optimal(X, t, evaluation.cost, precision)
    wanted = (same_as or case).solution().cost
    assert evaluation.cost == pytest.approx(wanted, rel=0.1 * precision)
    if case.kind.constrained:
        free = replace(case, kind=case.kind.free, rows=None).solution().cost
        assert evaluation.cost > free * (1 + 1e-4)
    return evaluation


@every_order
@pytest.mark.parametrize("kind", KINDS)
def test_settled_dual_numbers_are_optimal_and_g_is_the_dense_one(order, kind, posed):
    made = posed(order, kind)
    evaluation = assert_solved(made)
    if np.isfinite(made.case.kind.delta):
        W = sum(made.case.parts(made.dual(evaluation)[0]))
        beyond = (np.abs(W - made.case.dense.values) > made.case.kind.delta)[made.case.dense.mask]
        assert 0 < beyond.sum() < beyond.size


@pytest.mark.parametrize("delta", [np.inf, 0.02, 3.0])
@pytest.mark.parametrize(
    ("settings", "change", "options"),
    [
        ({"seed": 1, "C": 0.2}, {"upper": 0.8}, {}),
        ({"seed": 4, "C": 20.0}, {"lower": 0.05}, {}),
        ({}, {}, {"penalty": 1e-2}),
        ({}, {}, {"penalty": 1.0}),
        # Slices without observations are scanned too.
        ({"empty": (0, 3, 5), "slab_mode": 0, "parts": 3}, {"lower": 0.05}, {}),
        # Bounds that differ from index to index, and that leave no room.
        ({}, {"mode": 1, "lower": np.linspace(-0.2, 0.1, 5), "upper": np.inf}, {}),
        ({}, {"mode": 2, "upper": np.array([0.0, np.inf, 0.8, 1.5])}, {}),
        ({}, {"mode": 2, "lower": np.array([0.3, -np.inf, 0.0, 0.1]), "where": "given",
              "upper": np.array([0.3, 0.4, np.inf, 0.1])}, {}),
    ],
)  # fmt: skip
def test_other_data_bounds_and_penalties_are_solved_too(delta, settings, change, options, posed):
    kind = replace(NONNEGATIVE, **change, delta=delta)
    assert_solved(posed(3, kind, options=options, **settings))


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("kind", ["nonnegative", "huber, nonnegative"])
def test_a_spectral_point_of_higher_rank_is_solved_too(order, kind, posed):
    made = posed(order, kind, rank=4)
    made.point = spectral_start(made.problem, 0)
    assert_solved(made)


@pytest.mark.parametrize("delta", [np.inf, 0.3])
@pytest.mark.parametrize(("order", "how"), [(2, "some"), (3, "store"), (4, "some")])
def test_bounds_hold_just_where_they_were_asked_for(order, how, delta, posed, store_of):
    rng = np.random.default_rng(4)
    held = rng.random(SHAPES[order]) < 0.3
    # In any order, and some of them twice.
    places = {"array": np.repeat(rng.permutation(np.argwhere(held)).T, 2, axis=1)}
    if how == "store":
        places = {"store": store_of(held, np.ones(held.shape), parts=3, slab_mode=1).path}
    kind = Kind(delta, 0.0, 0.8, held)
    made = posed(order, kind, options={"places": Places(**places)})
    assert_solved(made)
    marks = tensor_of(made.engine, MARKS).astype(int)
    np.testing.assert_array_equal((marks & BOUNDED) > 0, held)
    np.testing.assert_array_equal((marks & OBSERVED) > 0, made.case.dense.mask)


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_is_solved_to_its_precision(kind, posed):
    options = {"tolerance": 1e-5} if KINDS[kind].constrained else {}
    made = posed(3, kind, precision="float32", options=options)
    assert_solved(made, rtol=1e-5, precision=1e-3)


@pytest.mark.parametrize("kind", ["plain", "huber", "nonnegative", "huber, two-sided, given"])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_weight_stands_for_observations_that_agree_and_average(kind, parts, held):
    """Weight 3 is a C three times as large there: what three observations with this mean are."""
    case = Case.of(3, replace(KINDS[kind], weighted=True))
    first = tuple(np.argwhere(case.dense.mask)[7])
    case.weights[:] = 1.0
    case.weights[first] = 3.0
    engine = held(case.dense, parts=parts)
    evaluation = settled(case.problem(engine), case.point, 1e-13)
    wanted = case.solution()
    found = sum(case.parts(tensor_of(engine, evaluation.dual.name)))
    assert evaluation.cost == pytest.approx(wanted.cost, rel=1e-10)
    np.testing.assert_allclose(found, wanted.W, atol=1e-8 * np.abs(wanted.W).max())
    # Three observations less the one with their mean cost what their spread does, whatever W is.
    spread, there = np.array([-0.02, 0.005, 0.015]), wanted.W[first] - case.dense.values[first]
    if abs(there) + 0.02 < case.kind.delta:
        thrice = case.dense.C * np.sum((there - spread) ** 2)
        assert thrice == pytest.approx(case.dense.C * (3 * there**2 + np.sum(spread**2)))
    case.weights[first] = 1.0
    assert abs(case.solution().cost - wanted.cost) > 1e-6 * wanted.cost


# ---- ways to the optimum --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        (2, "nonnegative"), (3, "two-sided, given"), (4, "two-sided, observed"), (3, "huber"),
        (2, "huber, nonnegative"), (3, "huber, two-sided, given"), (4, "huber, upper, observed"),
    ],
)  # fmt: skip
def test_the_alternation_and_the_joint_solve_agree(order, kind, posed):
    found = []
    for alternating in (False, True):
        made = posed(order, kind, parts=2, options={"alternating": alternating})
        evaluation = made.problem.evaluate(made.point, rtol=1e-8, warm=None)
        # From there with other multipliers and, where the tensor is scanned, on other entries.
        evaluation = made.problem.renew(evaluation, rtol=1e-8) or evaluation
        assert evaluation.inner.converged
        found.append((evaluation.cost, made.dual(evaluation)[0]))
    (joint, x), (alternated, other) = found
    assert alternated == pytest.approx(joint, rel=1e-8)
    np.testing.assert_allclose(other, x, atol=1e-5 * np.abs(x).max())


@pytest.mark.parametrize("kind", [name for name in KINDS if KINDS[name].where == "given"])
def test_costs_climb_to_g_as_the_centre_of_the_multipliers_moves(kind, posed):
    made = posed(3, kind)
    case, costs = made.case, []
    evaluation = made.problem.evaluate(made.point, rtol=1e-10, warm=None)
    while evaluation is not None and len(costs) < 5:
        costs.append(evaluation.cost)
        evaluation = made.problem.renew(evaluation, rtol=1e-10)
    free = replace(case, kind=case.kind.free).solution().cost
    assert costs == sorted(costs)
    assert free < costs[0] < costs[-1] <= case.solution().cost * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loose_solve_is_below_g_and_allowed(kind, posed):
    for precision, rtol in (("float64", 0.5), ("float64", 1e-2), ("float32", 1e-2)):
        made = posed(3, kind, precision=precision, C=50.0)
        exact = made.case.solution().cost
        evaluation = made.problem.evaluate(made.point, rtol=rtol, warm=None)
        assert evaluation.cost <= exact * (1 + 1e-6)
        case, (X, t) = made.case, made.dual(evaluation)
        own = X if t is None else X - (case.rows.A.T @ t).reshape(X.shape)
        most = 2 * case.dense.C * case.weights * case.kind.delta
        lower, upper = case.bounds
        most = np.where(case.dense.mask, most, 0.0)
        rounding = np.abs(X).max() * (1e-12 if precision == "float64" and t is None else 1e-6)
        assert (own <= np.where(np.isfinite(lower), np.inf, most) + rounding).all()
        assert (own >= np.where(np.isfinite(upper), -np.inf, -most) - rounding).all()


@pytest.mark.parametrize("kind", ["plain", "huber", "nonnegative", "huber, nonnegative, rows"])
def test_a_warm_solve_finds_the_same_with_less_effort(kind, posed):
    made = posed(3, kind, C=100.0)
    cold = made.problem.evaluate(made.point, rtol=1e-8, warm=None)
    again = made.problem.evaluate(made.point, rtol=1e-8, warm=cold)
    assert again.inner.iterations <= 1 < cold.inner.iterations
    moved = tuple(U + 1e-4 for U in made.point)
    warm, afresh = (made.problem.evaluate(moved, rtol=1e-8, warm=one) for one in (cold, None))
    assert warm.cost == pytest.approx(afresh.cost, rel=1e-8)
    assert warm.inner.iterations < afresh.inner.iterations


@every_order
@pytest.mark.parametrize(
    "kind",
    [
        Kind(delta=1e6), Kind(lower=-1e3, upper=1e3, where="everywhere"),
        Kind(delta=1e6, lower=-1e3, upper=1e3, where="given", rows=">=", weighted=True),
    ],
    ids=["delta", "bounds", "delta, bounds, rows, weights"],
)  # fmt: skip
def test_what_nothing_exceeds_changes_nothing(order, kind, held, store_of):
    case = Case.of(order, kind)
    case.weights[:] = 1.0
    if kind.rows:
        case = replace(case, rows=replace(case.rows, least=case.rows.least - 1e3))
    engine = held(case.dense)
    plain = replace(case, kind=Kind(), rows=None).problem(engine, certificate_rtol=1e-9)
    wanted = plain.evaluate(case.point, rtol=1e-12, warm=None)
    gradient, certificate = plain.gradient(wanted), plain.certify(wanted)
    X = tensor_of(engine, wanted.dual.name)
    problem = case.problem(engine, store_of, certificate_rtol=1e-9)
    evaluation = settled(problem, case.point, 1e-12)
    assert evaluation.cost == pytest.approx(wanted.cost, rel=1e-10)
    found = tensor_of(engine, evaluation.dual.name)
    np.testing.assert_allclose(found, X, atol=1e-8 * np.abs(X).max())
    for one, other in zip(problem.gradient(evaluation), gradient, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8 * np.abs(other).max())
    same = problem.certify(evaluation)
    assert same.violation == 0.0
    assert same.primal == pytest.approx(certificate.primal, rel=1e-9)
    assert same.dual == pytest.approx(certificate.dual, rel=1e-3)


@pytest.mark.parametrize("kind", ["plain", "huber", "two-sided, given", "huber, rows"])
def test_a_solve_that_may_not_end_says_so(kind, posed):
    made = posed(3, kind, C=300.0, options={"max_inner_iterations": 3})
    evaluation = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    assert (evaluation.inner.iterations, evaluation.inner.converged) == (3, False)
    assert evaluation.inner.residual > 1e-12
    assert made.problem.certify(evaluation).gap >= 0.0


def test_entries_that_there_is_no_room_for_are_counted(posed):
    free = int((~Case.of(3, TWO_SIDED).dense.mask).sum())
    posed(3, TWO_SIDED, options={"most_extra": free})
    with pytest.raises(MemoryBudgetExceeded, match=rf"\b{free}\b.*\b{free - 1}\b"):
        posed(3, TWO_SIDED, options={"most_extra": free - 1})


# ---- rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows >=", "huber, rows"])
def test_rows_may_couple_only_entries_that_were_not_observed(kind, posed):
    case = Case.of(3, KINDS[kind])
    rows = some_rows(case.dense, case.point, case.kind.rows, where=~case.dense.mask)
    made = posed(3, kind, rows=rows)
    evaluation = assert_solved(made)
    assert made.dual(evaluation)[0][~case.dense.mask].any()


@pytest.mark.parametrize("kind", ["nonnegative, rows", "huber, nonnegative, rows"])
def test_rows_of_two_constraints_of_different_kinds_hold_together(kind, posed, store_of):
    case = Case.of(3, KINDS[kind])
    one, other = (some_rows(case.dense, case.point, each) for each in ("==", ">="))
    rows = Rows(
        *(np.concatenate([a[:3], b[3:]]) for a, b in zip(one.parts, other.parts, strict=True))
    )
    linear = rows.stored(store_of, case.shape, stores=2)
    assert_solved(posed(3, kind, rows=rows, options={"linear": linear}))


@pytest.mark.parametrize("kind", ["rows >=", "rows ==", "huber, rows"])
@pytest.mark.parametrize("change", ["twice", "sum", "empty", "sizes"])
def test_rows_that_mean_the_same_give_the_same(kind, change, posed):
    """Rows that follow from others, empty ones, and multiples of rows."""
    case = Case.of(3, KINDS[kind])
    rows, sign, size = case.rows, case.kind.rows, case.dense.mask.size
    if change == "sizes":
        factors = 10.0 ** np.linspace(-3, 3, len(rows.A))
        other = Rows.of(rows.A * factors[:, None], sign, rows.least * factors)
    else:
        added, number = {
            "twice": (rows.A[:1], rows.least[:1]),
            "sum": (rows.A[:2].sum(axis=0, keepdims=True), rows.least[:2].sum(keepdims=True)),
            "empty": (np.zeros((1, size)), np.zeros(1)),
        }[change]
        other = Rows.of(np.vstack([added, rows.A]), sign, np.concatenate([number, rows.least]))
    assert_solved(posed(3, kind, rows=other), same_as=case)


@pytest.mark.parametrize(("kind", "bound"), [(">=", 0.5), ("==", -0.5), ("<=", -0.5)])
def test_an_empty_row_that_asks_for_something_is_refused_by_number(kind, bound, posed):
    case = Case.of(3, Kind(rows=kind))
    case.rows.A[4] = 0.0
    for side in (case.rows.least, case.rows.most):
        side[4] = bound if np.isfinite(side[4]) else side[4]
    with pytest.raises(InvalidInput, match=rf"row 4 .*{bound}"):
        posed(3, case.kind, rows=case.rows)


@pytest.mark.parametrize("kind", ["nonnegative, rows", "huber, nonnegative, rows"])
def test_a_solve_that_did_not_converge_moves_no_multipliers(kind, posed):
    made = posed(3, kind, options={"max_inner_iterations": 2})
    problem = made.problem
    evaluation = problem.evaluate(made.point, rtol=1e-6, warm=None)
    before, (centre,) = problem.rows, problem.kept_vectors
    penalties = [before.penalty]
    while not problem.rows.centre.any():
        assert not evaluation.inner.converged
        kept = tensor_of(made.engine, problem.kept_vectors[0].name)
        evaluation = problem.renew(evaluation, rtol=1e-6)
        penalties.append(problem.rows.penalty)
        if penalties[-1] > penalties[-2]:  # what is missed is not known, and nothing to stop at
            np.testing.assert_array_equal(kept, tensor_of(made.engine, centre.name))
            assert np.isinf(evaluation.inner.violation)
    # When it gets no easier, multipliers are moved all the same: a fit has to end.
    assert len(penalties) > 3
    assert penalties == sorted(penalties)
    assert np.isfinite(evaluation.inner.violation)
