"""The one loop of all methods: ask the rules, tell the observers, step.

Nothing but the state passes from one iteration to the next, so a run may be stopped anywhere and
continued from its last state. This file changes when the order of those events does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from slrt_dask import interrupts
from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.manifold import Point, ranks_of
from slrt_dask.optim.measured import MeasuredProblem
from slrt_dask.optim.method import Method, MethodState, StateType
from slrt_dask.optim.patience import Patience
from slrt_dask.optim.problem import AnyProblem, Certificate, Evaluation
from slrt_dask.optim.records import IterationRecord, Observer
from slrt_dask.optim.stopping import NOTHING_TO_GAIN, STAGE_ENDS, StopReason, StopRules

SETTLED = 1e-7
"""By how much of ‖y‖ constraints may be missed where no further step makes them hold."""
SMALLEST_GAP = 1e-6
"""Inner problems are not solved for gaps smaller than this, even where none would do."""
OPEN, NOISY = 10.0, 0.2
"""A gap so many times larger than the one asked for, of which what the inner solve leaves open is
at most this part, is told on the way without a tighter solve."""


Grow = Callable[[Any, float], Evaluation | None]
"""From an evaluation that was certified, and a gradient norm, to one of other ranks; or None."""


@dataclass(frozen=True)
class Certified:
    """A certificate, the evaluation it is of, and what it cost to solve that tightly enough."""

    certificate: Certificate
    evaluation: Evaluation
    inner_iterations: int
    inner_converged: bool


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
    validate: Callable[[Any], float] | None = None,
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
    and the certificate is still computed; a second one is raised. elapsed is the time that an
    earlier part of the run took, event what is to be told with the first row.
    """
    if certify_every < 1:
        raise InvalidConfig(f"certify_every is {certify_every}; give 1 or more")
    began = clock() - elapsed
    told = isinstance(start, MethodState)
    swept = problem.sweeps if told else 0
    state: StateType = start if isinstance(start, MethodState) else method.init(problem, start)
    records: list[IterationRecord] = []
    certified: Certified | None = None
    notes = [event] if event else []

    def tell(certified: Certified | None, seconds: float, error: float | None) -> None:
        nonlocal told, swept
        effort, swept = problem.sweeps - swept, problem.sweeps
        if patience is not None and error is not None and problem.looseness == 1.0:
            patience.see(state, error)
        row = _record(state, certified, seconds, effort, error)
        records.append(replace(row, event="; ".join(notes)))
        notes.clear()
        told = True
        for observer in observers:
            observer.on_record(records[-1], state)

    try:
        while True:
            interrupts.check()
            seconds = clock() - began
            stage = rules.loosened(problem.looseness)
            back = None if patience is None else patience.ended
            stage = replace(stage, chosen=stage.chosen or back is not None)
            reason = back or stage.reason(state, seconds)
            if reason is not None or _is_due(state, certify_every, grow is not None):
                rough = reason is None
                certified = certify(problem, method, state, stage, rough=rough, as_it_is=rough)
                state = _settled(state, certified, stage)
                if back is None and stage.gap_is_closed(certified.certificate):
                    reason = StopReason.GAP
            if told:  # a resumed state: what its certificate took was counted with its own row
                swept = problem.sweeps
            else:
                known = certified.evaluation if certified else state.evaluation
                tell(certified, seconds, validate(known) if validate else None)
            wider = _grown(grow, state, certified, reason)
            # in this order: an interrupt must never leave a certificate beside a newer state
            if wider is not None:
                certified, told, state = None, False, _moved(problem, method, state, wider)
            elif reason in STAGE_ENDS and (staged := _staged(problem, method, state)):
                certified, told, state = None, False, staged
            elif patience is not None and (why := patience.reason_to_go_back(state, reason)):
                best = _moved(problem, method, state, state.evaluation, patience.point)
                notes.append(f"went back to iteration {patience.iteration}")
                certified, told, state, patience.ended = None, False, best, why
            elif reason is not None:
                break
            else:
                certified, told, state = None, False, method.step(problem, state)
    except KeyboardInterrupt:
        if interrupts.REQUESTED.is_set():  # a second one came before the first was seen
            raise
        reason = StopReason.INTERRUPTED
    certified = certified or certify(problem, method, state, rules)
    state = _settled(state, certified, rules)
    if not told:
        tell(certified, clock() - began, None)
    return Outcome(state, reason, tuple(records), certified.certificate, certified.evaluation)


