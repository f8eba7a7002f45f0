"""The Hankel problem is what dense matrices say, however its chunks are cut, wherever they are."""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from slrt_dask.dual.hankel.certificate import unsupported
from slrt_dask.dual.hankel.embedding import Embedding, cut_windows, overlap_add
from slrt_dask.dual.hankel.model import WindowModel
from slrt_dask.dual.hankel.observed import Box, observed
from slrt_dask.dual.hankel.problem import HankelProblem
from slrt_dask.dual.start import spectral_start
from slrt_dask.errors import InvalidInput
from slrt_dask.optim import ConjugateGradient, StopRules, TrustRegion, minimise
from tests.dual.cases import along, slope_along
from tests.dual.helpers import hankel_engine
from tests.oracles.hankel import DenseHankel, embedding_matrix
from tests.oracles.inner import model_operator

CASES = {
    1: ((12,), (5,)),
    2: ((7, 6), (3, 2)),
    3: ((5, 4, 3), (2, 3, 1)),
    4: ((4, 3, 2, 3), (2, 1, 1, 2)),
}
TIGHT = 1e-10


def box_for(order, lower=None, upper=0.6):
    """Bounds that rise along mode 0, unless one number is given for all of it."""
    length = CASES[order][0][0]
    rising = np.linspace(-0.2, 0.1, length) if lower is None else [lower] * length
    return Box(0, tuple(rising), (upper,) * length, "all")


every_order = pytest.mark.parametrize("order", [2, 3, 4])


def fresh(key, shape, dtype):
    return np.empty(shape, dtype=dtype)


def whole(embedding):
    return range(embedding.offsets)


# ---- the embedding ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_windows_and_overlap_add_are_the_definition_and_adjoint(order):
    shape, tau = CASES[order]
    embedding, rng = Embedding(shape, tau), np.random.default_rng(order)
    H, W = embedding_matrix(shape, tau), rng.standard_normal(shape)
    chunk = cut_windows(embedding, W, whole(embedding))
    np.testing.assert_array_equal(chunk.reshape(-1), H @ W.reshape(-1))
    S, sums = rng.standard_normal(chunk.shape), np.zeros(shape)
    overlap_add(embedding, S, whole(embedding), sums)
    np.testing.assert_allclose(sums.reshape(-1), H.T @ S.reshape(-1), atol=1e-12)
    assert np.vdot(chunk, S) == pytest.approx(np.vdot(W, sums), rel=1e-12)
    np.testing.assert_array_equal(embedding.copies().reshape(-1), H.sum(axis=0))


def test_chunks_together_are_the_whole_embedding():
    shape, tau = CASES[3]
    embedding, W = Embedding(shape, tau), np.random.default_rng(0).standard_normal(shape)
    together = cut_windows(embedding, W, whole(embedding))
    for first in range(embedding.offsets):
        one = cut_windows(embedding, W, range(first, first + 1))
        np.testing.assert_array_equal(one[0], together[first])


# ---- the model and its inverse ---------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("full", [False, True])
def test_the_inverse_of_the_model_is_that_of_its_matrix(order, full):
    """Whether or not the factors span a mode, and whatever rank they have."""
    shape, tau = CASES[order]
    embedding, rng = Embedding(shape, tau), np.random.default_rng(order)
    weights = tuple(float(k + 1) for k in range(order))
    factors = [rng.standard_normal((m, m if full else 1)) for m in embedding.window]
    factors[0][:, -1] = 0.0
    model = WindowModel(embedding, tuple(factors), weights, 0.3)
    windows = rng.standard_normal((2, *embedding.window))
    matrix = model_operator(embedding.window, factors, weights) + 0.3 * np.eye(windows[0].size)
    solved = model.solved(windows, fresh)
    np.testing.assert_allclose(
        solved.reshape(2, -1), np.linalg.solve(matrix, windows.reshape(2, -1).T).T, atol=1e-10
    )
    assert model.mean_inverse == pytest.approx(np.mean(np.diag(np.linalg.inv(matrix))))
    assert model.solved(windows.astype(np.float32), fresh).dtype == np.float32


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_model_moves_as_its_factors_do(order):
    shape, tau = CASES[order]
    embedding, rng = Embedding(shape, tau), np.random.default_rng(order)
    weights = tuple(float(k + 1) for k in range(order))
    factors, direction = (
        tuple(rng.standard_normal((m, 2)) for m in embedding.window) for _ in range(2)
    )
    windows = rng.standard_normal((2, *embedding.window))
    moved = WindowModel(embedding, factors, weights, 0.3).moved(windows, direction, fresh)
    one, other = (
        model_operator(
            embedding.window,
            [u + step * v for u, v in zip(factors, direction, strict=True)],
            weights,
        )
        for step in (0.5, -0.5)
    )
    np.testing.assert_allclose(
        moved.reshape(2, -1), windows.reshape(2, -1) @ (one - other), atol=1e-10
    )


