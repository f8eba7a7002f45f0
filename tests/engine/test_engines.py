"""Every program gives the same answer wherever the blocks are and however they are cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from slrt_dask.dual.numbering import NumberFibres
from slrt_dask.engine.program import OneRound, Program, Sweep
from slrt_dask.errors import StateLost
from tests.engine.helpers import (
    ORDERS,
    Norm,
    assert_same,
    cluster_engine,
    dense_problem,
    dual_problem,
    held_out,
    local_engine,
    results,
)
from tests.oracles.dense import random_problem


@pytest.fixture(scope="session")
def reference(store_of):
    """What one partition on one thread gives, by order; and the validation store it used."""
    known = {}

    def of(order):
        if order not in known:
            dense = dense_problem(order)
            validation = store_of(*held_out(dense))
            store = store_of(dense.mask, dense.values)
            with local_engine(store, validation=validation) as engine:
                known[order] = dense, validation, results(engine, dense)
        return known[order]

    return of


@pytest.fixture(scope="module")
def many_workers(open_client):
    """More workers than one task adds up sums of."""
    return open_client(n_workers=6, processes=False)


@pytest.fixture(params=["local", "cluster"])
def engine_of(request):
    """Make an engine for a store, in this process or on three workers."""
    if request.param == "local":
        return lambda store, **options: local_engine(store, 2, **options)
    client = request.getfixturevalue("thread_client")
    return lambda store, **options: cluster_engine(store, client, **options)


@pytest.fixture
def stored(store_of):
    """A problem of order 3 and its store."""
    dense = dense_problem(3)
    return dense, store_of(dense.mask, dense.values, parts=3)


# ---- one answer -------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("order", ORDERS)
def test_results_do_not_depend_on_how_observations_are_cut_or_where_they_lie(
    order, parts, threads, store_of, reference, tmp_path
):
    """Along another mode, in other partitions, for more threads, in memory or in a file."""
    dense, validation, wanted = reference(order)
    # Slices are not cut, so a block is no smaller than the longest one.
    streaming = {"block_entries": 5 if order == 2 else 12, "directory": str(tmp_path)}
    for slab_mode, options in ((parts % order, {}), (None, streaming)):
        store = store_of(dense.mask, dense.values, parts=parts, slab_mode=slab_mode)
        with local_engine(store, threads, validation=validation, **options) as engine:
            (blocks,) = engine.on_shares(lambda share: len(share.blocks))
            assert blocks > 4 if options else blocks == threads
            assert_same(results(engine, dense), wanted)
            assert (engine.spending()[0].files > 0.0) == bool(options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("workers", "order", "streamed"),
    [
        ("lone_client", 3, False),
        ("process_client", 3, False),
        ("process_client", 4, True),
        ("thread_client", 2, False),
        ("thread_client", 4, False),
        ("many_workers", 3, False),
    ],
)
def test_a_cluster_gives_the_results_of_this_process(
    workers, order, streamed, request, store_of, reference
):
    dense, validation, wanted = reference(order)
    store, client = store_of(dense.mask, dense.values, parts=7), request.getfixturevalue(workers)
    options = {"block_entries": 12} if streamed else {}
    with cluster_engine(store, client, validation=validation, **options) as engine:
        assert len(engine.places) == len(client.has_what())
        assert_same(results(engine, dense), wanted)


def test_numbering_only_the_fibres_that_occur_changes_nothing(store_of, engine_of):
    # Along mode 0 all 780 fibres have numbers; along mode 2 only those that occur of 72,800.
    shape = (280, 260, 3)
    dense = random_problem(shape, (2, 2, 1), C=5.0, fraction=0.002)
    validation = store_of(np.roll(dense.mask, 7, axis=0) & ~dense.mask, dense.values)
    found = []
    for slab_mode in (0, 2):
        store = store_of(dense.mask, dense.values, parts=3, slab_mode=slab_mode)
        with engine_of(store, validation=validation) as engine:
            fibres = engine.run(NumberFibres(shape, slab_mode, store.nnz))
            found.append(results(engine, dense, iterations=2, certified=False))
        wanted = 780 if slab_mode == 0 else len(np.unique(np.argwhere(dense.mask)[:, :2], axis=0))
        assert fibres == wanted
    assert_same(found[1], found[0])


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_worker_and_this_process_work_in_the_precision_asked_for(precision, stored, lone_client):
    dense, store = stored
    found = []
    for engine in (
        local_engine(store, precision=precision),
        cluster_engine(store, lone_client, precision=precision),
    ):
        with engine:
            found.append(results(engine, dense))
            assert found[-1]["dual"].astype(precision).tolist() == found[-1]["dual"].tolist()
    assert_same(found[1], found[0], tolerance=0.0)


def test_two_fits_on_one_cluster_do_not_disturb_each_other(store_of, reference, thread_client):
    chosen = [reference(order) for order in (3, 4)]
    stores = [store_of(dense.mask, dense.values, parts=7) for dense, _, _ in chosen]
    with (
        cluster_engine(stores[0], thread_client) as one,
        cluster_engine(stores[1], thread_client) as other,
    ):
        problems = [
            dual_problem(engine, dense, max_inner_iterations=4)
            for engine, (dense, _, _) in zip((one, other), chosen, strict=True)
        ]
        kept = []
        for _ in range(2):
            for problem, (_, _, wanted) in zip(problems, chosen, strict=True):
                point = problem.manifold.random_point(np.random.default_rng(4))
                kept.append(problem.evaluate(point, rtol=0.0, warm=None))
                assert kept[-1].cost == pytest.approx(wanted["cost"], rel=1e-10)


# ---- programs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountUp(Program):
    """Every round adds a number to each entry; how many rounds there are depends on the sums."""

    limit: float
    at_once: int = 2

    def rounds(self):
        total, rounds = (yield Sweep(CountUp._begin))[0], 1
        while total < self.limit:
            (total,) = yield Sweep(CountUp._add, (np.array([1.0, rounds]),))
            rounds += 1
        return rounds, total

    def _begin(self, block, total):
        block.fresh("count")[:] = 0.0
        return (0.0 if total is None else total[0],)

    def _add(self, block, total, numbers):
        count = block.changing("count")
        count += numbers.sum()
        return (float(count.sum()) + (0.0 if total is None else total[0]),)


@pytest.mark.parametrize("at_once", [1, 3, 20])
def test_a_program_takes_as_many_rounds_as_it_needs_however_many_are_submitted(
    at_once, stored, engine_of
):
    store = stored[1]
    rounds = 7
    added = sum(range(1, rounds)) + rounds - 1
    program = CountUp(store.nnz * (added - 0.5), at_once)
    with engine_of(store) as engine:
        before = [one.rounds for one in engine.spending()]
        for one in (program, program):
            assert engine.run(one) == (rounds, store.nnz * added)
        after = [one.rounds for one in engine.spending()]
    assert after == [count + 2 * rounds for count in before]  # those after the end did nothing


@dataclass(frozen=True)
class Fails(Program):
    """Its second round cannot be done."""

    error: Exception

    def rounds(self):
        yield Sweep(Fails._norm)
        yield Sweep(Fails._fail, (self.error,))

    def _norm(self, block, total):
        return (0.0,)

    def _fail(self, block, total, error):
        raise error


@pytest.mark.parametrize("error", [ArithmeticError("a 7"), TimeoutError("of a disk, 7")], ids=repr)
def test_an_error_of_a_step_is_raised_where_the_program_was_run(error, stored, engine_of):
    with engine_of(stored[1]) as engine:
        with pytest.raises(type(error), match="7"):
            engine.run(Fails(error))
        wanted = float(np.linalg.norm(stored[0].y))
        assert engine.run(Norm()) == pytest.approx(wanted)  # it is still of use


# ---- what is kept -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Read(OneRound):
    """Fails where a vector is not held."""

    name: str

    def step(self, block, total):
        return (float(block.vector(self.name)[0]),)


@pytest.mark.parametrize("streamed", [False, True])
def test_vectors_are_dropped_when_nobody_holds_their_handle(streamed, stored, engine_of):
    dense, store = stored
    with engine_of(store, **({"block_entries": 12} if streamed else {})) as engine:
        problem = dual_problem(engine, dense)
        point = problem.manifold.random_point(np.random.default_rng(0))
        evaluation = problem.evaluate(point, rtol=1e-3, warm=None)
        kept = problem.evaluate(point, rtol=1e-4, warm=evaluation)
        gone = evaluation.dual.name
        engine.run(Read(gone))
        del evaluation
        with pytest.raises(StateLost, match=gone):
            engine.run(Read(gone))
        engine.run(Read(kept.dual.name))
