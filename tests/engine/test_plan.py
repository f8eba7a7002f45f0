"""The plan is integers, grows with what causes it, and holds for what a fit really takes."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slrt_dask.engine.amounts import RUNTIME_BYTES
from slrt_dask.engine.costs import Costs
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.neighbours import LARGEST
from slrt_dask.engine.placement import Place

import slrt_dask
import slrt_dask.request
from slrt_dask.config import FitSettings
from slrt_dask.data.header import PartitionInfo, StoreHeader
from slrt_dask.dual.start import spectral_start
from slrt_dask.engine import plan as planning
from slrt_dask.engine.base import share_bytes
from slrt_dask.engine.plan import SECTIONS, WORTHWHILE_BLOCK, plan_fit, readable
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.optim import ConjugateGradient, StopRules, TrustRegion, minimise
from tests.engine.helpers import RANKS, dense_problem, dual_problem


def header_of(shape, counts, slab_mode=0):
    parts = tuple(
        PartitionInfo(f"p{number:05d}", count, number, number + 1)
        for number, count in enumerate(counts)
    )
    return StoreHeader("observations", shape, sum(counts), slab_mode, "float64", parts)


def plan_of(
    shape=(50, 40, 30), counts=(9000, 8000), ranks=(5, 4, 3), threads=(1,), limits=None, **options
):
    header = header_of(shape, counts, options.pop("slab_mode", 0))
    limits = limits or [None] * len(threads)
    places = [
        Place(f"worker {w}", *pair) for w, pair in enumerate(zip(threads, limits, strict=True))
    ]
    return plan_fit(header, ranks, places=places, **options)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_plan_is_whole_numbers_that_add_up(data):
    order = data.draw(st.integers(2, 5))
    shape = tuple(data.draw(st.integers(1, 300)) for _ in range(order))
    ranks = tuple(data.draw(st.integers(1, length)) for length in shape)
    counts = data.draw(st.lists(st.integers(1, 10**7), min_size=1, max_size=6))
    workers = data.draw(st.integers(1, 4))
    threads = [data.draw(st.integers(1, 8)) for _ in range(workers)]
    slab_mode = data.draw(st.integers(0, order - 1))
    plan = plan_of(shape, counts, ranks, threads=threads, slab_mode=slab_mode)
    assert sum(worker.entries for worker in plan.workers) == sum(counts)
    assert len(plan.workers) <= min(workers, len(counts))
    assert not Counter(w.place.threads for w in plan.workers) - Counter(threads)
    for needed in (worker.needed for worker in plan.workers):
        causes = dataclasses.asdict(needed)
        assert causes.pop("scratch") == 0  # no limit, nothing on disk
        assert causes.pop("rows") == 0  # no linear constraint
        causes = list(causes.values())
        assert all(type(cause) is int and cause > 0 for cause in causes)
        assert needed.total == sum(causes)
    assert type(plan.exchange_bytes) is int
    assert (plan.exchange_bytes == 0) == (len(plan.workers) == 1)
    assert plan.largest.total == max(worker.needed.total for worker in plan.workers)
    plan.check()  # no limit, no refusal


def test_every_cause_grows_with_what_causes_it():
    plain = plan_of().largest
    more_entries = plan_of(counts=(18000, 16000)).largest
    assert more_entries.observations == 2 * plain.observations
    assert more_entries.state == 2 * plain.state
    more_rank = plan_of(ranks=(11, 4, 3)).largest
    assert more_rank.fibre_sums > plain.fibre_sums
    assert plan_of(ranks=(5, 9, 3)).largest.buffers > plain.buffers
    more_threads = plan_of(threads=[4]).largest
    assert more_threads.fibre_sums > plain.fibre_sums
    assert more_threads.buffers > plain.buffers
    shorter = plan_of(value_bytes=4).largest
    assert shorter.state == plain.state // 2
    assert shorter.observations < plain.observations
    longer = plan_of(shape=(50, 80, 30)).largest
    assert longer.fibre_sums > plain.fibre_sums
    wide = plan_of(shape=(2**31, 40, 30)).largest  # indices of eight bytes
    assert wide.observations > plain.observations


def test_exchange_grows_with_workers_fibres_and_rank():
    two = plan_of(threads=[1, 1])
    three = plan_of(counts=(9, 8, 7), threads=[1, 1, 1])
    assert three.exchange_bytes == 2 * two.exchange_bytes
    ranked = plan_of(threads=[1, 1], ranks=(12, 4, 3))
    assert ranked.exchange_bytes == 2 * two.exchange_bytes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 2000), min_size=2, max_size=4), st.integers(1, 10**6))
def test_no_more_fibres_are_planned_than_can_occur(shape, entries):
    fibres = Costs(header_of(tuple(shape), (entries,)), (1,) * len(shape)).fibres
    possible = math.prod(shape[1:])
    assert fibres <= possible
    assert fibres >= min(possible, entries)


def test_what_does_not_fit_is_refused_with_numbers_and_remedy():
    plan = plan_of(threads=[1, 1], limits=[None, 10**6])
    with pytest.raises(MemoryBudgetExceeded) as caught:
        plan.check()
    message, needed = str(caught.value), plan.workers[1].needed
    open_blocks = needed.observations + needed.state
    for count in (open_blocks, needed.fibre_sums, needed.buffers, needed.total, 10**6):
        assert readable(count) in message
    assert "worker 1" in message
    assert "raise the memory limit" in message
    assert isinstance(caught.value, MemoryError)


def test_ranks_are_no_remedy_where_the_runtime_alone_does_not_fit():
    for limit, helps in ((RUNTIME_BYTES, False), (RUNTIME_BYTES + 1, True)):
        with pytest.raises(MemoryBudgetExceeded) as caught:
            plan_of(threads=[1], limits=[limit]).check()
        message = str(caught.value)
        assert ("lower the rank of mode 0" in message) == helps
        assert ("the runtime alone needs more" in message) == (not helps)
        assert "raise the memory limit" in message


def test_idle_workers_are_explained_by_the_partitions():
    places = [Place(name, 1, None) for name in "abc"]
    for counts, words in (((9,), "1 of 3 (the store has 1 partition;"),
                          ((9, 9), "2 of 3 (the store has 2 partitions;")):  # fmt: skip
        assert words in str(plan_fit(header_of((4, 3), counts), (1, 1), places=places))


def test_blocks_stay_in_memory_as_long_as_they_fit_and_then_go_to_disk():
    counts = (3_000_000, 2_000_000)
    total = plan_of(counts=counts).largest.total
    fitting = plan_of(counts=counts, limits=[total]).workers[0]
    assert fitting.block_entries is None
    assert fitting.needed.scratch == 0
    short = plan_of(counts=counts, limits=[total - 1])
    short.check()
    assert short.workers[0].block_entries > 0
    assert short.workers[0].needed.total <= total - 1
    assert short.workers[0].needed.scratch > 5_000_000 * 8
    assert "streamed from disk" in str(short)
    assert "in memory" in str(plan_of(counts=counts))


@settings(max_examples=60, deadline=None)
@given(st.integers(400, 4000), st.integers(1, 8))
def test_a_streamed_plan_uses_no_more_than_it_may_and_larger_limits_give_larger_blocks(
    megabytes, threads
):
    plans = [
        plan_of(counts=(5_000_000,) * 8, threads=[threads], limits=[limit * 2**20])
        for limit in (megabytes, 2 * megabytes)
    ]
    for plan, limit in zip(plans, (megabytes, 2 * megabytes), strict=True):
        if plan.largest.total > limit * 2**20:
            with pytest.raises(MemoryBudgetExceeded):
                plan.check()
    small, large = (plan.workers[0].block_entries for plan in plans)
    assert large is None or small <= large


def test_the_plan_says_along_which_mode_less_would_cross():
    assert plan_of(slab_mode=0).better_slab_mode is None
    assert plan_of(slab_mode=1, ranks=(5, 5, 5)).better_slab_mode == 0
    assert "along mode 0" in str(plan_of(slab_mode=1, ranks=(5, 5, 5)))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (3_140_000, "3.14 MB"), (2 * 10**12, "2 TB")],
)
def test_bytes_are_told_in_a_readable_unit(count, text):
    assert readable(count) == text


def test_a_plan_can_be_read_before_it_is_run():
    text = str(plan_of())
    for word in ("observations", "solver state", "fibre sums", "buffers", "total", "network"):
        assert word in text


@pytest.mark.parametrize("order", [2, 3, 4, 5])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_share_never_holds_more_than_was_planned(order, precision, store_of, monkeypatch):
    monkeypatch.setattr("slrt_dask.engine.assignment.SMALLEST_BLOCK", 10)
    dense = dense_problem(order, fraction=0.7)
    store = store_of(dense.mask, dense.values, parts=2)
    ranks, threads = RANKS[order], 2
    value_bytes = 8 if precision == "float64" else 4
    places = [Place(None, threads, None)]
    held = []

    class Weigh:
        def on_record(self, record, state):
            held.extend(engine.on_shares(share_bytes))

    with LocalEngine(store, threads=threads, precision=precision) as engine:
        problem = dual_problem(engine, dense, max_inner_iterations=30)
        start = spectral_start(problem, 0)
        for method, hessian in ((ConjugateGradient(), False), (TrustRegion(), True)):
            plan = plan_fit(
                store.header, ranks, places=places, value_bytes=value_bytes, hessian=hessian
            ).largest
            planned = plan.observations + plan.state + plan.fibre_sums + plan.buffers
            rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=3)
            minimise(problem, method, start, rules, observers=[Weigh()])
            held.extend(engine.on_shares(share_bytes))
            assert 0 < max(held) <= planned


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"method": "rcg"},
        {"method": "lbfgs", "center": "modes"},
        {"method": "rtr"},
        {"ranks": "auto", "C": "auto"},
        {"ranks": "certified", "gap_tolerance": 1e-6, "max_iterations": 60},
        {"constraint": slrt_dask.Nonnegative("observed")},
        {"constraint": slrt_dask.Nonnegative("observed"), "inner": "alternating"},
    ],
    ids=str,
)
def test_no_method_holds_more_vectors_than_are_planned(asked, store_of, vectors_held):
    dense = dense_problem(3, fraction=0.7)
    store = store_of(dense.mask, dense.values)
    options = {"ranks": RANKS[3], "C": 1.0, "max_iterations": 8, "threads": 1, **asked}
    slrt_dask.complete(store, options.pop("ranks"), **options)
    kept = {name: asked[name] for name in ("method", "constraint", "inner") if name in asked}
    planned = slrt_dask.plan(store, RANKS[3], threads=1, **kept).largest.state
    assert 0 < 8 * store.nnz * max(vectors_held) <= planned


ROOT = Path(__file__).parents[2]
FIT_AND_WEIGH = """
import json, sys
import psutil
import slrt_dask
store = slrt_dask.open_store(sys.argv[1])
from slrt_dask.config import FitSettings
from slrt_dask.request import plan_of
ranks = (4, 4, 3)
method, limit = sys.argv[2], int(sys.argv[4]) or None
settings = FitSettings(ranks=ranks, C=1.0, method=method)
whole = plan_of(store, settings, threads=2, memory_limit=limit)
plan, sections = whole.largest, whole.sections
before = psutil.Process().memory_info().rss
slrt_dask.complete(store, ranks, C=1.0, method=method, max_iterations=1, threads=2,
                   run_directory=sys.argv[3], memory_limit=limit)
