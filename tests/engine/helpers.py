"""Small dense problems of every order, put on engines, and what the blocks hold as tensors."""

from __future__ import annotations

import functools
import os
from contextlib import suppress

import numpy as np
from slrt_dask.engine.assignment import Assignment
from slrt_dask.engine.prepare import NumberFibres

from slrt_dask.data import open_store
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.problem import DualProblem
from slrt_dask.dual.sampling import ValidationErrors
from slrt_dask.dual.sums import DerivativeRowSums
from slrt_dask.engine.program import run_rounds
from slrt_dask.engine.share import Share
from tests.oracles.dense import random_problem

SHAPES = {2: (9, 8), 3: (8, 6, 5), 4: (7, 4, 3, 4), 5: (7, 3, 2, 3, 2)}
RANKS = {2: (3, 2), 3: (3, 2, 1), 4: (2, 3, 1, 2), 5: (2, 1, 2, 3, 2)}
ORDERS = tuple(SHAPES)


def links_of_open_files():
    """What the open files of this process are; other threads may open and close some meanwhile."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return links


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


def numbered_share(store, partitions=None, **options):
    """A share of a store's partitions, of all if None, whose fibres have numbers."""
    held = tuple(range(len(store.partitions))) if partitions is None else partitions
    share = Share(Assignment(store, held, **options))
    run_rounds(NumberFibres(store.shape, store.slab_mode, store.nnz), share.contribute)
    return share


def vectors_of_share(share, name):
    """Partition number to the whole vector of this name."""
    return {
        number: np.array(share.partition_vector(number, name))
        for number in share.assignment.partitions
    }


def names_on_share(share):
    """The names that handles stand for, without those of the solver's work vectors."""
    names = {name for block in share.blocks for name in block.block.vectors.names}
    return sorted(name for name in names if name[0] == "v" and name[1:].isdigit())


def put_on_share(share, name, tensor):
    for number in share.assignment.partitions:
        share.put_partition_vector(number, name, tensor[tuple(share.partition_columns(number))])


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


def results(engine, dense, *, iterations=4, validated=True, certified=True):
    """The outcome of every program at one point, with a fixed number of inner iterations.

    The number is fixed, so that two engines do the same arithmetic but for the order of sums.
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
        "norm": problem._norm,
    }
    for mode, part in enumerate(problem.row_sums(None, point)):
        found[f"row sums {mode}"] = part
    for mode, part in enumerate(problem.gradient(evaluation)):
        found[f"gradient {mode}"] = part
    for mode, part in enumerate(problem.hessian(evaluation, direction, rtol=0.0)):
        found[f"hessian {mode}"] = part
    rows = DerivativeRowSums(
        evaluation.dual.name, warm.dual.name, Factors.of(point), Factors.of(direction),
        engine.store.slab_mode,
    )  # fmt: skip
    for mode, part in enumerate(engine.run(rows)):
        found[f"derivative rows {mode}"] = part
    if validated:
        program = ValidationErrors(evaluation.dual.name, Factors.of(point), dense.lambdas)
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
