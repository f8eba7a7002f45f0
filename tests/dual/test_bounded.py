"""With bounds, g and its multipliers are what exact dense computations say, wherever blocks are."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.local import LocalEngine
from threadpoolctl import threadpool_limits

from slrt_dask.dual.bounded import BoundedProblem
from slrt_dask.dual.bounds import MARKS, BoundVectors
from slrt_dask.dual.problem import DualProblem
from slrt_dask.dual.scan import boxes
from slrt_dask.dual.start import spectral_start
from slrt_dask.dual.working_set import Places
from slrt_dask.engine import prepare
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.errors import InvalidInput, MemoryBudgetExceeded
from slrt_dask.kernels.bounds import BOUNDED, OBSERVED
from slrt_dask.optim import ConjugateGradient, StopRules, minimise
from tests.oracles.bounded import model_operator, solve_bounded
from tests.oracles.dense import DenseProblem, unfold

SHAPES = {2: (8, 7), 3: (6, 5, 4), 4: (5, 3, 3, 2)}
BOUNDS = {"nonnegative": (0.0, np.inf), "two-sided": (0.0, 0.8), "upper": (-np.inf, 0.5)}
TIGHT = 1e-9

every_order = pytest.mark.parametrize("order", [2, 3, 4])
every_bound = pytest.mark.parametrize("kind", BOUNDS)


def bounded_problem(order, *, seed=0, C=5.0, rank=2):
    """A noisy tensor of nonnegative parts, lowered so that bounds matter, and fitting factors.

    Factors are nonnegative: so W may be small and positive everywhere, inside all the bounds.
    """
    rng = np.random.default_rng(seed)
    shape = SHAPES[order]
    tensor = sum(outer([rng.random(n) ** 2 for n in shape]) for _ in range(2))
    tensor = tensor / np.sqrt(np.mean(tensor**2)) - 0.3 + 0.2 * rng.standard_normal(shape)
    mask = rng.random(shape) < 0.5
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


def all_places(shape):
    return np.indices(shape).reshape(len(shape), -1)


def on(engine, dense, bounds, how="scanned", **options):
    """The package's problem for the dense one, on an engine that holds its observations."""
    where = {
        "scanned": {"everywhere": True},
        "given": {"where": Places(array=all_places(dense.mask.shape))},
        "observed": {},
    }[how]
    return BoundedProblem(
        engine, dense.manifold.ranks, cost_weight=dense.C, weights=dense.lambdas, bounds=bounds,
        **{"bound_tolerance": 1e-9, **where, **options},
    )  # fmt: skip


def settled(problem, point, rtol=TIGHT):
    return problem.settle(problem.evaluate(point, rtol=rtol, warm=None), rtol=rtol)


def entries_of_share(share, name):
    return [
        (share.partition_columns(number), share.partition_vector(number, name))
        for number in share.assignment.partitions
    ]


def tensor_of(engine, name):
    """What the blocks hold under a name, entries beside the observed ones included."""
    tensor = np.zeros(engine.store.shape)
    for share in engine.on_shares(entries_of_share, name):
        for columns, vector in share:
            tensor[tuple(columns)] = vector
    return tensor


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads of a BLAS do not help with matrices so small."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


@pytest.fixture
def local(store_of):
    """Make a problem and an engine of this process that holds its observations."""
    opened = []

    def make(order, *, parts=1, precision="float64", streaming=None, **settings):
        dense, point = bounded_problem(order, **settings)
        store = store_of(dense.mask, dense.values, parts=parts)
        engine = LocalEngine(store, threads=1, precision=precision, streaming=streaming)
        opened.append(engine)
        return SimpleNamespace(dense=dense, point=point, engine=engine)

    yield make
    for engine in opened:
        engine.close()


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


# ---- what is solved -------------------------------------------------------------------------


@every_order
@every_bound
@pytest.mark.parametrize("how", ["scanned", "given"])
def test_settled_multipliers_are_optimal_and_g_is_the_dense_one(order, kind, how, local):
    made, (lower, upper) = local(order), BOUNDS[kind]
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper), how)
    evaluation = settled(problem, made.point)
    assert evaluation.inner.converged
    assert_optimal(made, evaluation, lower, upper)
    wanted = solve_bounded(made.dense, made.point, lower, upper)
    assert evaluation.cost == pytest.approx(wanted.cost, rel=1e-7)
    # Bounds that cost nothing would prove nothing.
    free = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    assert evaluation.cost > free * (1 + 1e-4)


