"""One fit from an engine to a model on disk: problem, start or checkpoint, loop, writing."""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from slrt_dask.checkpoint import (
    Cadence,
    Checkpoint,
    CheckpointObserver,
    drop_checkpoint,
    read_checkpoint,
)
from slrt_dask.completion import Completion
from slrt_dask.config import FitSettings
from slrt_dask.data.holding_out import SINGLY
from slrt_dask.data.location import naming_full_disk
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.offsets import Offset
from slrt_dask.dual.problem import Evaluation, InnerSummary
from slrt_dask.dual.rank_growth import RankGrowth
from slrt_dask.dual.start import spectral_start
from slrt_dask.dual.writing import (
    read_dual_files,
    read_places,
    write_dual_files,
)
from slrt_dask.engine.base import Engine
from slrt_dask.engine.plan import Plan
from slrt_dask.errors import StoreCorrupt
from slrt_dask.keeping import RunObserver
from slrt_dask.optim.loop import minimise
from slrt_dask.optim.manifold import Point, ranks_of
from slrt_dask.optim.methods import ConjugateGradient, LimitedMemory, TrustRegion
from slrt_dask.optim.problem import Accuracy
from slrt_dask.optim.records import IterationRecord, MethodState, Observer
from slrt_dask.optim.stopping import Patience, StopRules
from slrt_dask.posing import AnyProblem, problem_of
from slrt_dask.results import joined, write_result
from slrt_dask.runs import RunDirectory, Start
from slrt_dask.show.progress import LogObserver
from slrt_dask.spending import Cause
from slrt_dask.usage import UsageKeeper

logger = logging.getLogger("slrt_dask")
USUAL_EVERY, GROWING_EVERY = 10, 3
"""Iterations between certificates, which also tell where ranks should grow."""
LONG_MEMORY, SMALL_FACTORS = 30, 100_000
"""Steps remembered on the long way to a closed gap, where factors have no more numbers than this:
twice as many numbers are kept for every step, by the driver and in checkpoints."""
JUDGED_AT = 1e-3
"""The inner residual at which errors are compared: looser solves regularise by themselves."""
METHODS: dict[str, Callable[..., Any]] = {
    "lbfgs": LimitedMemory,
    "rcg": ConjugateGradient,
    "rtr": TrustRegion,
}


