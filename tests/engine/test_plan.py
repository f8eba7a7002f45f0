"""The plan is integers, grows with what causes it, and holds for what a fit really takes."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slrt_dask
from slrt_dask.data.layout import PartitionInfo, StoreHeader
from slrt_dask.dual.costs import SlabCosts, plan_fit
from slrt_dask.dual.start import spectral_start
from slrt_dask.engine.plan import RUNTIME_BYTES
from slrt_dask.engine.watch import Place
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.optim import ConjugateGradient, StopRules, TrustRegion, minimise
from slrt_dask.spending import readable
from tests.engine.helpers import ORDERS, RANKS, dense_problem, dual_problem, local_engine

ROOT = Path(__file__).parents[2]


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
    return plan_fit(SlabCosts(header, ranks, **options), places)


# ---- what it says -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_plan_is_whole_numbers_that_add_up(data):
    order = data.draw(st.integers(2, 5))
    shape = tuple(data.draw(st.integers(1, 300)) for _ in range(order))
    ranks = tuple(data.draw(st.integers(1, length)) for length in shape)
    counts = data.draw(st.lists(st.integers(1, 10**7), min_size=1, max_size=6))
    threads = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    slab_mode = data.draw(st.integers(0, order - 1))
    plan = plan_of(shape, counts, ranks, threads=threads, slab_mode=slab_mode)
    assert sum(worker.entries for worker in plan.workers) == sum(counts)
    assert len(plan.workers) <= min(len(threads), len(counts))
    assert not Counter(w.place.threads for w in plan.workers) - Counter(threads)
    for needed in (worker.needed for worker in plan.workers):
        causes = dataclasses.asdict(needed)
        assert causes.pop("scratch") == 0  # no limit, nothing on disk
        assert causes.pop("rows") == 0  # no linear constraint
        assert all(type(cause) is int and cause > 0 for cause in causes.values())
        assert needed.total == sum(causes.values())
    costs = SlabCosts(header_of(shape, counts, slab_mode), ranks)
    assert plan.exchange_bytes == 2 * (len(plan.workers) - 1) * costs.crossing
    possible = math.prod(shape) // shape[slab_mode]
    assert min(possible, sum(counts)) <= costs.fibres <= possible
    assert plan.largest.total == max(worker.needed.total for worker in plan.workers)
    plan.check()  # no limit, no refusal
    for word in ("observations", "solver state", "fibre sums", "buffers", "total", "network"):
        assert word in str(plan)


@pytest.mark.parametrize(
    ("more", "causes"),
    [
        ({"counts": (18000, 16000)}, "observations state"),
        ({"ranks": (11, 4, 3)}, "fibre_sums"),
        ({"ranks": (5, 9, 3)}, "buffers"),
        ({"threads": [4]}, "fibre_sums buffers"),
        ({"value_bytes": 16}, "state"),
        ({"shape": (50, 80, 30)}, "fibre_sums"),
        ({"shape": (2**31, 40, 30)}, "observations"),  # indices of eight bytes
        ({"held_out": 9000}, "observations"),
        ({"extra": 9000}, "observations state"),
        ({"hessian": True}, "fibre_sums buffers"),
        ({"extra": 0, "alternating": True}, "state"),
    ],
    ids=str,
)
def test_every_cause_grows_with_what_causes_it(more, causes):
    plain, larger = plan_of().largest, plan_of(**more).largest
    for cause in ("observations", "state", "fibre_sums", "buffers"):
        assert getattr(larger, cause) >= getattr(plain, cause)
        assert cause not in causes.split() or getattr(larger, cause) > getattr(plain, cause)


def test_the_plan_says_along_which_mode_less_would_cross():
    assert plan_of(slab_mode=0).better_slab_mode is None
    assert plan_of(slab_mode=1, ranks=(5, 5, 5)).better_slab_mode == 0
    assert "along mode 0" in str(plan_of(slab_mode=1, ranks=(5, 5, 5)))


# ---- what it refuses, and what it streams -------------------------------------------------------


def test_what_does_not_fit_is_refused_with_numbers_and_remedy():
    plan = plan_of(threads=[1, 1], limits=[None, 10**6])
    with pytest.raises(MemoryBudgetExceeded) as caught:
        plan.check()
    message, needed = str(caught.value), plan.workers[1].needed
    open_blocks = needed.observations + needed.state
    for count in (open_blocks, needed.fibre_sums, needed.buffers, needed.total, 10**6):
        assert readable(count) in message
    assert "worker 1" in message
    assert isinstance(caught.value, MemoryError)
    # Ranks are no remedy where the runtime alone does not fit.
    for limit, helps in ((RUNTIME_BYTES, False), (RUNTIME_BYTES + 1, True)):
        with pytest.raises(MemoryBudgetExceeded) as caught:
            plan_of(limits=[limit]).check()
        assert ("lower the rank of mode 0" in str(caught.value)) == helps


def test_blocks_stay_in_memory_as_long_as_they_fit_and_then_go_to_disk():
    counts = (3_000_000, 2_000_000)
    total = plan_of(counts=counts).largest.total
    fitting = plan_of(counts=counts, limits=[total])
    assert fitting.in_memory
    assert fitting.workers[0].needed.scratch == 0
    short = plan_of(counts=counts, limits=[total - 1])
    short.check()
    (worker,) = short.workers
    assert worker.block_entries > 0
    assert worker.needed.total <= total - 1 < worker.resident == total
    assert worker.needed.scratch > 5_000_000 * 8
    assert "streamed from disk" in str(short)
    assert "in memory" in str(fitting)


@settings(max_examples=60, deadline=None)
@given(st.integers(400, 4000), st.integers(1, 8))
def test_a_streamed_plan_uses_no_more_than_it_may_and_larger_limits_give_larger_blocks(
    megabytes, threads
):
    limits = [megabytes * 2**20, 2 * megabytes * 2**20]
    plans = [plan_of(counts=(5_000_000,) * 8, threads=[threads], limits=[lim]) for lim in limits]
    for plan, limit in zip(plans, limits, strict=True):
        if plan.largest.total > limit:
            with pytest.raises(MemoryBudgetExceeded):
                plan.check()
        else:
            plan.check()
    small, large = (plan.workers[0].block_entries for plan in plans)
    assert large is None or small <= large


@pytest.mark.parametrize(("hessian", "gibibytes", "least"), [(False, 1, 40_000), (True, 2, 10**6)])
def test_a_hundred_million_entries_are_streamed_on_two_small_workers(hessian, gibibytes, least):
    """In blocks that are long enough for files not to cost more than what is computed on them."""
    usable = int(0.8 * gibibytes * 2**30)  # beyond which dask gives a worker no more to do
    plan = plan_of(
        (40_000, 1000, 500), [2_000_000] * 50, (10, 10, 10), (1, 1), [usable, usable],
        hessian=hessian,
    )  # fmt: skip
    plan.check()
    assert all(worker.block_entries >= least for worker in plan.workers)


# ---- what is measured ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_share_never_holds_more_than_was_planned(order, precision, store_of):
    dense = dense_problem(order, fraction=0.7)
    store = store_of(dense.mask, dense.values, parts=2)
    held, value_bytes = [], 8 if precision == "float64" else 4

    class Weigh:
        def on_record(self, record, state):
            held.extend(engine.on_shares(lambda share: share.nbytes))

    with local_engine(store, 2, precision=precision) as engine:
        problem = dual_problem(engine, dense, max_inner_iterations=30)
        start = spectral_start(problem, 0)
        for method, hessian in ((ConjugateGradient(), False), (TrustRegion(), True)):
            costs = SlabCosts(store.header, RANKS[order], value_bytes, hessian=hessian)
            plan = plan_fit(costs, [Place(None, 2, None)]).largest
            planned = plan.observations + plan.state + plan.fibre_sums + plan.buffers
            rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=3)
            minimise(problem, method, start, rules, observers=[Weigh()])
            assert 0 < max(held) <= planned


@pytest.mark.parametrize(
    "asked",
    [
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


FIT_AND_WEIGH = """
import json, sys
import psutil
import slrt_dask
from slrt_dask.spending import peak_bytes
place, method, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
store, asked = slrt_dask.open_store(place + "/store"), {"method": method, "threads": 2}
resident = slrt_dask.plan(store, (4, 4, 3), **asked).largest.total
asked["memory_limit"] = resident - limit
planned = slrt_dask.plan(store, (4, 4, 3), **asked).workers[0]
before = psutil.Process().memory_info().rss
slrt_dask.complete(store, (4, 4, 3), C=1.0, max_iterations=1, run_directory=place + "/run", **asked)
print(json.dumps({"peak": peak_bytes(), "before": before, "total": planned.needed.total,
                  "resident": resident, "streamed": planned.block_entries is not None}))
"""


@pytest.mark.parametrize(
    ("method", "less"), [("rtr", 0), ("lbfgs", 2**24)], ids=["in memory", "streamed"]
)
def test_the_peak_of_a_fit_stays_within_the_plan(method, less, tmp_path):
    shape, entries = (160, 140, 120), 500_000
    rng = np.random.default_rng(0)
    flat = rng.choice(math.prod(shape), entries, replace=False)
    places = np.array(np.unravel_index(flat, shape))
    values = np.sin(places[0] / 30.0) * np.cos(places[1] / 20.0) + places[2] / 100.0
    slrt_dask.from_coo(
        tmp_path / "store", places, values, shape, slab_mode=0, partition_entries=60_000
    )
    command = [sys.executable, "-c", FIT_AND_WEIGH, str(tmp_path), method, str(less)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    seen = json.loads(finished.stdout)
    assert seen["streamed"] == (less > 0)
    # The problem is large enough for the test to mean something.
    assert seen["peak"] - seen["before"] > 30 * entries
    assert seen["peak"] <= seen["total"] <= seen["resident"] - less
