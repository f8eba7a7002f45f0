"""One candidate, fitted on an engine that holds the observations, and judged.

A fit that starts from a good neighbour is soon at its best: its iterations end when the error on
held-out observations has not fallen for a few of them, and the best of them counts. Factors that
are good soon and worse later are no accident: few iterations regularise, as small ranks do.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from slrt_dask.config import FitSettings
from slrt_dask.dual.growth import resized
from slrt_dask.dual.hankel.problem import HankelProblem
from slrt_dask.dual.problem import Evaluation
from slrt_dask.dual.start import spectral_start
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.optim.loop import minimise
from slrt_dask.optim.rcg import ConjugateGradient
from slrt_dask.optim.stopping import StopReason, StopRules
from slrt_dask.pipeline import Fit
from slrt_dask.posing import AnyProblem, problem_of
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried

MOST_ITERATIONS = 12
PATIENCE = 3
"""Iterations without a smaller error that end a trial."""
BETTER = 1e-4
"""The part of the error by which it has to fall to count as smaller."""
JUDGED_AT = 1e-3
"""The inner residual at which errors are compared: looser solves regularise by themselves."""
FLAT = 1e-12
"""The gradient, relative to the cost, from which no step leads anywhere."""
STAGED_ITERATIONS = 40
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
    """

    def __init__(
        self, fit: Fit, shares: tuple[float, ...], fits_in: Callable[[FitSettings], Any]
    ) -> None:
        self._fit, self._shares, self._fits_in = fit, shares, fits_in

    def attempt(self, candidate: Candidate, warm: Tried | None) -> Tried | None:
        settings = settings_of(candidate, self._fit.settings, self._shares)
        try:
            self._fits_in(settings)
        except MemoryBudgetExceeded as reason:
            logger.info("ranks %s are left out: %s", candidate.ranks, reason)
            return None
        began = time.monotonic()
        problem = problem_of(self._fit.engine, settings, self._fit.offset)
        judge = self._staged if isinstance(problem, HankelProblem) else self._descended
        error, iterations, evaluation = judge(problem, warm, settings.seed)
        return Tried(
            candidate, error, iterations, problem.sweeps, time.monotonic() - began,
            evaluation.point, evaluation,
        )  # fmt: skip

    def _error(self, problem: AnyProblem, evaluation: Any) -> float:
        assert self._fit.validation is not None
        error = problem.validation_error(evaluation, self._fit.validation)
        return error if math.isfinite(error) else math.inf

    def _descended(
        self, problem: AnyProblem, warm: Tried | None, seed: int
    ) -> tuple[float, int, Any]:
        """Conjugate gradients, ended early."""
        method = ConjugateGradient()
        if warm is None:
            state = method.init(problem, spectral_start(problem, seed))
        else:
            held = warm.held
            point = resized(problem, warm.point, None if held is None else held.dual, seed)
            state = method.init(problem, point, held)
        best: tuple[float, int, Any] = (math.inf, 0, state.evaluation)
        for iteration in range(MOST_ITERATIONS):
            known = cast(Evaluation, state.evaluation)
            solved = problem.evaluate(known.point, rtol=JUDGED_AT, warm=known)
            error = self._error(problem, solved)
            if error < (1.0 - BETTER) * best[0]:
                best = error, iteration, solved
            elif state.exhausted or iteration - best[1] >= PATIENCE:
                break
            if state.gradient_norm <= FLAT * abs(known.cost):
                break
            state = method.step(problem, state)
        return best

    def _staged(self, problem: AnyProblem, warm: Tried | None, seed: int) -> tuple[float, int, Any]:
        """A whole fit, for a problem that is posed in stages; their order matters."""
        start = spectral_start(problem, seed)
        if warm is not None:
            start = resized(problem, warm.point, None, seed)
        rules = StopRules(1e-3, 1e-4, STAGED_ITERATIONS)
        outcome = minimise(
            problem, ConjugateGradient(), start, rules, certify_every=STAGED_ITERATIONS
        )
        if outcome.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        iterations = outcome.state.iteration
        return self._error(problem, outcome.evaluation), iterations, outcome.evaluation