@every_order
@pytest.mark.parametrize(
    ("kind", "how"), [("nonnegative", "scanned"), ("two-sided", "given"), ("upper", "observed")]
)
def test_the_alternation_and_the_joint_solve_agree(order, kind, how, local):
    found = []
    for alternating in (False, True):
        made = local(order, parts=2)
        bounds = bound_vectors(made.dense, *BOUNDS[kind])
        problem = on(made.engine, made.dense, bounds, how, alternating=alternating)
        start = problem.evaluate(made.point, rtol=1e-8, warm=None)
        # From there with other multipliers and, where the tensor is scanned, on other entries.
        evaluation = problem.renew(start, rtol=1e-8)
        assert evaluation.inner.converged
        found.append((evaluation.cost, tensor_of(made.engine, evaluation.dual.name)))
    (joint, x), (alternated, other) = found
    assert alternated == pytest.approx(joint, rel=1e-8)
    np.testing.assert_allclose(other, x, atol=1e-5 * np.abs(x).max())


@pytest.mark.parametrize(("seed", "C"), [(1, 0.2), (2, 0.2), (3, 20.0), (4, 20.0)])
def test_that_is_so_for_other_data_and_other_weights(seed, C, local):
    made = local(3, seed=seed, C=C)
    lower, upper = (0.0, 0.8) if seed % 2 else (0.05, np.inf)
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper))
    evaluation = settled(problem, made.point)
    assert_optimal(made, evaluation, lower, upper)
    wanted = solve_bounded(made.dense, made.point, lower, upper).cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize("order", [2, 3])
def test_at_a_spectral_point_of_higher_rank_it_is_so_too(order, local):
    made = local(order, rank=4)
    problem = on(made.engine, made.dense, bound_vectors(made.dense, 0.0, np.inf))
    made.point = spectral_start(problem, 0)
    evaluation = settled(problem, made.point)
    assert_optimal(made, evaluation, 0.0, np.inf)
    wanted = solve_bounded(made.dense, made.point, 0.0, np.inf).cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize(("mode", "how"), [(0, "given"), (1, "scanned"), (2, "scanned")])
def test_every_index_of_a_mode_may_have_bounds_of_its_own(mode, how, local):
    made = local(3)
    length = SHAPES[3][mode]
    lower, upper = np.linspace(-0.2, 0.1, length), np.linspace(0.5, 1.5, length)
    lower[1], upper[2] = -np.inf, np.inf
    problem = on(made.engine, made.dense, BoundVectors(mode, lower, upper, 0.1), how)
    evaluation = settled(problem, made.point)
    along = [-1 if k == mode else 1 for k in range(3)]
    lower, upper = lower.reshape(along), upper.reshape(along)
    assert_optimal(made, evaluation, lower, upper)
    wanted = solve_bounded(made.dense, made.point, lower, upper).cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize(
    ("order", "how"), [(2, "some"), (3, "observed"), (3, "store"), (4, "some"), (4, "observed")]
)
def test_bounds_hold_just_where_they_were_asked_for(order, how, local, store_of):
    made = local(order)
    rng = np.random.default_rng(4)
    held = made.dense.mask if how == "observed" else rng.random(made.dense.mask.shape) < 0.3
    where = {
        "observed": None,
        # In any order, and some of them twice.
        "some": Places(array=np.repeat(rng.permutation(np.argwhere(held)).T, 2, axis=1)),
        "store": Places(store=store_of(held, np.ones(held.shape), parts=3, slab_mode=1).path),
    }[how]
    bounds = bound_vectors(made.dense, 0.0, 0.8)
    problem = on(made.engine, made.dense, bounds, "observed", where=where)
    evaluation = settled(problem, made.point)
    assert_optimal(made, evaluation, 0.0, 0.8, held)
    wanted = solve_bounded(made.dense, made.point, 0.0, 0.8, held)
    assert evaluation.cost == pytest.approx(wanted.cost, rel=1e-7)
    assert np.max(np.abs(np.clip(wanted.W, 0.0, 0.8) - wanted.W)) > 1e-2
    marks = tensor_of(made.engine, MARKS).astype(int)
    np.testing.assert_array_equal((marks & BOUNDED) > 0, held)
    np.testing.assert_array_equal((marks & OBSERVED) > 0, made.dense.mask)


@pytest.mark.parametrize("penalty", [1e-2, 1.0])
def test_the_penalty_does_not_matter_in_the_end(penalty, local):
    made = local(3)
    bounds = bound_vectors(made.dense, 0.0, np.inf, penalty=penalty)
    evaluation = settled(on(made.engine, made.dense, bounds), made.point)
    wanted = solve_bounded(made.dense, made.point, 0.0, np.inf).cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-7)


