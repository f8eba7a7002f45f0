"""All methods against pymanopt, against the convex optimum, and under inner noise."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from slrt_dask.errors import NumericalBreakdown
from slrt_dask.optim import (
    Accuracy,
    ConjugateGradient,
    StopReason,
    StopRules,
    TrustRegion,
    minimise,
)
from slrt_dask.optim.line_search import search
from slrt_dask.optim.manifold import scale
from slrt_dask.optim.problem import MeasuredProblem
from tests.oracles.convex import solve_convex
from tests.oracles.dense import (
    random_problem,
    solve_by_conjugate_gradients,
    solve_with_residual,
)

TIGHT = StopRules(gap_tolerance=0.0, gradient_tolerance=1e-7, max_iterations=600)


def full_ranks(shape):
    size = int(np.prod(shape))
    return tuple(min(n, size // n) for n in shape)


def start_of(problem, seed=5):
    return problem.manifold.random_point(np.random.default_rng(seed))


@functools.cache
def tight_outcome(shape, method, solver=None):
    """What a method gives on the problem of low ranks; several tests look at it."""
    chosen = {} if solver is None else {"solver": solver}
    problem = random_problem(shape, (2,) * len(shape), **chosen)
    return minimise(problem, method, start_of(problem), TIGHT)


def low_ranks(shape):
    return random_problem(shape, (2,) * len(shape))


def rank_deficient(shape):
    return random_problem(shape, full_ranks(shape), rank=1, noise=0.0, C=0.5)


@functools.cache
def cost_of_pymanopt(make, shape):
    """The lowest cost that pymanopt's trust region finds for a problem."""
    adapter = pytest.importorskip("tests.oracles.pymanopt_adapter")
    problem = make(shape)
    start = start_of(problem)
    # The tolerance is relative to the cost of the optimum, for which a rough solution is enough.
    rough = StopRules(gap_tolerance=0.0, gradient_tolerance=1e-3, max_iterations=600)
    cost = minimise(make(shape), ConjugateGradient(), start, rough).state.evaluation.cost
    return adapter.minimise_with_pymanopt(
        problem, start, second_order=True, gradient_norm=1e-6 * cost
    ).cost


@pytest.mark.parametrize("make", [low_ranks, rank_deficient])
def test_the_optimum_is_that_of_pymanopt(shape, method, make):
    problem = make(shape)
    ours = minimise(problem, method, start_of(problem), TIGHT)
    assert ours.reason is StopReason.GRADIENT
    assert ours.state.evaluation.cost == pytest.approx(cost_of_pymanopt(make, shape), rel=1e-8)
    if make is rank_deficient:
        smallest = [np.linalg.svd(U, compute_uv=False)[-1] for U in ours.state.evaluation.point]
        assert min(smallest) < 1e-3
        assert ours.certificate.relative_gap < 1e-5


@functools.cache
def convex_optimum(shape):
    problem = random_problem(shape, full_ranks(shape))
    return solve_convex(problem.mask, problem.values, C=problem.C, lambdas=problem.lambdas)


def test_with_full_ranks_the_optimum_is_that_of_the_convex_problem(shape, method):
    problem, best = random_problem(shape, full_ranks(shape)), convex_optimum(shape)
    ours = minimise(problem, method, start_of(problem), TIGHT)
    assert ours.state.evaluation.cost == pytest.approx(best.primal, rel=1e-6)
    assert ours.certificate.relative_gap < 1e-6
    np.testing.assert_allclose(problem.completed(ours.evaluation), sum(best.parts), atol=2e-3)


def test_the_cost_never_rises_when_inner_solves_are_exact(shape, method):
    costs = np.array([row.cost for row in tight_outcome(shape, method).records])
    assert len(costs) > 3
    assert (np.diff(costs) <= 1e-13 * costs[:-1]).all()


@pytest.mark.parametrize(
    "solver", [solve_with_residual, solve_by_conjugate_gradients], ids=["adverse", "cg"]
)
def test_truncated_inner_solves_lead_to_a_point_that_is_optimal_indeed(shape, method, solver):
    # Noisy or fitted well: every order, method and solver has both, and every two of them.
    odd = (len(shape) + (solver is solve_with_residual) + isinstance(method, TrustRegion)) % 2
    setting = {"C": 1e3, "noise": 0.0} if odd else {}
    problem = random_problem(shape, (2,) * len(shape), solver=solver, **setting)
    rules = StopRules(gap_tolerance=0.0, gradient_tolerance=1e-6, max_iterations=1000)
    outcome = minimise(problem, method, start_of(problem), rules)
    assert outcome.reason is StopReason.GRADIENT
    bound = problem.C * np.sum(problem.y**2)
    for before, after in itertools.pairwise(outcome.records):
        noise = bound * (before.inner_residual**2 + after.inner_residual**2)
        assert after.cost <= before.cost + noise + 1e-12 * before.cost
    exact = random_problem(shape, (2,) * len(shape), **setting)
    truth = exact.evaluate(outcome.state.evaluation.point, rtol=0.0, warm=None)
    manifold = exact.manifold
    gradient = manifold.projection(truth.point, exact.gradient(truth))
    assert manifold.norm(truth.point, gradient) <= 2e-6 * truth.cost
    assert outcome.state.evaluation.cost == pytest.approx(truth.cost, rel=1e-10)


