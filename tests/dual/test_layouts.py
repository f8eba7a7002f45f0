"""What a problem comes to does not depend on where its blocks are and how they are cut."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from slrt_dask.dual.hankel.observed import Box
from slrt_dask.dual.hankel.problem import HankelProblem
from slrt_dask.dual.mode_effects import subtract_effects
from slrt_dask.engine.share import Share
from tests.dual.cases import NONNEGATIVE, Case, Kind, some_rows
from tests.dual.helpers import hankel_engine, tensor_of
from tests.engine.helpers import cluster_engine, local_engine

RTOL = 1e-5
# Slices that have rows but no observations.
CASE = Case.of(3, Kind(), empty=(0, 4))
DENSE, POINT = CASE.dense, CASE.point
TAU = (2, 3, 1)

WAYS = {
    "partitions and threads": {"parts": 3, "threads": 2},
    "many partitions": {"parts": 7},
    "other modes": {"parts": 2, "slab_mode": 1},
    "files": {"parts": 4, "block_entries": 20},
    "workers": {"parts": 7, "on_workers": True},
}


def evaluated(engine, kind, linear=None, **options):
    """A problem of some kind, and an evaluation for multipliers whose centre is not zero."""
    problem = replace(CASE, kind=kind).problem(engine, linear=linear, **options)
    evaluation = problem.evaluate(POINT, rtol=1e-10, warm=None)
    return problem, problem.renew(evaluation, rtol=1e-10) or evaluation


def bounds_everywhere(engine, rows):
    return evaluated(engine, replace(NONNEGATIVE, upper=0.8))


def bounds_at_places(engine, rows):
    return evaluated(engine, Kind(lower=0.0, upper=0.8, where="given"))


def linear_rows(engine, rows):
    return evaluated(engine, NONNEGATIVE, rows)


def huber(engine, rows):
    return evaluated(engine, Kind(delta=0.3))


def huber_with_bounds_and_rows(engine, rows):
    return evaluated(engine, replace(NONNEGATIVE, delta=0.3), rows)


def hankel(engine, rows):
    problem = HankelProblem(
        engine, (2, 2, 2), cost_weight=3.0, weights=(1.0, 2.0, 3.0), deviation=0.1,
        box=Box(0, (-0.2,) * 6, (0.6,) * 6, "all"),
    )  # fmt: skip
    point = problem.manifold.random_point(np.random.default_rng(0))
    return problem, problem.evaluate(point, rtol=RTOL, warm=None)


def mode_effects(engine, rows):
    offset = subtract_effects(engine, 0.0)
    return np.concatenate([[offset.mean], *offset.effects])


KINDS = [
    bounds_everywhere, bounds_at_places, linear_rows, huber, huber_with_bounds_and_rows, hankel,
    mode_effects,
]  # fmt: skip


def found_by(kind, engine, rows):
    """Everything that is computed from the blocks, by name."""
    if kind is mode_effects:
        return {"effects": mode_effects(engine, rows)}
    problem, evaluation = kind(engine, rows)
    certificate = problem.certify(evaluation)
    found = {
        "cost": np.array(evaluation.cost),
        "primal": np.array(certificate.primal),
        "violation": np.array(certificate.violation),
        **{f"gradient {k}": part for k, part in enumerate(problem.gradient(evaluation))},
    }
    if kind is hankel:
        found["tensor"] = problem.tensor(evaluation)
    else:
        found["dual"] = tensor_of(engine, evaluation.dual.name)
    if evaluation.rows is not None:
        found["rows"] = evaluation.rows
        assert found["rows"].any()
    return found


@pytest.fixture(scope="module")
def rows():
    """Equations and inequalities, in one set of rows."""
    equal, least = (some_rows(DENSE, POINT, kind, count=8) for kind in ("==", ">="))
    first = np.arange(8) < 4
    return replace(
        equal,
        least=np.where(first, equal.least, least.least),
        most=np.where(first, equal.most, np.inf),
    )


@pytest.fixture(scope="module")
def reference(store_of, rows):
    """What one partition on one thread gives, by kind of problem."""
    known = {}

    def of(kind):
        if kind not in known:
            with opened(store_of, kind) as engine:
                known[kind] = found_by(kind, engine, rows.stored(store_of, DENSE.mask.shape))
        return known[kind]

    return of


def opened(store_of, kind, *, parts=1, slab_mode=0, client=None, **options):
    if kind is hankel:
        plain = store_of(DENSE.mask, DENSE.values, slab_mode=slab_mode)
        return hankel_engine(plain, TAU, parts=parts, client=client, **options)
    store = store_of(DENSE.mask, DENSE.values, parts=parts, slab_mode=slab_mode)
    if client is not None:
        return cluster_engine(store, client, **options)
    return local_engine(store, **options)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (kind, way)
        for kind, way in itertools.product(KINDS, WAYS)
        # Chunks of an embedded tensor never go to files; rounds of workers take their time.
        if (way != "files" or kind is not hankel)
        and (way != "workers" or kind in (huber_with_bounds_and_rows, huber, hankel))
    ],
)
def test_results_do_not_depend_on_where_blocks_are_and_how_they_are_cut(
    kind, way, rows, store_of, reference, thread_client
):
    wanted, options = reference(kind), dict(WAYS[way])
    client = thread_client if options.pop("on_workers", False) else None
    stored = rows.stored(
        store_of, DENSE.mask.shape, stores=options["parts"] % 3 + 1, slab_mode=2, parts=2
    )
    with opened(store_of, kind, client=client, **options) as engine:
        if "block_entries" in options:
            assert engine.on_shares(number_of_blocks)[0] > 2
        found = found_by(kind, engine, stored)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = np.abs(wanted["dual"] if name == "rows" else value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-8 * scale, err_msg=name)


def number_of_blocks(share: Share) -> int:
    return len(share.blocks)