@every_bound
def test_where_multipliers_are_held_back_g_is_no_higher_than_without(kind, local):
    made, (lower, upper) = local(3), BOUNDS[kind]
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper), "given")
    free = made.dense.evaluate(made.point, rtol=0.0, warm=None).cost
    wanted = solve_bounded(made.dense, made.point, lower, upper).cost
    costs, evaluation = [], problem.evaluate(made.point, rtol=TIGHT, warm=None)
    while evaluation is not None and len(costs) < 5:
        costs.append(evaluation.cost)
        evaluation = problem.renew(evaluation, rtol=TIGHT)
    # The method of multipliers climbs.
    assert costs == sorted(costs)
    assert free < costs[0] < costs[-1] <= wanted * (1 + 1e-9)


@every_order
def test_bounds_that_are_nowhere_active_change_nothing(order, local):
    made = local(order)
    plain = DualProblem(
        made.engine, made.dense.manifold.ranks, cost_weight=made.dense.C,
        weights=made.dense.lambdas, certificate_rtol=1e-9,
    )  # fmt: skip
    wanted = plain.evaluate(made.point, rtol=1e-12, warm=None)
    gradient, certificate = plain.gradient(wanted), plain.certify(wanted)
    bounds = bound_vectors(made.dense, -1e3, 1e3)
    problem = on(made.engine, made.dense, bounds, certificate_rtol=1e-9)
    evaluation = settled(problem, made.point, rtol=1e-12)
    assert evaluation.cost == pytest.approx(wanted.cost, rel=1e-10)
    for one, other in zip(problem.gradient(evaluation), gradient, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8 * np.abs(other).max())
    found = problem.certify(evaluation)
    assert found.violation == 0.0
    assert found.primal == pytest.approx(certificate.primal, rel=1e-9)
    assert found.dual == pytest.approx(certificate.dual, rel=1e-3)
    X = tensor_of(made.engine, evaluation.dual.name)
    assert not X[~made.dense.mask].any()


def test_a_solve_that_hits_its_limit_says_so(local):
    made = local(3)
    bounds = bound_vectors(made.dense, 0.0, np.inf)
    problem = on(made.engine, made.dense, bounds, "given", max_inner_iterations=3)
    inner = problem.evaluate(made.point, rtol=1e-12, warm=None).inner
    assert (inner.iterations, inner.converged) == (3, False)
    assert inner.residual > 1e-12


def test_in_short_numbers_it_is_so_to_their_precision(local):
    made = local(3, precision="float32")
    problem = on(
        made.engine, made.dense, bound_vectors(made.dense, 0.0, np.inf), bound_tolerance=1e-5
    )
    evaluation = settled(problem, made.point, rtol=1e-5)
    assert_optimal(made, evaluation, 0.0, np.inf, precision=1e-3)
    wanted = solve_bounded(made.dense, made.point, 0.0, np.inf).cost
    assert evaluation.cost == pytest.approx(wanted, rel=1e-4)


# ---- wherever blocks are --------------------------------------------------------------------


def found_by(engine, dense, point, how):
    """What a problem with bounds on both sides comes to when their centre has moved once."""
    problem = on(engine, dense, bound_vectors(dense, 0.0, 0.8), how)
    evaluation = problem.evaluate(point, rtol=1e-10, warm=None)
    evaluation = problem.renew(evaluation, rtol=1e-10)
    certificate = problem.certify(evaluation)
    return {
        "cost": np.array(evaluation.cost),
        "primal": np.array(certificate.primal),
        **{f"gradient {k}": part for k, part in enumerate(problem.gradient(evaluation))},
    }


def assert_same(found, wanted):
    assert len(found) > 3
    for name, value in wanted.items():
        np.testing.assert_allclose(
            found[name], value, rtol=0.0, atol=1e-9 * np.abs(value).max(), err_msg=name
        )


@pytest.fixture(scope="module")
def reference(store_of):
    """What one partition on one thread gives."""
    known = {}

    def of(order, how):
        if (order, how) not in known:
            dense, point = bounded_problem(order)
            with LocalEngine(store_of(dense.mask, dense.values), threads=1) as engine:
                known[order, how] = dense, point, found_by(engine, dense, point, how)
        return known[order, how]

    return of


