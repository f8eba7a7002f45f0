"""The Hankel problem is what dense matrices say, however its chunks are cut, wherever they are."""

from __future__ import annotations

from types import SimpleNamespace

import distributed
import numpy as np
import pytest

from slrt_dask.dual.hankel.observed import observed
from slrt_dask.dual.hankel.problem import HankelProblem
from slrt_dask.dual.start import spectral_start
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.embedded import EmbeddedStore
from slrt_dask.engine.local import LocalEngine
from slrt_dask.errors import InvalidInput
from slrt_dask.kernels.windows import Embedding, unfolded
from slrt_dask.optim import ConjugateGradient, StopRules, TrustRegion, minimise
from tests.oracles.hankel import DenseHankel, embedding_matrix

CASES = {
    1: ((12,), (5,)),
    2: ((7, 6), (3, 2)),
    3: ((5, 4, 3), (2, 3, 1)),
    4: ((4, 3, 2, 3), (2, 1, 1, 2)),
}
TIGHT = 1e-10

every_order = pytest.mark.parametrize("order", [2, 3, 4])


def whole(embedding):
    return range(embedding.offsets)


# ---- the embedding ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_windows_and_overlap_add_are_the_definition_and_adjoint(order):
    shape, tau = CASES[order]
    embedding, rng = Embedding(shape, tau), np.random.default_rng(order)
    H, W = embedding_matrix(shape, tau), rng.standard_normal(shape)
    chunk = np.zeros((embedding.offsets, *embedding.window))
    embedding.embed(W, whole(embedding), chunk)
    np.testing.assert_array_equal(chunk.reshape(-1), H @ W.reshape(-1))
    S, sums = rng.standard_normal(chunk.shape), np.zeros(shape)
    embedding.overlap_add(S, whole(embedding), sums)
    np.testing.assert_allclose(sums.reshape(-1), H.T @ S.reshape(-1), atol=1e-12)
    assert np.vdot(chunk, S) == pytest.approx(np.vdot(W, sums), rel=1e-12)
    np.testing.assert_array_equal(embedding.copies().reshape(-1), H.sum(axis=0))


def test_chunks_together_are_the_whole_embedding():
    shape, tau = CASES[3]
    embedding, W = Embedding(shape, tau), np.random.default_rng(0).standard_normal(shape)
    together = np.zeros((embedding.offsets, *embedding.window))
    embedding.embed(W, whole(embedding), together)
    for first in range(embedding.offsets):
        one = np.zeros((1, *embedding.window))
        embedding.embed(W, range(first, first + 1), one)
        np.testing.assert_array_equal(one[0], together[first])


def test_an_unfolding_has_the_windows_indices_as_rows():
    chunk = np.arange(2 * 3 * 4).reshape(2, 3, 4).astype(float)
    assert unfolded(chunk, 0).shape == (3, 8)
    np.testing.assert_array_equal(unfolded(chunk, 1)[2], chunk[:, :, 2].reshape(-1))


@pytest.mark.parametrize(
    ("tau", "told"),
    [((2, 2), "2 numbers"), ((0, 1, 1), "0 in mode 0"), ((2, 5, 1), "5 in mode 1")],
)
def test_offsets_that_do_not_fit_are_refused(tau, told):
    with pytest.raises(InvalidInput, match=told):
        Embedding((5, 4, 3), tau)


# ---- the problem -----------------------------------------------------------------------------


@pytest.fixture
def hankel(store_of):
    """Make a Hankel problem of an order, and the dense one; on an engine of this process."""
    opened = []

    def make(order, *, deviation=0.1, parts=2, engine_of=LocalEngine, **options):
        shape, tau = CASES[order]
        rng = np.random.default_rng(order)
        mask, values = rng.random(shape) < 0.6, rng.standard_normal(shape)
        lambdas = tuple(float(k + 1) for k in range(order))
        plain = store_of(mask, values)
        store = EmbeddedStore(plain.path, plain.header, tau, parts)
        engine = engine_of(store, **{"threads": 1, **options})
        opened.append(engine)
        ranks = (2,) * order if order < 4 else (2, 2, 1, 2)
        problem = HankelProblem(
            engine, ranks, cost_weight=3.0, weights=lambdas, deviation=deviation
        )
        dense = DenseHankel(mask, values, tau, 3.0, lambdas, deviation)
        point = problem.manifold.random_point(rng)
        return SimpleNamespace(
            problem=problem, dense=dense, point=point, engine=engine,
            direction=problem.manifold.random_tangent_vector(point, rng),
        )  # fmt: skip

    yield make
    for engine in opened:
        engine.close()


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
    known = observed(store, 0.0)

    def sums_of(S):
        sums = np.zeros(embedding.shape)
        embedding.overlap_add(S, whole(embedding), sums)
        return sums

    def projected(S):
        out = S.copy()
        embedding.embed(-known.beyond(sums_of(S)), whole(embedding), out)
        return out

    S = np.random.default_rng(7).standard_normal((embedding.offsets, *embedding.window))
    once = projected(S)
    np.testing.assert_allclose(
        once.reshape(-1), made.dense.projection() @ S.reshape(-1), atol=1e-12
    )
    np.testing.assert_allclose(projected(once), once, atol=1e-12)
    np.testing.assert_allclose(sums_of(once)[~made.dense.mask], 0.0, atol=1e-12)


