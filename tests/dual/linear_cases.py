"""What the tests of linear constraints share: rows that matter at a point, densely and stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slrt_dask.dual.bounded import BoundedProblem
from slrt_dask.dual.coupling import LinearRows, RowStore
from tests.dual.bounded_cases import bound_vectors
from tests.dual.helpers import tensor_of
from tests.oracles.bounded import model_operator, solve_bounded

HOW = {"none": (-np.inf, np.inf), "scanned": (0.0, np.inf), "observed": (0.0, 1.5)}
"""Bounds that hold as well as the rows, and where."""


@dataclass(frozen=True)
class Rows:
    """least ≤ A W ≤ most, A being (m, entries)."""

    A: np.ndarray
    least: np.ndarray
    most: np.ndarray

    @classmethod
    def of(cls, A, kind, bound):
        none = np.full(len(bound), np.inf)
        return cls(A, -none if kind == "<=" else bound, none if kind == ">=" else bound)

    @property
    def parts(self):
        return self.A, self.least, self.most

    def stored(self, store_of, shape, *, stores=1, **options):
        """As the package has them, in one store or one after another."""
        made, first = [], 0
        for A in np.array_split(self.A, stores):
            tensor = A.reshape(len(A), *shape)
            made.append(RowStore(store_of(tensor != 0.0, tensor, **options), first))
            first += len(A)
        return LinearRows(tuple(made), self.least, self.most)


def inner_tensor(dense, point, seed=3):
    """A tensor of the model at a point, well inside the bounds of HOW."""
    rng = np.random.default_rng(seed)
    L = model_operator(dense.mask.shape, point, dense.lambdas)
    W = L @ rng.random(len(L))
    return W * (0.6 / W.max())


def some_rows(dense, point, kind, *, count=9, coupled=4, where=None, seed=3):
    """Rows over a few entries each that can be satisfied, but not for nothing.

    where : mask of the entries that they may couple; all if None
    """
    rng = np.random.default_rng(seed)
    size = dense.mask.size
    places = np.arange(size) if where is None else np.flatnonzero(where)
    A = np.zeros((count, size))
    for row in A:
        row[rng.choice(places, coupled, replace=False)] = rng.uniform(0.5, 2.0, coupled)
        row *= np.where(rng.random(size) < 0.3, -1.0, 1.0)
    bound = A @ inner_tensor(dense, point, seed)
    push = {">=": -0.02, "==": 0.0, "<=": 0.02}[kind]
    return Rows.of(A, kind, bound + push)


def with_rows(engine, dense, linear, how="none", **options):
    """The package's problem with rows, on an engine that holds the dense one's observations."""
    return BoundedProblem(
        engine, dense.manifold.ranks, cost_weight=dense.C, weights=dense.lambdas,
        bounds=bound_vectors(dense, *HOW[how]), everywhere=how == "scanned", linear=linear,
        **{"bound_tolerance": 1e-9, **options},
    )  # fmt: skip


def solve_rows(dense, point, rows, how="none"):
    """The dense reference of that."""
    where = dense.mask if how == "observed" else None
    return solve_bounded(dense, point, *HOW[how], where, rows.parts)


def assert_optimal(made, problem, evaluation, rows, how, precision=1e-6):
    """The conditions of Karush, Kuhn and Tucker, from the dual and the multipliers that there are.

    The blocks hold Z + S + Aᵀ s; the root has s, for rows of length one.
    """
    dense = made.dense
    X = tensor_of(made.engine, evaluation.dual.name)
    W = model_operator(X.shape, made.point, dense.lambdas) @ X.reshape(-1)
    s = evaluation.rows / problem.rows.lengths
    size, largest = np.abs(dense.y).max(), np.abs(X).max()
    products = rows.A @ W
    assert np.max(np.maximum(rows.least - products, products - rows.most)) <= precision * size
    assert np.isfinite(rows.least[s > 0.0]).all()
    assert np.isfinite(rows.most[s < 0.0]).all()
    assert np.abs(s).max() > 1e-3 * largest  # some row has a say
    meant = np.where(s > 0.0, rows.least, rows.most)[s != 0.0]
    slack = np.abs(s[s != 0.0] * (products[s != 0.0] - meant)).sum()
    assert slack <= precision * abs(evaluation.cost)
    lower, upper = HOW[how]
    held = {"none": np.zeros(X.shape, dtype=bool), "scanned": X == X, "observed": dense.mask}[how]
    W, own = W.reshape(X.shape), X - (rows.A.T @ s).reshape(X.shape)
    S = own - np.where(dense.mask, 2 * dense.C * (dense.values - W), 0.0)
    assert np.max(np.maximum(lower - W, W - upper)[held], initial=0.0) <= precision * size
    at_lower, at_upper = precision * largest < S, -precision * largest > S
    assert held[at_lower | at_upper].all()
    assert np.isfinite(upper) or not at_upper.any()
    slack = sum(np.abs(S[at_lower] * (W[at_lower] - lower)))
    slack += sum(np.abs(S[at_upper] * (W[at_upper] - upper)))
    assert slack <= precision * abs(evaluation.cost)
