"""What to do when workers are lost: load again on those that are there, and go on.

State on workers is not recomputed by dask; a fit begins again from its newest checkpoint, or from
its start where it has none. Either way it ends with the answer of an undisturbed run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from slrt_dask.engine.placement import cluster_places
from slrt_dask.errors import ClusterLost, InvalidInput, StateLost

logger = logging.getLogger("slrt_dask")

MOST_FAILURES = 5
"""Losses in a row without an iteration in between before a fit gives up."""
PATIENCE_SECONDS = 60.0
"""How long to wait for a worker when there is none."""


def persist(
    attempt: Callable[[str], Any], client: Any, reached: Callable[[], int], remedy: str
) -> Any:
    """Call attempt(what happened) until it succeeds, workers permitting.

    reached : the iteration up to which work is safe; as long as it grows, losses are forgiven
    remedy : what the user can do when the cluster does not come back
    """
    event, failures, safe = "", 0, reached()
    while True:
        try:
            return attempt(event)
        except StateLost as error:
            if client is None:
                raise
            grown = reached()
            failures = 1 if grown > safe else failures + 1
            safe = grown
            if failures > MOST_FAILURES:
                raise ClusterLost(
                    f"workers were lost {failures} times without an iteration in between, the "
                    f"last time because {error}; {remedy}"
                ) from error
            event = f"{error}; began again from iteration {max(safe, 0)}"
            logger.warning("%s", event)
            wait_for_worker(client, remedy)


def wait_for_worker(client: Any, remedy: str) -> None:
    """Return when there is a worker; ClusterLost when none comes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            cluster_places(client)
        except (InvalidInput, OSError):
            time.sleep(0.2)
        else:
            return
    raise ClusterLost(f"no worker was there for {PATIENCE_SECONDS:.0f} seconds; {remedy}")
