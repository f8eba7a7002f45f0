"""Every program gives the same answer wherever the blocks are and however they are cut."""

from __future__ import annotations

import math
import pickle

import distributed
import numpy as np
import pytest
from slrt_dask.dual.inner import ConjugateGradient
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.seen_memory import OutOfSight
from slrt_dask.engine.tasks import SharePlugin

from slrt_dask.dual.lanczos import WIDTH
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.sums import NormOfObservations
from slrt_dask.dual.writing import write_dual_partitions
from slrt_dask.engine import assignment, block, cluster, exchange, neighbours, post, prepare
from slrt_dask.engine.block import Block
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.errors import StateLost, StoreCorrupt
from slrt_dask.kernels import crossing
from tests.engine.helpers import (
    ORDERS,
    assert_same,
    dense_problem,
    dense_vector,
    dual_problem,
    held_out,
    names_on_share,
    put_on_share,
    results,
)


@pytest.fixture(scope="session")
def reference(store_of):
    """What one partition on one thread gives, by order; and the validation store it used."""
    known = {}

    def of(order):
        if order not in known:
            dense = dense_problem(order)
            validation = store_of(*held_out(dense))
            store = store_of(dense.mask, dense.values)
            with LocalEngine(store, threads=1, validation=validation) as engine:
                known[order] = dense, validation, results(engine, dense)
        return known[order]

    return of


@pytest.mark.parametrize(
    ("order", "parts"), [(2, 2), (2, 7), (3, 3), (3, 7), (4, 3), (4, 7), (5, 2)]
)
def test_results_do_not_depend_on_the_number_of_partitions(order, parts, store_of, reference):
    dense, validation, wanted = reference(order)
    store = store_of(dense.mask, dense.values, parts=parts)
    assert len(store.partitions) >= parts
    with LocalEngine(store, threads=1, validation=validation) as engine:
        assert_same(results(engine, dense), wanted)


@pytest.mark.parametrize("order", ORDERS)
def test_results_do_not_depend_on_the_slab_mode(order, store_of, reference):
    dense, validation, wanted = reference(order)
    for slab_mode in range(1, order):
        store = store_of(dense.mask, dense.values, slab_mode=slab_mode)
        with LocalEngine(store, threads=1, validation=validation) as engine:
            assert_same(results(engine, dense), wanted)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(("order", "parts"), [(2, 3), (3, 1), (4, 3)])
def test_results_do_not_depend_on_the_number_of_threads(
    order, parts, threads, store_of, reference, monkeypatch
):
    monkeypatch.setattr(assignment, "SMALLEST_BLOCK", 2)
    dense, validation, wanted = reference(order)
    store = store_of(dense.mask, dense.values, parts=parts)
    with LocalEngine(store, threads=threads, validation=validation) as engine:
        assert len(engine._share.blocks) >= threads
        assert_same(results(engine, dense), wanted)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_results_do_not_depend_on_strips_of_fibre_sums(
    order, threads, store_of, reference, monkeypatch
):
    dense, _, wanted = reference(order)
    store = store_of(dense.mask, dense.values, parts=3)
    cut, strips = [], Block.strips
    for name, value in (("STRIP_BYTES", 64), ("SHORTEST", 0)):
        monkeypatch.setattr(crossing, name, value)
    monkeypatch.setattr(crossing, "strip_borders", crossing.strip_borders.__wrapped__)
    monkeypatch.setattr(Block, "strips", lambda *asked: cut.append(strips(*asked)) or cut[-1])
    with LocalEngine(store, threads=threads) as engine:
        found = results(engine, dense, validated=False, certified=False)
    assert min(len(bounds) for bounds in cut) > 3
    assert_same(found, {name: wanted[name] for name in found})