@dataclass(frozen=True)
class Fit:
    """A fit on an engine that holds its observations.

    offset : what was subtracted from the observations, and is added to answers
    validation : held-out observations, if there are any
    plan : by which it was placed
    start : where to start from; from the observations' leading directions if None
    patience : who remembers the best point, where the fit is to end at it
    """

    engine: Engine
    problem: AnyProblem
    settings: FitSettings
    offset: Offset
    validation: ObservationStore | None
    plan: Plan
    start: Start | None = None
    patience: Patience | None = None

    @classmethod
    def of(
        cls,
        engine: Engine,
        settings: FitSettings,
        offset: Offset,
        validation: ObservationStore | None,
        plan: Plan,
        start: Start | None = None,
    ) -> Fit:
        problem = problem_of(engine, settings, offset.mean, plan.extra)
        patience = None
        if settings.patience is not None and validation is not None:
            patience = Patience(settings.patience)
        return cls(engine, problem, settings, offset, validation, plan, start, patience)

    def run(
        self,
        run: RunDirectory | None,
        observers: Sequence[Observer[Any]],
        cadence: Cadence,
        events: list[str],
        usage: UsageKeeper,
    ) -> Completion:
        """Start, or go on from the run's newest checkpoint; write the result.

        events : what happened before and is not yet in the history; emptied when it is
        usage : keeps with the run what it takes
        """
        if run is None:
            return self._run(None, observers, cadence, events)
        goes_on = f"free some, and slrt-dask resume {shlex.quote(str(run.path))} goes on"
        with (
            naming_full_disk(str(run.path), goes_on),
            usage.attempt(run.path, self.engine, self.plan) as attempt,
        ):
            return self._run(run, [*observers, attempt], cadence, events)

    def _run(
        self,
        run: RunDirectory | None,
        observers: Sequence[Observer[Any]],
        cadence: Cadence,
        events: list[str],
    ) -> Completion:
        state, earlier = (None, ()) if run is None else self._continued(run, events)
        chosen = None if self.start is None else self.start.chosen
        # Iterations that are made again may have told of it already.
        if state is None and chosen and not any(chosen in event for event in events):
            events.append(chosen)
        if state is None and self.problem.notice:
            logger.info("%s", self.problem.notice)
            events.append(self.problem.notice)
        start: Any = self._first_point() if state is None else state
        kept = None if run is None else self._kept(run, cadence, state, events)
        elapsed = earlier[-1].seconds if earlier else 0.0
        if self.settings.max_seconds is not None:
            self.engine.deadline = time.monotonic() + self.settings.max_seconds - elapsed
        outcome = minimise(
            self.problem,
            self._method(accuracy=self._accuracy),
            start,
            StopRules(
                self.settings.gap_tolerance,
                self.settings.gradient_tolerance,
                self.settings.max_iterations,
                self.settings.max_seconds,
                self.settings.chosen,
            ),
            observers=[LogObserver(), *([kept] if kept else []), *observers],
            validate=None if self.validation is None else self._validation_error,
            grow=self._growth,
            patience=self.patience,
            certify_every=GROWING_EVERY if self.settings.certified else USUAL_EVERY,
            elapsed=elapsed,
            event="; ".join(events),
        )
        self.engine.deadline = math.inf
        records = (*earlier, *outcome.records)
        if kept is not None:
            records = kept.end(outcome.state, records)
        with self.engine.stopwatch.on(Cause.RESULT):
            return write_result(self, outcome, records, run)

    @property
    def _growth(self) -> RankGrowth | None:
        return RankGrowth(self.problem, self.settings.ranks) if self.settings.certified else None

    def _first_point(self) -> Point:
        if self.start is not None:
            self.problem.reshape(ranks_of(self.start.point))
            return self.start.point
        return spectral_start(self.problem, self.settings.seed)

    @property
    def _method(self) -> Callable[..., Any]:
        if self.settings.method != "auto":
            return METHODS[self.settings.method]
        # Multipliers move between the steps of a bounded problem, so that what earlier steps told
        # of its curvature is not true for long.
        if self.problem.has_multipliers:
            return ConjugateGradient
        shape, ranks = self.engine.store.shape, self.settings.ranks
        numbers = sum(length * rank for length, rank in zip(shape, ranks, strict=True))
        if self.settings.certified and numbers <= SMALL_FACTORS:
            return partial(LimitedMemory, memory=LONG_MEMORY)
        return LimitedMemory

    @property
    def _accuracy(self) -> Accuracy:
        # The smallest inner residual worth asking for in the precision of the vectors.
        tightest = 1e-12 if self.settings.precision == "float64" else 1e-6
        if not self.settings.certified:
            return Accuracy(tightest=tightest)
        # Many steps with few inner iterations each; but no costs that rise for being better known.
        return Accuracy(factor=0.2, loosest=1e-2, tightest=tightest)

    def _validation_error(self, evaluation: Evaluation) -> float:
        assert self.validation is not None
        if self.patience is not None and evaluation.inner.residual > JUDGED_AT:
            evaluation = self.problem.evaluate(evaluation.point, rtol=JUDGED_AT, warm=evaluation)
        return self.problem.validation_errors(evaluation, self.validation, SINGLY).rmse

    # ---- checkpoints ------------------------------------------------------------------------

    def _continued(
        self, run: RunDirectory, events: list[str]
    ) -> tuple[MethodState | None, tuple[IterationRecord, ...]]:
        """The state of the newest checkpoint, and the history up to it."""
        with self.engine.stopwatch.on(Cause.LOADING):
            state = self._last_state(run)
        kept, dropped = run.keep_records(-1 if state is None else state.iteration)
        # Iterations that are made again happen as if for the first time; what befell them remains.
        events[:0] = [record.event for record in dropped if record.event]
        return state, kept

    def _kept(
        self, run: RunDirectory, cadence: Cadence, state: MethodState | None, events: list[str]
    ) -> RunObserver:
        newest = -1 if state is None else state.iteration
        checkpoints = CheckpointObserver(
            run.checkpoints,
            run.binding,
            self._write_dual_files,
            cadence,
            newest,
            progress=self._progress,
        )
        return RunObserver(run, checkpoints, events, self.engine.stopwatch)

    def _progress(self) -> dict[str, Any]:
        """What a checkpoint has to know of the problem, and of the best point so far."""
        waited = {} if self.patience is None else self.patience.progress()
        return {**self.problem.progress(), **waited}

    def _write_dual_files(self, directory: str, state: MethodState) -> dict[int, int]:
        vectors = (cast(Evaluation, state.evaluation).dual, *self.problem.kept_vectors)
        names = tuple(vector.name for vector in vectors)
        return joined(self.engine.on_shares(write_dual_files, directory, names))

    def _last_state(self, run: RunDirectory) -> MethodState | None:
        while True:
            checkpoint = read_checkpoint(run.checkpoints, run.binding)
            if checkpoint is None:
                return None
            try:
                return checkpoint.state(self._evaluation(checkpoint))
            except StoreCorrupt:
                drop_checkpoint(checkpoint)

    def _evaluation(self, checkpoint: Checkpoint) -> Evaluation:
        """What was known at a checkpoint's point; its dual goes back to where the blocks are."""
        directory, checksums = str(checkpoint.dual), checkpoint.dual_checksums
        if any(self.engine.on_shares(read_places, directory, checksums)):
            number_fibres(self.engine)
        dual, *kept = (self.engine.new_vector() for _ in (0, *self.problem.kept_vectors))
        names = tuple(vector.name for vector in (dual, *kept))
        self.engine.on_shares(read_dual_files, directory, names, checksums)
        self.problem.go_on(checkpoint.progress, tuple(kept))
        if self.patience is not None:
            self.patience.go_on(checkpoint.progress)
        inner = InnerSummary(**checkpoint.scalars["inner"])
        point = checkpoint.matrices("point")
        self.problem.reshape(ranks_of(point))
        return Evaluation(point, float(checkpoint.scalars["cost"]), inner, dual, checkpoint.rows)
