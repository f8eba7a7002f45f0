"""Workers that are killed, at moments drawn from fixed seeds, do not change the answer."""

from __future__ import annotations

import logging
import os
import signal

import numpy as np
import pytest

import slrt_dask
from slrt_dask import recovery
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.errors import ClusterLost

SETTINGS = {
    "ranks": (3, 3, 2),
    "C": 1.0,
    "max_iterations": 4,
    "gap_tolerance": 0.0,
    "gradient_tolerance": 0.0,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(2)
    shape = (24, 20, 16)
    tensor = sum(
        np.einsum("i,j,k", *(rng.standard_normal(length) for length in shape)) for _ in range(3)
    )
    places = np.stack(np.unravel_index(rng.permutation(tensor.size)[:2000], shape))
    path = tmp_path_factory.mktemp("faults") / "store"
    return slrt_dask.from_coo(path, places, tensor[tuple(places)], shape, partition_entries=500)


@pytest.fixture(scope="module")
def undisturbed(store):
    return slrt_dask.complete(store, **SETTINGS).records[-1].cost


@pytest.fixture(scope="module")
def workers(open_client):
    return open_client(n_workers=2, processes=True, silence_logs=logging.CRITICAL)


@pytest.fixture
def client(workers):
    # A worker that is slow to come back is given up by its cluster; this asks for it anew.
    workers.cluster.scale(2)
    workers.wait_for_workers(2, timeout=60)
    return workers


def kill_one(cluster, generator):
    nannies = [nanny for nanny in cluster.workers.values() if nanny.pid]
    victim = nannies[generator.integers(len(nannies))]
    os.kill(victim.pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kept", [True, False], ids=["with a run directory", "without one"])
def test_a_worker_killed_during_any_program_leaves_the_answer_unchanged(
    seed, kept, store, undisturbed, client, tmp_path, monkeypatch
):
    generator = np.random.default_rng(seed)
    fatal = int(generator.integers(1, 40))
    calls = []
    run = ClusterEngine.run

    def run_and_lose_a_worker(engine, program):
        calls.append(program.label)
        if len(calls) == fatal:
            kill_one(client.cluster, generator)
        return run(engine, program)

    monkeypatch.setattr(ClusterEngine, "run", run_and_lose_a_worker)
    done = slrt_dask.complete(
        store, **SETTINGS, client=client, run_directory=tmp_path / "run" if kept else None
    )
    assert len(calls) > fatal
    assert done.records[-1].cost == pytest.approx(undisturbed, rel=1e-10)
    assert len(done.records) == SETTINGS["max_iterations"] + 1
    events = [record.event for record in done.records if record.event]
    assert any("began again" in event for event in events)


def test_when_no_worker_comes_back_the_run_ends_with_a_usable_checkpoint(
    store, undisturbed, open_client, tmp_path, monkeypatch
):
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 1.0)
    client = open_client(n_workers=1, processes=True, silence_logs=logging.CRITICAL)

    class LoseAll:
        def on_record(self, record, state):
            if record.iteration == 2:
                client.cluster.scale(0)

    try:
        with pytest.raises(ClusterLost, match=r"no worker was there .* resume the run"):
            slrt_dask.complete(
                store,
                **SETTINGS,
                client=client,
                run_directory=tmp_path / "run",
                observers=[LoseAll()],
            )
    finally:
        # A client without workers must not be what later tests compute on by default.
        client.close()
        client.cluster.close()
    done = slrt_dask.resume(tmp_path / "run")
    assert done.records[-1].cost == pytest.approx(undisturbed, rel=1e-10)
    assert [record.event for record in done.records if record.event] == ["resumed"]
