"""When runs end and what they return; stopping anywhere, and going on."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from slrt_dask.errors import InvalidInput, OutOfTime
from slrt_dask.optim import ConjugateGradient, Patience, StopReason, StopRules, minimise
from slrt_dask.optim.manifold import scale
from tests.oracles.dense import random_problem, solve_by_conjugate_gradients, solve_with_residual

RULES = StopRules(gap_tolerance=0.0, gradient_tolerance=1e-6, max_iterations=60)
SHORT = dataclasses.replace(RULES, max_iterations=16)
SHAPE, RANKS = (6, 5, 4), (2, 2, 2)
BEST = 4


def start_of(problem):
    return problem.manifold.random_point(np.random.default_rng(5))


def truncated(shape):
    return random_problem(shape, (2,) * len(shape), solver=solve_by_conjugate_gradients)


def run(problem, method, rules=RULES, **options):
    return minimise(problem, method, start_of(problem), rules, **options)


def assert_identical(first, second):
    """Equal bit for bit, through dataclasses, tuples and arrays."""
    if dataclasses.is_dataclass(first):
        assert type(first) is type(second)
        for field in dataclasses.fields(first):
            assert_identical(getattr(first, field.name), getattr(second, field.name))
    elif isinstance(first, tuple):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_identical(a, b)
    elif isinstance(first, np.ndarray):
        np.testing.assert_array_equal(first, second)
    else:
        assert first == second


class Listener:
    def __init__(self):
        self.seen = []

    def on_record(self, record, state):
        self.seen.append((record, state))


def broken_off(problem, kind, call, error, *, always=False):
    """The problem, raising an error in a given call of a given method, once or from then on."""
    ask, calls = getattr(problem, kind), itertools.count(1)

    def asked(*arguments, **options):
        number = next(calls)
        if number == call or (always and number > call):
            raise error
        return ask(*arguments, **options)

    setattr(problem, kind, asked)
    return problem


ENDS = {KeyboardInterrupt: StopReason.INTERRUPTED, OutOfTime: StopReason.SECONDS}
either_end = pytest.mark.parametrize("error", ENDS, ids=["interrupt", "out-of-time"])


@functools.cache
def uninterrupted(shape, method):
    return run(truncated(shape), method, SHORT)


# ---- reasons to stop ------------------------------------------------------------------------


def test_a_closed_gap_ends_the_run_before_the_gradient_does(shape, method):
    problem = random_problem(shape, shape if len(shape) > 2 else (7, 7))
    rules = StopRules(gradient_tolerance=1e-4)
    outcome = run(problem, method, rules, certify_every=10_000)
    assert outcome.reason is StopReason.GAP
    assert outcome.certificate.relative_gap <= rules.gap_tolerance
    assert outcome.records[-1].relative_gap == outcome.certificate.relative_gap


def test_a_small_gradient_ends_the_run_when_the_gap_cannot_close(shape, method):
    rules = StopRules(gradient_tolerance=1e-5)
    outcome = run(random_problem(shape, (1,) * len(shape), rank=3), method, rules)
    assert outcome.reason is StopReason.GRADIENT
    assert outcome.certificate.relative_gap > rules.gap_tolerance
    assert outcome.state.gradient_norm <= 1e-5 * outcome.state.evaluation.cost


@pytest.mark.parametrize("limit", [0, 3])
def test_the_iteration_limit_ends_the_run_with_a_certificate(method, limit):
    outcome = run(random_problem(SHAPE, RANKS), method, StopRules(max_iterations=limit))
    assert outcome.reason is StopReason.ITERATIONS
    assert [row.iteration for row in outcome.records] == list(range(limit + 1))
    assert outcome.records[-1].primal == outcome.certificate.primal


def test_the_time_limit_ends_the_run(method):
    clock = functools.partial(next, itertools.count(1.0))  # every look takes a second
    rules = StopRules(max_seconds=5.0)
    outcome = run(random_problem(SHAPE, RANKS), method, rules, clock=clock)
    assert outcome.reason is StopReason.SECONDS
    assert [row.seconds for row in outcome.records] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_rounding_ends_the_run_when_nothing_else_does(shape, method):
    rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=5000)
    outcome = run(random_problem(shape, (2,) * len(shape)), method, rules)
    assert outcome.reason in (StopReason.EXHAUSTED, StopReason.GRADIENT)
    assert outcome.state.gradient_norm <= 1e-7 * outcome.state.evaluation.cost


def test_inner_solves_that_stop_early_are_named_when_progress_ends(method):
    def capped(A, y, rtol, start):
        return solve_with_residual(A, y, max(rtol, 0.05), start)

    rules = StopRules(gap_tolerance=0.0, max_iterations=2000)
    outcome = run(random_problem(SHAPE, RANKS, solver=capped), method, rules)
    assert outcome.reason is StopReason.INNER_LIMIT
    assert not outcome.records[-1].inner_converged
    assert outcome.records[-1].inner_residual == pytest.approx(0.05)


def test_a_start_off_the_manifold_is_refused(method):
    problem = truncated(SHAPE)
    with pytest.raises(InvalidInput):
        minimise(problem, method, scale(2.0, start_of(problem)), RULES)


# ---- going on, Ctrl-C and the clock ---------------------------------------------------------


@pytest.mark.parametrize("pause", [0, 7])
def test_a_run_stopped_and_continued_equals_an_uninterrupted_one(shape, method, pause):
    whole = uninterrupted(shape, method)
    first = run(truncated(shape), method, dataclasses.replace(SHORT, max_iterations=pause))
    second = minimise(truncated(shape), method, first.state, SHORT)
    assert_identical(second.state, whole.state)
    assert_identical(second.certificate, whole.certificate)
    assert second.reason is whole.reason
    rows = first.records + second.records
    assert [(r.iteration, r.cost) for r in rows] == [(r.iteration, r.cost) for r in whole.records]


@either_end
@pytest.mark.parametrize("kind", ["evaluate", "gradient"])
def test_a_step_that_is_broken_off_leaves_the_last_accepted_state(shape, method, kind, error):
    problem, listener = broken_off(truncated(shape), kind, 9, error), Listener()
    outcome = run(problem, method, SHORT, observers=[listener], certify_every=100)
    assert outcome.reason is ENDS[error]
    assert outcome.state is listener.seen[-1][1]
    assert tuple(record for record, _ in listener.seen) == outcome.records
    for number, (record, state) in enumerate(listener.seen):
        assert (record.iteration, record.cost) == (number, state.evaluation.cost)
    assert 0 < outcome.state.iteration < SHORT.max_iterations
    exact = truncated(shape)
    assert_identical(outcome.certificate, exact.certify(outcome.evaluation))
    assert_identical(outcome.evaluation.point, outcome.state.evaluation.point)
    going_on = minimise(exact, method, outcome.state, SHORT)
    assert_identical(going_on.state, uninterrupted(shape, method).state)


@either_end
def test_a_certificate_that_is_broken_off_is_made_again(method, error):
    problem = broken_off(truncated(SHAPE), "certify", 1, error)
    outcome = run(problem, method, certify_every=2)
    assert outcome.reason is ENDS[error]
    assert outcome.state.iteration == 2
    assert_identical(outcome.certificate, truncated(SHAPE).certify(outcome.evaluation))


@pytest.mark.parametrize(("kind", "always"), [("certify", True), ("evaluate", False)])
def test_a_second_interrupt_or_one_before_there_is_a_state_is_raised(method, kind, always):
    problem = broken_off(truncated(SHAPE), kind, 1, KeyboardInterrupt, always=always)
    with pytest.raises(KeyboardInterrupt):
        run(problem, method, certify_every=2)


def test_out_of_time_before_there_is_a_state_the_start_is_evaluated_all_the_same(method):
    outcome = run(broken_off(truncated(SHAPE), "evaluate", 1, OutOfTime), method)
    assert outcome.reason is StopReason.SECONDS
    assert outcome.state.iteration == 0
    assert_identical(outcome.evaluation.point, start_of(truncated(SHAPE)))


def test_out_of_time_nothing_more_is_solved_for_the_certificate(method):
    problem = broken_off(truncated(SHAPE), "evaluate", 12, OutOfTime, always=True)
    outcome = run(problem, method)
    assert outcome.reason is StopReason.SECONDS
    assert outcome.evaluation is outcome.state.evaluation
    assert_identical(outcome.certificate, problem.certify(outcome.evaluation))


@either_end
def test_growth_that_is_broken_off_leaves_the_ranks_of_the_last_state(method, error):
    problem = truncated(SHAPE)

    def grow(evaluation, gradient_norm):
        broken_off(problem, "gradient", 1, error)
        wide = random_problem(SHAPE, (3, 3, 3))
        return wide.evaluate(start_of(wide), rtol=1e-3, warm=None)

    outcome = run(problem, method, grow=grow)
    assert outcome.reason is ENDS[error]
    assert problem.manifold.ranks == outcome.records[-1].ranks == RANKS


# ---- patience -------------------------------------------------------------------------------


def run_with_errors(patience, rules=RULES, best=BEST, problem=None, **options):
    """A run whose error falls until an iteration and rises from it; and its points."""
    points = []

    def validate(evaluation):
        points.append(evaluation.point)
        return abs(len(points) - 1 - best) + 1.0

    problem = problem or random_problem(SHAPE, (3, 3, 3))
    method = ConjugateGradient()
    return run(problem, method, rules, validate=validate, patience=patience, **options), points


@pytest.mark.parametrize("wait", [1, 3])
def test_without_a_smaller_error_the_run_ends_at_the_best_point(wait):
    outcome, points = run_with_errors(Patience(wait))
    assert outcome.reason is StopReason.VALIDATION
    assert [row.iteration for row in outcome.records] == list(range(BEST + wait + 2))
    assert_identical(outcome.state.evaluation.point, points[BEST])
    assert outcome.records[-1].event == f"went back to iteration {BEST}"
    assert outcome.records[-1].primal == outcome.certificate.primal
    assert outcome.evaluation.point is outcome.state.evaluation.point


@pytest.mark.parametrize("reason", [StopReason.ITERATIONS, StopReason.SECONDS])
def test_a_limit_ends_the_run_at_the_best_point_too_and_keeps_its_reason(reason):
    problem, rules = random_problem(SHAPE, (3, 3, 3)), RULES
    if reason is StopReason.ITERATIONS:
        rules = dataclasses.replace(RULES, max_iterations=6)
    else:
        broken_off(problem, "gradient", 8, OutOfTime)  # in the seventh step
    outcome, points = run_with_errors(Patience(100), rules, problem=problem)
    assert outcome.reason is reason
    assert [row.iteration for row in outcome.records] == list(range(8))
    assert_identical(outcome.state.evaluation.point, points[BEST])


@pytest.mark.parametrize("best", [100, float("nan")])
def test_a_run_without_a_better_point_than_its_last_does_not_go_back(best):
    rules = dataclasses.replace(RULES, max_iterations=6)
    outcome, _ = run_with_errors(Patience(2), rules, best)
    assert outcome.reason is StopReason.ITERATIONS
    assert len(outcome.records) == 7


def test_progress_restores_what_patience_remembers():
    first, second = Patience(3), Patience(3)
    assert first.progress() == {}
    run_with_errors(first, dataclasses.replace(RULES, max_iterations=2), 1)
    second.go_on(first.progress())
    assert (second.error, second.iteration, second.ended) == (1.0, 1, StopReason.ITERATIONS)
    assert_identical(second.point, first.point)


# ---- certificates ---------------------------------------------------------------------------


def test_certificates_come_at_their_interval_and_at_the_end_validation_always(method):
    rules = dataclasses.replace(RULES, gradient_tolerance=0.0, max_iterations=8)
    outcome = run(truncated(SHAPE), method, rules, certify_every=3, validate=lambda e: e.cost)
    measured = [row.iteration for row in outcome.records if row.relative_gap is not None]
    assert measured == [3, 6, 8]
    assert all(row.validation_rmse is not None for row in outcome.records)


def test_certificates_change_no_steps_and_cost_no_solve_where_the_gap_is_wide_open(shape, method):
    rules = dataclasses.replace(SHORT, gap_tolerance=1e-6, max_iterations=8)
    often, seldom = (run(truncated(shape), method, rules, certify_every=n) for n in (1, 1000))
    assert_identical(often.state, seldom.state)
    assert often.certificate == seldom.certificate
    # In the end, when it is promised, the gap is as sharp as the solve allows.
    assert often.records[-1].inner_iterations == seldom.records[-1].inner_iterations
    for row, other in zip(often.records[1:-1], seldom.records[1:-1], strict=True):
        assert row.relative_gap is not None
        assert row.relative_gap < 0.1 or row.inner_iterations == other.inner_iterations


def test_a_certificate_is_solved_for_as_tightly_as_its_gap_needs(method):
    problem = random_problem(SHAPE, SHAPE, solver=solve_by_conjugate_gradients)
    outcome = run(problem, method, StopRules(gap_tolerance=1e-4))
    assert outcome.reason is StopReason.GAP
    share = outcome.state.noise_scale * outcome.evaluation.inner.residual**2
    assert share <= 0.1 * 1e-4 * outcome.evaluation.cost * 1.01
