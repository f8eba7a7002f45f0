"""Stopping anywhere, going on, and telling others."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from slrt_dask.errors import InvalidInput
from slrt_dask.optim import StopReason, StopRules, minimise
from slrt_dask.optim.manifold import scale
from tests.oracles.dense import random_problem, solve_by_conjugate_gradients

RULES = StopRules(gap_tolerance=0.0, gradient_tolerance=1e-6, max_iterations=60)
SHORT = dataclasses.replace(RULES, max_iterations=16)


def start_of(problem):
    return problem.manifold.random_point(np.random.default_rng(5))


def truncated(shape):
    return random_problem(shape, (2,) * len(shape), solver=solve_by_conjugate_gradients)


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


class InterruptedProblem:
    """Passes questions on until a given call of a given kind, then interrupts, once or always."""

    def __init__(self, problem, kind, call, *, always=False):
        self.problem, self.kind, self.call, self.always = problem, kind, call, always
        self.manifold = problem.manifold
        self.calls = 0

    @property
    def sweeps(self):
        return self.problem.sweeps

    def _ask(self, kind, *arguments, **options):
        if kind == self.kind:
            self.calls += 1
            if self.calls == self.call or (self.always and self.calls > self.call):
                raise KeyboardInterrupt
        return getattr(self.problem, kind)(*arguments, **options)

    def evaluate(self, point, *, rtol, warm):
        return self._ask("evaluate", point, rtol=rtol, warm=warm)

    def renew(self, evaluation, *, rtol):
        return self._ask("renew", evaluation, rtol=rtol)

    looseness = 1.0

    def next_stage(self):
        return False

    def gradient(self, evaluation):
        return self._ask("gradient", evaluation)

    def hessian(self, evaluation, direction, *, rtol):
        return self._ask("hessian", evaluation, direction, rtol=rtol)

    def certify(self, evaluation, *, rough=False):
        return self._ask("certify", evaluation)


@functools.cache
def uninterrupted(shape, method):
    return minimise(truncated(shape), method, start_of(truncated(shape)), SHORT)


@pytest.mark.parametrize("pause", [0, 7])
def test_a_run_stopped_and_continued_equals_an_uninterrupted_one(shape, method, pause):
    whole = uninterrupted(shape, method)
    first = minimise(
        truncated(shape),
        method,
        start_of(truncated(shape)),
        dataclasses.replace(SHORT, max_iterations=pause),
    )
    second = minimise(truncated(shape), method, first.state, SHORT)
    assert_identical(second.state, whole.state)
    assert_identical(second.certificate, whole.certificate)
    assert second.reason is whole.reason
    rows = first.records + second.records
    assert [row.iteration for row in rows] == [row.iteration for row in whole.records]
    assert [row.cost for row in rows] == [row.cost for row in whole.records]


@pytest.mark.parametrize("kind", ["evaluate", "gradient"])
def test_an_interrupt_in_a_step_keeps_the_last_accepted_state(shape, method, kind):
    problem = InterruptedProblem(truncated(shape), kind, 9)
    listener = Listener()
    outcome = minimise(
        problem, method, start_of(problem), SHORT, observers=[listener], certify_every=100
    )
    assert outcome.reason is StopReason.INTERRUPTED
    assert outcome.state is listener.seen[-1][1]
    assert 0 < outcome.state.iteration < SHORT.max_iterations
    exact = truncated(shape)
    assert_identical(outcome.certificate, exact.certify(outcome.evaluation))
    assert_identical(outcome.evaluation.point, outcome.state.evaluation.point)
    going_on = minimise(exact, method, outcome.state, SHORT)
    assert_identical(going_on.state, uninterrupted(shape, method).state)


def test_an_interrupt_while_certifying_still_gives_a_certificate(method):
    problem = InterruptedProblem(truncated((6, 5, 4)), "certify", 1)
    outcome = minimise(problem, method, start_of(problem), RULES, certify_every=2)
    assert outcome.reason is StopReason.INTERRUPTED
    assert outcome.state.iteration == 2
    assert outcome.certificate.gap > 0.0


@pytest.mark.parametrize(("kind", "always"), [("certify", True), ("evaluate", False)])
def test_a_second_interrupt_or_one_before_there_is_a_state_is_raised(method, kind, always):
    problem = InterruptedProblem(truncated((6, 5, 4)), kind, 1, always=always)
    with pytest.raises(KeyboardInterrupt):
        minimise(problem, method, start_of(problem), RULES, certify_every=2)


def test_observers_get_every_iteration_once_with_its_state(method):
    problem = truncated((6, 5, 4))
    first, second = Listener(), Listener()
    outcome = minimise(problem, method, start_of(problem), RULES, observers=[first, second])
    assert tuple(record for record, _ in first.seen) == outcome.records
    assert first.seen == second.seen
    assert [r.iteration for r in outcome.records] == list(range(outcome.state.iteration + 1))
    for record, state in first.seen:
        assert record.cost == state.evaluation.cost
        assert record.step == state.step
        assert record.ranks == (2, 2, 2)


def test_certificates_come_at_their_interval_and_at_the_end_validation_always(method):
    problem = truncated((6, 5, 4))
    rules = dataclasses.replace(RULES, gradient_tolerance=0.0, max_iterations=8)
    outcome = minimise(
        problem, method, start_of(problem), rules, certify_every=3, validate=lambda e: e.cost
    )
    measured = [row.iteration for row in outcome.records if row.relative_gap is not None]
    assert measured == [3, 6, 8]
    assert all(row.validation_rmse is not None for row in outcome.records)


def test_a_certificate_does_not_change_the_course_of_a_run(shape, method):
    problem = truncated(shape)
    often = minimise(problem, method, start_of(problem), SHORT, certify_every=1)
    seldom = minimise(problem, method, start_of(problem), SHORT, certify_every=1000)
    assert_identical(often.state, seldom.state)


def test_a_start_off_the_manifold_is_refused(method):
    problem = truncated((6, 5, 4))
    with pytest.raises(InvalidInput, match="norm"):
        minimise(problem, method, scale(2.0, start_of(problem)), RULES)


def test_a_gap_that_is_wide_open_is_reported_without_a_tighter_solve(shape, method):
    rules = dataclasses.replace(SHORT, gap_tolerance=1e-6, max_iterations=4)
    often, seldom = (
        minimise(truncated(shape), method, start_of(truncated(shape)), rules, certify_every=every)
        for every in (1, 100)
    )
    certified = [row for row in often.records[:-1] if row.relative_gap is not None]
    assert certified
    for row, other in zip(often.records[:-1], seldom.records[:-1], strict=True):
        assert row.cost == other.cost
        if row.relative_gap is not None and row.relative_gap > 0.1:
            assert row.inner_iterations == other.inner_iterations
    # In the end, when it is promised, the gap is as sharp as the solve allows.
    assert often.records[-1].inner_iterations == seldom.records[-1].inner_iterations
    assert often.certificate == seldom.certificate