@pytest.mark.parametrize(
    ("order", "parts", "how"),
    [(2, 2, "given"), (3, 2, "scanned"), (3, 3, "given"), (3, 7, "scanned"), (4, 3, "given")],
)
def test_results_do_not_depend_on_the_number_of_partitions(order, parts, how, store_of, reference):
    dense, point, wanted = reference(order, how)
    # More partitions than slices there cannot be.
    store = store_of(dense.mask, dense.values, parts=parts)
    assert len(store.partitions) >= min(parts, dense.mask.shape[store.slab_mode])
    with LocalEngine(store, threads=2) as engine:
        assert_same(found_by(engine, dense, point, how), wanted)


@pytest.mark.parametrize(("parts", "how"), [(3, "given"), (7, "scanned")])
def test_workers_give_the_local_results(parts, how, store_of, reference, thread_client):
    dense, point, wanted = reference(3, how)
    store = store_of(dense.mask, dense.values, parts=parts)
    with ClusterEngine(store, thread_client) as engine:
        assert_same(found_by(engine, dense, point, how), wanted)


@pytest.mark.parametrize(("slab_mode", "how"), [(1, "scanned"), (2, "given")])
def test_results_do_not_depend_on_the_slab_mode(slab_mode, how, store_of, reference):
    dense, point, wanted = reference(3, how)
    store = store_of(dense.mask, dense.values, parts=2, slab_mode=slab_mode)
    with LocalEngine(store, threads=1) as engine:
        assert_same(found_by(engine, dense, point, how), wanted)


@pytest.mark.parametrize("how", ["scanned", "given"])
def test_blocks_streamed_from_files_give_the_results_of_blocks_in_memory(
    how, store_of, reference, tmp_path
):
    dense, point, wanted = reference(2, how)
    store = store_of(dense.mask, dense.values, parts=2)
    streaming = Streaming(block_entries=12, directory=str(tmp_path))
    with LocalEngine(store, threads=1, streaming=streaming) as engine:
        assert len(engine._share.blocks) > 2
        assert_same(found_by(engine, dense, point, how), wanted)


def test_slices_without_observations_are_looked_through_too(store_of):
    dense, point = bounded_problem(3)
    dense.mask[[0, 3, 5]] = False
    dense = DenseProblem(dense.mask, dense.values, (2,) * 3, C=dense.C, lambdas=dense.lambdas)
    wanted = solve_bounded(dense, point, 0.05, np.inf)
    assert np.isclose(wanted.W[[0, 3, 5]], 0.05).any()
    for parts in (1, 3):
        store = store_of(dense.mask, dense.values, parts=parts, slab_mode=0)
        with LocalEngine(store, threads=2) as engine:
            problem = on(engine, dense, bound_vectors(dense, 0.05, np.inf))
            evaluation = settled(problem, point)
            assert evaluation.cost == pytest.approx(wanted.cost, rel=1e-7)


def test_numbering_only_fibres_that_occur_changes_nothing(store_of, reference, monkeypatch):
    dense, point, wanted = reference(3, "scanned")
    monkeypatch.setattr(prepare, "GENEROUS_FIBRES", 0)
    monkeypatch.setattr(prepare, "numbers_every_fibre", lambda *_: False)
    store = store_of(dense.mask, dense.values, parts=2)
    with LocalEngine(store, threads=1) as engine:
        assert_same(found_by(engine, dense, point, "scanned"), wanted)


# ---- scans and the working set --------------------------------------------------------------


@pytest.mark.parametrize("entries", [1, 7, 40, 10_000])
@pytest.mark.parametrize("slab_mode", [0, 1, 2])
def test_boxes_cover_some_slices_once_and_are_no_larger_than_asked_for(
    entries, slab_mode, monkeypatch
):
    monkeypatch.setattr("slrt_dask.dual.scan.BOX_ENTRIES", entries)
    shape, slices = (6, 5, 4), (1, 4)
    seen = np.zeros(shape, dtype=int)
    for box in boxes(shape, slab_mode, slices):
        assert np.prod([len(part) for part in box]) <= entries
        seen[np.ix_(*box)] += 1
    wanted = np.zeros(shape, dtype=int)
    np.moveaxis(wanted, slab_mode, 0)[slices[0] : slices[1]] = 1
    np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize("entries", [1, 30, 10_000])
