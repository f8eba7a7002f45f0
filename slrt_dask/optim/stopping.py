"""When a run ends, and the sentence that says why.

This file changes when a reason to stop is added or a tolerance gets another meaning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.problem import Certificate

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

    def __post_init__(self) -> None:
        for name in ("gap_tolerance", "gradient_tolerance"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise InvalidConfig(f"{name} is {value}; give a finite number that is at least 0")
        if self.max_iterations < 0:
            raise InvalidConfig(f"max_iterations is {self.max_iterations}; give 0 or more")
        if self.max_seconds is not None and not self.max_seconds >= 0.0:
            raise InvalidConfig(f"max_seconds is {self.max_seconds}; give None, or 0 or more")

    def loosened(self, factor: float) -> StopRules:
        """Rules for a problem that only leads to the one asked for."""
        gap = min(factor * self.gap_tolerance, max(self.gap_tolerance, LOOSEST_GAP))
        return replace(self, gap_tolerance=gap, gradient_tolerance=factor * self.gradient_tolerance)

    def gap_is_closed(self, certificate: Certificate) -> bool:
        """Whether the certified relative gap is within tolerance."""
        return 0.0 < self.gap_tolerance >= certificate.relative_gap

    def reason(self, state: MethodState, seconds: float) -> StopReason | None:
        """Why a run in this state should end, its gap aside; None to go on."""
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