@pytest.mark.parametrize(
    ("tau", "offending"),
    [((2, 2), "2 numbers"), ((0, 1, 1), "0 in mode 0"), ((2, 5, 1), "5 in mode 1")],
)
def test_offsets_that_do_not_fit_are_refused(tau, offending):
    with pytest.raises(InvalidInput, match=offending):
        Embedding((5, 4, 3), tau)


# ---- the problem -----------------------------------------------------------------------------


@pytest.fixture
def hankel(store_of):
    """Make a Hankel problem of an order on an engine of this process, and the dense one."""
    with contextlib.ExitStack() as opened:

        def make(order, *, deviation=0.1, **posed):
            shape, tau = CASES[order]
            rng = np.random.default_rng(order)
            mask, values = rng.random(shape) < 0.6, rng.standard_normal(shape)
            lambdas = tuple(float(k + 1) for k in range(order))
            engine = opened.enter_context(hankel_engine(store_of(mask, values), tau))
            ranks = (2,) * order if order < 4 else (2, 2, 1, 2)
            problem = HankelProblem(
                engine, ranks, cost_weight=3.0, weights=lambdas, deviation=deviation, **posed
            )
            point = problem.manifold.random_point(rng)
            return SimpleNamespace(
                problem=problem, engine=engine, point=point,
                dense=DenseHankel(mask, values, tau, 3.0, lambdas, deviation),
                direction=problem.manifold.random_tangent_vector(point, rng),
            )  # fmt: skip

        yield make


@every_order
@pytest.mark.parametrize("deviation", [0.3, 0.01])
def test_g_and_the_tensor_are_the_dense_ones(order, deviation, hankel):
    made = hankel(order, deviation=deviation)
    evaluation = made.problem.evaluate(made.point, rtol=TIGHT, warm=None)
    assert evaluation.inner.converged
    cost, S = made.dense.solve(made.point)
    assert evaluation.cost == pytest.approx(cost, rel=1e-9)
    W, off = made.dense.tensor(made.point, S)
    assert off < 1e-6 * np.abs(W).max()  # Ŵ + δS is Hankel
    np.testing.assert_allclose(made.problem.tensor(evaluation), W, atol=1e-7 * np.abs(W).max())


@every_order
def test_the_projection_is_idempotent_and_its_image_vanishes_off_the_observations(order, hankel):
    made = hankel(order)
    store, embedding = made.engine.store, made.engine.store.embedding
    known, back = observed(store, 0.0), np.argsort(store.mode_order)

    def sums_of(S):
        sums = np.zeros(embedding.shape)
        overlap_add(embedding, S, whole(embedding), sums)
        return sums

    def projected(S):
        return S - cut_windows(embedding, unsupported(known, sums_of(S)), whole(embedding))

    S = np.random.default_rng(7).standard_normal((embedding.offsets, *embedding.window))
    once = projected(S)
    np.testing.assert_allclose(projected(once), once, atol=1e-12)
    np.testing.assert_allclose(sums_of(once).transpose(back)[~made.dense.mask], 0.0, atol=1e-12)
    kept = sums_of(once).transpose(back)[made.dense.mask]
    np.testing.assert_allclose(kept, sums_of(S).transpose(back)[made.dense.mask], atol=1e-12)


def test_a_warm_solve_needs_no_iterations_and_a_loose_one_gives_too_much(hankel):
    made = hankel(3)
    exact = made.problem.evaluate(made.point, rtol=TIGHT, warm=None)
    again = made.problem.evaluate(made.point, rtol=1e-8, warm=exact)
    assert again.inner.iterations == 0
    assert again.cost == pytest.approx(exact.cost, rel=1e-12)
    loose = made.problem.evaluate(made.point, rtol=0.3, warm=None)
    assert loose.cost >= exact.cost * (1 - 1e-12)


@every_order
def test_gradient_and_hessian_pass_taylor_tests(order, hankel):
    made = hankel(order)
    problem, point, direction = made.problem, made.point, made.direction
    evaluation = problem.evaluate(point, rtol=1e-12, warm=None)
    gradient = problem.gradient(evaluation)
    product = problem.hessian(evaluation, direction, rtol=1e-12)
    slope, curvature = (slope_along(one, direction) for one in (gradient, product))
    errors = []
    for step in (2e-2, 1e-2):
        moved = along(point, direction, step)
        cost = problem.evaluate(moved, rtol=1e-12, warm=None).cost
        first = evaluation.cost + step * slope
        errors.append((abs(cost - first), abs(cost - first - 0.5 * step**2 * curvature)))
    (one, two), (half_one, half_two) = errors
    assert np.log2(one / half_one) == pytest.approx(2.0, abs=0.15)
    assert np.log2(two / half_two) == pytest.approx(3.0, abs=0.3)