@every_bound
def test_a_scan_finds_the_entries_that_miss_their_bounds(entries, kind, local, monkeypatch):
    monkeypatch.setattr("slrt_dask.dual.scan.BOX_ENTRIES", entries)
    made, (lower, upper) = local(3), BOUNDS[kind]
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper))
    evaluation = problem.evaluate(made.point, rtol=TIGHT, warm=None)
    X = tensor_of(made.engine, evaluation.dual.name)
    W = (model_operator(X.shape, made.point, made.dense.lambdas) @ X.reshape(-1)).reshape(X.shape)
    missed = np.maximum(lower - W, W - upper)
    outcome = problem._scanned(evaluation)
    assert outcome.violation == pytest.approx(missed.max(), rel=1e-9)
    assert outcome.found == np.count_nonzero((missed > 1e-8) & ~made.dense.mask)
    assert outcome.found > 0


def test_there_are_no_more_entries_than_there_is_room_for(local):
    made = local(3)
    free = int((~made.dense.mask).sum())
    bounds = bound_vectors(made.dense, 0.0, np.inf)
    on(made.engine, made.dense, bounds, "given", most_extra=free)
    with pytest.raises(MemoryBudgetExceeded, match=rf"at {free} entries .* room for {free - 1}"):
        on(made.engine, made.dense, bounds, "given", most_extra=free - 1)


def test_there_is_no_hessian_and_that_is_said(local):
    made = local(2)
    problem = on(made.engine, made.dense, bound_vectors(made.dense, 0.0, np.inf))
    evaluation = problem.evaluate(made.point, rtol=1e-3, warm=None)
    with pytest.raises(InvalidInput, match="method='rcg'"):
        problem.hessian(evaluation, made.point, rtol=1e-3)


# ---- gradient -------------------------------------------------------------------------------


@every_order
@every_bound
def test_the_gradient_passes_a_taylor_test_while_the_centre_stays(order, kind, local):
    made, (lower, upper) = local(order), BOUNDS[kind]
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper), "given")
    first = problem.evaluate(made.point, rtol=1e-12, warm=None)
    at = problem.renew(first, rtol=1e-12)  # a centre that is not zero
    assert at is not None
    rng = np.random.default_rng(6)
    direction = tuple(rng.standard_normal(part.shape) for part in made.point)
    slope = sum(float(np.vdot(g, v)) for g, v in zip(problem.gradient(at), direction, strict=True))
    steps = 10.0 ** np.array([-3.0, -3.5, -4.0])
    left = []
    for step in steps:
        point = tuple(u + step * v for u, v in zip(made.point, direction, strict=True))
        there = problem.evaluate(point, rtol=1e-12, warm=at)
        left.append(abs(there.cost - at.cost - step * slope))
    order_of_decay = np.polyfit(np.log(steps), np.log(left), 1)[0]
    assert order_of_decay == pytest.approx(2.0, abs=0.15)


@every_order
def test_the_gradient_is_that_of_the_dual_which_the_blocks_hold(order, local):
    made = local(order)
    problem = on(made.engine, made.dense, bound_vectors(made.dense, 0.0, 0.8))
    evaluation = settled(problem, made.point)
    X = tensor_of(made.engine, evaluation.dual.name)
    assert X[~made.dense.mask].any()
    for mode, part in enumerate(problem.gradient(evaluation)):
        unfolded = unfold(X, mode)
        wanted = -made.dense.lambdas[mode] * unfolded @ (unfolded.T @ made.point[mode])
        np.testing.assert_allclose(part, wanted, atol=1e-9 * np.abs(wanted).max())


# ---- certificate ----------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "kind"), [(2, "two-sided"), (3, "nonnegative"), (4, "upper")])
def test_no_certificate_contradicts_the_optimum_of_the_convex_problem(order, kind, local):
    made, (lower, upper) = local(order, rank=2 if order == 4 else 4), BOUNDS[kind]
    dense = made.dense
    problem = on(made.engine, dense, bound_vectors(dense, lower, upper), certificate_rtol=1e-9)
    rng = np.random.default_rng(3)
    found = []
    for rtol in (1e-1, 1e-5):
        point = nonnegative_point(dense, rng)
        evaluation = problem.evaluate(point, rtol=rtol, warm=None)
        found.append(problem.certify(evaluation))
        found.append(problem.certify(settled(problem, point, rtol)))
        # g is the optimum for some factors, so it is above that for all.
        assert found[-1].dual <= solve_bounded(dense, point, lower, upper).cost * (1 + 1e-9)
    rules = StopRules(gap_tolerance=1e-3, gradient_tolerance=0.0, max_iterations=20)
    start = spectral_start(problem, 0)
    found.append(minimise(problem, ConjugateGradient(), start, rules).certificate)
    assert found[-1].relative_gap <= 0.2
    highest, lowest = max(one.dual for one in found), min(one.primal for one in found)
    assert 0.0 < highest <= lowest * (1 + 1e-9)
    for one in found:
        assert one.gap == pytest.approx(one.primal - one.dual)
        assert one.violation >= 0.0


