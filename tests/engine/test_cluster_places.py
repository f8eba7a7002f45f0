"""Workers of different sizes: each gets what it can hold and compute, and the answer is one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import dask
import distributed
import numpy as np
import pytest
from slrt_dask.engine.assignment import Assignment
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.placement import Place, assign_partitions, cluster_places
from slrt_dask.engine.tasks import SharePlugin

import slrt_dask
from slrt_dask.config import FitSettings
from slrt_dask.engine import assignment, plan, watch
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.plan import plan_fit
from slrt_dask.engine.program import Finished, Program
from slrt_dask.engine.share import Share
from slrt_dask.errors import ClusterLost, MemoryBudgetExceeded, NoWorkers, StateLost
from slrt_dask.request import plan_of
from tests.engine.helpers import RANKS, assert_same, dense_problem, results
from tests.faults.processes import Cluster

SETTINGS = FitSettings(ranks=RANKS[3], C=5.0)
TOO_SMALL = 2**20
NOT_PAUSED = {"distributed.worker.memory.pause": False}


@pytest.fixture
def dense():
    return dense_problem(3)


@pytest.fixture
def store(store_of, dense):
    return store_of(dense.mask, dense.values, parts=8)


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as started:
        yield started


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster.address, set_as_default=False) as connected:
        yield connected


def held(share):
    return share.assignment.threads, sum(block.entries for block in share.blocks)


def test_shares_are_in_proportion_to_threads_and_the_results_are_the_local_ones(
    cluster, client, store, dense
):
    with LocalEngine(store, threads=1) as engine:
        wanted = results(engine, dense, validated=False)
    for threads in (1, 3):
        cluster.start_worker(nthreads=threads)
    with ClusterEngine(store, client) as engine:
        entries = dict(engine.on_shares(held))
        assert entries[1] + entries[3] == store.nnz
        largest = max(part.count for part in store.partitions)
        assert abs(entries[3] - 3 * entries[1]) <= 3 * largest
        assert_same(results(engine, dense, validated=False), wanted)


def test_a_worker_that_is_too_small_for_its_share_is_left_out(cluster, client, store, caplog):
    large = cluster.start_worker()
    small = cluster.start_worker(nthreads=2, memory_limit=TOO_SMALL, config=NOT_PAUSED)
    planned = plan_of(store, SETTINGS, client=client)
    assert [worker.place.address for worker in planned.workers] == [large]
    done = slrt_dask.complete(store, RANKS[3], C=0.1, max_iterations=1, client=client)
    local = slrt_dask.complete(store, RANKS[3], C=0.1, max_iterations=1, threads=1)
    assert done.records[-1].cost == pytest.approx(local.records[-1].cost, rel=1e-10)
    assert "1 worker is too small for a share and left out" in caplog.text
    # What is too small for all is refused with the numbers of all.
    cluster.kill_worker(large)
    with pytest.raises(MemoryBudgetExceeded, match="may use"):
        slrt_dask.complete(store, RANKS[3], C=5.0, client=client)
    assert small in cluster.workers


def test_a_worker_with_little_memory_streams_while_another_does_not(
    cluster, client, store_of, monkeypatch
):
    monkeypatch.setattr(plan, "SMALLEST_STREAMED_BLOCK", 100)
    monkeypatch.setattr(plan, "LARGEST_STREAMED_BLOCK", 400)
    mask = np.random.default_rng(3).random((40, 30, 25)) < 0.3
    store = store_of(mask, np.sin(np.indices(mask.shape).sum(axis=0) / 9.0), parts=8)
    options = {"ranks": (3, 3, 3), "C": 0.1, "max_iterations": 1}
    both = [Place(name, 2, None) for name in "ab"]
    needed = min(
        worker.needed.total
        for worker in plan_fit(store.header, options["ranks"], places=both).workers
    )
    cluster.start_worker()
    little = cluster.start_worker(memory_limit=needed - 1, config=NOT_PAUSED)
    with dask.config.set(NOT_PAUSED):  # so that all of the limit may be used
        planned = plan_of(store, FitSettings(**options), client=client)
        done = slrt_dask.complete(store, **options, client=client)
    assert [w.place.address for w in planned.workers if w.block_entries is not None] == [little]
    assert len(planned.workers) == 2
    local = slrt_dask.complete(store, **options, threads=1)
    assert done.records[-1].cost == pytest.approx(local.records[-1].cost, rel=1e-10)


def test_places_with_the_most_threads_come_first_whatever_their_addresses(cluster, client):
    with pytest.raises(NoWorkers, match="has no worker"):
        cluster_places(client)
    for threads in (1, 3, 2, 3):
        cluster.start_worker(nthreads=threads)
    places = cluster_places(client)
    assert [place.threads for place in places] == [3, 3, 2, 1]
    assert places[0].address < places[1].address


def test_partitions_go_where_there_is_the_least_per_thread():
    places = [Place(name, threads, None) for name, threads in (("a", 4), ("b", 2), ("c", 1))]
    shares = assign_partitions([10] * 14, places)
    assert [len(share) for share in shares] == [8, 4, 2]
    assert sorted(number for share in shares for number in share) == list(range(14))


def test_a_scheduler_that_does_not_answer_is_said_so(cluster, client, monkeypatch):
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 0.5)
    cluster.start_worker()
    cluster.kill_scheduler()
    with pytest.raises(ClusterLost, match="scheduler"):
        cluster_places(client)


# ---- what tasks and workers do ------------------------------------------------------------------


def run_out_of_time(share):
    raise TimeoutError("the disk did not answer")


def test_a_timeout_of_a_task_itself_is_its_error(store, thread_client):
    with (
        ClusterEngine(store, thread_client) as engine,
        pytest.raises(TimeoutError, match="the disk did not answer"),
    ):
        engine.on_shares(run_out_of_time)


def test_a_worker_answers_while_a_share_is_being_closed():
    closing, answered = threading.Event(), threading.Event()

    def close():
        closing.set()
        assert answered.wait(60), "the event loop did not go on meanwhile"

    async def tear_down():
        plugin = SharePlugin("slrt-some", "slrt-load-some")
        plugin.share = SimpleNamespace(close=close)
        teardown = asyncio.ensure_future(plugin.teardown(None))
        while not closing.is_set():
            await asyncio.sleep(0)
        answered.set()
        await teardown
        assert plugin.share is None

    asyncio.run(tear_down())


@dataclass(frozen=True)
class Held(Program):
    """Its rounds last until they are let go."""

    began: threading.Event
    go_on: threading.Event

    def first(self):
        return None

    def step(self, block, message, total):
        self.began.set()
        assert self.go_on.wait(60)
        return (1.0,)

    def advance(self, message, total):
        return Finished(total)


def test_a_share_is_closed_only_when_its_round_is_over(store, monkeypatch):
    monkeypatch.setattr(assignment, "SMALLEST_BLOCK", 2)
    share = Share(Assignment(store, tuple(range(len(store.partitions))), threads=3))
    program = Held(threading.Event(), threading.Event())
    share.begin(1)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(share.contribute_to, 1, program, None)
        assert program.began.wait(60)
        closed = pool.submit(share.close)
        assert not closed.done()
        program.go_on.set()
        closed.result(timeout=60)
        assert answer.result(timeout=60) == (3.0,)
    with pytest.raises(StateLost, match="closed"):
        share.contribute_to(1, program, None)
