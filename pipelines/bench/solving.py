"""What is measured in several scripts: stores, engines that hold them, and the inner solve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster

import slrt_dask as slrt
from slrt_dask.dask_settings import SETTINGS
from slrt_dask.data import from_batches, low_rank_observations
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.operator import Operator, terms_of
from slrt_dask.dual.solve import ConjugateGradients
from slrt_dask.engine.base import Engine, LocalEngine
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.share import Assignment
from slrt_dask.engine.watch import assign_partitions, cluster_places

Shape = tuple[int, ...]
PARTITIONS = 10


def store_of(
    directory: Path, shape: Shape, entries: int, slab_mode: int | None = None
) -> slrt.ObservationStore:
    """A random tensor of rank three with noise, made if it is not there yet."""
    path = directory / f"{'x'.join(map(str, shape))}-{entries}"
    if not path.exists():
        ranks = (3,) * len(shape)
        batches = low_rank_observations(shape, ranks, entries, seed=0, noise=0.1)
        partition = min(2_000_000, -(-entries // PARTITIONS))
        from_batches(path, batches, shape, slab_mode=slab_mode, partition_entries=partition)
    return slrt.open_store(path)


def in_process(
    store: slrt.ObservationStore, threads: int, precision: str = "float64"
) -> LocalEngine:
    """An engine that holds a store in the memory of this process."""
    partitions = tuple(range(len(store.partitions)))
    engine = LocalEngine(Assignment(store, partitions, threads, precision))
    number_fibres(engine)
    return engine


def on_workers(store: slrt.ObservationStore, client: Client, workers: int) -> ClusterEngine:
    """An engine that holds a store in the memory of some workers of a cluster."""
    places = cluster_places(client)[:workers]
    shares = assign_partitions([part.count for part in store.partitions], places)
    assignments = {
        str(place.address): Assignment(store, share, place.threads)
        for place, share in zip(places, shares, strict=True)
    }
    engine = ClusterEngine(client, assignments)
    number_fibres(engine)
    return engine


@contextmanager
def cluster(workers: int, memory_limit: Any = 0) -> Iterator[Client]:
    """A cluster of processes of one thread each."""
    options = {"threads_per_worker": 1, "memory_limit": memory_limit, "dashboard_address": None}
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=workers, **options) as made,
        Client(made, set_as_default=False) as client,
    ):
        yield client


def random_operator(store: slrt.ObservationStore, ranks: Shape) -> Operator:
    """The inner operator at random factors, all λ being 1."""
    generator = np.random.default_rng(0)
    pairs = zip(store.shape, ranks, strict=True)
    factors = tuple(generator.standard_normal((n, r)) / n for n, r in pairs)
    return Operator.of(terms_of((1.0,) * store.order), factors, store.slab_mode)


def solver(engine: Engine, ranks: Shape, iterations: int) -> Callable[[], Any]:
    """A call that makes some iterations of the inner solve; each is one sweep."""
    operator = random_operator(engine.store, ranks)
    program = ConjugateGradients(operator, 1e-6, "solution", 0.0, iterations)
    return lambda: engine.run(program)