@pytest.mark.parametrize("threads", [1, 2])
def test_entries_that_are_not_sorted_by_fibre_are_not_cut_into_strips(
    threads, store_of, reference, monkeypatch
):
    dense, _, wanted = reference(3)
    store, asked = store_of(dense.mask, dense.values, parts=3), []
    for name, value in (("STRIP_BYTES", 64), ("SHORTEST", 0)):
        monkeypatch.setattr(crossing, name, value)
    monkeypatch.setattr(crossing, "strip_borders", crossing.strip_borders.__wrapped__)
    monkeypatch.setattr(block, "strip_bounds", lambda *given: asked.append(given) or given[2][:0])
    with LocalEngine(store, threads=threads) as engine:
        found = results(engine, dense, validated=False, certified=False)
    assert asked
    assert_same(found, {name: wanted[name] for name in found})


@pytest.mark.parametrize(("order", "threads"), [(2, 1), (2, 2), (3, 2), (4, 1), (5, 2)])
def test_blocks_streamed_from_files_give_the_results_of_blocks_in_memory(
    order, threads, store_of, reference, tmp_path
):
    dense, validation, wanted = reference(order)
    store = store_of(dense.mask, dense.values, parts=2)
    # Slices are not cut, so a block is no smaller than the longest one.
    streaming = Streaming(block_entries=5 if order == 2 else 12, directory=str(tmp_path))
    with LocalEngine(store, threads=threads, validation=validation, streaming=streaming) as engine:
        assert len(engine._share.blocks) > 4
        assert_same(results(engine, dense), wanted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("order", "fan_in"), [(2, 4), (3, 2), (4, 4)])
def test_workers_of_this_process_give_the_local_results(
    order, fan_in, store_of, reference, thread_client, monkeypatch
):
    monkeypatch.setattr(exchange, "FAN_IN", fan_in)  # with 2 the tree has two levels
    dense, validation, wanted = reference(order)
    store = store_of(dense.mask, dense.values, parts=7)
    with ClusterEngine(store, thread_client, validation=validation) as engine:
        assert len(engine._workers) == 3
        assert_same(results(engine, dense, certified=False), wanted)


def test_workers_in_other_processes_give_the_local_results(store_of, reference, process_client):
    dense, validation, wanted = reference(3)
    store = store_of(dense.mask, dense.values, parts=3)
    with ClusterEngine(store, process_client, validation=validation) as engine:
        assert len(engine._workers) == 2
        assert_same(results(engine, dense, certified=False), wanted)


def share_memory_from(size, *, seen):
    """Set, on a worker, from how many bytes on parts go through memory, and whether that is seen.

    Returns what to undo it with.
    """
    before = neighbours.SMALLEST, neighbours.Inbox.opened, post.Post.send
    neighbours.SMALLEST, post.Post.send = size, too_long
    if not seen:
        neighbours.Inbox.opened = out_of_sight
    return before


def out_of_sight(inbox, parcel):
    raise OutOfSight


def too_long(*letter):
    return False


def share_memory_as(before):
    neighbours.SMALLEST, neighbours.Inbox.opened, post.Post.send = before


def neighbourhood(dask_worker):
    """Of a worker's outbox the bytes, and rooms; neighbours it cannot reach but by sockets."""
    (plugin,) = [p for p in dask_worker.plugins.values() if isinstance(p, SharePlugin)]
    outbox, strangers = plugin.outbox, list(plugin.neighbours.values()).count(None)
    return outbox._content.size, len(outbox._rooms), strangers


@pytest.mark.parametrize("seen", [True, False])
def test_parts_that_go_through_memory_give_the_local_results(
    seen, store_of, reference, process_client
):
    dense, _, wanted = reference(3)
    store = store_of(dense.mask, dense.values, parts=3)
    before = process_client.run(share_memory_from, 1, seen=seen)
    try:
        with ClusterEngine(store, process_client) as engine:
            found = results(engine, dense, validated=False, certified=False)
            assert_same(found, {name: wanted[name] for name in found})
            told = process_client.run(neighbourhood).values()
            outboxes, rooms, strangers = zip(*told, strict=True)
    finally:
        process_client.run(share_memory_as, next(iter(before.values())))
    assert all(size > 0 for size in outboxes)
    assert all(count > 0 for count in rooms)
    assert strangers == ((0, 0) if seen else (1, 1))


