"""Small dense problems of every order, put on engines, and what the blocks hold as tensors."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from slrt_dask.data import open_store
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.problem import DualProblem
from slrt_dask.dual.sampling import ValidationErrors
from slrt_dask.dual.sums import DerivativeRowSums
from slrt_dask.dual.working_set import partition_columns
from slrt_dask.dual.writing import partition_vector, put_partition_vector
from slrt_dask.engine.base import LocalEngine
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.program import Program, Sweep
from slrt_dask.engine.share import Assignment, Share
from slrt_dask.engine.watch import assign_partitions, cluster_places
from tests.oracles.dense import random_problem

SHAPES = {2: (9, 8), 3: (8, 6, 5), 4: (7, 4, 3, 4)}
RANKS = {2: (3, 2), 3: (3, 2, 1), 4: (2, 3, 1, 2)}
ORDERS = tuple(SHAPES)
TINY = 2
"""Entries below which blocks are not cut further: small enough for every thread to get one."""


def dense_problem(order, *, fraction=0.4, C=5.0, seed=0, **options):
    return random_problem(SHAPES[order], RANKS[order], C=C, fraction=fraction, seed=seed, **options)


def dual_problem(engine, dense, **options):
    """The package's problem for the dense one, on an engine that holds its observations."""
    ranks = dense.manifold.ranks
    return DualProblem(engine, ranks, cost_weight=dense.C, weights=dense.lambdas, **options)


def held_out(dense, seed=9):
    """Places that were not observed, with made-up values: mask and values."""
    rng = np.random.default_rng(seed)
    mask = ~dense.mask & (rng.random(dense.mask.shape) < 0.3)
    return mask, rng.standard_normal(dense.mask.shape)


# ---- engines and shares -----------------------------------------------------------------------


def assignment_of(store, threads=1, partitions=None, **options):
    """What a share of some partitions of a store has to load; of all if None."""
    held = tuple(range(len(store.partitions))) if partitions is None else partitions
    return Assignment(store, held, threads, **{"smallest_block": TINY, **options})


def local_engine(store, threads=1, **options):
    """An engine of this process that holds a store, with numbered fibres."""
    engine = LocalEngine(assignment_of(store, threads, **options))
    number_fibres(engine)
    return engine


def cluster_engine(store, client, **options):
    """An engine on all workers of a client that get a partition, with numbered fibres."""
    places = cluster_places(client)
    shares = assign_partitions([part.count for part in store.partitions], places)
    assignments = {
        place.address: assignment_of(store, place.threads, share, **options)
        for place, share in zip(places, shares, strict=True)
        if share
    }
    engine = ClusterEngine(client, assignments)
    number_fibres(engine)
    return engine


def share_of(store, threads=1, **options):
    """A share of a store whose blocks are not numbered."""
    return Share(assignment_of(store, threads, **options))


# ---- vectors ----------------------------------------------------------------------------------


def vectors_of_share(share, name):
    """Partition number to the whole vector of this name."""
    return {number: partition_vector(share, number, name) for number in share.assignment.partitions}


def put_on_share(share, name, tensor):
    for number in share.assignment.partitions:
        places = tuple(partition_columns(share, number))
        put_partition_vector(share, number, name, tensor[places])


def dense_vector(engine, name, reader=vectors_of_share):
    """What the blocks hold under a name, as a tensor that is zero off the observations."""
    tensor = np.zeros(engine.store.shape)
    for part in engine.on_shares(reader, name):
        for number, vector in part.items():
            tensor[columns_of(engine.store.path, number)] = vector
    return tensor


@functools.cache
def columns_of(path, number):
    """The places of a partition's entries; stores of tests are not written again."""
    return open_store(path).read_partition(number)[0]


@dataclass(frozen=True)
class Norm(Program):
    """‖Y‖: about the shortest program there is."""

    def rounds(self):
        squares = yield Sweep(Norm._squares)
        return float(squares) ** 0.5

    def _squares(self, block, total):
        return float(np.vdot(block.values, block.values)) + (total or 0.0)


# ---- answers ----------------------------------------------------------------------------------


def results(engine, dense, *, iterations=4, validated=True, certified=True):
    """The outcome of every program at one point, with a fixed number of inner iterations.

    The number is fixed, so that two engines do the same arithmetic up to the order of sums.
    """
    problem = dual_problem(engine, dense, max_inner_iterations=iterations)
    rng = np.random.default_rng(4)
    point = problem.manifold.random_point(rng)
    direction = problem.manifold.random_tangent_vector(point, rng)
    evaluation = problem.evaluate(point, rtol=0.0, warm=None)
    warm = problem.evaluate(point, rtol=0.0, warm=evaluation)
    found = {
        "cost": evaluation.cost,
        "residual": evaluation.inner.residual,
        "dual": dense_vector(engine, evaluation.dual.name),
        "warm dual": dense_vector(engine, warm.dual.name),
        "norm": engine.run(Norm()),
    }
    rows = DerivativeRowSums(
        evaluation.dual.name, warm.dual.name, problem.operator(point), Factors.of(direction)
    )
    by_mode = {
        "row sums": problem.row_sums(None, point),
        "gradient": problem.gradient(evaluation),
        "hessian": problem.hessian(evaluation, direction, rtol=0.0),
        "derivative rows": engine.run(rows),
    }
    for name, parts in by_mode.items():
        found |= {f"{name} {mode}": part for mode, part in enumerate(parts)}
    if validated:
        program = ValidationErrors(evaluation.dual.name, problem.operator(point))
        found["validation"] = engine.run(program).rmse
    if certified:
        certificate = problem.certify(evaluation)
        found["primal"], found["bound"] = certificate.primal, certificate.dual
    return found


def assert_same(found, wanted, tolerance=1e-10):
    """Everything found is what was wanted, relative to its size."""
    assert len(found) > 5
    for name in found:
        value = wanted[name]
        scale = max(float(np.max(np.abs(value))), 1e-300)
        error = float(np.max(np.abs(np.asarray(found[name]) - value))) / scale
        assert error <= tolerance, f"{name} differs by {error:.2e} of its size"
