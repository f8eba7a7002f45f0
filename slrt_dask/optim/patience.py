"""The iteration that predicted held-out observations best, and when to wait for no better one.

Few iterations regularise, as small ranks do: the error on held-out observations often falls first
and rises later. This file changes when a run has to go back to another point than its best.
"""

from __future__ import annotations

import math
from typing import Any

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.manifold import Point
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.stopping import StopReason

LIMITS = (StopReason.ITERATIONS, StopReason.SECONDS)
ERROR, ITERATION, ENDED, FACTOR = "best_error", "best_iteration", "ended_for", "best_factor_"


class Patience:
    """Remembers the best point of a run, and says when to go back to it.

    iterations : how many of them without a smaller error are waited for
    ended : why the run went back, once it has
    """

    def __init__(self, iterations: int) -> None:
        if iterations < 1:
            raise InvalidConfig(f"patience is {iterations}; give None, or 1 iteration or more")
        self.iterations = iterations
        self.error, self.iteration = math.inf, -1
        self.point: Point = ()
        self.ended: StopReason | None = None

    def see(self, state: MethodState, error: float) -> None:
        """Be told of the error of an accepted point."""
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
        """Numbers and arrays from which another one can go on."""
        if not self.point:
            return {}
        return {
            ERROR: self.error,
            ITERATION: self.iteration,
            ENDED: None if self.ended is None else self.ended.name,
            **{f"{FACTOR}{mode}": factor for mode, factor in enumerate(self.point)},
        }

    def go_on(self, progress: dict[str, Any]) -> None:
        """Take up where another one was."""
        if ITERATION in progress:
            self.error, self.iteration = float(progress[ERROR]), int(progress[ITERATION])
            ended = progress[ENDED]
            self.ended = None if ended is None else StopReason[ended]
            modes = sum(name.startswith(FACTOR) for name in progress)
            self.point = tuple(progress[f"{FACTOR}{mode}"] for mode in range(modes))
