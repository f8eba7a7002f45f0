"""When a run ends, the sentence that says why, and the iteration it goes back to."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from slrt_dask.optim.manifold import Point
from slrt_dask.optim.problem import Certificate
from slrt_dask.optim.records import MethodState

LOOSEST_GAP = 1e-2
"""On the way to a problem, gaps are closed at least this far."""


class StopReason(Enum):
    """Why a run ended, as a sentence."""

    GAP = "Converged: the certified relative duality gap is within its tolerance."
    GRADIENT = "Converged: the relative gradient norm is within its tolerance."
    EXHAUSTED = "Stopped: no further decrease is possible at this precision."
    INNER_LIMIT = (
        "Stopped: no further decrease was found, and inner solves ended before their tolerance."
    )
    CHOSEN = "Stopped: at the factors that predicted held-out observations best."
    VALIDATION = (
        "Stopped: the error on held-out observations fell no further; its best point was kept."
    )
    ITERATIONS = "Stopped: the iteration limit was reached."
    SECONDS = "Stopped: the time limit was reached."
    INTERRUPTED = "Stopped: interrupted by the user; the last accepted point was kept."


NOTHING_TO_GAIN = (StopReason.GRADIENT, StopReason.EXHAUSTED, StopReason.INNER_LIMIT)
"""Reasons that say that these ranks have no more to give."""
STAGE_ENDS = (StopReason.GAP, *NOTHING_TO_GAIN)
"""Reasons that end a stage on the way to the problem asked for, and a run only at the last."""
LIMITS = (StopReason.ITERATIONS, StopReason.SECONDS)
"""Reasons that say nothing of the point that was reached."""
ERROR, ITERATION, ENDED, FACTOR = "best_error", "best_iteration", "ended_for", "best_factor_"
"""Names in a checkpoint of what `Patience` remembers."""


@dataclass(frozen=True)
class StopRules:
    """The tolerances and limits of a run; None is no limit."""

    gap_tolerance: float = 1e-3
    """On the certified relative gap; 0 is never met, not even by rounding."""
    gradient_tolerance: float = 1e-6
    """Met when ‖grad‖ ≤ gradient_tolerance · |g|, and constraints are missed by no more of ‖y‖."""
    max_iterations: int = 200
    max_seconds: float | None = None
    chosen: bool = False
    """Whether the start was chosen for good."""

    def loosened(self, factor: float) -> StopRules:
        """Rules for a problem that only leads to the one asked for."""
        gap = min(factor * self.gap_tolerance, max(self.gap_tolerance, LOOSEST_GAP))
        return replace(self, gap_tolerance=gap, gradient_tolerance=factor * self.gradient_tolerance)

    def gap_is_closed(self, certificate: Certificate) -> bool:
        """Whether the certified relative gap is within tolerance."""
        return 0.0 < self.gap_tolerance >= certificate.relative_gap

    def reason(self, state: MethodState, seconds: float) -> StopReason | None:
        """Why a run in this state should end, apart from its gap; None to go on."""
        flat = state.gradient_norm <= self.gradient_tolerance * abs(state.evaluation.cost)
        if flat and state.evaluation.inner.violation <= self.gradient_tolerance:
            return StopReason.GRADIENT
        if state.exhausted:
            capped = not state.inner_converged
            return StopReason.INNER_LIMIT if capped else StopReason.EXHAUSTED
        if self.chosen:
            return StopReason.CHOSEN
        if state.iteration >= self.max_iterations:
            return StopReason.ITERATIONS
        if self.max_seconds is not None and seconds >= self.max_seconds:
            return StopReason.SECONDS
        return None


class Patience:
    """Remembers the iteration that predicted held-out observations best, to go back to it.

    Few iterations regularise, as small ranks do: the error on held-out observations often falls
    first and rises later.

    iterations : how many of them without a smaller error end the run
    ended : why the run went back, once it has
    """

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.error, self.iteration = math.inf, -1
        self.point: Point = ()
        self.ended: StopReason | None = None

    def see(self, state: MethodState, error: float) -> None:
        """Compare the error of an accepted point with the least one."""
        if self.ended is None and error < self.error:
            self.error, self.iteration, self.point = error, state.iteration, state.evaluation.point

    def reason_to_go_back(self, state: MethodState, reason: StopReason | None) -> StopReason | None:
        """Why to end now, at the best point; None to go on, or to end here.

        reason : why the run would end anyway, if it would
        """
        if self.ended is not None or not self.point or state.iteration == self.iteration:
            return None
        if reason in LIMITS:
            return reason
        over = state.iteration - self.iteration >= self.iterations
        return StopReason.VALIDATION if over or reason is not None else None

    def progress(self) -> dict[str, Any]:
        """Numbers and arrays for a checkpoint; nothing before the first error."""
        if not self.point:
            return {}
        return {
            ERROR: self.error,
            ITERATION: self.iteration,
            ENDED: None if self.ended is None else self.ended.name,
            **{f"{FACTOR}{mode}": factor for mode, factor in enumerate(self.point)},
        }

    def go_on(self, progress: dict[str, Any]) -> None:
        """Continue from the progress in a checkpoint."""
        if ITERATION in progress:
            self.error, self.iteration = float(progress[ERROR]), int(progress[ITERATION])
            ended = progress[ENDED]
            self.ended = None if ended is None else StopReason[ended]
            modes = sum(name.startswith(FACTOR) for name in progress)
            self.point = tuple(progress[f"{FACTOR}{mode}"] for mode in range(modes))
