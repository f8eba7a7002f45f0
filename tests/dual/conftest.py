"""What the tests of the dual problem share: a dense problem and the same one on an engine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.dual.bounded_cases import bounded_problem
from tests.dual.helpers import robust_problem, tensor_of
from tests.engine.helpers import dense_problem, dual_problem, local_engine
from tests.oracles.robust import with_outliers


@pytest.fixture
def held(store_of):
    """Put the observations of a dense problem on an engine, which is closed in the end."""
    opened = []

    def make(dense, *, parts=1, slab_mode=None, **options):
        store = store_of(dense.mask, dense.values, parts=parts, slab_mode=slab_mode)
        opened.append(local_engine(store, **options))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


@pytest.fixture
def pair(held):
    """Make a dense problem of an order, the package's one, and a point and direction."""

    def make(order, *, parts=2, precision="float64", options=None, **settings):
        dense = dense_problem(order, **settings)
        engine = held(dense, parts=parts, precision=precision)
        return at_some_point(dense, engine, dual_problem(engine, dense, **(options or {})))

    return make


def at_some_point(dense, engine, problem):
    rng = np.random.default_rng(11)
    point = dense.manifold.random_point(rng)
    return SimpleNamespace(
        dense=dense,
        engine=engine,
        problem=problem,
        point=point,
        direction=dense.manifold.random_tangent_vector(point, rng),
        dual=lambda evaluation: tensor_of(engine, evaluation.dual.name),
    )


@pytest.fixture
def local(held):
    """Make a problem with bounds and an engine of this process that holds its observations."""

    def make(order, *, parts=1, precision="float64", slab_mode=None, **settings):
        dense, point = bounded_problem(order, **settings)
        engine = held(dense, parts=parts, precision=precision, slab_mode=slab_mode)
        return SimpleNamespace(dense=dense, point=point, engine=engine)

    return make


@pytest.fixture
def robust(held):
    """Make a dense problem with outliers, the package's one, a point and a direction."""

    def make(order, delta=0.3, *, parts=2, precision="float64", C=5.0, **options):
        dense = with_outliers(dense_problem(order, C=C), delta)
        engine = held(dense, parts=parts, precision=precision)
        return at_some_point(dense, engine, robust_problem(engine, dense, **options))

    return make


@pytest.fixture(params=["squared", "huber"])
def of_each_loss(request, pair, robust):
    """Make a problem with the squared loss, or with Huber's."""
    return pair if request.param == "squared" else robust
