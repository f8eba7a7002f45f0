"""Workers of different sizes: each gets what it can hold and compute, and the answer is one."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import distributed
import pytest

import slrt_dask
from slrt_dask.config import FitSettings
from slrt_dask.engine import plan, watch
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.placement import Place, assign_partitions, cluster_places
from slrt_dask.engine.plan import plan_fit
from slrt_dask.engine.tasks import SharePlugin
from slrt_dask.errors import ClusterLost, MemoryBudgetExceeded, NoWorkers
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
    done = slrt_dask.complete(store, RANKS[3], C=5.0, max_iterations=1, client=client)
    local = slrt_dask.complete(store, RANKS[3], C=5.0, max_iterations=1, threads=1)
    assert done.records[-1].cost == pytest.approx(local.records[-1].cost, rel=1e-10)
    assert "1 worker is too small for a share and left out" in caplog.text
    # What is too small for all is refused with the numbers of all.
    cluster.kill_worker(large)
    with pytest.raises(MemoryBudgetExceeded, match="may use"):
        slrt_dask.complete(store, RANKS[3], C=5.0, client=client)
    assert small in cluster.workers


def test_a_worker_with_little_memory_streams_while_another_does_not(
    cluster, client, store, dense, monkeypatch
):
    monkeypatch.setattr(plan, "SMALLEST_STREAMED_BLOCK", 4)
    monkeypatch.setattr(plan, "LARGEST_STREAMED_BLOCK", 8)
    with LocalEngine(store, threads=1) as engine:
        wanted = results(engine, dense, validated=False)
    cluster.start_worker()
    # Their shares are the same, but this one may use a byte too little for its own.
    half = plan_fit(store.header, SETTINGS.ranks, places=[Place("a", 1, None), Place("b", 1, None)])
    needed = min(worker.needed.total for worker in half.workers)
    little = cluster.start_worker(memory_limit=needed - 1, config=NOT_PAUSED)
    planned = plan_of(store, SETTINGS, client=client)
    planned.check()
    streamed = {
        str(worker.place.address): worker.block_entries
        for worker in planned.workers
        if worker.block_entries is not None
    }
    assert list(streamed) == [little]
    with ClusterEngine(store, client, streamed=streamed) as engine:
        assert_same(results(engine, dense, validated=False), wanted)


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
