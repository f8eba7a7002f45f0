"""The plan says whether products are made on dense tiles, blocks do so, and the answer is one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

import slrt_dask
from slrt_dask.dual import operator
from slrt_dask.engine import assignment, tiling
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.base import share_bytes
from slrt_dask.engine.blas import SingleBlasThread
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.placement import Place
from slrt_dask.engine.plan import plan_fit
from slrt_dask.engine.tiling import Tiling, enough_for_tiles
from tests.engine.helpers import RANKS, assert_same, dense_problem, held_out, results
from tests.engine.test_plan import header_of, plan_of


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=4))
def test_shorter_modes_ask_for_more_observations_and_long_ones_beside_them_for_none(lengths):
    needed = enough_for_tiles(tuple(lengths))
    if len(lengths) == 1 or math.prod(lengths) > tiling.LARGEST_TILE:
        assert needed is None
        return
    assert needed is None or 0.35 < needed <= 1.0
    shorter = enough_for_tiles((*lengths[1:], max(1, lengths[0] // 2)))
    longer = enough_for_tiles((*lengths, 400))
    if needed is None:
        assert shorter is None
    else:
        assert shorter is None or shorter >= needed
        assert longer is None or longer == needed


@pytest.mark.parametrize("counts", [(9, 1), (5, 5), (1,) * 10])
def test_the_choice_depends_on_the_tensor_and_not_on_its_partitions(counts):
    shape = (1000, 60, 50)
    for per_mille in (300, 400, 450, 700):
        entries = [per_mille * math.prod(shape) // 10_000 * count for count in counts]
        chosen = Tiling.of(header_of(shape, entries))
        assert chosen.used == (per_mille >= 450)
        assert chosen.observed == pytest.approx(per_mille / 1000)


def test_a_plan_says_how_products_are_made_and_why():
    shape = (1000, 60, 50)
    dense, sparse = (plan_of(shape, (count,), (5, 5, 5)) for count in (1_560_000, 300_000))
    assert dense.tiles
    assert "on dense tiles: slices are 52 % observed" in str(dense)
    assert "on dense tiles: slices are 52 % observed" in dense._repr_html_()
    assert not sparse.tiles
    reason = "entry by entry: slices are 10 % observed; dense tiles pay from 42 %"
    assert reason in str(sparse)
    assert reason in sparse._repr_html_()
    for shape in ((1000, 600, 3), (50, 50, 50)):
        thin_or_few = plan_of(shape, (math.prod(shape),), (5, 5, 3))
        reason = "entry by entry: slices are 100 % observed; too few or too thin for dense tiles"
        assert reason in str(thin_or_few)


def test_tiles_are_planned_for_every_thread(monkeypatch):
    shape = (100, 60, 50)
    with_tiles = [plan_of(shape, (156_000,), (5, 5, 5), threads=(n,)).largest for n in (1, 3)]
    monkeypatch.setattr(tiling, "enough_for_tiles", lambda lengths: None)
    without = [plan_of(shape, (156_000,), (5, 5, 5), threads=(n,)).largest for n in (1, 3)]
    more = [one.buffers - other.buffers for one, other in zip(with_tiles, without, strict=True)]
    assert more[0] > 2 * 8 * 60 * 50
    assert more[1] == 3 * more[0]
    for one, other in zip(with_tiles, without, strict=True):
        assert dataclasses.replace(one, buffers=other.buffers) == other


@pytest.fixture(scope="module")
def reference(store_of):
    """What is found entry by entry, of one partition on one thread."""
    known = {}

    def of(order):
        if order not in known:
            dense = dense_problem(order, fraction=0.7)
            validation = store_of(*held_out(dense))
            store = store_of(dense.mask, dense.values)
            with LocalEngine(store, threads=1, validation=validation) as engine:
                known[order] = dense, validation, results(engine, dense, certified=False)
        return known[order]

    return of


@pytest.mark.parametrize(("order", "streamed"), [(2, True), (3, False), (4, True), (5, False)])
def test_tiles_give_the_results_of_entries(
    order, streamed, store_of, reference, tmp_path, monkeypatch
):
    monkeypatch.setattr(assignment, "SMALLEST_BLOCK", 2)
    dense, validation, wanted = reference(order)
    store = store_of(dense.mask, dense.values, parts=3, slab_mode=1 if streamed else None)
    streaming = Streaming(40, str(tmp_path)) if streamed else None
    for name in ("apply_slices", "apply_runs"):
        monkeypatch.setattr(operator.sweeps, name, None)  # which nobody must need
    with LocalEngine(
        store, threads=2, validation=validation, streaming=streaming, tiles=True
    ) as engine:
        assert_same(results(engine, dense, certified=False), wanted)


def test_workers_give_the_same_on_tiles(store_of, reference, thread_client):
    dense, validation, wanted = reference(3)
    store = store_of(dense.mask, dense.values, parts=7)
    with ClusterEngine(store, thread_client, validation=validation, tiles=True) as engine:
        assert len(engine._workers) == 3
        assert_same(results(engine, dense, certified=False), wanted)


def test_worker_processes_give_the_same_on_tiles(store_of, reference, process_client):
    dense, validation, wanted = reference(3)
    store = store_of(dense.mask, dense.values, parts=3)
    with ClusterEngine(store, process_client, validation=validation, tiles=True) as engine:
        assert_same(results(engine, dense, certified=False), wanted)


@pytest.mark.parametrize(
    ("where", "fraction", "constraint"),
    [("here", 0.6, "bounds"), ("here", 0.2, None), ("on workers", 0.6, None)],
)
def test_blocks_do_what_the_plan_says(
    where, fraction, constraint, store_of, thread_client, monkeypatch
):
    monkeypatch.setattr(tiling, "FEWEST_ENTRIES", 1000)
    rng = np.random.default_rng(0)
    mask = rng.random((30, 26, 24)) < fraction
    store = store_of(mask, 1.0 + rng.random(mask.shape), parts=3)
    options = {
        "C": 1.0,
        "client": None if where == "here" else thread_client,
        "constraint": None if constraint is None else slrt_dask.Nonnegative(),
    }
    made = []
    apply_tiles, apply_slices = operator.tiles.apply_tiles, operator.sweeps.apply_slices
    monkeypatch.setattr(
        operator.tiles, "apply_tiles", lambda *given: made.append("tile") or apply_tiles(*given)
    )
    monkeypatch.setattr(
        operator.sweeps, "apply_slices", lambda *given: made.append("entry") or apply_slices(*given)
    )
    done = slrt_dask.complete(store, (2, 2, 2), max_iterations=2, **options)
    del options["C"]
    planned = slrt_dask.plan(store, (2, 2, 2), **options)
    assert planned.tiles == (fraction > 0.5)
    assert set(made) == {"tile" if planned.tiles else "entry"}
    monkeypatch.setattr(tiling, "enough_for_tiles", lambda lengths: None)
    made.clear()
    other = slrt_dask.complete(store, (2, 2, 2), C=1.0, max_iterations=2, **options)
    assert set(made) == {"entry"}
    np.testing.assert_allclose(other.records[-1].cost, done.records[-1].cost, rtol=1e-7)


@pytest.mark.parametrize("order", [3, 4])
def test_a_share_with_tiles_never_holds_more_than_was_planned(order, store_of, monkeypatch):
    monkeypatch.setattr(assignment, "SMALLEST_BLOCK", 10)
    monkeypatch.setattr(tiling, "enough_for_tiles", lambda lengths: 0.3)
    monkeypatch.setattr(tiling, "FEWEST_ENTRIES", 1)
    # Not counted: numpy does not know what BLAS takes.
    monkeypatch.setattr("slrt_dask.engine.costs.BLAS_BYTES", 0)
    dense = dense_problem(order, fraction=0.7)
    store = store_of(dense.mask, dense.values, parts=2)
    plan = plan_fit(store.header, RANKS[order], places=[Place(None, 2, None)])
    assert plan.tiles
    needed = plan.largest
    with LocalEngine(store, threads=2, tiles=True) as engine:
        results(engine, dense, validated=False)
        (held,) = engine.on_shares(share_bytes)
    assert 0 < held <= needed.observations + needed.state + needed.fibre_sums + needed.buffers


def test_a_blas_has_one_thread_until_the_last_who_wants_that_is_done():
    def threads():
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    with threadpool_limits(limits=2, user_api="blas"):
        one, other = SingleBlasThread(), SingleBlasThread()
        assert threads() == {1}
        one.release()
        one.release()
        assert threads() == {1}
        other.release()
        assert threads() == {2}