@every_bound
def test_the_primal_bound_is_no_less_than_the_objective_of_what_was_answered(kind, local):
    made, (lower, upper) = local(3), BOUNDS[kind]
    problem = on(made.engine, made.dense, bound_vectors(made.dense, lower, upper))
    for rtol in (1e-2, TIGHT):
        evaluation = settled(problem, made.point, rtol)
        certificate = problem.certify(evaluation)
        X = tensor_of(made.engine, evaluation.dual.name)
        parts = made.dense.parts(SimpleNamespace(point=made.point, dual=X))
        W = sum(parts)
        missed = np.maximum(lower - W, W - upper).max()
        assert certificate.violation == pytest.approx(max(missed, 0.0), rel=1e-6, abs=1e-13)
        plain = made.dense.primal(parts)
        if rtol == TIGHT:  # moving the answer inside costs next to nothing once it is inside
            assert certificate.primal == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("kind", ["nonnegative", "two-sided"])
def test_the_primal_bound_is_reached_by_a_tensor_inside_its_bounds(kind, local):
    made, (lower, upper) = local(3), BOUNDS[kind]
    dense, bounds = made.dense, bound_vectors(made.dense, lower, upper)
    problem = on(made.engine, dense, bounds)
    evaluation = problem.evaluate(made.point, rtol=1e-2, warm=None)
    certificate = problem.certify(evaluation)
    assert certificate.violation > 1e-2
    X = tensor_of(made.engine, evaluation.dual.name)
    parts = dense.parts(SimpleNamespace(point=made.point, dual=X))
    # Drawn to the middle, or shifted; by which of the parts, is free.
    drawn = certificate.violation / (certificate.violation + bounds.margin)
    candidates = []
    for mode in range(3):
        moved = [(1 - drawn) * part for part in parts]
        moved[mode] = moved[mode] + drawn * bounds.middle[:, None, None]
        candidates.append(moved)
        if np.isinf(upper):
            shifted = list(parts)
            shifted[mode] = parts[mode] + certificate.violation
            candidates.append(shifted)
    for moved in candidates:
        assert sum(moved).min() >= lower - 1e-12
        assert sum(moved).max() <= upper + 1e-12
    assert certificate.primal >= min(dense.primal(moved) for moved in candidates) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("lower", "upper", "margin", "one_sided"),
    [
        ([0.0, 0.0], [np.inf, np.inf], 1.0, True),
        ([-np.inf, -np.inf], [-3.0, 5.0], 1.0, True),
        ([1.0, 2.0], [2.0, 6.0], 0.5, False),
        ([1.0, -np.inf], [np.inf, 4.0], 1.0, False),
        ([2.0, 0.0], [2.0, 1.0], 0.0, False),
    ],
)
def test_the_middle_keeps_its_margin_from_every_bound(lower, upper, margin, one_sided):
    bounds = BoundVectors(0, np.array(lower), np.array(upper), 1.0)
    assert bounds.margin == margin
    assert bounds.one_sided == one_sided
    assert (bounds.middle - lower >= margin).all()
    assert (upper - bounds.middle >= margin).all()
    # No number that keeps the margin is nearer to zero.
    for nearer in (0.9 * bounds.middle, np.zeros(2)):
        inside = (nearer - lower >= margin) & (upper - nearer >= margin)
        assert not (inside & (bounds.middle != 0.0)).any()


def test_a_certificate_changes_nothing_and_can_be_made_again(local):
    made = local(3)
    problem = on(made.engine, made.dense, bound_vectors(made.dense, 0.0, np.inf))
    evaluation = problem.evaluate(made.point, rtol=1e-3, warm=None)
    before, marks = tensor_of(made.engine, evaluation.dual.name), tensor_of(made.engine, MARKS)
    first = problem.certify(evaluation)
    np.testing.assert_array_equal(tensor_of(made.engine, evaluation.dual.name), before)
    np.testing.assert_array_equal(tensor_of(made.engine, MARKS), marks)
    again = problem.certify(evaluation)
    assert dataclasses.replace(again, dual=0, gap=0, relative_gap=0, paper_gap=0) == (
        dataclasses.replace(first, dual=0, gap=0, relative_gap=0, paper_gap=0)
    )
