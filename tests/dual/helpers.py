"""What the blocks of an engine hold as dense tensors, and engines of embedded stores."""

from __future__ import annotations

import numpy as np

from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.working_set import partition_columns
from slrt_dask.dual.writing import partition_vector
from slrt_dask.engine.base import LocalEngine
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.watch import assign_partitions, cluster_places
from tests.engine.helpers import assignment_of
from tests.oracles.dense import DenseEvaluation, DenseInner


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


def hankel_engine(plain, tau, *, parts=2, client=None, **options):
    """An engine that holds a store through its embedding, on the workers of a client if given."""
    store = EmbeddedStore(plain.path, plain.header, tau, parts)
    options = {"layout": store, **options}
    if client is None:
        return LocalEngine(assignment_of(store, **options))
    places = cluster_places(client)
    shares = assign_partitions([part.count for part in store.partitions], places)
    return ClusterEngine(
        client,
        {
            place.address: assignment_of(store, place.threads, share, **options)
            for place, share in zip(places, shares, strict=True)
            if share
        },
    )


def densely(made, evaluation):
    """The same evaluation for the dense problem, with the dual that the blocks hold."""
    inner = DenseInner(0, evaluation.inner.residual, True)
    return DenseEvaluation(evaluation.point, evaluation.cost, inner, made.dual(evaluation))
