"""Laws of the inner solve: what it solves, how exactly, and what it reports about itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import cg

from slrt_dask.dual.operator import Operator, terms_of
from slrt_dask.dual.solve import ConjugateGradients
from slrt_dask.errors import NumericalBreakdown
from tests.dual.helpers import tensor_of
from tests.engine.helpers import (
    ORDERS,
    dense_problem,
    dual_problem,
    local_engine,
    put_on_share,
)
from tests.oracles.dense import solve_by_conjugate_gradients

every_order = pytest.mark.parametrize("order", ORDERS)


def residual_of(made, evaluation):
    """‖y − A z‖ / ‖y‖, computed densely from the dual that the blocks hold."""
    z = made.dual(evaluation)[made.dense.mask]
    r = made.dense.y - made.dense.system(made.point) @ z
    return np.linalg.norm(r) / np.linalg.norm(made.dense.y)


@pytest.mark.parametrize(
    ("order", "C", "rtol"), [(2, 5.0, 1e-13), (3, 1.0, 0.0), (3, 1e6, 0.0), (4, 5.0, 1e-13)]
)
def test_a_tight_solve_is_the_direct_one_and_ends_even_if_it_is_never_good_enough(
    order, C, rtol, pair
):
    made = pair(order, C=C, options={"max_inner_iterations": 5000})
    evaluation = made.problem.evaluate(made.point, rtol=rtol, warm=None)
    assert evaluation.inner.iterations < 5000
    assert evaluation.inner.residual <= 1e-12
    wanted = np.linalg.solve(made.dense.system(made.point), made.dense.y)
    np.testing.assert_allclose(made.dual(evaluation)[made.dense.mask], wanted, rtol=1e-9, atol=1e-9)


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


@every_order
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


def test_the_scale_of_the_data_does_not_matter_unless_they_are_zero(store_of):
    dense, found = dense_problem(3), []
    point = dense.manifold.random_point(np.random.default_rng(0))
    for scale in (2.0**-30, 1.0, 2.0**30, 0.0):
        with local_engine(store_of(dense.mask, dense.values * scale)) as engine:
            evaluation = dual_problem(engine, dense).evaluate(point, rtol=1e-6, warm=None)
            assert evaluation.inner.converged
            found.append((evaluation.inner.iterations, evaluation.inner.residual))
    assert found[0] == found[1] == found[2]
    assert found[3] == (0, 0.0)
    assert evaluation.cost == 0.0


@every_order
def test_a_warm_start_saves_iterations_and_keeps_the_vector_it_began_from(order, pair):
    made = pair(order, C=100.0)
    cold = made.problem.evaluate(made.point, rtol=1e-8, warm=None)
    before = made.dual(cold)
    again = made.problem.evaluate(made.point, rtol=1e-8, warm=cold)
    assert cold.inner.iterations > 3
    assert again.inner.iterations <= 1
    assert again.inner.converged
    assert again.cost == pytest.approx(cold.cost, rel=1e-12)
    step = tuple(1e-3 * part for part in made.direction)
    nearby = made.dense.manifold.retraction(made.point, step)
    warm, there = (made.problem.evaluate(nearby, rtol=1e-8, warm=one) for one in (cold, None))
    assert warm.inner.iterations < there.inner.iterations
    assert warm.cost == pytest.approx(there.cost, rel=1e-9)
    np.testing.assert_array_equal(made.dual(cold), before)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_solve_that_reaches_its_limit_has_not_converged(limit, pair):
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
def test_a_solve_in_single_precision_reports_how_exact_it_is(precision, pair):
    made = pair(3, precision=precision, options={"max_inner_iterations": 60})
    evaluation = made.problem.evaluate(made.point, rtol=1e-4, warm=None)
    assert evaluation.inner.converged
    assert residual_of(made, evaluation) <= 1.1e-4
    exact = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    assert evaluation.cost == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_residual_of_exactly_nothing_ends_a_solve_with_its_solution(threads, store_of):
    store = store_of(np.eye(3, dtype=bool), np.eye(3))
    factors = np.array([[0.0], [0.0], [1.0]]), np.zeros((3, 1))
    operator = Operator.of(terms_of((3.0, 1.0)), factors, store.slab_mode)
    solve = ConjugateGradients(operator, 1.0, "x", 1e-6, 100)  # A = diag(1, 1, 4), exactly
    with local_engine(store, threads=threads, smallest_block=1) as engine:
        outcome = engine.run(solve)
        np.testing.assert_allclose(tensor_of(engine, "x"), np.diag([1.0, 1.0, 0.25]))
    assert (outcome.r_dot_r, outcome.converged, outcome.cost) == (0.0, True, 1.125)


def test_a_value_that_is_not_a_number_is_an_error_not_an_answer(pair):
    made = pair(3)
    poisoned = made.dense.values.copy()
    poisoned[tuple(np.argwhere(made.dense.mask)[5])] = np.nan
    made.engine.on_shares(put_on_share, "poisoned", poisoned)
    program = ConjugateGradients(
        made.problem.operator(made.point), made.problem.model.shift, "solution", 1e-6, 100,
        right_hand_side="poisoned",
    )  # fmt: skip
    with pytest.raises(NumericalBreakdown):
        made.engine.run(program)


@every_order
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
