"""What a dask cluster sees of a fit: named tasks, small values, and nothing that is left behind."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import pickle
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import dask
import distributed
import numpy as np
import pytest
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.diagnostics.task_stream import TaskStreamPlugin

import slrt_dask
from slrt_dask.config import FitSettings
from slrt_dask.dual.solve import ConjugateGradients
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.program import OneRound, Program, Sweep
from slrt_dask.engine.watch import cluster_places
from slrt_dask.errors import ClusterLost, NoWorkers, StateLost, StoreCorrupt
from slrt_dask.request import plan_of
from slrt_dask.spending import peak_bytes
from tests.engine.helpers import (
    Norm,
    assert_same,
    assignment_of,
    cluster_engine,
    dense_problem,
    dual_problem,
    local_engine,
    results,
)
from tests.faults.processes import Cluster, wait_until
from tests.oracles.dense import random_problem

# Logs of a fixed length are full soon, so that what still grows is seen.
SHORT_LOGS = {"distributed.admin.low-level-log-length": 20}
NOT_PAUSED = {"distributed.worker.memory.pause": False}
TOO_SMALL = 2**20
SOON = 15.0
"""Seconds in which a lost worker has to be noticed."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two workers, of one thread and of three."""
    with Cluster(tmp_path_factory.mktemp("cluster"), **SHORT_LOGS) as started:
        for threads in (1, 3):
            started.start_worker(nthreads=threads)
        yield started


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster.address, set_as_default=False) as connected:
        yield connected


@pytest.fixture
def stored(store_of):
    dense = dense_problem(3)
    return dense, store_of(dense.mask, dense.values, parts=8)


# ---- tasks --------------------------------------------------------------------------------------


def label_of(key):
    return "-".join(str(key).split("-")[:2])


@contextlib.contextmanager
def tasks_of(client):
    """How many tasks ran meanwhile, by (label, worker); known when the context is left."""
    ran = Counter()
    with distributed.get_task_stream(client) as stream:
        yield ran
    ran.update((label_of(task["key"]), task["worker"]) for task in stream.data)
    client.unregister_scheduler_plugin(TaskStreamPlugin.name)


def test_every_round_of_a_solve_is_a_sweep_on_both_workers(stored, client):
    dense, store = stored
    with cluster_engine(store, client) as engine:
        problem = dual_problem(engine, dense)
        point = problem.manifold.random_point(np.random.default_rng(0))
        before = [one.rounds for one in engine.spending()]
        with tasks_of(client) as ran:
            evaluation = problem.evaluate(point, rtol=1e-10, warm=None)
        rounds = {n - m for n, m in zip((o.rounds for o in engine.spending()), before, strict=True)}
        root, other = engine.places
    (swept,) = rounds
    assert swept > evaluation.inner.iterations > 5
    at_once = ConjugateGradients.at_once
    submissions = math.ceil(swept / at_once)
    assert ran["slrt-sweep", root] == ran["slrt-sweep", other] == submissions * at_once
    assert ran["slrt-advance", root] == submissions * at_once
    assert ran["slrt-begin", root] == submissions
    for label in ("slrt-advance", "slrt-begin", "slrt-sum"):  # two sums need no task of their own
        assert ran[label, other] == 0


def test_a_fit_has_tasks_of_few_names_each_on_its_worker(stored, client):
    dense, store = stored
    with tasks_of(client) as ran:
        done = slrt_dask.complete(
            store, dense.manifold.ranks, C=dense.C, max_iterations=2, client=client
        )
    named = {label for label, _ in ran if label.startswith("slrt-")}
    names = ("load", "run", "begin", "sweep", "advance", "visit", "unload")
    assert named == {f"slrt-{name}" for name in names}
    iterations = sum(record.inner_iterations for record in done.records)
    assert iterations > 0
    for worker in client.has_what():
        assert ran["slrt-load", worker] >= 1
        assert ran["slrt-sweep", worker] > iterations


# ---- what stays on the scheduler, and what passes it ------------------------------------------


@dataclass(frozen=True)
class Count(Program):
    """Does nothing but count its rounds."""

    count: int
    at_once: int = 50

    def rounds(self):
        for _ in range(self.count):
            yield Sweep(Count._step)
        return self.count

    def _step(self, block, total):
        return (1.0,)


def count_tasks(dask_scheduler):
    return len(dask_scheduler.tasks)


