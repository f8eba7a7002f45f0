"""Losses are recovered from while there is progress, waited for up to a limit, and recorded."""

from __future__ import annotations

from types import SimpleNamespace

import dask
import distributed
import pytest

from slrt_dask import recovery
from slrt_dask.connection import Connection
from slrt_dask.errors import ClusterLost, InvalidInput, MemoryBudgetExceeded, NoWorkers, StateLost
from slrt_dask.recovery import MOST_FAILURES, persist
from tests.faults.processes import wait_until

ALWAYS_THERE = SimpleNamespace(restore=lambda: None, ask_for_lost_workers=lambda: None)


def persisting(outcomes, *, reached=(), plan=lambda: None, connection=ALWAYS_THERE, events=None):
    """Attempts that end one after another as given: with an error or a result."""
    left, iterations = iter(outcomes), iter(reached)

    def attempt():
        outcome = next(left)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return persist(
        attempt,
        connection,
        plan=plan,
        reached=lambda: next(iterations, -1),
        events=[] if events is None else events,
        remedy="do something",
    )


@pytest.mark.parametrize("error", [StateLost, ClusterLost, NoWorkers])
def test_a_loss_is_recorded_and_the_fit_goes_on(error):
    events = []
    assert persisting([error("it is gone"), "done"], reached=[-1, 3], events=events) == "done"
    assert events == ["it is gone; began again from iteration 3"]


def test_other_errors_are_not_held_back():
    with pytest.raises(InvalidInput, match="wrong"):
        persisting([InvalidInput("wrong")])


def test_without_a_cluster_there_is_nothing_to_wait_for():
    with pytest.raises(StateLost, match="gone"):
        persisting([StateLost("gone")], connection=None)


def test_losses_without_progress_are_not_repeated_for_ever():
    losses = [StateLost(f"loss {number}") for number in range(MOST_FAILURES + 1)]
    assert persisting([*losses[:-1], "done"]) == "done"
    with pytest.raises(ClusterLost, match=rf"{MOST_FAILURES + 1} times .* loss 5; do something"):
        persisting([*losses, "done"])
    assert persisting([*losses, *losses, "done"], reached=range(30)) == "done"


@pytest.mark.parametrize("error", [NoWorkers, ClusterLost, MemoryBudgetExceeded])
def test_workers_that_can_hold_the_problem_are_waited_for(error, monkeypatch):
    monkeypatch.setattr(recovery, "RETRY_SECONDS", 0.0)
    tries = [error("not yet")] * 3

    def plan():
        if tries:
            raise tries.pop()

    assert persisting([StateLost("gone"), "done"], plan=plan) == "done"
    assert tries == []


def test_patience_ends_with_what_was_wrong_and_the_remedy(monkeypatch):
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 0.0)

    def plan():
        raise MemoryBudgetExceeded("worker 0 needs 4 GB")

    with pytest.raises(ClusterLost, match=r"waiting worker 0 needs 4 GB; do something"):
        persisting([StateLost("gone"), "done"], plan=plan)


# ---- connections ----------------------------------------------------------------------------


def test_a_closed_client_is_refused(open_client):
    client = open_client(n_workers=1, processes=False)
    client.close()
    client.cluster.close()
    with pytest.raises(ClusterLost, match="the client is closed"):
        Connection(client)


def test_a_cluster_that_gave_a_lost_worker_up_is_asked_for_it_again(open_client):
    client = open_client(n_workers=2, processes=False)
    cluster = client.cluster
    connection = Connection(client)
    try:
        with dask.config.set({"distributed.deploy.lost-worker-timeout": "0s"}):
            cluster.sync(cluster.workers[0].close)
            wait_until(lambda: len(cluster.workers) == 1)
        connection.ask_for_lost_workers()
        client.wait_for_workers(2, timeout=60)
        assert connection.client is client
        connection.restore()
        assert connection.client is client
    finally:
        client.close()
        cluster.close()
    connection.ask_for_lost_workers()  # a cluster that was closed is left alone
    assert isinstance(cluster, distributed.LocalCluster)
