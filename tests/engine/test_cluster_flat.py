"""What a scheduler holds does not grow with the iterations of a fit."""

from __future__ import annotations

from dataclasses import dataclass

import distributed
import pytest

from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.program import Finished, Program
from tests.engine.helpers import dense_problem
from tests.faults.processes import Cluster

# Logs of a fixed length are full soon, so that what still grows is seen.
SHORT_LOGS = {"distributed.admin.low-level-log-length": 20}


@dataclass(frozen=True)
class Count(Program):
    """Does nothing but count its rounds."""

    rounds: int

    label = "count"

    def first(self):
        return 0

    def step(self, block, message, total):
        return (1.0,)

    def advance(self, message, total):
        return Finished(self.rounds) if message + 1 == self.rounds else message + 1


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path, **SHORT_LOGS) as started:
        yield started


def held(dask_scheduler):
    """How much there is of everything."""
    import gc
    from collections import Counter

    import psutil

    gc.collect()
    kinds = Counter(type(thing).__name__ for thing in gc.get_objects())
    return {
        "tasks": len(dask_scheduler.tasks),
        "groups": len(dask_scheduler.task_groups),
        "wanted": sum(len(state.wants_what) for state in dask_scheduler.clients.values()),
        "objects": sum(kinds.values()),
        "spans": kinds["Span"],
        "remembered groups": kinds["TaskGroup"],
        "bytes": psutil.Process().memory_info().rss,
    }


@pytest.mark.parametrize(
    ("workers", "rounds", "programs"), [(2, 1000, 1), (2, 2, 60), (1, 3, 120)],
    ids=["many rounds", "many programs", "one worker"],
)  # fmt: skip
def test_thousands_of_rounds_leave_nothing_on_the_scheduler(
    workers, rounds, programs, cluster, store_of
):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=3)
    for _ in range(workers):
        cluster.start_worker()
    with (
        distributed.Client(cluster.address, set_as_default=False) as client,
        ClusterEngine(store, client) as engine,
    ):
        for _ in range(20):
            engine.run(Count(4))
        before = client.run_on_scheduler(held)
        for _ in range(programs):
            assert engine.run(Count(rounds)) == rounds
        after = client.run_on_scheduler(held)
    # What the last submissions leave for a moment differs a little.
    for name in ("tasks", "groups", "wanted", "spans", "remembered groups"):
        assert after[name] <= before[name] + 6, name
        assert after[name] < 40, name
    assert after["objects"] <= before["objects"] + 3000
    assert after["bytes"] <= before["bytes"] + 8 * 2**20