def held_by_scheduler(dask_scheduler):
    """How much there is of everything."""
    import psutil

    gc.collect()
    kinds = Counter(type(thing).__name__ for thing in gc.get_objects())
    return {
        "groups": len(dask_scheduler.task_groups),
        "wanted": sum(len(state.wants_what) for state in dask_scheduler.clients.values()),
        "spans": kinds["Span"],
        "remembered groups": kinds["TaskGroup"],
        "objects": sum(kinds.values()),
        "bytes": psutil.Process().memory_info().rss,
    }


@pytest.mark.parametrize(("rounds", "programs"), [(400, 1), (2, 10)])
def test_thousands_of_rounds_leave_nothing_on_the_scheduler(rounds, programs, stored, client):
    """Of several fits at once, as a search makes them."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(5) as pool:
        engines = [stack.enter_context(cluster_engine(stored[1], client)) for _ in range(5)]

        def run(count, at_once):
            program = Count(count, at_once)
            assert list(pool.map(lambda engine: engine.run(program), engines)) == [count] * 5

        gc.collect()  # of what earlier tests left
        most = client.run_on_scheduler(count_tasks) + 40  # a task of every name, for each fit

        def held():
            """When the last submission has been forgotten, which takes a moment."""
            wait_until(lambda: client.run_on_scheduler(count_tasks) < most, seconds=SOON)
            return client.run_on_scheduler(held_by_scheduler)

        for at_once in (20, 2):
            run(20, at_once)
        before = held()
        for _ in range(programs):
            run(rounds, min(rounds, 50))
        after = held()
    for name in ("groups", "wanted", "spans", "remembered groups"):
        assert after[name] <= before[name] + 20, name  # of the 8,000 tasks and more in between
    assert after["objects"] <= before["objects"] + 3000
    assert after["bytes"] <= before["bytes"] + 8 * 2**20


class Weigh(SchedulerPlugin):
    """The largest value of every kind of task, and the most bytes that describe one."""

    name = "weigh"

    def start(self, scheduler):
        self.scheduler, self.values, self.descriptions = scheduler, Counter(), Counter()

    def transition(self, key, start, finish, *args, **kwargs):
        if finish == "memory":
            task, label = self.scheduler.tasks[key], label_of(key)
            self.values[label] = max(self.values[label], task.nbytes)
            described = len(pickle.dumps(task.run_spec))
            self.descriptions[label] = max(self.descriptions[label], described)


def weighed(dask_scheduler):
    plugin = dask_scheduler.plugins["weigh"]
    found = dict(plugin.values), dict(plugin.descriptions)
    plugin.values.clear()
    return found


def test_nothing_as_large_as_the_observations_reaches_scheduler_or_driver(store_of, client):
    client.register_plugin(Weigh())
    found = []
    for fraction in (0.1, 0.8):
        dense = random_problem((150, 8, 6), (3, 2, 1), C=5.0, fraction=fraction)
        store = store_of(dense.mask, dense.values, parts=2)
        slrt_dask.complete(store, dense.manifold.ranks, C=5.0, max_iterations=1, client=client)
        found.append(client.run_on_scheduler(weighed))
    client.unregister_scheduler_plugin(Weigh.name)
    (few, _), (many, described) = found
    assert few.keys() == many.keys() >= {"slrt-sweep", "slrt-advance", "slrt-load"}
    for label in few:
        assert abs(many[label] - few[label]) <= 500, label
    # Factors and sums pass from worker to worker, or are scattered.
    assert max(described.values()) < 4000


# ---- workers of different sizes ---------------------------------------------------------------


def test_shares_are_in_proportion_to_threads_and_the_results_are_the_local_ones(stored, client):
    dense, store = stored
    with local_engine(store) as engine:
        wanted = results(engine, dense, validated=False)
    with cluster_engine(store, client) as engine:
        held = engine.on_shares(entries_and_threads)
        assert_same(results(engine, dense, validated=False), wanted)
    (three, most), (one, least) = held  # those with the most threads come first
    assert (three, one) == (3, 1)
    assert most + least == store.nnz
    assert abs(most - 3 * least) <= 3 * max(part.count for part in store.partitions)


def entries_and_threads(share):
    return share.assignment.threads, sum(block.entries for block in share.blocks)


def test_a_small_worker_streams_a_smaller_one_is_left_out_and_no_cluster_is_an_error(
    tmp_path, store_of
):
    mask = np.random.default_rng(3).random((100, 90, 80)) < 0.35
    store = store_of(mask, np.sin(np.indices(mask.shape).sum(axis=0) / 9.0), parts=8)
    settings = FitSettings(ranks=(3, 3, 3), C=0.1)
    fit = {"ranks": (3, 3, 3), "C": 0.1, "max_iterations": 1}
    with (
        dask.config.set(NOT_PAUSED),  # so that all of a limit may be used
        Cluster(tmp_path) as cluster,
        distributed.Client(cluster.address, set_as_default=False) as client,
    ):
        with pytest.raises(NoWorkers):
            cluster_places(client)
        cluster.start_worker(nthreads=1)
        second = cluster.start_worker(nthreads=1)
        needed = min(w.needed.total for w in plan_of(store, settings, client=client).workers)
        cluster.kill_worker(second)
        little, _ = (
            cluster.start_worker(nthreads=1, memory_limit=limit, config=NOT_PAUSED)
            for limit in (needed - 2**20, TOO_SMALL)
        )
        plan = plan_of(store, settings, client=client)
        assert [w.place.address for w in plan.workers if w.block_entries is not None] == [little]
        assert (len(plan.workers), plan.left_out) == (2, 1)
        done = slrt_dask.complete(store, **fit, client=client)
        peaks = client.run(peak_bytes)
        for worker in plan.workers:
            assert peaks[worker.place.address] <= worker.needed.total
        local = slrt_dask.complete(store, **fit, threads=1)
        assert done.records[-1].cost == pytest.approx(local.records[-1].cost, rel=1e-10)
        cluster.kill_scheduler()
        with pytest.raises(ClusterLost):
            cluster_places(client)


# ---- what is lost, and what is let go of ------------------------------------------------------


def open_scratch_files(dask_worker):
    """How many files without a name a worker has open: blocks of streamed shares."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    files = [os.readlink(link) for link in links if os.path.islink(link)]
    return sum(file.startswith(dask_worker.local_directory + "/#") for file in files)