def test_a_warm_solve_needs_no_iterations_and_a_loose_one_gives_too_little(hankel):
    made = hankel(3)
    exact = made.problem.evaluate(made.point, rtol=TIGHT, warm=None)
    again = made.problem.evaluate(made.point, rtol=1e-8, warm=exact)
    assert again.inner.iterations == 0
    assert again.cost == pytest.approx(exact.cost, rel=1e-12)
    loose = made.problem.evaluate(made.point, rtol=0.3, warm=None)
    assert loose.cost <= exact.cost * (1 + 1e-12)


@every_order
def test_gradient_and_hessian_pass_taylor_tests(order, hankel):
    made = hankel(order)
    problem, point, direction = made.problem, made.point, made.direction
    evaluation = problem.evaluate(point, rtol=1e-12, warm=None)
    gradient = problem.gradient(evaluation)
    product = problem.hessian(evaluation, direction, rtol=1e-12)
    slope = sum(np.vdot(g, v) for g, v in zip(gradient, direction, strict=True))
    curvature = sum(np.vdot(h, v) for h, v in zip(product, direction, strict=True))
    errors = []
    for step in (2e-2, 1e-2):
        moved = tuple(u + step * v for u, v in zip(point, direction, strict=True))
        cost = problem.evaluate(moved, rtol=1e-12, warm=None).cost
        first = evaluation.cost + step * slope
        errors.append((abs(cost - first), abs(cost - first - 0.5 * step**2 * curvature)))
    (one, two), (half_one, half_two) = errors
    assert np.log2(one / half_one) == pytest.approx(2.0, abs=0.15)
    assert np.log2(two / half_two) == pytest.approx(3.0, abs=0.3)


@every_order
@pytest.mark.parametrize("deviation", [0.1, 0.0])
@pytest.mark.parametrize("rtol", [0.5, 1e-2, TIGHT])
def test_weak_duality_holds_however_loose_the_solve(order, deviation, rtol, hankel):
    made = hankel(order, deviation=deviation)
    problem = made.problem
    certificate = problem.certify(problem.evaluate(made.point, rtol=rtol, warm=None))
    assert certificate.dual <= certificate.primal
    # No point's certificate may contradict that of another one.
    other = problem.manifold.random_point(np.random.default_rng(99))
    second = problem.certify(problem.evaluate(other, rtol=rtol, warm=None))
    assert max(certificate.dual, second.dual) <= min(certificate.primal, second.primal)


@pytest.mark.parametrize("method", [ConjugateGradient, TrustRegion])
def test_with_full_ranks_both_methods_close_the_gap(method, store_of):
    rng = np.random.default_rng(5)
    mask = rng.random((6, 5)) < 0.7
    plain = store_of(mask, rng.standard_normal((6, 5)))
    with LocalEngine(EmbeddedStore(plain.path, plain.header, (2, 2), 2), threads=1) as engine:
        problem = HankelProblem(engine, (5, 4), cost_weight=1.0, weights=(1.0, 1.0), deviation=0.5)
        start = spectral_start(problem, 0)
        outcome = minimise(problem, method(), start, StopRules(1e-5, 0.0, 300))
        assert 0.0 <= outcome.certificate.relative_gap <= 1e-5


def test_the_answer_does_not_depend_on_chunks_threads_files_or_workers(hankel):
    wanted = hankel(3, parts=1)
    cost = wanted.problem.evaluate(wanted.point, rtol=TIGHT, warm=None).cost
    gradient = wanted.problem.gradient(wanted.problem.evaluate(wanted.point, rtol=TIGHT, warm=None))
    ways = [
        {"parts": 3},
        {"parts": 6, "threads": 2},
        {"parts": 2, "streaming": Streaming(40)},
    ]
    for way in ways:
        _assert_same(hankel(3, **way), wanted.point, cost, gradient)
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    with (
        distributed.LocalCluster(dashboard_address=None, **options) as cluster,
        distributed.Client(cluster) as client,
    ):

        def on_workers(store, **ignored):
            return ClusterEngine(store, client)

        made = hankel(3, parts=4, engine_of=on_workers)
        _assert_same(made, wanted.point, cost, gradient)
        made.engine.close()


def _assert_same(made, point, cost, gradient):
    evaluation = made.problem.evaluate(point, rtol=TIGHT, warm=None)
    assert evaluation.cost == pytest.approx(cost, rel=1e-10)
    for found, known in zip(made.problem.gradient(evaluation), gradient, strict=True):
        np.testing.assert_allclose(found, known, atol=1e-7 * np.abs(known).max())


def test_a_negative_deviation_is_refused(hankel):
    with pytest.raises(InvalidInput, match=r"deviation is -0\.1"):
        hankel(2, deviation=-0.1)
