"""Which worker holds which partitions."""

from __future__ import annotations

from dataclasses import dataclass

import dask
import distributed

from slrt_dask.engine.watch import known_workers, usable_workers
from slrt_dask.errors import NoWorkers


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
    places = [
        Place(address, int(about["nthreads"]), _usable_bytes(about["memory_limit"]))
        for address, about in workers.items()
    ]
    return sorted(places, key=lambda place: (-place.threads, place.address))


def _usable_bytes(memory_limit: int | None) -> int | None:
    """What a worker may hold of its limit: beyond a part of it, dask gives it no more tasks."""
    pause = dask.config.get("distributed.worker.memory.pause", False)
    return int((pause or 1.0) * memory_limit) if memory_limit else None


def assign_partitions(counts: list[int], places: list[Place]) -> list[tuple[int, ...]]:
    """Partitions for each place: largest first, to where the load per thread is least."""
    loads = [0] * len(places)
    assigned: list[list[int]] = [[] for _ in places]
    for partition in sorted(range(len(counts)), key=lambda number: -counts[number]):
        best = min(
            range(len(places)),
            key=lambda p: ((loads[p] + counts[partition]) / places[p].threads, p),
        )
        loads[best] += counts[partition]
        assigned[best].append(partition)
    return [tuple(sorted(partitions)) for partitions in assigned]