def assert_nothing_is_left(client):
    gc.collect()
    wait_until(lambda: not any(client.run(open_scratch_files).values()), seconds=SOON)
    wait_until(lambda: not any(client.has_what().values()), seconds=SOON)


@pytest.mark.parametrize("way", ["closed", "forgotten"])
def test_an_engine_that_is_gone_leaves_nothing_on_the_workers(way, stored, client):
    engine = cluster_engine(stored[1], client, block_entries=12)
    engine.run(Norm())
    assert all(client.run(open_scratch_files).values())
    if way == "closed":
        engine.close()
    del engine
    assert_nothing_is_left(client)


def test_an_engine_that_fails_to_load_leaves_nothing_on_the_workers(client, tmp_path):
    dense = dense_problem(3)
    store = slrt_dask.from_coo(
        tmp_path / "s", np.array(np.nonzero(dense.mask)), dense.y, dense.mask.shape,
        partition_entries=30,
    )  # fmt: skip
    chunk = next((tmp_path / "s" / store.partitions[1].name / "values" / "c").iterdir())
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    with pytest.raises(StoreCorrupt, match=store.partitions[1].name):
        cluster_engine(store, client, block_entries=12)
    assert_nothing_is_left(client)


def test_a_share_that_a_worker_has_dropped_is_lost_state(stored, client):
    with cluster_engine(stored[1], client) as engine:
        engine.run(Norm())
        loads = {key for keys in client.has_what().values() for key in keys if "load-" in str(key)}
        client.cancel([distributed.Future(key, client) for key in loads], force=True)
        with pytest.raises(StateLost):
            engine.run(Norm())


@dataclass(frozen=True)
class Kill(OneRound):
    """Kills the worker of an address in the middle of a round."""

    address: str

    def step(self, block, total):
        if distributed.get_worker().address == self.address:
            os.kill(os.getpid(), signal.SIGKILL)
        return (1.0,)


def test_a_worker_that_is_killed_in_a_round_is_lost_state_soon(stored, cluster, client):
    store = stored[1]
    staying = next(iter(client.has_what()))
    doomed = cluster.start_worker(nthreads=1)
    halves = np.array_split(range(len(store.partitions)), 2)
    assignments = {
        address: assignment_of(store, 1, tuple(map(int, half)))
        for address, half in zip((staying, doomed), halves, strict=True)
    }
    engine = ClusterEngine(client, assignments)
    began = time.monotonic()
    for program in (Kill(doomed), Norm()):
        with pytest.raises(StateLost):
            engine.run(program)
    engine.close()
    assert time.monotonic() - began < SOON
    cluster.workers.pop(doomed).join()
