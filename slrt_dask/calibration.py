"""What a sweep and a round take on the machines of a plan: a short measurement before a fit.

The first partition is loaded where it would be anyway, on the plan's first worker or in this
process, and a few inner iterations are made on it with one thread. Between workers a message of a
round goes to and fro.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import distributed
import numpy as np

from slrt_dask.config import FitSettings
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.engine.base import LocalEngine
from slrt_dask.engine.cluster import PinnedTasks
from slrt_dask.engine.plan import Plan
from slrt_dask.engine.share import Assignment
from slrt_dask.posing import embedded, problem_of
from slrt_dask.spending import Rates

LOOSELY = 0.3
"""Relative residual of the solve that is timed."""
HOPS = 6
SMALL, LARGE = 8_000, 8_000_000
"""Bytes of the messages that are timed."""


def measured(
    plan: Plan,
    store: ObservationStore,
    settings: FitSettings,
    client: distributed.Client | None,
    threads_here: int,
) -> Plan:
    """The plan with rates measured on its machines.

    threads_here : with which this process could do it alone; 0 if it could not
    """
    if client is None:
        return replace(plan, rates=Rates(seconds_per_entry(store, settings)))
    workers = [str(worker.place.address) for worker in plan.workers]
    tasks = PinnedTasks(client, workers)
    with tasks.losses_named():
        timed = tasks.submit("calibrate", workers[0], seconds_per_entry, store, settings)
        entry = tasks.results([timed])[0]
        if len(workers) == 1:
            return replace(plan, rates=Rates(entry, threads=threads_here))
        slow, fast = (_hop_seconds(tasks, workers, size) for size in (LARGE, SMALL))
    # A round is a hop to the sweeps and one back to the root.
    byte = max(0.0, slow - fast) / (LARGE - SMALL)
    return replace(plan, rates=Rates(entry, 2.0 * fast, byte, threads_here))


def seconds_per_entry(store: ObservationStore, settings: FitSettings) -> float:
    """What one thread takes for an entry of an inner iteration, on the first partition."""
    plain = settings if settings.tau else replace(settings, constraint=None, huber=None)
    held = embedded(store, plain)
    layout = held if isinstance(held, EmbeddedStore) else None
    one = Assignment(held, (0,), threads=1, precision=settings.precision, layout=layout)
    with LocalEngine(one) as engine:
        if layout is None:
            number_fibres(engine)
        problem = problem_of(engine, plain, 0.0)
        point = problem.manifold.random_point(np.random.default_rng(settings.seed))
        problem.evaluate(point, rtol=LOOSELY, warm=None)  # kernels are compiled
        sweeps, (before,) = problem.sweeps, engine.spending()
        problem.evaluate(point, rtol=LOOSELY, warm=None)
        (after,) = engine.spending()
        entries = max(1, held.partitions[0].count)
        return (after.computing - before.computing) / (entries * (problem.sweeps - sweeps))


def _hop_seconds(tasks: PinnedTasks, workers: list[str], nbytes: int) -> float:
    """What a task with a message from another worker takes."""
    seconds = []
    for _ in range(2):  # connections are made at the first
        began, message = time.perf_counter(), np.zeros(nbytes // 8)
        sent = tasks.scatter("message", workers[0], message)
        for hop in range(HOPS):
            worker = workers[(hop + 1) % 2]
            sent = tasks.delayed("hop", worker, _passed_on, sent)
        (_,) = tasks.results([tasks.client.compute(tasks.delayed("hop", worker, _arrived, sent))])
        seconds.append((time.perf_counter() - began) / (HOPS + 1))
    return min(seconds)


def _passed_on(message: Any) -> Any:
    return message.copy()


def _arrived(message: Any) -> int:
    return int(message.nbytes)
