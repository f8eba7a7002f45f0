"""Workers that pause, fall silent, vanish for good, come back or join: the answer is the same."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest
from distributed.core import Status

import slrt_dask as slrt
from slrt_dask import newcomers, recovery
from slrt_dask.engine import watch
from slrt_dask.errors import ClusterLost
from tests.faults.conftest import OPTIONS, RANKS, at_iteration, events_of
from tests.faults.phases import Phases
from tests.faults.processes import start, wait_until


def workers_in_use(client):
    """Which workers hold a share."""
    plugins = client.run(lambda dask_worker: list(dask_worker.plugins))
    return {address for address, names in plugins.items() if any("slrt-" in name for name in names)}


def test_a_worker_paused_for_memory_is_done_without(
    store, client, cluster, assert_same_answer, monkeypatch
):
    monkeypatch.setattr(watch, "PAUSE_SECONDS", 0.2)
    victim = max(cluster.workers)

    def pause():
        # Without a memory limit nothing sets it running again.
        client.run(
            lambda dask_worker: setattr(dask_worker, "status", Status.paused), workers=[victim]
        )

    done = slrt.complete(store, RANKS, **OPTIONS, client=client, observers=[at_iteration(2, pause)])
    assert_same_answer(done)
    assert events_of(done) == [
        f"the worker {victim} is paused for want of memory; began again from iteration 0"
    ]


def test_a_worker_that_is_silent_is_done_without(
    store, client, cluster, assert_same_answer, monkeypatch, tmp_path
):
    monkeypatch.setattr(watch, "SILENT_SECONDS", 2.0)
    victim = max(cluster.workers)
    stopped = cluster.workers[victim].pid
    began = []

    def stop():
        began.append(time.monotonic())
        os.kill(stopped, signal.SIGSTOP)

    done = slrt.complete(
        store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run",
        observers=[at_iteration(2, stop)],
    )  # fmt: skip
    assert time.monotonic() - began[0] < 20.0
    assert_same_answer(done)
    assert events_of(done) == [
        f"the worker {victim} has not been heard of for 2 seconds; began again from iteration 2"
    ]
    # When it wakes up, what it held for the fit is gone.
    os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: not workers_in_use(client))


def test_a_worker_that_comes_back_at_its_old_address_is_not_mistaken_for_the_lost_one(
    store, client, cluster, assert_same_answer, monkeypatch, tmp_path
):
    victim = max(cluster.workers)

    def replace(engine):
        cluster.kill_worker(victim)
        assert cluster.start_worker(port=int(victim.rsplit(":", 1)[1])) == victim

    happened = Phases(monkeypatch, [("line search", 3)], replace).happened
    done = slrt.complete(store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run")
    assert happened == ["line search"]
    assert_same_answer(done)
    assert len(events_of(done)) == 1


def test_when_no_worker_comes_back_the_run_ends_with_a_usable_checkpoint(
    store, client, cluster, assert_same_answer, monkeypatch, tmp_path
):
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 1.0)

    def kill_all():
        for address in list(cluster.workers):
            cluster.kill_worker(address)

    began = time.monotonic()
    with pytest.raises(
        ClusterLost, match=r"1 seconds of waiting the cluster has no worker.*resume the run"
    ):
        slrt.complete(
            store, RANKS, **OPTIONS, client=client, run_directory=tmp_path / "run",
            observers=[at_iteration(2, kill_all)],
        )  # fmt: skip
    assert time.monotonic() - began < 20.0
    done = slrt.resume(tmp_path / "run", threads=1)
    assert_same_answer(done)
    assert done.records[3].event == "resumed"


@pytest.mark.parametrize("kept", [True, False], ids=["with a run directory", "without one"])
def test_workers_that_join_are_used_from_the_next_iteration_on(
    kept, store, cluster, assert_same_answer, monkeypatch, tmp_path
):
    import distributed

    for name in ("LOOK_SECONDS", "LOADINGS", "ROUND_SECONDS"):  # move whenever there is a gain
        monkeypatch.setattr(newcomers, name, 0.0)
    alone = cluster.start_worker()
    used = {}
    with distributed.Client(cluster.address, set_as_default=False) as client:

        def note(record, state):
            used[record.iteration] = workers_in_use(client)

        done = slrt.complete(
            store, RANKS, **OPTIONS, client=client,
            run_directory=tmp_path / "run" if kept else None,
            observers=[
                SimpleNamespace(on_record=note),
                at_iteration(1, cluster.start_worker),
                at_iteration(2, lambda: cluster.start_worker(memory_limit=2**20)),
            ],
        )  # fmt: skip
    assert_same_answer(done)
    joined = next(address for address in cluster.workers if address != alone)
    assert used == {0: {alone}, 1: {alone}, **{n: {alone, joined} for n in (2, 3, 4)}}
    assert events_of(done) == [f"the worker {joined} joined; went on from iteration 1"]
    assert done.records[2].event


def test_what_a_killed_driver_held_on_workers_is_let_go(store, client, cluster, tmp_path):
    options = {**OPTIONS, "max_iterations": 10**6, "C": 100.0, "gap_tolerance": 0.0}
    driver = start(fit_on, cluster.address, store.path, RANKS, options)
    wait_until(lambda: len(workers_in_use(client)) == 2, driver)
    os.kill(driver.pid, signal.SIGKILL)
    driver.join()
    wait_until(lambda: not workers_in_use(client))


def fit_on(address, store, ranks, options):
    import distributed

    with distributed.Client(address) as client:
        slrt.complete(slrt.open_store(store), ranks, **options, client=client)
