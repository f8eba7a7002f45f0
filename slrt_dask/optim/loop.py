"""The one loop of all methods: ask the rules, certify, report, step.

Nothing but the state passes from one iteration to the next, so that a run may be stopped anywhere
and continued from its last state. Ctrl-C (KeyboardInterrupt) and the time limit (OutOfTime) may
also end a solve in the middle of a step: the step is dropped, and the last accepted state remains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol

from slrt_dask import interrupts
from slrt_dask.errors import OutOfTime
from slrt_dask.optim.manifold import Point, ranks_of
from slrt_dask.optim.problem import Accuracy, AnyProblem, Certificate, Evaluation, MeasuredProblem
from slrt_dask.optim.records import IterationRecord, MethodState, Observer, StateType
from slrt_dask.optim.stopping import NOTHING_TO_GAIN, STAGE_ENDS, Patience, StopReason, StopRules

BOUNDS = ("paper_gap", "primal", "dual", "relative_gap", "violation", "complementarity")
"""Columns of the history that are those of a certificate."""
SETTLED = 1e-7
"""By how much of ‖y‖ constraints may be missed where no further step makes them hold."""
SMALLEST_GAP = 1e-6
"""Inner problems are not solved for gaps smaller than this, even where none would do."""
OPEN, NOISY = 10.0, 0.2
"""A gap so many times larger than the one asked for, of which the inner solve leaves open at most
this part, is reported on the way without a tighter solve."""

Grow = Callable[[Any, float], Evaluation | None]
"""From an evaluation that was certified, and a gradient norm, to one of other ranks; or None."""
Validate = Callable[[Any], float]
"""From an evaluation to its error on held-out observations."""


class Method(Protocol[StateType]):
    """A way of stepping downhill."""

    @property
    def accuracy(self) -> Accuracy:
        """How tightly inner problems are solved."""

    def init(self, problem: AnyProblem, point: Point, warm: Evaluation | None = None) -> StateType:
        """The state at a starting point; `warm` is where its inner solve may start."""

    def step(self, problem: AnyProblem, state: StateType) -> StateType:
        """The state after one more step, or the same point marked exhausted."""


@dataclass(frozen=True)
class Certified:
    """A certificate, the evaluation it is of, and the effort of solving that tightly enough."""

    certificate: Certificate
    evaluation: Evaluation
    inner_iterations: int = 0
    inner_converged: bool = True


@dataclass(frozen=True)
class Outcome(Generic[StateType]):
    """How a run ended."""

    state: StateType
    """The last accepted state: pass it to `minimise` to go on."""
    reason: StopReason
    records: tuple[IterationRecord, ...]
    """One row for every iteration of this call, the start included unless it was resumed."""
    certificate: Certificate
    """Of the last accepted point."""
    evaluation: Evaluation
    """The state's point as it was certified: solved at least as tightly as in the state."""


@interrupts.interrupts_deferred()
def minimise(
    problem: AnyProblem,
    method: Method[StateType],
    start: StateType | Point,
    rules: StopRules,
    *,
    certify_every: int = 10,
    observers: Sequence[Observer[StateType]] = (),
    clock: Callable[[], float] = time.monotonic,
    validate: Validate | None = None,
    grow: Grow | None = None,
    patience: Patience | None = None,
    elapsed: float = 0.0,
    event: str = "",
) -> Outcome[StateType]:
    """Run a method from a point, or from the state of an earlier run, until a rule ends it.

    The certificate is computed every certify_every iterations and whenever the run would end, the
    validation error every iteration. After a certificate, and before the run would end for want of
    anything to gain, `grow` may give a point of other ranks to go on from. With patience the run
    ends at the point whose validation error was the least, for which it makes one more iteration.
    Ctrl-C, or a KeyboardInterrupt that an observer raises, ends the run at the last accepted state,
    and the certificate is still computed; a second one is raised. OutOfTime, which the problem
    raises, ends it as the time limit does, with the certificate of the evaluation as it is. The
    start is evaluated in any case. elapsed is the time of an earlier part of the run, event a note
    for the first row.
    """
    began = clock() - elapsed
    run = _Run(problem, method, rules, certify_every, observers, grow, patience)
    run.notes = [event] if event else []
    state = start if isinstance(start, MethodState) else run.begin(start)
    run.reported = state.iteration if state is start else -1
    certified: Certified | None = None
    try:
        while True:
            try:
                interrupts.check()
                seconds = clock() - began
                state, certified, reason = run.judged(state, certified, seconds)
                run.report(state, certified, seconds, validate)
                following = run.next(state, certified, reason)
                if following is None:
                    break
                # both at once: an interrupt must never leave a certificate with a newer state
                state, certified = following, None
            except OutOfTime:
                reason = StopReason.SECONDS
                if run.late:
                    break
                run.late = True
    except KeyboardInterrupt:
        if interrupts.REQUESTED.is_set():  # a second one came before the first was seen
            raise
        reason = StopReason.INTERRUPTED
    certified = certified or run.last_certified(state)
    state = _settled(state, certified, rules)
    run.report(state, certified, clock() - began, None)
    assert reason is not None  # without one there is a following state
    return Outcome(state, reason, tuple(run.records), certified.certificate, certified.evaluation)