@pytest.mark.parametrize(("threads", "sections"), [(1, 1), (2, 1), (2, 3), (1, 4)])
def test_sums_that_are_used_where_they_lie_give_the_local_results(
    threads, sections, store_of, reference, open_client, monkeypatch
):
    """Along a chain of three workers, of which the middle one passes on the first one's sums."""
    monkeypatch.setattr(exchange, "FAN_IN", 1)
    monkeypatch.setattr(neighbours, "SMALLEST", 1)
    monkeypatch.setattr(post.Post, "send", too_long)
    kept, opened = [], neighbours.Inbox.opened

    def counted(inbox, parcel):
        kept.append(parcel.stays)
        return opened(inbox, parcel)

    monkeypatch.setattr(neighbours.Inbox, "opened", counted)
    dense, _, wanted = reference(3)
    store = store_of(dense.mask, dense.values, parts=7)
    options = {"n_workers": 3, "processes": False, "protocol": "tcp", "threads_per_worker": threads}
    # Closed at once: its threads draw random numbers, which disturbs tests that are made of them.
    with (
        open_client(**options) as client,
        client.cluster,
        ClusterEngine(store, client, sections=sections) as engine,
    ):
        assert len(engine._workers) == 3
        found = results(engine, dense, validated=False, certified=False)
    assert_same(found, {name: wanted[name] for name in found})
    assert set(kept) == {True, False}


# ---- tasks ----------------------------------------------------------------------------------


def numbered(number):
    return number


def waiting(name):
    assert distributed.Event(name).wait(60.0)


def failing():
    raise ArithmeticError("on a worker")


def test_results_come_in_order_however_many_are_asked_for_at_once(
    store_of, thread_client, monkeypatch
):
    dense = dense_problem(3)
    monkeypatch.setattr(cluster, "AT_ONCE", 3)
    with ClusterEngine(store_of(dense.mask, dense.values, parts=3), thread_client) as engine:
        places = engine._workers * 3
        futures = [engine._submit("number", at, numbered, n) for n, at in enumerate(places)]
        assert engine._results(futures) == list(range(9))
        assert engine._results(futures, wanted=1) == [0]
        assert engine._results([]) == []


def test_a_task_that_fails_is_not_waited_for_behind_another(store_of, thread_client):
    dense, name = dense_problem(3), "waited for"
    wanted = distributed.Event(name, thread_client)
    with ClusterEngine(store_of(dense.mask, dense.values, parts=3), thread_client) as engine:
        first, second, _ = engine._workers
        with thread_client.as_current():
            futures = [
                engine._submit("wait", first, waiting, name),
                engine._submit("fail", second, failing),
            ]
        try:
            with pytest.raises(ArithmeticError, match="on a worker"):
                engine._results(futures, wanted=1)
            assert not futures[0].done()
        finally:
            wanted.set()


def test_a_client_is_left_as_it_was(store_of, thread_client):
    dense, sending = dense_problem(3), thread_client.scheduler_comm
    before = sending.interval
    with ClusterEngine(store_of(dense.mask, dense.values), thread_client) as engine:
        engine.run(NormOfObservations())
        assert sending.interval < before
    assert sending.interval == before


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_worker_and_this_process_work_in_the_precision_asked_for(
    precision, store_of, lone_client
):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values)
    found = []
    for engine in (
        LocalEngine(store, threads=1, precision=precision),
        ClusterEngine(store, lone_client, precision=precision),
    ):
        with engine:
            kinds = engine.on_shares(
                lambda held: [str(b.vector("values").dtype) for b in held.blocks]
            )
            assert kinds == [[precision]]
            found.append(results(engine, dense, validated=False, certified=False))
    assert_same(found[1], found[0], tolerance=0.0)