# Not ru_maxrss: that starts from what the parent process held.
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps({"peak": peak, "before": before, "total": plan.total, "sections": sections}))
"""


@pytest.mark.parametrize(
    ("method", "shape", "limit"),
    [
        ("lbfgs", (160, 140, 120), 0),
        ("rtr", (160, 140, 120), 0),
        ("lbfgs", (40, 1200, 600), 500_000_000),
    ],
    ids=["lbfgs", "rtr", "sections"],
)
def test_the_peak_of_a_fit_stays_within_the_plan(method, shape, limit, tmp_path):
    entries = 500_000
    rng = np.random.default_rng(0)
    flat = rng.choice(math.prod(shape), entries, replace=False)
    places = np.array(np.unravel_index(flat, shape))
    values = np.sin(places[0] / 30.0) * np.cos(places[1] / 20.0) + places[2] / 100.0
    store = slrt_dask.from_coo(tmp_path / "store", places, values, shape, slab_mode=0)
    asked = store.path, method, str(tmp_path / "run"), str(limit)
    command = [sys.executable, "-c", FIT_AND_WEIGH, *asked]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    seen = json.loads(finished.stdout)
    grown = seen["peak"] - seen["before"]
    assert grown > 30 * entries  # the problem is large enough for the test to mean something
    assert seen["peak"] <= seen["total"]
    assert (seen["sections"] > 1) == (limit > 0)


def test_more_fibres_than_their_sums_fit_for_are_summed_in_sections():
    usable, counts = int(0.8 * 2**30), [2_000_000] * 50
    asked = (5000, 4000, 1000), counts, (10, 10, 10), (1, 1), [usable, usable]
    plan = plan_of(*asked, divisible=True)
    plan.check()
    assert all(worker.block_entries >= WORTHWHILE_BLOCK for worker in plan.workers)
    assert f"in {plan.sections} sections" in str(plan)
    whole = plan_of(*asked)
    assert whole.sections == 1
    assert whole.largest.fibre_sums > usable
    assert plan.exchange_bytes == whole.exchange_bytes
    with pytest.raises(MemoryBudgetExceeded):
        whole.check()
    # Where sums fit, there is one section, whatever may be.
    fitting = plan_of(divisible=True)
    assert (fitting.sections, fitting) == (1, plan_of())


def test_what_does_not_fit_in_sections_either_is_refused_with_their_number():
    plan = plan_of(limits=[RUNTIME_BYTES + 10_000], divisible=True)
    with pytest.raises(MemoryBudgetExceeded, match=f"fibre sums in {SECTIONS[-1]} sections"):
        plan.check()


def test_keys_of_fibres_are_planned_where_not_all_have_numbers():
    counts = [100_000] * 4
    wide, narrow = header_of((50, 3000, 3000), counts), header_of((50, 200, 3000), counts)
    for sections in (1, SECTIONS[-1]):
        costs = Costs(wide, (2, 2, 2), sections=sections)
        sums = costs.resident(400_000, 1).fibre_sums
        every = with_all_numbered(costs).resident(400_000, 1).fibre_sums
        assert sums == max(every + 8 * costs.fibres, 6 * 8 * costs.fibres)
    alike = Costs(narrow, (2, 2, 2))
    sums = [one.resident(400_000, 1).fibre_sums for one in (alike, with_all_numbered(alike))]
    assert sums[0] == sums[1]


def with_all_numbered(costs):
    """The same with a number for every fibre that was counted, and so without keys."""
    header = costs.header
    shape = (header.shape[0], 1, costs.fibres)
    return dataclasses.replace(costs, header=dataclasses.replace(header, shape=shape))


def test_workers_are_rather_left_out_than_all_made_to_sum_in_sections(wide_store, monkeypatch):
    large, small = 64 * 2**30, 750 * 2**20
    places = [Place(f"worker {n}", 1, limit) for n, limit in enumerate((large, large, small))]
    monkeypatch.setattr("slrt_dask.request.cluster_places", lambda client: list(places))
    plan = slrt_dask.request.plan_of(wide_store, FitSettings(ranks=(10, 10, 10), C=1.0), client=1)
    assert (plan.sections, plan.available) == (1, 2)
    places[:] = places[2:]
    plan = slrt_dask.request.plan_of(wide_store, FitSettings(ranks=(10, 10, 10), C=1.0), client=1)
    plan.check()
    assert plan.sections > 1


@pytest.fixture
def wide_store():
    """All that a plan asks of a store whose fibre sums are 320 MB."""
    header = header_of((5000, 4000, 1000), [2_000_000] * 50)
    return SimpleNamespace(header=header, nnz=header.nnz, shape=header.shape)


@pytest.mark.parametrize(("workers", "exchanged"), [(1, False), (2, True)])
def test_sections_are_as_few_as_do_or_small_enough_to_be_exchanged_by_memory(workers, exchanged):
    asked = (5000, 1000, 1000), [2_000_000] * 10, (10, 10, 10)
    plan = plan_of(*asked, [1] * workers, [700 * 2**20] * workers, divisible=True)
    plan.check()
    assert plan.sections > 1
    section = math.ceil(plan.fibres / plan.sections) * 80
    assert (section <= LARGEST) == exchanged


@pytest.mark.parametrize("limit", [380, 390, 400, 420])
def test_sections_are_those_that_make_an_iteration_wait_least(limit):
    """Many of them were, for small problems, twenty times as slow as small blocks are."""
    asked = (400, 300, 200), [100_000] * 10, (8, 8, 8), (1,), [limit * 10**6]
    plan = plan_of(*asked, divisible=True)
    plan.check()
    costs = Costs(header_of(*asked[:2]), asked[2])
    chosen = plan.workers[0].seconds_beside(plan.sections)
    for sections in SECTIONS:
        cut = dataclasses.replace(costs, sections=sections)
        (worker,) = planning._plan(cut, [worker.place for worker in plan.workers], 0).workers
        assert chosen <= worker.seconds_beside(sections)
    assert plan.sections <= 8
    assert chosen < 1.0


def test_a_hundred_million_entries_are_streamed_on_two_workers_of_a_gibibyte():
    """In blocks that are long enough for files not to cost more than what is computed on them."""
    usable = int(0.8 * 2**30)  # beyond which dask gives a worker no more to do
    counts = [2_000_000] * 50
    for hessian, least in ((True, 100_000), (False, 500_000)):
        plan = plan_of(
            (40_000, 1000, 500), counts, (10, 10, 10), (1, 1), [usable, usable], hessian=hessian
        )
        plan.check()
        assert all(worker.block_entries >= least for worker in plan.workers)