@dataclass
class _Run(Generic[StateType]):
    """The parts of an iteration, the arguments of the run, and its history.

    notes : events for the next row
    late : whether the problem has run out of time
    reported, swept : the iteration of the last row, and the sweeps until then
    """

    problem: AnyProblem
    method: Method[StateType]
    rules: StopRules
    certify_every: int
    observers: Sequence[Observer[StateType]]
    grow: Grow | None
    patience: Patience | None
    records: list[IterationRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    late: bool = False
    reported: int = -1
    swept: int = 0

    def begin(self, point: Point) -> StateType:
        """The first state; it is needed for any answer, so that time may run out only once."""
        try:
            return self.method.init(self.problem, point)
        except OutOfTime:
            self.late = True
            return self.method.init(self.problem, point)

    def judged(
        self, state: StateType, certified: Certified | None, seconds: float
    ) -> tuple[StateType, Certified | None, StopReason | None]:
        """The state with its certificate, where one is due, and why the run should end here."""
        back = None if self.patience is None else self.patience.ended
        if self.late:
            return state, certified or self._as_it_is(state), back or StopReason.SECONDS
        stage = self.rules.loosened(self.problem.looseness)
        stage = replace(stage, chosen=stage.chosen or back is not None)
        reason = back or stage.reason(state, seconds)
        due = state.iteration > 0 and state.iteration % self.certify_every == 0
        # growth soon leaves the ranks that it begins with
        if reason is not None or due or (self.grow is not None and state.iteration == 1):
            certified = self._certified(state, stage, rough=reason is None)
            state = _settled(state, certified, stage)
            if back is None and stage.gap_is_closed(certified.certificate):
                reason = StopReason.GAP
        return state, certified, reason

    def next(
        self, state: StateType, certified: Certified | None, reason: StopReason | None
    ) -> StateType | None:
        """The state to go on from; None to end."""
        problem, method = self.problem, self.method
        if certified is not None and self.grow is not None and reason in (None, *NOTHING_TO_GAIN):
            wider = self.grow(certified.evaluation, 0.0 if reason else state.gradient_norm)
            if wider is not None:
                return _moved(problem, method, state, wider)
        if reason in STAGE_ENDS and problem.next_stage():
            try:
                return _moved(problem, method, state, state.evaluation)
            except BaseException:
                problem.stay()  # the state that is kept belongs to the problem before
                raise
        if self.patience and (why := self.patience.reason_to_go_back(state, reason)):
            best = _moved(problem, method, state, state.evaluation, self.patience.point)
            self.notes.append(f"went back to iteration {self.patience.iteration}")
            self.patience.ended = why
            return best
        return method.step(problem, state) if reason is None else None

    def report(
        self,
        state: StateType,
        certified: Certified | None,
        seconds: float,
        validate: Validate | None,
    ) -> None:
        """Add the row of a state to the history, once, and pass it to the observers.

        The solve that was made for its certificate is counted in it.
        """
        if state.iteration == self.reported:
            if not self.late:  # a resumed state: its certificate was counted with its own row
                self.swept = self.problem.sweeps
            return
        known = certified.evaluation if certified else state.evaluation
        error = validate(known) if validate else None
        sweeps, self.swept = self.problem.sweeps - self.swept, self.problem.sweeps
        if self.patience is not None and error is not None and self.problem.looseness == 1.0:
            self.patience.see(state, error)
        bounds: dict[str, Any] = dict.fromkeys(BOUNDS)
        inner_iterations, inner_converged = state.inner_iterations, state.inner_converged
        if certified is not None:
            bounds = {name: getattr(certified.certificate, name) for name in BOUNDS}
            inner_iterations += certified.inner_iterations
            inner_converged &= certified.inner_converged
        record = IterationRecord(
            iteration=state.iteration,
            cost=state.evaluation.cost,
            gradient_norm=state.gradient_norm,
            **bounds,
            inner_iterations=inner_iterations,
            inner_residual=state.evaluation.inner.residual,
            inner_converged=inner_converged,
            sweeps=sweeps,
            step=state.step,
            seconds=seconds,
            ranks=ranks_of(state.evaluation.point),
            validation_rmse=error,
            event="; ".join(self.notes),
        )
        self.records.append(record)
        self.notes.clear()
        self.reported = state.iteration
        for observer in self.observers:
            observer.on_record(record, state)

    def last_certified(self, state: StateType) -> Certified:
        """The certificate of a run that was broken off."""
        if not self.late:
            with suppress(OutOfTime):
                return self._certified(state, self.rules)
        return self._as_it_is(state)

    def _certified(self, state: StateType, rules: StopRules, *, rough: bool = False) -> Certified:
        """The certificate of a state, its inner problem first solved as tightly as the gap needs.

        The state keeps its own evaluation, so that a certificate never changes the course of a run,
        unless there is none to come (`_settled`).
        rough : on the way bounds need not be as tight as in the end, nor inner problems, where the
            gap is wide open anyway
        """
        accuracy, cost = self.method.accuracy, state.evaluation.cost
        tolerance = max(rules.gap_tolerance, SMALLEST_GAP)
        rtol = accuracy.certificate_tolerance(tolerance, cost, state.noise_scale)
        measured = MeasuredProblem(self.problem, accuracy, state.noise_scale)
        if rough:
            loose: Certificate = self.problem.certify(state.evaluation, rough=True)
            noise = measured.noise(state.evaluation)
            if loose.relative_gap > OPEN * tolerance and noise <= NOISY * loose.gap:
                return Certified(loose, state.evaluation)
        evaluation = measured.refine(state.evaluation, rtol=rtol)
        if rules.chosen:
            evaluation = self.problem.settle(evaluation, rtol=min(rtol, SETTLED))
        tight: Certificate = self.problem.certify(evaluation, rough=rough)
        return Certified(tight, evaluation, measured.inner_iterations, measured.inner_converged)

    def _as_it_is(self, state: StateType) -> Certified:
        """The certificate of a state without another solve."""
        return Certified(self.problem.certify(state.evaluation), state.evaluation)


def _settled(state: StateType, certified: Certified, rules: StopRules) -> StateType:
    """The state as it was certified, where constraints were made to hold and no step follows.

    A checkpoint keeps the problem's multipliers as they are by then: with the evaluation from
    before, a run that goes on from it would end elsewhere.
    """
    return replace(state, evaluation=certified.evaluation) if rules.chosen else state


def _moved(
    problem: AnyProblem,
    method: Method[StateType],
    state: StateType,
    to: Evaluation,
    point: Point | None = None,
) -> StateType:
    """Begin at a point of other ranks, or at the same under another problem: an iteration.

    point : where to begin, if not where `to` is, whose dual is then only a start
    """
    point = to.point if point is None else point
    problem.reshape(ranks_of(point))
    try:
        fresh = method.init(problem, point, warm=to)
    except BaseException:
        problem.reshape(ranks_of(state.evaluation.point))
        raise
    return replace(fresh, iteration=state.iteration + 1)
