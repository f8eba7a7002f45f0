"""Fibre sums that are made section by section give what those of all fibres together give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.data.holding_out import SINGLY, Kind
from slrt_dask.dual.sectioned_solve import SectionedConjugateGradient
from slrt_dask.engine import assignment, exchange, plan, prepare
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.plan import SECTIONS
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.kernels.sections import by_section, by_slice, section_borders
from slrt_dask.request import Request, plan_of
from slrt_dask.tuning.running import _check_room
from tests.engine.helpers import assert_same, dense_problem, dual_problem, held_out, results


@given(st.integers(0, 50), st.integers(1, 64))
def test_sections_cover_all_fibres_once_and_are_of_one_length(fibres, sections):
    borders = section_borders(fibres, sections)
    lengths = np.diff(borders)
    assert (borders[0], borders[-1], len(lengths)) == (0, fibres, sections)
    full = lengths[: np.flatnonzero(lengths)[-1]] if fibres else lengths[:0]
    assert (full == lengths.max(initial=0)).all()


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_order_of_sections_is_found_back_from(slices, sections, random):
    counts = np.array([[random.randint(0, 3) for _ in range(slices)] for _ in range(sections)])
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))[:-1]]) if slices else np.zeros(0)
    above = np.concatenate([np.zeros((1, slices)), np.cumsum(counts, axis=0)])
    bounds = (above + starts[:slices]).astype(np.int32)
    values = np.arange(float(counts.sum()))
    wanted = [
        values[bounds[section, number] : bounds[section + 1, number]]
        for section in range(sections)
        for number in range(slices)
    ]
    moved = by_section_of(bounds, values)
    np.testing.assert_array_equal(moved, np.concatenate([*wanted, []]))
    back = np.full_like(values, np.nan)
    by_slice(bounds, moved, back)
    np.testing.assert_array_equal(back, values)


def by_section_of(bounds, values):
    moved = np.full_like(values, np.nan)
    by_section(bounds, values, moved)
    return moved


def everything(engine, dense):
    """The outcome of every program, and the errors that a fit records."""
    found = results(engine, dense, validated=False)
    problem = dual_problem(engine, dense, max_inner_iterations=3)
    point = problem.manifold.random_point(np.random.default_rng(5))
    evaluation = problem.evaluate(point, rtol=0.0, warm=None)
    errors = problem.validation_errors(evaluation, None, SINGLY)
    fibres = problem.validation_errors(evaluation, None, Kind("fibres", 0))
    return {**found, "errors": errors.rmse, "held out": errors.counts, "by fibre": fibres.squares}


@pytest.fixture(scope="module")
def whole(store_of):
    """A problem, held-out places, and what it gives with all sums held; by order."""
    known = {}

    def of(order):
        if order not in known:
            dense = dense_problem(order)
            validation = store_of(*held_out(dense))
            store = store_of(dense.mask, dense.values)
            with LocalEngine(store, threads=1, validation=validation) as engine:
                known[order] = dense, validation, everything(engine, dense)
        return known[order]

    return of


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("order", "sections", "threads"),
    [(2, 2, 1), (2, 16, 2), (3, 2, 2), (3, 3, 1), (4, 4, 2), (5, 5, 1)],
)
def test_results_do_not_depend_on_sections(
    order, sections, threads, streamed, store_of, whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(assignment, "SMALLEST_BLOCK", 2)
    dense, validation, wanted = whole(order)
    store = store_of(dense.mask, dense.values, parts=3)
    streaming = Streaming(5 if order == 2 else 12, str(tmp_path)) if streamed else None
    with LocalEngine(
        store, threads=threads, validation=validation, streaming=streaming, sections=sections
    ) as engine:
        assert_same(everything(engine, dense), wanted)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("options", [{"precision": "float32"}, {"tiles": True}], ids=str)
def test_nor_in_single_precision_or_on_tiles(options, streamed, store_of, tmp_path):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=2)
    found = []
    for sections in (1, 3):
        streaming = Streaming(12, str(tmp_path)) if streamed else None
        with LocalEngine(
            store, threads=2, streaming=streaming, sections=sections, **options
        ) as engine:
            found.append(results(engine, dense, validated=False, certified=False))
    assert_same(*found, tolerance=1e-4 if "precision" in options else 1e-10)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("order", "sections"), [(2, 3), (3, 3), (4, 4)])
def test_nor_where_only_fibres_that_occur_have_numbers(
    order, sections, streamed, store_of, whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(prepare, "numbers_every_fibre", lambda *_: False)
    dense, validation, wanted = whole(order)
    store = store_of(dense.mask, dense.values, parts=2)
    streaming = Streaming(5 if order == 2 else 12, str(tmp_path)) if streamed else None
    with LocalEngine(
        store, threads=2, validation=validation, streaming=streaming, sections=sections
    ) as engine:
        assert_same(everything(engine, dense), wanted)


@pytest.mark.parametrize("slab_mode", [1, 2])
def test_nor_on_the_slab_mode_with_sections(slab_mode, store_of, whole, tmp_path):
    dense, validation, wanted = whole(3)
    store = store_of(dense.mask, dense.values, parts=2, slab_mode=slab_mode)
    streaming = Streaming(15, str(tmp_path))
    with LocalEngine(
        store, threads=1, validation=validation, streaming=streaming, sections=3
    ) as engine:
        assert_same(everything(engine, dense), wanted)


@pytest.mark.parametrize(("streamed_workers", "fan_in"), [(0, 4), (2, 2), (3, 4)])
def test_workers_with_sections_give_the_local_results(
    streamed_workers, fan_in, store_of, whole, thread_client, monkeypatch
):
    monkeypatch.setattr(exchange, "FAN_IN", fan_in)
    dense, validation, wanted = whole(3)
    store = store_of(dense.mask, dense.values, parts=7)
    addresses = sorted(thread_client.scheduler_info()["workers"])
    streamed = dict.fromkeys(addresses[:streamed_workers], 12)
    with ClusterEngine(
        store, thread_client, validation=validation, streamed=streamed, sections=3
    ) as engine:
        assert len(engine._workers) == 3
        assert_same(everything(engine, dense), wanted)


def test_workers_in_other_processes_do_so_too(store_of, whole, process_client):
    dense, validation, wanted = whole(4)
    store = store_of(dense.mask, dense.values, parts=4)
    streamed = dict.fromkeys(process_client.scheduler_info()["workers"], 12)
    with ClusterEngine(
        store, process_client, validation=validation, streamed=streamed, sections=4
    ) as engine:
        assert_same(everything(engine, dense), wanted)


def test_vectors_come_and_go_in_the_store_s_order(store_of, tmp_path):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=2)
    with LocalEngine(
        store, threads=1, streaming=Streaming(12, str(tmp_path)), sections=3
    ) as engine:
        share = engine._share
        for number in range(len(store.partitions)):
            columns, values = store.read_partition(number)
            np.testing.assert_array_equal(share.partition_vector(number, "values"), values)
            np.testing.assert_array_equal(share.partition_columns(number), columns)
            share.put_partition_vector(number, "v", 2.0 * values)
            np.testing.assert_array_equal(share.partition_vector(number, "v"), 2.0 * values)
        for block in share.blocks:
            contents = block.contents()
            np.testing.assert_array_equal(2.0 * contents.vectors["values"], contents.vectors["v"])


# ---- fits -----------------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks small enough that sums, and not blocks, are what does not fit."""
    monkeypatch.setattr(plan, "SMALLEST_STREAMED_BLOCK", 500)
    monkeypatch.setattr(plan, "WORTHWHILE_BLOCK", 600)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A store with many fibres along its slab mode, and one of held-out entries."""
    shape, path = (12, 60, 50), tmp_path_factory.mktemp("wide")
    tensor = slrt.low_rank_tensor(shape, ranks=(2, 2, 2), seed=1)
    places = np.random.default_rng(1).permutation(tensor.size)[:4000]
    indices = np.stack(np.unravel_index(places, shape))
    store = slrt.from_coo(
        path / "store", indices, tensor[tuple(indices)], shape, slab_mode=0, partition_entries=1000
    )
    return store.split(test=0.1, seed=0)


OPTIONS = {"C": 0.5, "max_iterations": 5, "gap_tolerance": 0.0, "threads": 1}


def limit_for(store, validation, sections):
    """A limit on memory with which there have to be so many sections."""
    asked = FitSettings(ranks=(3, 3, 3), C=1.0)
    held_out = 0 if validation is None else validation.nnz
    low, high = 1, plan_of(store, asked, threads=1, held_out=held_out).largest.total
    while high - low > 1:
        middle = (low + high) // 2
        made = plan_of(store, asked, threads=1, held_out=held_out, memory_limit=middle)
        fits = all(worker.fits for worker in made.workers) and made.sections <= sections
        low, high = (low, middle) if fits else (middle, high)
    return high


@pytest.fixture
def made(monkeypatch):
    """Solves that were made in sections."""
    solves, first = [], SectionedConjugateGradient.first
    monkeypatch.setattr(
        SectionedConjugateGradient, "first", lambda solve: solves.append(solve) or first(solve)
    )
    return solves


@pytest.mark.parametrize("every", [True, False])
def test_a_fit_in_sections_gives_the_answer_of_one_in_memory(
    every, wide, small_blocks, made, monkeypatch, tmp_path
):
    train, held = wide
    wanted = slrt.complete(train, (3, 3, 3), validation=held, **OPTIONS)
    assert not made
    if not every:
        monkeypatch.setattr(prepare, "numbers_every_fibre", lambda *_: False)
    limit = limit_for(train, held, 4)
    asked = {"validation": held, "memory_limit": limit}
    done = slrt.complete(train, (3, 3, 3), **asked, **OPTIONS, run_directory=tmp_path / "run")
    assert {solve.sections for solve in made} == {4}
    for one, other in zip(done.records, wanted.records, strict=True):
        assert one.cost == pytest.approx(other.cost, rel=1e-10)
        assert one.validation_rmse == pytest.approx(other.validation_rmse, rel=1e-9)
        assert one.inner_iterations == other.inner_iterations
    assert done.certificate.primal == pytest.approx(wanted.certificate.primal, rel=1e-9)
    assert done.certificate.dual == pytest.approx(wanted.certificate.dual, rel=1e-6)
    everywhere = np.stack(np.unravel_index(np.arange(0, 36000, 7), train.shape))
    np.testing.assert_allclose(done.predict(everywhere), wanted.predict(everywhere), atol=1e-9)
    np.testing.assert_array_equal(done.support(everywhere), wanted.support(everywhere))


@pytest.mark.parametrize(
    "asked",
    [
        {"ranks": (3, 3, 3), "center": "modes"},
        {"ranks": "certified", "max_ranks": 3},
        {"ranks": (3, 3, 3), "patience": 2},
    ],
    ids=str,
)
def test_so_it_does_with_other_settings(asked, wide, small_blocks, made):
    train, held = wide
    ranks, asked = asked["ranks"], {**OPTIONS, **asked, "validation": held}
    del asked["ranks"]
    wanted = slrt.complete(train, ranks, **asked)
    assert not made
    done = slrt.complete(train, ranks, **asked, memory_limit=limit_for(train, held, 2))
    assert made
    for one, other in zip(done.records, wanted.records, strict=True):
        assert one.cost == pytest.approx(other.cost, rel=1e-8)


def test_candidates_that_need_more_sections_than_were_loaded_are_left_out(wide, small_blocks):
    train, held = wide
    limit = limit_for(train, held, 2)
    request = Request(train, FitSettings(ranks=(3, 3, 3), C=1.0), None, limit, 1, held)
    loaded = request.plan()
    _check_room(request, loaded, FitSettings(ranks=(2, 3, 3), C=1.0))
    with pytest.raises(MemoryBudgetExceeded, match="more sections"):
        _check_room(request, loaded, FitSettings(ranks=(12, 3, 3), C=1.0))


def test_a_run_goes_on_with_another_number_of_sections(wide, small_blocks, made, tmp_path):
    train, _ = wide
    wanted = slrt.complete(train, (3, 3, 3), **OPTIONS)
    limits = [limit_for(train, None, sections) for sections in (2, 8)]
    run, options = tmp_path / "run", {**OPTIONS, "memory_limit": limits[0]}

    class Stops:
        def on_record(self, record, state):
            if record.iteration == 2:
                raise KeyboardInterrupt

    stopped = slrt.complete(train, (3, 3, 3), **options, run_directory=run, observers=[Stops()])
    assert len(stopped.records) < len(wanted.records)
    assert {solve.sections for solve in made} == {2}
    made.clear()
    done = slrt.resume(run, threads=1, memory_limit=limits[1])
    assert {solve.sections for solve in made} == {8}
    for one, other in zip(done.records, wanted.records, strict=True):
        assert one.cost == pytest.approx(other.cost, rel=1e-10)


@pytest.mark.parametrize(
    "asked",
    [{"method": "rtr"}, {"constraint": slrt.Nonnegative("observed")}, {"loss": slrt.Huber(0.1)}],
    ids=["rtr", "bounds", "huber"],
)
def test_what_cannot_be_done_in_sections_is_refused(asked, wide, small_blocks):
    train, held = wide
    limit = limit_for(train, held, SECTIONS[-1])
    assert slrt.plan(train, (3, 3, 3), threads=1, memory_limit=limit).sections > 1
    refused = slrt.plan(train, (3, 3, 3), threads=1, memory_limit=limit, **asked)
    assert refused.sections == 1
    with pytest.raises(MemoryBudgetExceeded):
        refused.check()


def test_the_plan_tells_of_sections(wide, small_blocks):
    train, held = wide
    limit = limit_for(train, held, 8)
    made = slrt.plan(train, (3, 3, 3), validation=held, threads=1, memory_limit=limit)
    assert "in 8 sections" in str(made)
    assert "fibre sums in 8 sections" in made._repr_html_()
    assert "sections" not in str(slrt.plan(train, (3, 3, 3), validation=held, threads=1))