@pytest.mark.parametrize(
    ("order", "where"), [(3, "local"), (4, "local"), (5, "local"), (4, "cluster")]
)
def test_numbering_only_fibres_that_occur_changes_nothing(
    order, where, store_of, thread_client, monkeypatch
):
    # So few observations that most fibres of the slab mode hold none.
    dense = dense_problem(order, fraction={3: 0.06, 4: 0.08, 5: 0.12}[order], seed=3)
    validation = store_of(*held_out(dense))
    store = store_of(dense.mask, dense.values, parts=2, slab_mode={3: 2, 4: 2, 5: 1}[order])
    with LocalEngine(store, threads=2, validation=validation) as engine:
        every, wanted = engine.fibre_count, results(engine, dense)
    monkeypatch.setattr(prepare, "GENEROUS_FIBRES", 0)
    chosen = (
        LocalEngine(store, threads=2, validation=validation)
        if where == "local"
        else ClusterEngine(store, thread_client, validation=validation)
    )
    with chosen as engine:
        columns = np.delete(np.argwhere(dense.mask), store.slab_mode, axis=1)
        assert engine.fibre_count == len(np.unique(columns, axis=0)) < every
        assert_same(results(engine, dense, certified=where == "local"), wanted)


def test_a_very_sparse_tensor_has_as_many_fibres_as_occur(tmp_path):
    import slrt_dask

    rng = np.random.default_rng(0)
    indices = np.unique(rng.integers(0, 3000, (3, 40)), axis=1)
    store = slrt_dask.from_coo(tmp_path / "s", indices, np.ones(indices.shape[1]), (3000,) * 3)
    with LocalEngine(store, threads=1) as engine:
        assert engine.fibre_count <= 40
        assert engine.run(NormOfObservations()) == pytest.approx(math.sqrt(indices.shape[1]))


@pytest.mark.parametrize(("order", "parts"), [(2, 1), (2, 3), (3, 3), (4, 1), (5, 3)])
def test_the_operator_is_symmetric_positive_definite_and_the_dense_one(order, parts, store_of):
    dense = dense_problem(order, fraction=0.07)
    store = store_of(dense.mask, dense.values, parts=parts)
    point = dense.manifold.random_point(np.random.default_rng(1))
    with LocalEngine(store, threads=1) as engine:
        columns = []
        for place in np.argwhere(dense.mask):
            unit = np.zeros(store.shape)
            unit[tuple(place)] = 1.0
            engine.on_shares(put_on_share, "unit", unit)
            program = ConjugateGradient(
                Factors.of(point), dense.lambdas, store.slab_mode, 0.5 / dense.C,
                "solution", "unit", None, 0.0, 0,
            )  # fmt: skip
            engine.run(program)
            residual = dense_vector(engine, "r")
            columns.append((dense.values - residual)[dense.mask])
    A = np.array(columns)
    np.testing.assert_allclose(A, A.T, atol=1e-13)
    np.testing.assert_allclose(A, dense.system(point), atol=1e-13)
    values = np.linalg.eigvalsh(A)
    assert values[0] >= 0.5 / dense.C * (1 - 1e-12)
    assert values[-1] <= (0.5 / dense.C + sum(dense.lambdas)) * (1 + 1e-12)


def engines(store, client):
    return {
        "local": lambda: LocalEngine(store, threads=2),
        "cluster": lambda: ClusterEngine(store, client),
    }


@pytest.mark.parametrize("where", ["local", "cluster"])
def test_vectors_are_dropped_when_nobody_holds_their_handle(where, store_of, thread_client):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=3)
    with engines(store, thread_client)[where]() as engine:
        problem = dual_problem(engine, dense)
        point = problem.manifold.random_point(np.random.default_rng(0))
        evaluation = problem.evaluate(point, rtol=1e-3, warm=None)
        kept = problem.evaluate(point, rtol=1e-4, warm=evaluation)
        before = engine.on_shares(names_on_share)
        assert all(evaluation.dual.name in names for names in before)
        del evaluation
        engine.run(NormOfObservations())
        assert engine.on_shares(names_on_share) == [[kept.dual.name]] * len(before)


@pytest.mark.parametrize("where", ["local", "cluster"])
def test_asking_for_a_vector_that_is_gone_says_so(where, store_of, thread_client):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=3)
    with engines(store, thread_client)[where]() as engine:
        problem = dual_problem(engine, dense)
        point = problem.manifold.random_point(np.random.default_rng(0))
        program = ConjugateGradient(
            Factors.of(point), dense.lambdas, store.slab_mode, 0.1,
            "solution", "never", None, 0.0, 3,
        )  # fmt: skip
        with pytest.raises(StateLost, match="never"):
            engine.run(program)
        problem.evaluate(point, rtol=1e-3, warm=None)  # the engine is still of use