def certify(
    problem: AnyProblem,
    method: Method[StateType],
    state: StateType,
    rules: StopRules,
    *,
    rough: bool = False,
    as_it_is: bool = False,
) -> Certified:
    """The certificate of a state, its inner problem first solved as tightly as the gap asks for.

    The state keeps its own evaluation, so that a certificate never changes the course of a run,
    unless there is none to come (`_settled`).
    rough : on the way bounds need not be as tight as in the end
    as_it_is : nor inner problems, where the gap is wide open anyway
    """
    accuracy, cost = method.accuracy, state.evaluation.cost
    tolerance = max(rules.gap_tolerance, SMALLEST_GAP)
    rtol = accuracy.certificate_tolerance(tolerance, cost, state.noise_scale)
    measured = MeasuredProblem(problem, accuracy, state.noise_scale)
    if as_it_is:
        loose: Certificate = problem.certify(state.evaluation, rough=True)
        noise = measured.noise(state.evaluation)
        if loose.relative_gap > OPEN * tolerance and noise <= NOISY * loose.gap:
            return Certified(loose, state.evaluation, 0, True)
    evaluation = measured.refine(state.evaluation, rtol=rtol)
    if rules.chosen:
        evaluation = problem.settle(evaluation, rtol=min(rtol, SETTLED))
    certificate: Certificate = problem.certify(evaluation, rough=rough)
    return Certified(
        certificate,
        evaluation,
        measured.inner_iterations,
        measured.inner_converged,
    )


def _settled(state: StateType, certified: Certified, rules: StopRules) -> StateType:
    """The state as it was certified, where constraints were made to hold and no step follows.

    A checkpoint keeps the problem's multipliers as they are by then: with the evaluation from
    before, a run that goes on from it would end elsewhere.
    """
    return replace(state, evaluation=certified.evaluation) if rules.chosen else state


def _grown(
    grow: Grow | None, state: MethodState, certified: Certified | None, reason: StopReason | None
) -> Evaluation | None:
    """A point of other ranks to go on from, if there is one; not where a limit ends the run."""
    if grow is None or certified is None or reason not in (None, *NOTHING_TO_GAIN):
        return None
    return grow(certified.evaluation, state.gradient_norm if reason is None else 0.0)


def _staged(problem: AnyProblem, method: Method[StateType], state: StateType) -> StateType | None:
    """The state under the next problem on the way to the one asked for; None if there is none."""
    if not problem.next_stage():
        return None
    try:
        return _moved(problem, method, state, state.evaluation)
    except BaseException:
        problem.stay()  # the state that is kept belongs to the problem before
        raise


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
    fresh = method.init(problem, point, warm=to)
    return replace(fresh, iteration=state.iteration + 1)


def _is_due(state: MethodState, certify_every: int, growing: bool) -> bool:
    """Whether to certify on the way. The ranks that growth begins with are not worth many steps."""
    due = state.iteration > 0 and state.iteration % certify_every == 0
    return due or (growing and state.iteration == 1)


def _record(
    state: MethodState,
    certified: Certified | None,
    seconds: float,
    sweeps: int,
    validation_rmse: float | None,
) -> IterationRecord:
    """The row of a state; the solve made for its certificate is counted in it."""
    bounds = certified.certificate if certified else None
    return IterationRecord(
        iteration=state.iteration,
        cost=state.evaluation.cost,
        gradient_norm=state.gradient_norm,
        paper_gap=bounds.paper_gap if bounds else None,
        primal=bounds.primal if bounds else None,
        dual=bounds.dual if bounds else None,
        relative_gap=bounds.relative_gap if bounds else None,
        violation=bounds.violation if bounds else None,
        complementarity=bounds.complementarity if bounds else None,
        inner_iterations=state.inner_iterations + (certified.inner_iterations if certified else 0),
        inner_residual=state.evaluation.inner.residual,
        inner_converged=state.inner_converged and (not certified or certified.inner_converged),
        sweeps=sweeps,
        step=state.step,
        seconds=seconds,
        ranks=ranks_of(state.evaluation.point),
        validation_rmse=validation_rmse,
    )
