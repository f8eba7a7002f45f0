"""Small problems of every kind, densely and on engines, and the conditions of their optimum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import pytest

from slrt_dask.dual.coupling import LinearRows, RowStore
from slrt_dask.dual.entries import BoundVectors
from slrt_dask.dual.multipliers import Constrained
from slrt_dask.dual.problem import DualProblem
from slrt_dask.dual.working_set import Places
from slrt_dask.engine.block import WEIGHTS
from tests.dual.helpers import tensor_of
from tests.engine.helpers import put_on_share
from tests.oracles.convex import huber
from tests.oracles.dense import DenseProblem, unfold
from tests.oracles.inner import model_operator, solve_inner

SHAPES = {2: (8, 7), 3: (6, 5, 4), 4: (5, 3, 3, 2)}
TIGHT = 1e-10


@dataclass(frozen=True)
class Kind:
    """What is asked for.

    delta : of Huber's loss;  weighted : whether observations have weights
    lower, upper : bounds, numbers or one for every index of `mode`
    where : "everywhere", "given" for that as a list of places, "observed", a mask, or "" for none
    rows : ">=", "==", "<=", or "" for none
    """

    delta: float = np.inf
    lower: float | np.ndarray = -np.inf
    upper: float | np.ndarray = np.inf
    where: str | np.ndarray = ""
    rows: str = ""
    weighted: bool = False
    mode: int = 0

    @property
    def bounded(self):
        return not (isinstance(self.where, str) and self.where == "")

    @property
    def constrained(self):
        return self.bounded or bool(self.rows)

    @property
    def free(self):
        """The same without constraints."""
        return Kind(delta=self.delta, weighted=self.weighted)


NONNEGATIVE = Kind(lower=0.0, where="everywhere")
KINDS = {
    "plain": Kind(),
    "huber": Kind(delta=0.3),
    "weights": Kind(weighted=True),
    "weights, huber": Kind(delta=0.3, weighted=True),
    "nonnegative": NONNEGATIVE,
    "two-sided, given": Kind(lower=0.0, upper=0.8, where="given"),
    "upper": Kind(upper=0.5, where="everywhere"),
    "two-sided, observed": Kind(lower=0.0, upper=0.8, where="observed"),
    "weights, nonnegative": replace(NONNEGATIVE, weighted=True),
    "huber, nonnegative": replace(NONNEGATIVE, delta=0.3),
    "huber, two-sided, given": Kind(delta=0.3, lower=0.0, upper=0.8, where="given"),
    "huber, upper, observed": Kind(delta=0.3, upper=0.5, where="observed"),
    "rows >=": Kind(rows=">="),
    "rows ==": Kind(rows="=="),
    "rows <=": Kind(rows="<="),
    "nonnegative, rows": replace(NONNEGATIVE, rows=">="),
    "two-sided, observed, rows": Kind(lower=0.0, upper=1.5, where="observed", rows="<="),
    "huber, rows": Kind(delta=0.3, rows="=="),
    "huber, nonnegative, rows": replace(NONNEGATIVE, delta=0.3, rows=">="),
    "weights, huber, nonnegative, rows": replace(NONNEGATIVE, delta=0.3, rows=">=", weighted=True),
}


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

    def missed(self, W):
        products = self.A @ W.reshape(-1)
        return float(np.max(np.maximum(self.least - products, products - self.most), initial=0.0))


@dataclass(frozen=True)
class Case:
    """A problem of some kind, before it is on an engine.

    weights : of the observations, a tensor
    """

    dense: DenseProblem
    point: tuple[np.ndarray, ...]
    kind: Kind
    weights: np.ndarray
    rows: Rows | None

    @classmethod
    def of(cls, order, kind, *, seed=0, C=5.0, rank=2, empty=(), shape=None, rows=None):
        """A noisy tensor of nonnegative parts, lowered so that bounds matter, and fitting factors.

        Factors are nonnegative: so W may be small and positive everywhere, inside all the bounds.
        With Huber's loss some observations are absurd.
        empty : slices of mode 0 without observations
        """
        rng, shape = np.random.default_rng(seed), shape or SHAPES[order]
        tensor = sum(outer([rng.random(n) ** 2 for n in shape]) for _ in range(2))
        tensor = tensor / np.sqrt(np.mean(tensor**2)) - 0.3 + 0.2 * rng.standard_normal(shape)
        mask = rng.random(shape) < 0.5
        mask[list(empty)] = False
        lambdas = np.asarray(shape) / np.mean(shape)
        ranks = tuple(min(rank, n) for n in shape)
        point = nonnegative_point(DenseProblem(mask, tensor, ranks, C=C, lambdas=lambdas), rng)
        if np.isfinite(kind.delta):
            absurd = rng.random(shape) < 0.1
            tensor = np.where(absurd, 8.0 * rng.choice([-1.0, 1.0], shape), tensor)
        weights = rng.uniform(0.3, 3.0, shape) if kind.weighted else np.ones(shape)
        dense = DenseProblem(mask, tensor, ranks, C=C, lambdas=lambdas)
        if kind.rows and rows is None:
            rows = some_rows(dense, point, kind.rows)
        return cls(dense, point, kind, weights, rows)

    @property
    def shape(self):
        return self.dense.mask.shape

    @cached_property
    def held(self):
        """Where bounds hold."""
        if isinstance(self.kind.where, np.ndarray):
            return self.kind.where
        everywhere = np.ones(self.shape, dtype=bool)
        return {"": ~everywhere, "observed": self.dense.mask}.get(self.kind.where, everywhere)

    @cached_property
    def bounds(self):
        """The lower and the upper ones as tensors, infinite where there are none."""
        along = [-1 if k == self.kind.mode else 1 for k in range(len(self.shape))]
        return tuple(
            np.where(self.held, np.reshape(bound, along) if np.ndim(bound) else bound, none)
            for bound, none in ((self.kind.lower, -np.inf), (self.kind.upper, np.inf))
        )

    def bound_vectors(self, penalty=None):
        length = self.shape[self.kind.mode]
        sides = (np.full(length, 1.0) * one for one in (self.kind.lower, self.kind.upper))
        return BoundVectors(self.kind.mode, *sides, penalty or 0.5 / self.dense.C)

    def problem(self, engine, store_of=None, *, penalty=None, linear=None, **options):
        """The package's one on an engine that holds the observations.

        linear : rows, if they are stored in another way than usual
        options : of the problem, or of its constraints
        """
        kind, constrained = self.kind, None
        if kind.weighted:
            engine.on_shares(put_on_share, WEIGHTS, self.weights)
        if kind.constrained:
            where = options.pop("places", None)
            if isinstance(kind.where, str) and kind.where == "given":
                where = Places(array=np.argwhere(self.held).T)
            if self.rows is not None and linear is None:
                linear = self.rows.stored(store_of, self.shape)
            constrained = Constrained(
                self.bound_vectors(penalty), where, isinstance(kind.where, str)
                and kind.where == "everywhere", linear, options.pop("tolerance", 1e-9),
                options.pop("most_extra", None),
            )  # fmt: skip
        return DualProblem(
            engine, self.dense.manifold.ranks, cost_weight=self.dense.C,
            weights=self.dense.lambdas, delta=kind.delta, weighted=kind.weighted,
            constrained=constrained, **options,
        )  # fmt: skip

    # ---- densely --------------------------------------------------------------------------------

    def solution(self, point=None):
        """g and W of the dense reference."""
        rows = None if self.rows is None or not self.kind.rows else self.rows.parts
        return solve_inner(
            self.dense, self.point if point is None else point, *self.bounds, self.held, rows,
            self.kind.delta, self.weights,
        )  # fmt: skip

    def misfit(self, W):
        """Σ w h(W − Y)."""
        return float(np.sum((self.weights * huber(W - self.dense.values, self.kind.delta))
                            [self.dense.mask]))  # fmt: skip

    def objective(self, parts):
        """C Σ w h(W − Y) + Σ 1/(2λ_k) ‖unfold_k(W^k)‖_*²."""
        nuclear = [np.linalg.norm(unfold(part, k), "nuc") for k, part in enumerate(parts)]
        penalty = sum(n**2 / (2 * w) for n, w in zip(nuclear, self.dense.lambdas, strict=True))
        return float(self.dense.C * self.misfit(sum(parts)) + penalty)

    def parts(self, X, point=None):
        return self.dense.parts(
            SimpleNamespace(point=self.point if point is None else point, dual=X)
        )

    def answer(self, W):
        """z = 2Cw (Y − W), clipped, where there are observations."""
        most, clear = self.kind.delta, self.dense.values - W
        z = 2 * self.dense.C * self.weights * np.clip(clear, -most, most)
        return np.where(self.dense.mask, z, 0.0)

    def violation(self, W):
        lower, upper = self.bounds
        return float(np.max(np.maximum(lower - W, W - upper), initial=0.0))

    def best_dual(self, X, t):
        """max over α of the dual objective at α X, in which rows have multipliers t."""
        own = X if self.rows is None else X - (self.rows.A.T @ t).reshape(X.shape)
        lower, upper = self.bounds
        at_lower = np.where(np.isfinite(lower), self.answer(finite(lower)), np.inf)
        at_upper = np.where(np.isfinite(upper), self.answer(finite(upper)), -np.inf)
        z = np.where(self.held, np.maximum(np.minimum(own, at_lower), at_upper), own)
        s, twice_c = own - z, 2 * self.dense.C * self.weights
        assert np.abs(z[~self.dense.mask]).max(initial=0.0) <= 1e-12 * np.abs(X).max()
        z = np.where(self.dense.mask, z, 0.0)
        s[np.abs(s) <= 1e-12 * np.abs(X).max()] = 0.0
        linear = np.vdot(z, self.dense.values)
        linear += np.sum(s[s > 0] * lower[s > 0]) + np.sum(s[s < 0] * upper[s < 0])
        if self.rows is not None:
            linear += sum(
                one * (least if one > 0 else most)
                for one, least, most in zip(t, self.rows.least, self.rows.most, strict=True)
                if one != 0.0
            )
        quadratic = np.sum(z**2 / (2 * twice_c))
        for k, weight in enumerate(self.dense.lambdas):
            quadratic += weight / 2 * np.linalg.norm(unfold(X, k), 2) ** 2
        most = np.min(twice_c * min(self.kind.delta, 1e9) / np.maximum(np.abs(z), 1e-30))
        best = np.clip(linear / (2 * quadratic), 0.0, most)
        return best * linear - best**2 * quadratic

    def assert_optimal(self, X, t, cost, precision=1e-6):
        """The conditions of Karush, Kuhn and Tucker: X = z + s + Aᵀ t, and there is no gap."""
        W = (model_operator(X.shape, self.point, self.dense.lambdas) @ X.reshape(-1)).reshape(
            X.shape
        )
        size, largest = np.abs(self.dense.y).max(), np.abs(X).max()
        assert self.violation(W) <= precision * size
        own = X
        if self.rows is not None:
            assert self.rows.missed(W) <= precision * size
            assert np.isfinite(self.rows.least[t > 0.0]).all()
            assert np.isfinite(self.rows.most[t < 0.0]).all()
            assert np.abs(t).max() > 1e-3 * largest  # some row has a say
            meant = np.where(t > 0.0, self.rows.least, self.rows.most)[t != 0.0]
            slack = np.abs(t[t != 0.0] * ((self.rows.A @ W.reshape(-1))[t != 0.0] - meant)).sum()
            assert slack <= precision * abs(cost)
            own = X - (self.rows.A.T @ t).reshape(X.shape)
        s, (lower, upper) = own - self.answer(W), self.bounds
        at_lower, at_upper = precision * largest < s, -precision * largest > s
        assert np.isfinite(lower[at_lower]).all()
        assert np.isfinite(upper[at_upper]).all()
        slack = s[at_lower] @ (W - lower)[at_lower] + s[at_upper] @ (W - upper)[at_upper]
        assert abs(slack) <= precision * abs(cost)
        primal = self.dense.C * self.misfit(W) + 0.5 * np.vdot(X, W)
        assert cost == pytest.approx(primal, rel=precision)


# ---- points and rows -----------------------------------------------------------------------------


def finite(bound):
    return np.where(np.isfinite(bound), bound, 0.0)


def outer(vectors):
    tensor = np.ones(())
    for vector in vectors:
        tensor = np.multiply.outer(tensor, vector)
    return tensor


def nonnegative_point(dense, rng):
    point = tuple(np.abs(part) for part in dense.manifold.random_point(rng))
    return tuple(part / np.linalg.norm(part) for part in point)


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
    # A tensor of the model, well inside the bounds that rows are asked for with.
    W = model_operator(dense.mask.shape, point, dense.lambdas)
    W = W @ np.random.default_rng(seed).random(size)
    push = {">=": -0.02, "==": 0.0, "<=": 0.02}[kind]
    return Rows.of(A, kind, A @ (W * (0.6 / W.max())) + push)


# ---- evaluations --------------------------------------------------------------------------------


def settled(problem, point, rtol=TIGHT):
    return problem.settle(problem.evaluate(point, rtol=rtol, warm=None), rtol=rtol)


def dual_of(engine, problem, evaluation):
    """The dual tensor that the blocks hold, and the rows' multipliers in the units they came in."""
    X = tensor_of(engine, evaluation.dual.name)
    return X, None if evaluation.rows is None else evaluation.rows / problem.rows.lengths


def slope_along(gradient, direction):
    return sum(float(np.vdot(g, v)) for g, v in zip(gradient, direction, strict=True))


def along(point, direction, step):
    return tuple(u + step * v for u, v in zip(point, direction, strict=True))


def drawn_direction(point, seed=6):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(part.shape) for part in point)
