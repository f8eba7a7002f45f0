"""What the tests of the dual problem share: a dense problem and the same one on an engine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.dual.cases import KINDS, Case, dual_of
from tests.dual.helpers import tensor_of
from tests.engine.helpers import dense_problem, dual_problem, local_engine


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
        rng = np.random.default_rng(11)
        point = dense.manifold.random_point(rng)
        return SimpleNamespace(
            dense=dense,
            engine=engine,
            problem=dual_problem(engine, dense, **(options or {})),
            point=point,
            direction=dense.manifold.random_tangent_vector(point, rng),
            dual=lambda evaluation: tensor_of(engine, evaluation.dual.name),
        )

    return make


@pytest.fixture
def posed(held, store_of):
    """Make a case of an order and a kind, and the package's problem on an engine."""

    def make(
        order, kind, *, parts=1, precision="float64", slab_mode=None, options=None, **settings
    ):
        case = Case.of(order, KINDS[kind] if isinstance(kind, str) else kind, **settings)
        engine = held(case.dense, parts=parts, precision=precision, slab_mode=slab_mode)
        problem = case.problem(engine, store_of, **(options or {}))
        return SimpleNamespace(
            case=case,
            engine=engine,
            problem=problem,
            point=case.point,
            dual=lambda evaluation: dual_of(engine, problem, evaluation),
        )

    return make
