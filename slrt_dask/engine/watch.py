"""Which workers there are, which partitions they get, and whether they are still at work.

Tasks are pinned to their workers, so a task of a lost one would wait for ever; and dask waits five
minutes before it gives up a worker that is silent. Hence this look at what the scheduler knows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask
import distributed
import numpy as np

from slrt_dask.errors import ClusterLost, NoWorkers, StateLost

ANSWER_SECONDS = 10.0
"""How long a scheduler, or a worker through it, may take to answer a small question."""
PAUSE_SECONDS = 20.0
"""How long a worker may be paused for memory before it counts as lost."""
SILENT_SECONDS = 30.0
"""How long a worker may send no heartbeat, of which there is one a second or so."""

Workers = dict[str, dict[str, Any]]


def known_workers(client: distributed.Client) -> Workers:
    """What a scheduler knows of its workers, by address; ClusterLost if it does not answer.

    `Client.scheduler_info` would give its last answer again when there is no scheduler any more.
    """
    scheduler = client.scheduler
    if client.status != "running" or scheduler is None:
        raise ClusterLost(
            f"the connection to the scheduler is lost (the client is {client.status})"
        )
    try:
        found = client.sync(scheduler.identity, callback_timeout=ANSWER_SECONDS)
        return dict(found["workers"])
    except (OSError, RuntimeError) as error:
        raise ClusterLost(f"the scheduler at {scheduler.address} does not answer") from error


def usable_workers(workers: Workers) -> Workers:
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
        self._seen: dict[str, tuple[float, float]] = {}

    def look(self, addresses: Sequence[str]) -> None:
        """Return if all of them are at work; StateLost if one is not."""
        workers, now = known_workers(self._client), time.monotonic()
        for address in addresses:
            if address not in workers:
                raise StateLost(f"the worker {address} is gone")
            if workers[address]["status"] != "paused":
                self._paused.pop(address, None)
            elif now - self._paused.setdefault(address, now) > PAUSE_SECONDS:
                raise StateLost(f"the worker {address} is paused for want of memory")
            # By our own clock since its heartbeat last changed: the scheduler's may differ.
            heartbeat = workers[address]["last_seen"]
            if heartbeat != self._seen.get(address, (None, now))[0]:
                self._seen[address] = heartbeat, now
            elif now - self._seen[address][1] > SILENT_SECONDS:
                raise StateLost(
                    f"the worker {address} has not been heard of for {SILENT_SECONDS:.0f} seconds"
                )


@dataclass(frozen=True)
class Place:
    """Somewhere a share can be: a worker, or this process (address None).

    memory_limit : bytes that it may hold; None if there is no limit
    """

    address: str | None
    threads: int
    memory_limit: int | None


def cluster_places(client: distributed.Client) -> list[Place]:
    """The workers that can be used now, those with the most threads first.

    So a lost worker's successor, at another address, leaves the order of all sums as it was, and
    with it the last bit of the answer.
    """
    workers = usable_workers(known_workers(client))
    if not workers:
        raise NoWorkers("the cluster has no worker; start at least one, then try again")
    # Beyond a part of its limit, dask gives a worker no more tasks.
    pause = dask.config.get("distributed.worker.memory.pause", False) or 1.0
    places = [
        Place(address, int(about["nthreads"]), int(pause * (about["memory_limit"] or 0)) or None)
        for address, about in workers.items()
    ]
    return sorted(places, key=lambda place: (-place.threads, place.address))


def assign_partitions(counts: list[int], places: list[Place]) -> list[tuple[int, ...]]:
    """Consecutive partitions for each place, with entries in proportion to its threads."""
    threads, partitions = np.array([place.threads for place in places]), len(counts)
    passed = np.cumsum(counts)
    # A place takes the partitions that lie mostly before its end.
    ends = np.cumsum(threads) / threads.sum() * passed[-1]
    wanted = np.searchsorted(passed - np.array(counts) / 2, ends, side="right")
    assigned, first = [], 0
    for number, stop in enumerate(wanted.tolist()):
        left = len(places) - 1 - number
        stop = max(min(stop, partitions - left), min(first + 1, partitions))
        assigned.append(tuple(range(first, stop)))
        first = stop
    return assigned
