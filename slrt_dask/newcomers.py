"""Whether workers that have joined since a fit was placed are worth placing it anew.

Placing it anew means loading the observations once more, so it has to pay: a sweep must be expected
to take clearly less time than it was measured to take, and the time since the last loading must
dwarf what that cost. This file changes when that judgement does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slrt_dask.engine.plan import Plan
from slrt_dask.errors import ClusterLost, MemoryBudgetExceeded, NoWorkers

LOOK_SECONDS = 2.0
"""At least so long between two looks at who is there."""
WORTH = 0.2
"""By this part at least a sweep has to become shorter."""
ROUND_SECONDS = 0.03
"""What a round between workers takes, however little there is to compute; on one, there is none."""
LOADINGS = 4.0
"""So many times as long as its loading took, a placement is kept at least."""


class Newcomers:
    """Tells when the workers that there are would do clearly better than those in use.

    plan : makes a plan for the workers that there are now
    in_use : the plan by which the fit is placed
    loading : seconds that it took to load
    """

    def __init__(
        self,
        plan: Callable[[], Plan],
        in_use: Plan,
        loading: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._in_use = in_use
        self._clock = clock
        self._next_look = clock() + max(LOOK_SECONDS, LOADINGS * loading)

    def worth_moving(self, sweep_seconds: float) -> str:
        """Who has joined, if that is worth it; empty if nothing is to be done.

        sweep_seconds : what a sweep takes with the workers in use
        """
        if self._clock() < self._next_look:
            return ""
        self._next_look = self._clock() + LOOK_SECONDS
        try:
            plan = self._plan()
        except (ClusterLost, NoWorkers, MemoryBudgetExceeded):
            return ""  # whatever is wrong there, the next task on a worker will meet it
        computing = max(0.0, sweep_seconds - _exchange(self._in_use))
        expected = computing * slowest_part(plan) / slowest_part(self._in_use) + _exchange(plan)
        if expected > (1.0 - WORTH) * sweep_seconds:
            return ""
        joined = sorted(_addresses(plan) - _addresses(self._in_use))
        return f"the worker{'s' * (len(joined) != 1)} {', '.join(joined)} joined"


def slowest_part(plan: Plan) -> float:
    """Entries per thread where there are the most: what a sweep has to wait for."""
    return max(worker.entries / worker.place.threads for worker in plan.workers)


def _exchange(plan: Plan) -> float:
    if len(plan.workers) == 1:
        return 0.0
    # A sweep is one round; in sections two for each, and one more.
    return ROUND_SECONDS * (1 if plan.sections == 1 else 2 * plan.sections + 1)


def _addresses(plan: Plan) -> set[str]:
    return {str(worker.place.address) for worker in plan.workers}
