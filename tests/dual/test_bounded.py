"""With bounds, g, its multipliers and its certificates are what exact dense computations say."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from slrt_dask.dual.bounds import MARKS, BoundVectors
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.problem import DualProblem
from slrt_dask.dual.scan import BOX_ENTRIES, Scan, boxes
from slrt_dask.dual.start import spectral_start
from slrt_dask.dual.working_set import Places
from slrt_dask.errors import InvalidInput, MemoryBudgetExceeded
from slrt_dask.kernels.bounds import BOUNDED, OBSERVED
from slrt_dask.optim import ConjugateGradient, StopRules, minimise
from tests.dual.bounded_cases import (
    SHAPES,
    TIGHT,
    assert_optimal,
    bound_vectors,
    drawn_direction,
    nonnegative_point,
    on,
    settled,
    taylor_order,
)
from tests.dual.helpers import tensor_of
from tests.oracles.bounded import solve_bounded
from tests.oracles.dense import DenseProblem, unfold

BOUNDS = {"nonnegative": (0.0, np.inf), "two-sided": (0.0, 0.8), "upper": (-np.inf, 0.5)}

every_order = pytest.mark.parametrize("order", [2, 3, 4])
every_bound = pytest.mark.parametrize("kind", BOUNDS)


def assert_solved(made, evaluation, lower, upper, held=None):
    """The evaluation is the optimum of the dense problem, and bounds cost something there."""
    assert evaluation.inner.converged
    assert_optimal(made, evaluation, lower, upper, True if held is None else held)
    wanted = solve_bounded(made.dense, made.point, lower, upper, held).cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-7)
    free = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    assert evaluation.cost > free * (1 + 1e-4)


# ---- what is solved -------------------------------------------------------------------------


@every_order
@every_bound
@pytest.mark.parametrize("how", ["scanned", "given"])
def test_settled_multipliers_are_optimal_and_g_is_the_dense_one(order, kind, how, local):
    made, (lower, upper) = local(order), BOUNDS[kind]
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper), how)
    assert_solved(made, settled(problem, made.point), lower, upper)


@pytest.mark.parametrize(
    ("settings", "lower", "upper", "penalty"),
    [
        ({"seed": 1, "C": 0.2}, 0.0, 0.8, None),
        ({"seed": 4, "C": 20.0}, 0.05, np.inf, None),
        ({}, 0.0, np.inf, 1e-2),
        ({}, 0.0, np.inf, 1.0),
        # Slices without observations are scanned too.
        ({"empty": (0, 3, 5), "slab_mode": 0, "parts": 3}, 0.05, np.inf, None),
    ],
)
def test_other_data_weights_and_penalties_are_solved_too(settings, lower, upper, penalty, local):
    made = local(3, **settings)
    bounds = bound_vectors(made.dense, lower, upper, penalty=penalty)
    assert_solved(made, settled(on(made.engine, made.dense, bounds), made.point), lower, upper)


@pytest.mark.parametrize("order", [2, 3])
def test_a_spectral_point_of_higher_rank_is_solved_too(order, local):
    made = local(order, rank=4)
    problem = on(made.engine, made.dense, bound_vectors(made.dense, 0.0, np.inf))
    made.point = spectral_start(problem, 0)
    assert_solved(made, settled(problem, made.point), 0.0, np.inf)


@pytest.mark.parametrize(("mode", "how"), [(0, "given"), (1, "scanned"), (2, "scanned")])
def test_every_index_of_a_mode_may_have_bounds_of_its_own(mode, how, local):
    made = local(3)
    length = SHAPES[3][mode]
    lower, upper = np.linspace(-0.2, 0.1, length), np.linspace(0.5, 1.5, length)
    lower[1], upper[2] = -np.inf, np.inf
    problem = on(made.engine, made.dense, BoundVectors(mode, lower, upper, 0.1), how)
    along = [-1 if k == mode else 1 for k in range(3)]
    evaluation = settled(problem, made.point)
    assert_solved(made, evaluation, lower.reshape(along), upper.reshape(along))


@pytest.mark.parametrize(("order", "how"), [(2, "some"), (3, "store"), (4, "observed")])
def test_bounds_hold_just_where_they_were_asked_for(order, how, local, store_of):
    made = local(order)
    rng = np.random.default_rng(4)
    held = made.dense.mask if how == "observed" else rng.random(made.dense.mask.shape) < 0.3
    where = {
        "observed": None,
        # In any order, and some of them twice.
        "some": Places(array=np.repeat(rng.permutation(np.argwhere(held)).T, 2, axis=1)),
        "store": Places(store=store_of(held, np.ones(held.shape), parts=3, slab_mode=1).path),
    }[how]
    bounds = bound_vectors(made.dense, 0.0, 0.8)
    problem = on(made.engine, made.dense, bounds, "observed", where=where)
    assert_solved(made, settled(problem, made.point), 0.0, 0.8, held)
    wanted = solve_bounded(made.dense, made.point, 0.0, 0.8, held)
    assert np.max(np.abs(np.clip(wanted.W, 0.0, 0.8) - wanted.W)) > 1e-2
    marks = tensor_of(made.engine, MARKS).astype(int)
    np.testing.assert_array_equal((marks & BOUNDED) > 0, held)
    np.testing.assert_array_equal((marks & OBSERVED) > 0, made.dense.mask)


def test_single_precision_is_solved_to_its_precision(local):
    made = local(3, precision="float32")
    bounds = bound_vectors(made.dense, 0.0, np.inf)
    problem = on(made.engine, made.dense, bounds, bound_tolerance=1e-5)
    evaluation = settled(problem, made.point, rtol=1e-5)
    assert_optimal(made, evaluation, 0.0, np.inf, precision=1e-3)
    wanted = solve_bounded(made.dense, made.point, 0.0, np.inf).cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("order", "kind", "how"),
    [(2, "nonnegative", "scanned"), (3, "two-sided", "given"), (4, "upper", "observed")],
)
def test_the_alternation_and_the_joint_solve_agree(order, kind, how, local):
    found = []
    for alternating in (False, True):
        made = local(order, parts=2)
        bounds = bound_vectors(made.dense, *BOUNDS[kind])
        problem = on(made.engine, made.dense, bounds, how, alternating=alternating)
        start = problem.evaluate(made.point, rtol=1e-8, warm=None)
        # From there with other multipliers and, where the tensor is scanned, on other entries.
        evaluation = problem.renew(start, rtol=1e-8)
        assert evaluation.inner.converged
        found.append((evaluation.cost, tensor_of(made.engine, evaluation.dual.name)))
    (joint, x), (alternated, other) = found
    assert alternated == pytest.approx(joint, rel=1e-8)
    np.testing.assert_allclose(other, x, atol=1e-5 * np.abs(x).max())


@every_bound
def test_costs_climb_to_g_as_the_centre_of_the_multipliers_moves(kind, local):
    made, (lower, upper) = local(3), BOUNDS[kind]
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper), "given")
    free = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    wanted = solve_bounded(made.dense, made.point, lower, upper).cost
    costs, evaluation = [], problem.evaluate(made.point, rtol=TIGHT, warm=None)
    while evaluation is not None and len(costs) < 5:
        costs.append(evaluation.cost)
        evaluation = problem.renew(evaluation, rtol=TIGHT)
    assert costs == sorted(costs)
    assert free < costs[0] < costs[-1] <= wanted * (1 + 1e-9)


@every_order
def test_bounds_that_are_nowhere_active_change_nothing(order, local):
    made = local(order)
    plain = DualProblem(
        made.engine, made.dense.manifold.ranks, cost_weight=made.dense.C,
        weights=made.dense.lambdas, certificate_rtol=1e-9,
    )  # fmt: skip
    wanted = plain.evaluate(made.point, rtol=1e-12, warm=None)
    gradient, certificate = plain.gradient(wanted), plain.certify(wanted)
    bounds = bound_vectors(made.dense, -1e3, 1e3)
    problem = on(made.engine, made.dense, bounds, certificate_rtol=1e-9)
    evaluation = settled(problem, made.point, rtol=1e-12)
    assert evaluation.cost == pytest.approx(wanted.cost, rel=1e-10)
    for one, other in zip(problem.gradient(evaluation), gradient, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8 * np.abs(other).max())
    found = problem.certify(evaluation)
    assert found.violation == 0.0
    assert found.primal == pytest.approx(certificate.primal, rel=1e-9)
    assert found.dual == pytest.approx(certificate.dual, rel=1e-3)
    assert not tensor_of(made.engine, evaluation.dual.name)[~made.dense.mask].any()


def test_limits_of_a_solve_and_of_memory_are_reported(local):
    made = local(3)
    free = int((~made.dense.mask).sum())
    bounds = bound_vectors(made.dense, 0.0, np.inf)
    limits = {"max_inner_iterations": 3, "most_extra": free}
    problem = on(made.engine, made.dense, bounds, "given", **limits)
    inner = problem.evaluate(made.point, rtol=1e-12, warm=None).inner
    assert (inner.iterations, inner.converged) == (3, False)
    assert inner.residual > 1e-12
    with pytest.raises(MemoryBudgetExceeded, match=rf"\b{free}\b.*\b{free - 1}\b"):
        on(made.engine, made.dense, bounds, "given", most_extra=free - 1)


# ---- scans ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 5, 4), (100, 90, 80), (3, 2000, 400)])
@pytest.mark.parametrize("slab_mode", [0, 1, 2])
def test_boxes_cover_some_slices_once_and_are_not_too_large(shape, slab_mode):
    seen, wanted = np.zeros(shape, dtype=np.int8), np.zeros(shape, dtype=np.int8)
    slices = 1, shape[slab_mode] - 1
    for box in boxes(shape, slab_mode, slices):
        assert np.prod([len(part) for part in box]) <= BOX_ENTRIES
        seen[tuple(slice(part.start, part.stop) for part in box)] += 1
    np.moveaxis(wanted, slab_mode, 0)[slices[0] : slices[1]] = 1
    np.testing.assert_array_equal(seen, wanted)


@every_bound
@pytest.mark.parametrize(
    ("shape", "slab_mode", "threads"),
    [((9, 8), 0, 1), ((12, 5, 4), 0, 2), ((5, 6, 4, 3), 1, 1), ((90, 80, 75), 2, 2)],
)
def test_a_scan_finds_the_entries_that_miss_their_bounds(kind, shape, slab_mode, threads, held):
    rng, (lower, upper) = np.random.default_rng(2), BOUNDS[kind]
    mask = rng.random(shape) < 60 / np.prod(shape)
    dense = DenseProblem(mask, rng.standard_normal(shape), (2,) * len(shape), C=5.0,
                         lambdas=(1.0,) * len(shape))  # fmt: skip
    point = nonnegative_point(dense, rng)
    engine = held(dense, slab_mode=slab_mode, threads=threads)
    bounds = bound_vectors(dense, lower, upper)
    problem = on(engine, dense, bounds)
    evaluation = problem.evaluate(point, rtol=TIGHT, warm=None)
    dual = evaluation.dual.name
    X = tensor_of(engine, dual)
    W = sum(dense.parts(SimpleNamespace(point=point, dual=X)))
    missed = np.maximum(lower - W, W - upper)
    outcome = engine.run(Scan(dual, Factors.of(point), dense.lambdas, bounds, 1e-8))
    assert outcome.violation == pytest.approx(missed.max(), rel=1e-9)
    assert outcome.found == np.count_nonzero((missed > 1e-8) & ~mask)
    assert kind == "upper" or outcome.found > 0


# ---- derivatives ----------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "kind"), [(2, "upper"), (3, "nonnegative"), (4, "two-sided")])
def test_the_gradient_passes_a_taylor_test_while_the_centre_stays(order, kind, local):
    made, (lower, upper) = local(order), BOUNDS[kind]
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper), "given")
    first = problem.evaluate(made.point, rtol=1e-12, warm=None)
    at = problem.renew(first, rtol=1e-12)  # a centre that is not zero
    assert taylor_order(problem, at, drawn_direction(made.point)) == pytest.approx(2.0, abs=0.15)


@every_order
def test_the_gradient_is_that_of_the_dual_on_the_blocks_and_there_is_no_hessian(order, local):
    made = local(order)
    problem = on(made.engine, made.dense, bound_vectors(made.dense, 0.0, 0.8))
    evaluation = settled(problem, made.point)
    X = tensor_of(made.engine, evaluation.dual.name)
    assert X[~made.dense.mask].any()
    for mode, part in enumerate(problem.gradient(evaluation)):
        unfolded = unfold(X, mode)
        wanted = -made.dense.lambdas[mode] * unfolded @ (unfolded.T @ made.point[mode])
        np.testing.assert_allclose(part, wanted, atol=1e-9 * np.abs(wanted).max())
    with pytest.raises(InvalidInput):
        problem.hessian(evaluation, made.point, rtol=1e-3)


# ---- certificate ----------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "kind"), [(2, "two-sided"), (3, "nonnegative"), (4, "upper")])
def test_no_certificate_contradicts_the_optimum_of_the_convex_problem(order, kind, local):
    made, (lower, upper) = local(order, rank=2 if order == 4 else 4), BOUNDS[kind]
    dense = made.dense
    problem = on(made.engine, dense, bound_vectors(dense, lower, upper), certificate_rtol=1e-9)
    rng = np.random.default_rng(3)
    found = []
    for rtol in (1e-1, 1e-5):
        point = nonnegative_point(dense, rng)
        evaluation = problem.evaluate(point, rtol=rtol, warm=None)
        found.append(problem.certify(evaluation))
        found.append(problem.certify(settled(problem, point, rtol)))
        # g is the optimum for some factors, so it is above that for all.
        assert found[-1].dual <= solve_bounded(dense, point, lower, upper).cost * (1 + 1e-9)
    rules = StopRules(gap_tolerance=1e-3, gradient_tolerance=0.0, max_iterations=20)
    start = spectral_start(problem, 0)
    found.append(minimise(problem, ConjugateGradient(), start, rules).certificate)
    assert found[-1].relative_gap <= 0.2
    highest, lowest = max(one.dual for one in found), min(one.primal for one in found)
    assert 0.0 < highest <= lowest * (1 + 1e-9)
    for one in found:
        assert one.gap == pytest.approx(one.primal - one.dual)
        assert one.violation >= 0.0


@every_bound
def test_the_primal_bound_is_reached_by_a_tensor_inside_its_bounds(kind, local):
    made, (lower, upper) = local(3), BOUNDS[kind]
    dense, bounds = made.dense, bound_vectors(made.dense, lower, upper)
    problem = on(made.engine, dense, bounds)
    loose = problem.evaluate(made.point, rtol=1e-2, warm=None)
    for evaluation in (loose, settled(problem, made.point)):
        certificate = problem.certify(evaluation)
        X = tensor_of(made.engine, evaluation.dual.name)
        parts = dense.parts(SimpleNamespace(point=made.point, dual=X))
        missed = max(np.maximum(lower - sum(parts), sum(parts) - upper).max(), 0.0)
        assert certificate.violation == pytest.approx(missed, rel=1e-6, abs=1e-13)
        # The answer is drawn to the middle, or shifted; by which of the parts, is free.
        drawn = missed / (missed + bounds.margin)
        moves = [[(1 - drawn) * part for part in parts], drawn * bounds.middle[:, None, None]]
        shifts = [list(parts), missed if np.isinf(upper) else -missed]
        candidates = []
        for start, change in [moves] + ([shifts] if bounds.one_sided else []):
            for mode in range(3):
                moved = [part + change * (k == mode) for k, part in enumerate(start)]
                assert sum(moved).min() >= lower - 1e-12
                assert sum(moved).max() <= upper + 1e-12
                candidates.append(dense.primal(moved))
        assert certificate.primal >= min(candidates) * (1 - 1e-12)
        if evaluation is loose:
            assert certificate.violation > 1e-2
        else:  # moving the answer inside costs next to nothing once it is inside
            assert certificate.primal == pytest.approx(dense.primal(parts), rel=1e-6)


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


def test_a_certificate_changes_nothing_and_can_be_made_again(local):
    made = local(3)
    problem = on(made.engine, made.dense, bound_vectors(made.dense, 0.0, np.inf))
    evaluation = problem.evaluate(made.point, rtol=1e-3, warm=None)
    before, marks = tensor_of(made.engine, evaluation.dual.name), tensor_of(made.engine, MARKS)
    first, again = (
        dataclasses.replace(problem.certify(evaluation), dual=0, gap=0, relative_gap=0, paper_gap=0)
        for _ in range(2)
    )
    assert again == first
    np.testing.assert_array_equal(tensor_of(made.engine, evaluation.dual.name), before)
    np.testing.assert_array_equal(tensor_of(made.engine, MARKS), marks)
