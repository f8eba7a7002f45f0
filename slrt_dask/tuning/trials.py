"""One candidate, fitted on an engine that holds the observations, and judged.

A fit that starts from a good neighbour is soon at its best: its iterations end when the error on
held-out observations has not fallen for a few of them, and the best of them counts. Factors that
are good soon and worse later are no accident: few iterations regularise, as small ranks do.

A trial is a function of its settings and of the factors it starts from: what the engine made of
other trials before has no part in it. It can therefore be made anywhere, and need not be made
again when a search is taken up.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from slrt_dask.config import FitSettings
from slrt_dask.data.holding_out import Kind, SquaredErrors
from slrt_dask.dual.growth import resized
from slrt_dask.dual.hankel.problem import HankelProblem
from slrt_dask.dual.problem import Evaluation
from slrt_dask.dual.start import spectral_start
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.optim.loop import minimise
from slrt_dask.optim.manifold import Point, ranks_of
from slrt_dask.optim.methods import LimitedMemory
from slrt_dask.optim.stopping import StopReason, StopRules
from slrt_dask.pipeline import JUDGED_AT, Fit
from slrt_dask.posing import AnyProblem, problem_of
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried

MOST_ITERATIONS = 12
PATIENCE = 3
"""Iterations without a smaller error that end a trial."""
BETTER = 1e-4
"""The part of the error by which it has to fall to count as smaller."""
FIRST_SOLVE = 1e-2
"""The inner residual at the factors that a trial starts from."""
FLAT = 1e-12
"""The gradient, relative to the cost, from which no step leads anywhere."""
STAGED_ITERATIONS = 40
MOST_SWEEPS, MOST_INNER_ITERATIONS = 1000, 250
"""That a trial takes, and one of its solves. On noisy data they take a fifth of it; strengths at
which they would take more fit data that are hardly noisy, and an answer is wanted today."""
logger = logging.getLogger("slrt_dask")


def settings_of(
    candidate: Candidate, settings: FitSettings, shares: tuple[float, ...]
) -> FitSettings:
    """The settings of a fit with a candidate's ranks and weights.

    shares : the weights that modes have by themselves; they give C its usual size
    """
    C = max(candidate.strengths) / max(shares)
    lambdas = tuple(strength / C for strength in candidate.strengths)
    return replace(settings, ranks=candidate.ranks, C=C, lambdas=lambdas)


class Trials:
    """Candidates on one engine.

    fit : of the first candidate; its engine serves them all
    fits_in : raises MemoryBudgetExceeded where there is no room for a fit with these settings
    kind : what was held out
    """

    def __init__(
        self, fit: Fit, shares: tuple[float, ...], fits_in: Callable[[FitSettings], Any], kind: Kind
    ) -> None:
        self._fit, self._shares, self._fits_in, self._kind = fit, shares, fits_in, kind

    def attempt(self, candidate: Candidate, warm: Tried | None) -> Tried | None:
        settings = settings_of(candidate, self._fit.settings, self._shares)
        try:
            self._fits_in(settings)
        except MemoryBudgetExceeded as reason:
            tell_left_out(candidate, reason)
            return None
        began = time.monotonic()
        problem = problem_of(
            self._fit.engine,
            settings,
            self._fit.offset.mean,
            max_inner_iterations=MOST_INNER_ITERATIONS,
        )
        judge = self._staged if isinstance(problem, HankelProblem) else self._descended
        errors, iterations, point = judge(problem, warm, settings.seed)
        return Tried(
            candidate, _finite(errors.rmse), iterations, problem.sweeps, time.monotonic() - began,
            point, _finite(errors.standard_error),
        )  # fmt: skip

    def _errors(self, problem: AnyProblem, evaluation: Any) -> SquaredErrors:
        assert self._fit.validation is not None
        return problem.validation_errors(evaluation, self._fit.validation, self._kind)

    def _descended(
        self, problem: AnyProblem, warm: Tried | None, seed: int
    ) -> tuple[SquaredErrors, int, Point]:
        """Quasi-Newton steps, ended early."""
        method = LimitedMemory()
        if warm is None:
            state = method.init(problem, spectral_start(problem, seed))
        else:
            ranks = problem.manifold.ranks
            problem.reshape(ranks_of(warm.point))
            known = problem.evaluate(warm.point, rtol=FIRST_SOLVE, warm=None)
            problem.reshape(ranks)
            state = method.init(problem, resized(problem, warm.point, known.dual, seed), known)
        least, best = math.inf, None
        for iteration in range(MOST_ITERATIONS):
            known = cast(Evaluation, state.evaluation)
            solved = problem.evaluate(known.point, rtol=JUDGED_AT, warm=known)
            errors = self._errors(problem, solved)
            error = _finite(errors.rmse)
            # The first counts whatever its error is: one that is no number must not pass for none.
            if best is None or error < (1.0 - BETTER) * least:
                least, best = error, (errors, iteration, solved.point)
            elif state.exhausted or iteration - best[1] >= PATIENCE:
                break
            flat = state.gradient_norm <= FLAT * abs(known.cost)
            if flat or problem.sweeps >= MOST_SWEEPS:
                break
            state = method.step(problem, state)
        assert best is not None
        return best

    def _staged(
        self, problem: AnyProblem, warm: Tried | None, seed: int
    ) -> tuple[SquaredErrors, int, Point]:
        """A whole fit, for a problem that is posed in stages; their order matters."""
        start = spectral_start(problem, seed)
        if warm is not None:
            start = resized(problem, warm.point, None, seed)
        rules = StopRules(1e-3, 1e-4, STAGED_ITERATIONS)
        outcome = minimise(problem, LimitedMemory(), start, rules, certify_every=STAGED_ITERATIONS)
        if outcome.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        errors = self._errors(problem, outcome.evaluation)
        return errors, outcome.state.iteration, outcome.evaluation.point


def _finite(number: float) -> float:
    """Errors that are no numbers are no smaller than any other."""
    return number if math.isfinite(number) else math.inf


def tell_left_out(candidate: Candidate, reason: MemoryBudgetExceeded) -> None:
    """Say that there is no room for a candidate."""
    logger.info("ranks %s are left out: %s", candidate.ranks, reason)