def test_inner_solves_are_loose_far_away_and_tight_near_the_optimum(shape, method):
    rows = tight_outcome(shape, method, solve_by_conjugate_gradients).records
    assert rows[1].inner_residual > 1e-4
    assert rows[-1].inner_residual < 1e-7


def test_gradients_are_computed_once_an_accepted_point():
    problem, asked = random_problem((6, 5, 4), (2, 2, 2)), []
    gradient = problem.gradient
    problem.gradient = lambda evaluation: asked.append(1) or gradient(evaluation)
    rules = StopRules(gap_tolerance=0.0, gradient_tolerance=1e-4)
    outcome = minimise(problem, ConjugateGradient(), start_of(problem), rules)
    assert len(asked) == outcome.state.iteration + 1


def test_effort_is_reported_for_every_iteration(method):
    # A sweep of the oracle is an inner iteration of an evaluation.
    problem = random_problem((6, 5, 4), (2, 2, 2), solver=solve_by_conjugate_gradients)
    rows = minimise(problem, method, start_of(problem), TIGHT).records
    assert sum(row.sweeps for row in rows) == problem.sweeps > 0
    assert sum(row.inner_iterations for row in rows) == problem.sweeps


@pytest.mark.parametrize("ranks", [(1, 1, 1), (6, 5, 4), (1, 5, 2)])
def test_ranks_from_one_to_all_rows_work(method, ranks):
    problem = random_problem((6, 5, 4), ranks)
    assert minimise(problem, method, start_of(problem), TIGHT).reason is StopReason.GRADIENT


def test_data_that_are_all_zero_are_optimal_at_once(method):
    problem = random_problem((6, 5, 4), (2, 2, 2))
    problem.values, problem.y = np.zeros_like(problem.values), np.zeros_like(problem.y)
    state = minimise(problem, method, start_of(problem), StopRules()).state
    assert (state.iteration, state.evaluation.cost) == (0, 0.0)


@pytest.mark.parametrize("call", [1, 2, 7])
def test_a_cost_that_is_not_a_number_breaks_the_run_with_an_error(method, call):
    problem = random_problem((6, 5, 4), (2, 2, 2))
    right, calls = problem.evaluate, itertools.count(1)

    def evaluate(point, *, rtol, warm):
        evaluation = right(point, rtol=rtol, warm=warm)
        return dataclasses.replace(evaluation, cost=np.nan) if next(calls) >= call else evaluation

    problem.evaluate = evaluate
    with pytest.raises(NumericalBreakdown, match="nan"):
        minimise(problem, method, start_of(problem), StopRules())


# ---- parts of methods -----------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [1e-4, 1.0, 1e3])
@pytest.mark.parametrize("options", [{}, {"natural": True}, {"last_decrease": 1e-3}], ids=str)
def test_a_search_decreases_the_cost_sufficiently_or_finds_no_step_uphill(
    shape, rng, scaled, options
):
    problem = random_problem(shape, (2,) * len(shape))
    measured = MeasuredProblem(problem, Accuracy())
    here = measured.begin(problem.manifold.random_point(rng))
    downhill = scale(-scaled / here.gradient_norm, here.gradient)
    trial = search(measured, here, downhill, 1.0, **options)
    length = problem.manifold.norm(here.evaluation.point, trial.move)
    assert trial.decrease >= 1e-4 * length * here.gradient_norm
    assert trial.decrease == here.evaluation.cost - trial.evaluation.cost
    assert length <= 0.5 * (1 + 1e-12)
    assert search(measured, here, scale(-1.0, downhill), 1.0, **options) is None


def test_a_trust_region_moves_within_its_radius_and_adapts_it_to_the_agreement(shape):
    problem, method = random_problem(shape, (2,) * len(shape)), TrustRegion()
    state, seen = method.init(problem, start_of(problem, seed=7)), set()
    for _ in range(20):
        before, state = state, method.step(problem, state)
        assert state.step <= before.radius * (1 + 1e-9)
        assert (state.step > 0.0) == (state.ratio > 0.1)
        if state.step == 0.0:
            assert state.evaluation.point is before.evaluation.point
        if state.ratio < 0.25:
            assert state.radius in (0.25 * before.radius, 1e-6)
        else:
            assert state.radius in (before.radius, 2.0 * before.radius, np.sqrt(len(shape)))
            assert state.radius == before.radius or state.ratio > 0.75
        seen.add(state.radius < before.radius)
        if state.gradient_norm <= 1e-9 * state.evaluation.cost:
            break
    assert state.gradient_norm <= 1e-6 * state.evaluation.cost
    assert seen == {True, False}


def test_a_trust_region_converges_superlinearly(shape):
    norms = [row.gradient_norm for row in tight_outcome(shape, TrustRegion()).records]
    assert norms[-1] < 0.02 * norms[-2] < 0.2 * 0.02 * norms[-3]