POSED = {
    "plain": {},
    "exact constraint": {"deviation": 0.0},
    "bounds": {"box": {}},
    "lower bounds": {"box": {"upper": np.inf}},
    "upper bounds": {"box": {"lower": -np.inf}},
}


@every_order
@pytest.mark.parametrize("posed", POSED)
def test_weak_duality_holds_for_inexact_solves_and_between_points(order, posed, hankel):
    options = dict(POSED[posed])
    if "box" in options:
        options["box"] = box_for(order, **options["box"])
    made = hankel(order, **options)
    problem, found = made.problem, []
    other = problem.manifold.random_point(np.random.default_rng(99))
    for point, rtol in itertools.product((made.point, other), (0.5, 1e-2, TIGHT)):
        found.append(problem.certify(problem.evaluate(point, rtol=rtol, warm=None)))
    # No point's certificate may contradict that of another one.
    assert max(one.dual for one in found) <= min(one.primal for one in found)


@pytest.mark.parametrize(
    ("method", "box", "gap"),
    [
        (ConjugateGradient, None, 1e-5),
        (TrustRegion, None, 1e-5),
        (ConjugateGradient, Box(0, (0.0,) * 6, (np.inf,) * 6), 1e-3),
    ],
)
def test_with_full_ranks_both_methods_close_the_gap(method, box, gap, store_of):
    rng = np.random.default_rng(5)
    mask = rng.random((6, 5)) < 0.7
    with hankel_engine(store_of(mask, rng.standard_normal((6, 5))), (2, 2)) as engine:
        problem = HankelProblem(
            engine, (5, 4), cost_weight=1.0, weights=(1.0, 1.0), deviation=0.5, box=box
        )
        start = spectral_start(problem, 0)
        outcome = minimise(problem, method(), start, StopRules(gap, 0.0, 300))
        assert 0.0 <= outcome.certificate.relative_gap <= gap


def test_a_negative_deviation_is_refused(hankel):
    with pytest.raises(InvalidInput, match=r"deviation is -0\.1"):
        hankel(2, deviation=-0.1)


# ---- bounds on the tensor --------------------------------------------------------------------


@every_order
def test_with_bounds_g_is_the_minimum_within_them(order, hankel):
    box = box_for(order)
    made = hankel(order, box=box)
    evaluation = made.problem.evaluate(made.point, rtol=TIGHT, warm=None)
    assert evaluation.inner.converged
    lower, upper = (
        np.broadcast_to(np.reshape(side, (-1, *(1,) * (order - 1))), made.dense.mask.shape)
        for side in (box.lower, box.upper)
    )
    cost, W = made.dense.bounded(made.point, lower, upper)
    assert evaluation.cost == pytest.approx(cost, rel=1e-7)
    found = made.problem.tensor(evaluation)
    np.testing.assert_allclose(found, W, atol=1e-4)
    assert (found >= lower).all()
    assert (found <= upper).all()
    assert ((found == lower) | (found == upper)).any()
    again = made.problem.evaluate(made.point, rtol=1e-8, warm=evaluation)
    assert again.inner.iterations == 0


@every_order
def test_gradients_and_hessians_are_slopes_with_bounds(order, hankel):
    made, step, close = hankel(order, box=box_for(order)), 1e-6, 1e-3
    problem, point, direction = made.problem, made.point, made.direction
    evaluation = problem.evaluate(point, rtol=1e-12, warm=None)
    ahead, behind = (
        problem.evaluate(along(point, direction, sign * step), rtol=1e-12, warm=None)
        for sign in (1, -1)
    )
    slope = slope_along(problem.gradient(evaluation), direction)
    assert slope == pytest.approx((ahead.cost - behind.cost) / (2 * step), rel=1e-4)
    # While no entry reaches a bound or leaves it, the Hessian is the slope of the gradient.
    product = problem.hessian(evaluation, direction, rtol=1e-12)
    high, low = (problem.gradient(end) for end in (ahead, behind))
    for found, one, other in zip(product, high, low, strict=True):
        atol = close * np.abs(found).max()
        np.testing.assert_allclose(found, (one - other) / (2 * step), atol=atol)


def test_bounds_hold_where_they_are_asked_for(hankel, store_of):
    shape = CASES[2][0]
    mask = np.random.default_rng(2).random(shape) < 0.6
    some = np.zeros(shape, dtype=bool)
    some[2, :3] = True
    low, high = (0.0,) * shape[0], (np.inf,) * shape[0]
    store = store_of(some, np.ones(shape))
    for where, inside in [
        ("observed", mask),
        (tuple(tuple(map(int, row)) for row in np.nonzero(some)), some),
        (store.path, some),
    ]:
        made = hankel(2, box=Box(0, low, high, where))
        found = made.problem.tensor(made.problem.evaluate(made.point, rtol=1e-8, warm=None))
        assert (found[inside] >= 0.0).all()
        assert (found[~inside] < 0.0).any()
