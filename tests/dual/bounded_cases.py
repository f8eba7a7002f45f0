"""Small problems with bounds, densely and on engines, and the conditions of their optimum."""

from __future__ import annotations

import numpy as np

from slrt_dask.dual.bounded import BoundedProblem
from slrt_dask.dual.bounds import BoundVectors
from slrt_dask.dual.working_set import Places
from tests.dual.helpers import tensor_of
from tests.oracles.bounded import model_operator
from tests.oracles.dense import DenseProblem

SHAPES = {2: (8, 7), 3: (6, 5, 4), 4: (5, 3, 3, 2)}
TIGHT = 1e-9


def bounded_problem(order, *, seed=0, C=5.0, rank=2, empty=()):
    """A noisy tensor of nonnegative parts, lowered so that bounds matter, and fitting factors.

    Factors are nonnegative: so W may be small and positive everywhere, inside all the bounds.
    empty : slices of mode 0 without observations
    """
    rng = np.random.default_rng(seed)
    shape = SHAPES[order]
    tensor = sum(outer([rng.random(n) ** 2 for n in shape]) for _ in range(2))
    tensor = tensor / np.sqrt(np.mean(tensor**2)) - 0.3 + 0.2 * rng.standard_normal(shape)
    mask = rng.random(shape) < 0.5
    mask[list(empty)] = False
    lambdas = np.asarray(shape) / np.mean(shape)
    dense = DenseProblem(mask, tensor, (rank,) * order, C=C, lambdas=lambdas)
    return dense, nonnegative_point(dense, rng)


def nonnegative_point(dense, rng):
    point = tuple(np.abs(part) for part in dense.manifold.random_point(rng))
    return tuple(part / np.linalg.norm(part) for part in point)


def outer(vectors):
    tensor = np.ones(())
    for vector in vectors:
        tensor = np.multiply.outer(tensor, vector)
    return tensor


def bound_vectors(dense, lower, upper, mode=0, penalty=None):
    length = dense.mask.shape[mode]
    penalty = 0.5 / dense.C if penalty is None else penalty
    return BoundVectors(
        mode, np.full(length, lower, dtype=float), np.full(length, upper, dtype=float), penalty
    )


def on(engine, dense, bounds, how="scanned", **options):
    """The package's problem for the dense one, on an engine that holds its observations."""
    shape = dense.mask.shape
    where = {
        "scanned": {"everywhere": True},
        "given": {"where": Places(array=np.indices(shape).reshape(len(shape), -1))},
        "observed": {},
    }[how]
    return BoundedProblem(
        engine, dense.manifold.ranks, cost_weight=dense.C, weights=dense.lambdas, bounds=bounds,
        **{"bound_tolerance": 1e-9, **where, **options},
    )  # fmt: skip


def settled(problem, point, rtol=TIGHT):
    return problem.settle(problem.evaluate(point, rtol=rtol, warm=None), rtol=rtol)


def slope_along(gradient, direction):
    return sum(float(np.vdot(g, v)) for g, v in zip(gradient, direction, strict=True))


def along(point, direction, step):
    return tuple(u + step * v for u, v in zip(point, direction, strict=True))


def drawn_direction(point):
    rng = np.random.default_rng(6)
    return tuple(rng.standard_normal(part.shape) for part in point)


def taylor_order(problem, at, direction):
    """The power of the step with which a first-order Taylor expansion misses the cost."""
    slope, steps, left = slope_along(problem.gradient(at), direction), [1e-3, 1e-4], []
    for step in steps:
        there = problem.evaluate(along(at.point, direction, step), rtol=1e-12, warm=at)
        left.append(abs(there.cost - at.cost - step * slope))
    return np.log(left[0] / left[1]) / np.log(steps[0] / steps[1])


def assert_optimal(made, evaluation, lower, upper, held=True, precision=1e-6):
    """The conditions of Karush, Kuhn and Tucker, from the dual that the blocks hold."""
    dense = made.dense
    X = tensor_of(made.engine, evaluation.dual.name)
    L = model_operator(X.shape, made.point, dense.lambdas)
    W = (L @ X.reshape(-1)).reshape(X.shape)
    S = X - np.where(dense.mask, 2 * dense.C * (dense.values - W), 0.0)
    size, largest = np.abs(dense.y).max(), np.abs(X).max()
    assert np.max(np.where(held, np.maximum(lower - W, W - upper), 0.0)) <= precision * size
    low, high = np.broadcast_to(lower, S.shape), np.broadcast_to(upper, S.shape)
    at_lower, at_upper = precision * largest < S, -precision * largest > S
    assert np.isfinite(low[at_lower]).all()
    assert np.isfinite(high[at_upper]).all()
    assert np.broadcast_to(held, S.shape)[at_lower | at_upper].all()
    assert at_lower.any() or at_upper.any()
    slack = S[at_lower] @ np.abs(W - low)[at_lower] - S[at_upper] @ np.abs(W - high)[at_upper]
    assert slack <= precision * abs(evaluation.cost)