@pytest.mark.parametrize("where", ["local", "cluster"])
def test_what_reaches_the_driver_does_not_grow_with_the_observations(
    where, store_of, thread_client, tmp_path, monkeypatch
):
    sizes = []
    for fraction in (0.1, 0.8):
        dense = dense_problem(3, fraction=fraction)
        store = store_of(dense.mask, dense.values, parts=3)
        with engines(store, thread_client)[where]() as engine:
            run, seen = engine.run, []

            def weighed(program, run=run, seen=seen):
                outcome = run(program)
                seen.append((type(program).__name__, len(pickle.dumps(outcome))))
                return outcome

            monkeypatch.setattr(engine, "run", weighed)
            results(engine, dense, iterations=1, validated=False, certified=where == "local")
            sizes.append(dict(seen))
    # A certificate multiplies some vectors at once, which may be more than a factor has columns.
    factors = sum(n * max(r, WIDTH) * 8 for n, r in dense.manifold.shapes)
    assert sizes[0].keys() == sizes[1].keys()
    for name, size in sizes[1].items():
        assert size <= factors + 1000, name
        assert abs(size - sizes[0][name]) <= 32, name


def test_writing_the_dual_returns_only_checksums(store_of, thread_client, monkeypatch):
    dense = dense_problem(3, fraction=0.8)
    store = store_of(dense.mask, dense.values, parts=3)
    with ClusterEngine(store, thread_client) as engine:
        problem = dual_problem(engine, dense)
        point = problem.manifold.random_point(np.random.default_rng(0))
        evaluation = problem.evaluate(point, rtol=1e-3, warm=None)
        monkeypatch.setattr("slrt_dask.dual.writing.write_partition", lambda *_: 7)
        found = engine.on_shares(write_dual_partitions, "nowhere", evaluation.dual.name)
    assert sorted(number for part in found for number in part) == list(range(len(store.partitions)))
    assert len(pickle.dumps(found)) < 200


def test_one_worker_runs_a_program_as_one_task(store_of, lone_client, monkeypatch):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=3)
    with ClusterEngine(store, lone_client) as engine:
        submit, labels = engine._submit, []
        monkeypatch.setattr(
            engine, "_submit", lambda label, *rest: (labels.append(label), submit(label, *rest))[1]
        )
        problem = dual_problem(engine, dense)
        point = problem.manifold.random_point(np.random.default_rng(0))
        labels.clear()
        evaluation = problem.evaluate(point, rtol=1e-10, warm=None)
        assert evaluation.inner.iterations > 5
        assert labels == ["solve"]


def test_a_closed_engine_leaves_nothing_on_the_workers(store_of, thread_client):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=3)
    with ClusterEngine(store, thread_client) as engine:
        engine.run(NormOfObservations())
        assert any(engine._name in names for names in plugins(thread_client).values())
    assert not any("slrt" in name for names in plugins(thread_client).values() for name in names)


def test_an_engine_that_fails_to_load_leaves_nothing_on_the_workers(thread_client, tmp_path):
    import slrt_dask

    dense = dense_problem(3)
    store = slrt_dask.from_coo(
        tmp_path / "s", np.array(np.nonzero(dense.mask)), dense.y, dense.mask.shape,
        partition_entries=30,
    )  # fmt: skip
    chunk = next((tmp_path / "s" / store.partitions[1].name / "values" / "c").iterdir())
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    with pytest.raises(StoreCorrupt, match=store.partitions[1].name):
        ClusterEngine(store, thread_client)
    assert not any("slrt" in name for names in plugins(thread_client).values() for name in names)


def plugins(client):
    return client.run(lambda dask_worker: list(dask_worker.plugins))


def test_two_fits_on_one_cluster_do_not_disturb_each_other(store_of, reference, thread_client):
    chosen = [reference(order) for order in (3, 4)]
    stores = [store_of(dense.mask, dense.values, parts=7) for dense, _, _ in chosen]
    with (
        ClusterEngine(stores[0], thread_client) as one,
        ClusterEngine(stores[1], thread_client) as other,
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
