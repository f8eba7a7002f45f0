"""Which workers there are, and whether those that hold a share are still at work.

Tasks are pinned to their workers, so a task of a lost one would wait for ever; and dask waits five
minutes before it gives up a worker that is silent. Hence this look at what the scheduler knows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import distributed

from slrt_dask.errors import ClusterLost, StateLost

ANSWER_SECONDS = 10.0
"""How long a scheduler, or a worker through it, may take to answer a small question."""
PAUSE_SECONDS = 20.0
"""How long a worker may be paused for memory before it counts as lost."""
SILENT_SECONDS = 30.0
"""How long a worker may send no heartbeat, of which there is one a second or so."""

About = dict[str, Any]
"""What the scheduler knows of one worker: status, nthreads, memory_limit, last_seen, …"""


def known_workers(client: distributed.Client) -> dict[str, About]:
    """The workers a scheduler knows, by address; ClusterLost if it does not answer.

    `Client.scheduler_info` would give its last answer again when there is no scheduler any more.
    """
    scheduler = client.scheduler
    if client.status != "running" or scheduler is None:
        raise ClusterLost(
            f"the connection to the scheduler is lost (the client is {client.status})"
        )
    try:
        workers: dict[str, About] = client.sync(
            scheduler.identity, callback_timeout=ANSWER_SECONDS
        )["workers"]
    except (OSError, RuntimeError) as error:
        raise ClusterLost(f"the scheduler at {scheduler.address} does not answer") from error
    return workers


def usable_workers(workers: dict[str, About]) -> dict[str, About]:
    """Those that run, and have been heard of about as lately as the others."""
    heard = max((about["last_seen"] for about in workers.values()), default=0.0)
    return {
        address: about
        for address, about in workers.items()
        if about["status"] == "running" and heard - about["last_seen"] <= SILENT_SECONDS
    }


class Watch:
    """Looks after some workers; remembers for how long each has been paused or silent."""

    def __init__(self, client: distributed.Client) -> None:
        self._client = client
        self._paused: dict[str, float] = {}
        self._heard: dict[str, tuple[float, float]] = {}

    def look(self, addresses: Sequence[str]) -> None:
        """Return if all of them are at work; StateLost if one is not."""
        workers = known_workers(self._client)
        now = time.monotonic()
        for address in addresses:
            if address not in workers:
                raise StateLost(f"the worker {address} is gone")
            self._check_paused(address, workers[address]["status"], now)
            self._check_heard(address, workers[address]["last_seen"], now)

    def _check_paused(self, address: str, status: str, now: float) -> None:
        if status != "paused":
            self._paused.pop(address, None)
        elif now - self._paused.setdefault(address, now) > PAUSE_SECONDS:
            raise StateLost(f"the worker {address} is paused for want of memory")

    def _check_heard(self, address: str, last_seen: float, now: float) -> None:
        # By our own clock since its heartbeat last changed: the scheduler's may show another time.
        seen, since = self._heard.get(address, (None, now))
        if last_seen != seen:
            self._heard[address] = (last_seen, now)
        elif now - since > SILENT_SECONDS:
            raise StateLost(
                f"the worker {address} has not been heard of for {SILENT_SECONDS:.0f} seconds"
            )
