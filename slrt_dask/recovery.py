"""What to do when workers are lost: load again on those that are there, and go on.

State on workers is not recomputed by dask; a fit begins again from its newest checkpoint, or from
its start where it has none. Either way it ends with the answer of an undisturbed run.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from slrt_dask.connection import Connection
from slrt_dask.errors import ClusterLost, MemoryBudgetExceeded, NoWorkers, StateLost

logger = logging.getLogger("slrt_dask")
Result = TypeVar("Result")

MOST_FAILURES = 5
"""Losses in a row without an iteration in between before a fit gives up."""
PATIENCE_SECONDS = 60.0
"""How long to wait for a scheduler, and for workers that can hold the problem."""
RETRY_SECONDS = 0.2


def persist(
    attempt: Callable[[], Result],
    connection: Connection | None,
    *,
    plan: Callable[[], Any],
    reached: Callable[[], int],
    events: list[str],
    remedy: str,
    unit: str = "iteration",
) -> Result:
    """Call attempt until it succeeds, workers permitting.

    plan : raises as long as the problem cannot be placed on the workers that there are
    reached : the iteration up to which work is safe; as long as it grows, losses are forgiven
    events : what happened and is not yet in the history; added to here
    remedy : what the user can do when the cluster does not come back
    unit : what is counted by `reached`
    """
    failures, safe = 0, reached()
    while True:
        try:
            return attempt()
        except (StateLost, ClusterLost, NoWorkers) as error:
            if connection is None:
                raise
            grown = reached()
            failures = 1 if grown > safe else failures + 1
            safe = grown
            if failures > MOST_FAILURES:
                raise ClusterLost(
                    f"workers were lost {failures} times without a new {unit} in between, the "
                    f"last time because {error}; {remedy}"
                ) from error
            _note(events, f"{error}; began again from {unit} {max(safe, 0)}")
            _clear_frames(error)
            wait_until_placed(connection, plan, remedy)


def wait_until_placed(connection: Connection, plan: Callable[[], Any], remedy: str) -> None:
    """Return when there is a scheduler with workers that can hold the problem; else ClusterLost."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection.restore()
            connection.ask_for_lost_workers()
            plan()
        except (ClusterLost, NoWorkers, MemoryBudgetExceeded) as error:
            if time.monotonic() > deadline:
                raise ClusterLost(
                    f"after {PATIENCE_SECONDS:.0f} seconds of waiting {error}; {remedy}"
                ) from error
            time.sleep(RETRY_SECONDS)
        else:
            return


def _clear_frames(error: BaseException | None) -> None:
    """Let go of what the lost attempt had in hand: dask keeps errors, and they their frames."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _note(events: list[str], event: str) -> None:
    logger.warning("%s", event)
    events.append(event)
