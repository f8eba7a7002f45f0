"""Problems of every order that are small enough to be fitted many times, and their answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import distributed
import numpy as np
import pytest

import slrt_dask as slrt
from tests.faults.processes import Cluster


@dataclass
class Problem:
    """A store, the arguments of a fit, and what a fit gives that nothing disturbs."""

    store: Any
    ranks: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    undisturbed: Any = None

    def fit(self, **where):
        return slrt.complete(self.store, self.ranks, **{**self.options, **where})

    def assert_answer(self, done):
        wanted = self.undisturbed
        assert [record.iteration for record in done.records] == [
            record.iteration for record in wanted.records
        ]
        costs, right = ([record.cost for record in one.records] for one in (done, wanted))
        np.testing.assert_allclose(costs, right, rtol=1e-10)
        np.testing.assert_allclose(done.certificate.primal, wanted.certificate.primal, rtol=1e-10)
        assert done.stop_reason is wanted.stop_reason


def make_problem(directory, shape, count, ranks, **options):
    tensor = slrt.low_rank_tensor(shape, ranks=ranks, seed=2)
    places = np.random.default_rng(2).permutation(tensor.size)[:count]
    indices = np.stack(np.unravel_index(places, shape))
    path = directory / f"order{len(shape)}"
    store = slrt.from_coo(
        path, indices, tensor[tuple(indices)], shape, partition_entries=count // 4
    )
    options = {"C": 0.05, "max_iterations": 2, "gradient_tolerance": 0.0, **options}
    problem = Problem(store, ranks, options)
    problem.undisturbed = problem.fit(threads=1)
    return problem


@pytest.fixture(scope="session")
def problems(tmp_path_factory):
    """By order: a matrix large enough to be streamed; nonnegative; and with Huber's loss."""
    directory = tmp_path_factory.mktemp("faults")
    return {
        2: make_problem(directory, (500, 600), 150_000, (3, 3)),
        3: make_problem(
            directory, (16, 12, 10), 800, (2, 2, 2), constraint=slrt.Nonnegative(), max_iterations=1
        ),
        4: make_problem(directory, (12, 10, 8, 6), 2000, (2, 2, 2, 2), loss=slrt.Huber(0.5)),
    }


@pytest.fixture(scope="session")
def problem(tmp_path_factory):
    """The quickest one."""
    directory = tmp_path_factory.mktemp("plain")
    return make_problem(directory, (24, 20, 16), 2000, (3, 3, 2), max_iterations=3)


@pytest.fixture
def cluster(tmp_path):
    """A scheduler without workers yet."""
    with Cluster(tmp_path) as started:
        yield started


@pytest.fixture
def client(cluster):
    """Two workers of unequal size."""
    for threads in (1, 2):
        cluster.start_worker(nthreads=threads)
    with distributed.Client(cluster.address, set_as_default=False) as connected:
        yield connected


def at_iteration(number, act):
    """An observer that does something once, at an iteration."""
    left = [act]

    def on_record(record, state):
        if record.iteration == number and left:
            left.pop()()

    return SimpleNamespace(on_record=on_record)


def events_of(done):
    return [record.event for record in done.records if record.event]
