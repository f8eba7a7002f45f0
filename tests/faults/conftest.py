"""A problem small enough to be fitted many times, its answer, and clusters to be killed."""

from __future__ import annotations

from types import SimpleNamespace

import distributed
import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.engine.watch import known_workers
from tests.faults.killing import DiesAtTask
from tests.faults.processes import Cluster

RANKS = (3, 3, 2)
OPTIONS = {"C": 0.05, "max_iterations": 4, "gap_tolerance": 1e-3, "gradient_tolerance": 0.0}


def at_iteration(number, act):
    """An observer that does something once, at an iteration."""
    left = [act]

    def on_record(record, state):
        if record.iteration == number and left:
            left.pop()()

    return SimpleNamespace(on_record=on_record)


def events_of(done):
    return [record.event for record in done.records if record.event]


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    shape = (24, 20, 16)
    tensor = slrt.low_rank_tensor(shape, ranks=(3, 3, 3), seed=2)
    places = np.random.default_rng(2).permutation(tensor.size)[:2000]
    indices = np.stack(np.unravel_index(places, shape))
    path = tmp_path_factory.mktemp("faults") / "store"
    return slrt.from_coo(path, indices, tensor[tuple(indices)], shape, partition_entries=500)


@pytest.fixture(scope="session")
def undisturbed(store):
    return slrt.complete(store, RANKS, **OPTIONS, threads=1)


@pytest.fixture
def cluster(tmp_path):
    """A scheduler without workers yet."""
    with Cluster(tmp_path) as started:
        yield started


@pytest.fixture
def client(cluster):
    """Two workers."""
    for _ in range(2):
        cluster.start_worker()
    with distributed.Client(cluster.address, set_as_default=False) as connected:
        yield connected


@pytest.fixture
def assert_same_answer(undisturbed):
    def check(done):
        assert len(done.records) == len(undisturbed.records)
        for one, other in zip(done.records, undisturbed.records, strict=True):
            assert one.iteration == other.iteration
            assert one.cost == pytest.approx(other.cost, rel=1e-10)
        assert done.stop_reason is undisturbed.stop_reason
        assert done.certificate.primal == pytest.approx(undisturbed.certificate.primal, rel=1e-9)

    return check


@pytest.fixture
def doomed(client, tmp_path):
    """Have one of two workers die at a drawn task; their client is the current one."""
    marks = tmp_path / "marks"
    marks.mkdir()

    def doom(random, task, most):
        moment = ("executing", "memory")[random.integers(2)]
        plugin = DiesAtTask(task, int(random.integers(most)), moment, marks)
        client.register_plugin(plugin, name="dies")

    with client.as_current():
        yield doom
    assert len(known_workers(client)) == 1, "no worker died"
