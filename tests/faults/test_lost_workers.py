"""Workers that pause, hang, come back or stay away, and schedulers: the answer is the same."""

from __future__ import annotations

import os
import signal
import threading
import time

import distributed
import pytest
from distributed.core import Status

import slrt_dask as slrt
from slrt_dask import connection, recovery
from slrt_dask.engine import cluster as engine_on_cluster
from slrt_dask.engine import watch
from slrt_dask.errors import ClusterLost
from tests.faults.conftest import at_iteration, events_of
from tests.faults.killing import Killer
from tests.faults.processes import start, wait_until


def workers_in_use(client):
    """Which workers hold a share."""
    held = client.run(lambda dask_worker: len(dask_worker.plugins["slrt-shares"].held))
    return {address for address, count in held.items() if count}


def test_a_worker_paused_for_memory_is_done_without(problem, client, cluster, monkeypatch):
    monkeypatch.setattr(watch, "PAUSE_SECONDS", 0.2)
    victim = max(cluster.workers)

    def pause():
        # Without a memory limit nothing sets it running again.
        client.run(
            lambda dask_worker: setattr(dask_worker, "status", Status.paused), workers=[victim]
        )

    done = problem.fit(client=client, observers=[at_iteration(2, pause)])
    problem.assert_answer(done)
    (event,) = events_of(done)
    assert victim in event


def test_a_worker_that_hangs_is_done_without_and_lets_go_when_it_wakes_up(
    problem, client, cluster, monkeypatch, tmp_path
):
    monkeypatch.setattr(watch, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(engine_on_cluster, "UNLOAD_SECONDS", 1.0)
    victim = max(cluster.workers)
    stopped = cluster.workers[victim].pid
    began = []

    def hang():
        began.append(time.monotonic())
        os.kill(stopped, signal.SIGSTOP)

    observers = [at_iteration(2, hang)]
    done = problem.fit(client=client, run_directory=tmp_path / "run", observers=observers)
    assert time.monotonic() - began[0] < 20.0
    problem.assert_answer(done)
    (event,) = events_of(done)
    assert victim in event
    os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: not workers_in_use(client))


def test_a_worker_that_hangs_for_a_moment_is_waited_for(problem, client, cluster):
    process = cluster.workers[max(cluster.workers)]

    def hang():
        os.kill(process.pid, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (process.pid, signal.SIGCONT)).start()

    done = problem.fit(client=client, observers=[at_iteration(2, hang)])
    problem.assert_answer(done)
    assert events_of(done) == []


def test_a_worker_that_comes_back_at_its_old_address_is_not_mistaken_for_the_lost_one(
    problem, client, cluster, tmp_path
):
    victim = max(cluster.workers)

    def replace(random):
        cluster.kill_worker(victim)
        assert cluster.start_worker(port=int(victim.rsplit(":", 1)[1])) == victim

    with Killer(["line search"], 0, replace) as killer:
        done = problem.fit(client=client, run_directory=tmp_path / "run")
    assert killer.killed == ["line search"]
    problem.assert_answer(done)
    assert len(events_of(done)) == 1


def test_a_scheduler_that_is_started_again_is_found_by_the_same_client(
    problem, client, cluster, tmp_path
):
    with Killer(["line search", "certificate"], 1, lambda random: restart(cluster)) as killer:
        done = problem.fit(client=client, run_directory=tmp_path / "run")
    assert len(killer.killed) == 2
    problem.assert_answer(done)
    assert len(events_of(done)) == 2


def restart(cluster):
    cluster.kill_scheduler()
    cluster.start_scheduler()
    for _ in range(2):
        cluster.start_worker()


def test_a_client_that_gave_up_its_scheduler_is_replaced(problem, cluster, tmp_path):
    for _ in range(2):
        cluster.start_worker()
    client = distributed.Client(cluster.address, timeout=1, set_as_default=False)

    def act():
        cluster.kill_scheduler()
        wait_until(lambda: client.status == "closed")
        cluster.start_scheduler()
        cluster.start_worker()

    done = problem.fit(
        client=client, run_directory=tmp_path / "run", observers=[at_iteration(2, act)]
    )
    problem.assert_answer(done)
    assert len(events_of(done)) == 1
    assert not [thread for thread in threading.enumerate() if "Client" in thread.name]


@pytest.mark.parametrize("lost", ["workers", "scheduler"])
def test_when_nothing_comes_back_the_run_ends_with_a_usable_checkpoint(
    lost, problem, cluster, monkeypatch, tmp_path
):
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 1.0)
    for _ in range(2):
        cluster.start_worker()

    def lose():
        if lost == "scheduler":
            cluster.kill_scheduler()
        else:
            for address in list(cluster.workers):
                cluster.kill_worker(address)

    began = time.monotonic()
    client = distributed.Client(cluster.address, timeout=1, set_as_default=False)
    try:
        with pytest.raises(ClusterLost, match="resume"):
            problem.fit(
                client=client, run_directory=tmp_path / "run", observers=[at_iteration(2, lose)]
            )
    finally:
        client.close()
    assert time.monotonic() - began < 20.0
    done = slrt.resume(tmp_path / "run", threads=1)
    problem.assert_answer(done)
    assert [record.iteration for record in done.records if record.event == "resumed"] == [3]


def fit_on(address, store, ranks, options, run):
    with distributed.Client(address) as client:
        slrt.complete(slrt.open_store(store), ranks, **options, client=client, run_directory=run)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_driver_that_ends_frees_its_workers_and_the_run_is_resumed_on_them(
    number, problem, client, cluster, tmp_path
):
    arguments = cluster.address, problem.store.path, problem.ranks, problem.options
    driver = start(fit_on, *arguments, tmp_path / "run")
    wait_until((tmp_path / "run" / "checkpoints" / "000001").exists, driver)
    os.kill(driver.pid, number)
    driver.join(20)
    assert driver.exitcode is not None
    wait_until(lambda: not workers_in_use(client))
    problem.assert_answer(slrt.resume(tmp_path / "run", client=client))
