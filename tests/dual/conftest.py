"""What the tests of the dual problem share: a dense problem and the same one on an engine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from slrt_dask.engine.local import LocalEngine

from tests.engine.helpers import dense_problem, dense_vector, dual_problem


@pytest.fixture
def pair(store_of):
    """Make a dense problem of an order, the package's one, and a point and direction."""
    opened = []

    def make(order, *, parts=2, precision="float64", options=None, **settings):
        dense = dense_problem(order, **settings)
        store = store_of(dense.mask, dense.values, parts=parts)
        engine = LocalEngine(store, threads=1, precision=precision)
        opened.append(engine)
        rng = np.random.default_rng(11)
        point = dense.manifold.random_point(rng)
        return SimpleNamespace(
            dense=dense,
            engine=engine,
            problem=dual_problem(engine, dense, **(options or {})),
            point=point,
            direction=dense.manifold.random_tangent_vector(point, rng),
            dual=lambda evaluation: dense_vector(engine, evaluation.dual.name),
        )

    yield make
    for engine in opened:
        engine.close()
