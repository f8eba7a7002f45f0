"""Laws of the inner solve: what it solves, how far, and what it says about itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import cg
from slrt_dask.dual.inner import ConjugateGradient
from slrt_dask.engine.local import LocalEngine

from slrt_dask.dual.operator import Factors
from slrt_dask.errors import NumericalBreakdown
from tests.engine.helpers import ORDERS, put_on_share
from tests.oracles.dense import solve_by_conjugate_gradients


def residual_of(made, evaluation):
    """‖y − A z‖ / ‖y‖, computed densely from the dual that the blocks hold."""
    z = made.dual(evaluation)[made.dense.mask]
    r = made.dense.y - made.dense.system(made.point) @ z
    return np.linalg.norm(r) / np.linalg.norm(made.dense.y)


@pytest.mark.parametrize("order", ORDERS)
def test_a_tight_solve_is_the_direct_one(order, pair):
    made = pair(order)
    evaluation = made.problem.evaluate(made.point, rtol=1e-13, warm=None)
    wanted = np.linalg.solve(made.dense.system(made.point), made.dense.y)
    np.testing.assert_allclose(made.dual(evaluation)[made.dense.mask], wanted, rtol=1e-9, atol=1e-9)
    assert evaluation.inner.converged


def test_a_loose_solve_is_about_as_good_as_scipys(pair):
    made = pair(3)
    A, y = made.dense.system(made.point), made.dense.y
    steps = []
    theirs, failed = cg(A, y, rtol=1e-5, atol=0.0, callback=steps.append)
    assert failed == 0
    evaluation = made.problem.evaluate(made.point, rtol=1e-5, warm=None)
    ours = made.dual(evaluation)[made.dense.mask]
    np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())
    assert evaluation.inner.iterations <= len(steps) + 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("C", [0.1, 100.0])
def test_the_tolerance_is_relative_to_the_data_unsquared_and_reached(order, C, pair):
    made = pair(order, C=C)
    A, y = made.dense.system(made.point), made.dense.y
    for rtol in (1e-1, 1e-3, 1e-6, 1e-10):
        evaluation = made.problem.evaluate(made.point, rtol=rtol, warm=None)
        true = residual_of(made, evaluation)
        assert evaluation.inner.converged
        assert true <= rtol * (1 + 1e-6) + 1e-13
        assert evaluation.inner.residual == pytest.approx(true, rel=1e-5, abs=1e-13)
        # Were it squared, the solve would go on for much longer than the textbook's.
        _, wanted = solve_by_conjugate_gradients(A, y, rtol, None)
        assert evaluation.inner.iterations <= wanted + 1


def test_a_tolerance_is_relative_whatever_the_scale_of_the_data(pair, store_of):
    from slrt_dask.engine.local import LocalEngine

    from tests.engine.helpers import dense_problem, dual_problem

    counts = set()
    for scale in (2.0**-30, 1.0, 2.0**30):
        dense = dense_problem(3)
        store = store_of(dense.mask, dense.values * scale)
        with LocalEngine(store, threads=1) as engine:
            problem = dual_problem(engine, dense)
            point = dense.manifold.random_point(np.random.default_rng(0))
            inner = problem.evaluate(point, rtol=1e-6, warm=None).inner
            counts.add((inner.iterations, inner.residual))
    assert len(counts) == 1


@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_warm_start_from_the_solution_needs_no_iterations(order, pair):
    made = pair(order)
    first = made.problem.evaluate(made.point, rtol=1e-8, warm=None)
    again = made.problem.evaluate(made.point, rtol=1e-8, warm=first)
    assert first.inner.iterations > 3
    assert again.inner.iterations <= 1
    assert again.inner.converged
    assert again.cost == pytest.approx(first.cost, rel=1e-12)


def test_a_warm_start_from_nearby_saves_iterations(pair):
    made = pair(3, C=100.0)
    cold = made.problem.evaluate(made.point, rtol=1e-6, warm=None)
    step = tuple(1e-3 * part for part in made.direction)
    nearby = made.dense.manifold.retraction(made.point, step)
    warm = made.problem.evaluate(nearby, rtol=1e-6, warm=cold)
    assert warm.inner.iterations < cold.inner.iterations
    there = made.problem.evaluate(nearby, rtol=1e-6, warm=None)
    assert warm.cost == pytest.approx(there.cost, rel=1e-9)


def test_a_warm_start_leaves_the_dual_it_began_from_as_it_was(pair):
    made = pair(3)
    first = made.problem.evaluate(made.point, rtol=1e-2, warm=None)
    before = made.dual(first)
    made.problem.evaluate(made.point, rtol=1e-10, warm=first)
    np.testing.assert_array_equal(made.dual(first), before)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_solve_that_hits_its_limit_says_so(limit, pair):
    made = pair(3, C=1000.0, options={"max_inner_iterations": limit})
    evaluation = made.problem.evaluate(made.point, rtol=1e-12, warm=None)
    assert evaluation.inner.iterations == limit
    assert not evaluation.inner.converged
    assert evaluation.inner.residual > 1e-12
    assert evaluation.inner.residual == pytest.approx(residual_of(made, evaluation), rel=1e-9)


def test_each_iteration_costs_one_sweep(pair):
    made = pair(3, C=100.0)
    before = made.problem.sweeps
    evaluation = made.problem.evaluate(made.point, rtol=1e-8, warm=None)
    # The last sweep pays for one more step, and at most one guess is wrong on the way.
    assert made.problem.sweeps - before <= evaluation.inner.iterations + 2


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_single_precision_is_told_how_far_it_came(precision, pair):
    made = pair(3, precision=precision, options={"max_inner_iterations": 60})
    evaluation = made.problem.evaluate(made.point, rtol=1e-4, warm=None)
    assert evaluation.inner.converged
    assert residual_of(made, evaluation) <= 1.1e-4
    exact = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    assert evaluation.cost == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_residual_of_exactly_nothing_leaves_the_whole_solution(threads, store_of):
    """Where the last step is one that would leave moving the solution to the next."""
    store = store_of(np.eye(3, dtype=bool), np.eye(3))
    factors = Factors.of((np.array([[0.0], [0.0], [1.0]]), np.zeros((3, 1))))
    solve = ConjugateGradient(  # A = diag(1, 1, 4), in numbers that are exact
        factors, (3.0, 1.0), store.slab_mode, 1.0, "x", None, None, 1e-6, 100
    )
    with LocalEngine(store, threads=threads) as engine:
        outcome = engine.run(solve)
        x = [engine.on_shares(x_of, part) for part in range(len(store.partitions))]
    assert outcome.r_dot_r == 0.0
    assert outcome.converged
    np.testing.assert_allclose(np.concatenate([each for (each,) in x]), [1.0, 1.0, 0.25])
    assert outcome.b_dot_x == 2.25


def x_of(share, partition):
    return share.partition_vector(partition, "x")


@pytest.mark.parametrize("C", [1.0, 1e3, 1e6])
def test_a_solve_that_is_never_good_enough_ends_where_residuals_vanish(C, pair):
    made = pair(3, C=C, options={"max_inner_iterations": 5000})
    evaluation = made.problem.evaluate(made.point, rtol=0.0, warm=None)
    assert evaluation.inner.iterations < 5000
    wanted = np.linalg.solve(made.dense.system(made.point), made.dense.y)
    np.testing.assert_allclose(made.dual(evaluation)[made.dense.mask], wanted, rtol=1e-9, atol=1e-9)


def test_observations_that_are_all_zero_are_solved_at_once(pair, store_of):
    from slrt_dask.engine.local import LocalEngine

    from tests.engine.helpers import dense_problem, dual_problem

    dense = dense_problem(3)
    with LocalEngine(store_of(dense.mask, 0.0 * dense.values), threads=1) as engine:
        problem = dual_problem(engine, dense)
        point = dense.manifold.random_point(np.random.default_rng(0))
        evaluation = problem.evaluate(point, rtol=1e-6, warm=None)
        assert evaluation.cost == 0.0
        assert evaluation.inner.converged
        assert evaluation.inner.residual == 0.0
        assert not any(part.any() for part in problem.gradient(evaluation))


def test_a_value_that_is_not_a_number_is_an_error_not_an_answer(pair):
    made = pair(3)
    poisoned = made.dense.values.copy()
    poisoned[tuple(np.argwhere(made.dense.mask)[5])] = np.nan
    made.engine.on_shares(put_on_share, "poisoned", poisoned)
    program = ConjugateGradient(
        Factors.of(made.point), made.dense.lambdas, made.engine.store.slab_mode,
        made.problem.shift, "solution", None, "poisoned", 1e-6, 100,
    )  # fmt: skip
    with pytest.raises(NumericalBreakdown, match="not a number"):
        made.engine.run(program)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("C", [1.0, 100.0])
def test_a_solve_shows_how_much_a_residual_costs_and_never_too_much(order, C, pair):
    made = pair(order, C=C)
    bound = C * np.sum(made.dense.y**2)
    loose = made.problem.evaluate(made.point, rtol=1e-1, warm=None)
    tight = made.problem.evaluate(made.point, rtol=1e-4, warm=None)
    for evaluation in (loose, tight):
        assert 0.0 < evaluation.inner.noise_scale <= bound * (1 + 1e-9)
    # What the tight solve saw on its way is what the loose one missed, or more.
    fallen = loose.inner.residual**2 - tight.inner.residual**2
    assert tight.inner.noise_scale >= (1 - 1e-6) * (tight.cost - loose.cost) / fallen
