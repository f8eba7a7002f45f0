"""Small dense problems, the same ones on engines, and what the blocks hold as dense tensors."""

from __future__ import annotations

import numpy as np

from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.problem import DualProblem
from slrt_dask.dual.working_set import partition_columns
from slrt_dask.dual.writing import partition_vector
from slrt_dask.engine.base import LocalEngine
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.share import Assignment
from slrt_dask.engine.watch import assign_partitions, cluster_places
from tests.oracles.dense import random_problem

ORDERS = (2, 3, 4)
SHAPES = {2: (9, 8), 3: (8, 6, 5), 4: (7, 4, 3, 4)}
RANKS = {2: (3, 2), 3: (3, 2, 1), 4: (2, 3, 1, 2)}


def dense_problem(order, *, fraction=0.4, C=5.0, seed=0, **options):
    return random_problem(SHAPES[order], RANKS[order], C=C, fraction=fraction, seed=seed, **options)


def dual_problem(engine, dense, **options):
    """The package's problem for the dense one, on an engine that holds its observations."""
    ranks = dense.manifold.ranks
    return DualProblem(engine, ranks, cost_weight=dense.C, weights=dense.lambdas, **options)


def local_engine(store, *, threads=1, smallest_block=5, **options):
    """An engine of this process that holds a store; every thread has a block of its own."""
    partitions = tuple(range(len(store.partitions)))
    layout = store if isinstance(store, EmbeddedStore) else None
    assignment = Assignment(
        store, partitions, threads, layout=layout, smallest_block=smallest_block, **options
    )
    return _numbered(LocalEngine(assignment))


def cluster_engine(store, client, **options):
    """An engine on a cluster's workers, each of which holds some of a store's partitions."""
    counts = [partition.count for partition in store.partitions]
    places = cluster_places(client)
    layout = store if isinstance(store, EmbeddedStore) else None
    assignments = {
        place.address: Assignment(store, held, place.threads, layout=layout, **options)
        for place, held in zip(places, assign_partitions(counts, places), strict=True)
        if held
    }
    return _numbered(ClusterEngine(client, assignments))


def _numbered(engine):
    if not isinstance(engine.store, EmbeddedStore):
        number_fibres(engine)
    return engine


def entries_of_share(share, name):
    return [
        (partition_columns(share, number), partition_vector(share, number, name))
        for number in share.assignment.partitions
    ]


def tensor_of(engine, name):
    """What the blocks hold under a name, entries beyond the observed ones included."""
    tensor = np.zeros(engine.store.shape)
    for share in engine.on_shares(entries_of_share, name):
        for columns, vector in share:
            tensor[tuple(columns)] = vector
    return tensor


def number_of_blocks(engine):
    return sum(engine.on_shares(lambda share: len(share.blocks)))
