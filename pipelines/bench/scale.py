"""Measure what happens to a sweep as the problem and the cluster grow, and that memory holds.

    python pipelines/bench/scale.py DIRECTORY                      about an hour, 30 GB of disk
    python pipelines/bench/scale.py DIRECTORY --entries 10000000   a tenth of that

Four questions, in one run. Tensors have one density and a first mode that grows with the entries,
but for the second question, which is put to a long video and to a cube, a tenth of them observed:

- Does a sweep cost the same per entry, however many entries there are (one thread, in memory)?
- On two workers: how much faster than on one, and how much of the time is not kernels?
- Two workers with 1 GiB each: do ingest, a fit of all the entries and questions to its outcome stay
  within their plans, and how fast are streamed sweeps beside those in memory?
- The same where the fibre sums of all fibres do not fit either, and are made in sections.

A sweep is one inner iteration: all of its products, vector updates and sums.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from slrt_dask.dual.inner import ConjugateGradient
from slrt_dask.dual.sectioned_solve import in_sections
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.placement import cluster_places
from threadpoolctl import threadpool_limits

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.dask_settings import SETTINGS
from slrt_dask.data import from_batches, low_rank_observations
from slrt_dask.data.budget import ingest_bytes
from slrt_dask.data.ingest import PARTITION_ENTRIES
from slrt_dask.dual.operator import Factors
from slrt_dask.engine.base import Engine
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.plan import readable
from slrt_dask.engine.program import run_rounds
from slrt_dask.request import plan_of

RANKS = (10, 10, 10)
WIDTHS = {"entries": (1000, 500), "wide": (4000, 1000)}
"""Of tensors that grow; the fibre sums that cross are 40 and 320 MB."""
DENSITY = 0.005
CLUSTER_SHAPES = {"video": (5000, 200, 100), "cube": (1000, 1000, 100)}
"""What two workers share; the fibre sums that they exchange are 1.6 and 8 MB."""
CLUSTER_ENTRIES = 10_000_000
WORKER_LIMIT = "1GiB"
PLACES, CHUNKS = 1_000_000, 20
"""That a completion of the largest store is asked for, on the workers that made it."""


def shape_of(entries: int, kind: str) -> tuple[int, ...]:
    """A tensor of the same density for any number of entries."""
    widths = WIDTHS[kind]
    return (max(1, round(entries / DENSITY / math.prod(widths))), *widths)


def store_of(directory: Path, entries: int, kind: str = "entries") -> slrt.ObservationStore:
    """The store with so many entries, made in a process of its own if it is not there yet."""
    path = directory / f"{kind}-{entries}"
    if not path.exists():
        command = [sys.executable, __file__, str(path), "--make", str(entries), "--kind", kind]
        subprocess.run(command, check=True)
    return slrt.open_store(path)


def make(path: Path, entries: int, shape: tuple[int, ...], partition: int) -> None:
    """Make a store and tell what that took."""
    began = time.perf_counter()
    batches = low_rank_observations(shape, RANKS, entries, seed=0, noise=0.1)
    from_batches(path, batches, shape, slab_mode=0, partition_entries=partition)
    seconds = time.perf_counter() - began
    planned = ingest_bytes(len(shape), partition_entries=partition)
    print(
        f"| ingest of {entries:,} entries | {entries / seconds / 1e6:.2f} M entries/s, peak "
        f"{readable(peak_bytes())} (planned {readable(planned)}) |",
        flush=True,
    )


def peak_bytes(dask_worker: Any = None) -> int:
    """The most memory this process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def solver(engine: Engine, iterations: int) -> Callable[[], None]:
    """A call that makes some iterations of the inner solve, each with one sweep."""
    program = inner_solve(engine, iterations)
    return lambda: engine.run(program)


def inner_solve(engine: Engine, iterations: int) -> ConjugateGradient:
    generator = np.random.default_rng(0)
    shape = engine.store.shape
    factors = Factors.of(
        tuple(generator.standard_normal((n, r)) / n for n, r in zip(shape, RANKS, strict=True))
    )
    solve = ConjugateGradient(
        factors, (1.0,) * len(shape), engine.store.slab_mode, 1e-6, "solution", None, None, 0.0,
        iterations,
    )  # fmt: skip
    return in_sections(solve, engine.sections)


def solve_alone(share: Any, program: ConjugateGradient) -> None:
    """The same work on a worker's own part, as if there were no other workers."""
    run_rounds(program, share.contribute)


def seconds_of(call: Callable[[], None], repeats: int = 3) -> float:
    """Median seconds of a call, after one that is not counted."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def linear_rows(directory: Path, sizes: list[int]) -> list[tuple[str, str]]:
    """Nanoseconds of a sweep per entry, in memory with one thread, for each size."""
    rows, first = [], 0.0
    for entries in sizes:
        iterations = max(3, min(50, 20_000_000 // entries))
        with LocalEngine(store_of(directory, entries), threads=1) as engine:
            seconds = seconds_of(solver(engine, iterations))
        each = 1e9 * seconds / iterations / entries
        first = first or each
        rows.append((f"sweep of {entries:,} entries", f"{each:.1f} ns/entry, {each / first:.2f} ×"))
    return rows


def round_seconds(share: Any) -> list[float]:
    return list(share.round_seconds)


def forget_rounds(share: Any) -> None:
    share.round_seconds.clear()


def cluster_rows(directory: Path, sizes: list[int]) -> list[tuple[str, str]]:
    """Two workers against one, in turns, and the share of orchestration."""
    rows = []
    for kind in CLUSTER_SHAPES:
        store = store_of(directory, max(sizes[1], min(sizes[2], CLUSTER_ENTRIES)), kind)
        with cluster(2, 0) as client:
            rows += compared(store, client)
    return rows


def compared(store: slrt.ObservationStore, client: Client) -> list[tuple[str, str]]:
    """One tensor on one worker of a cluster, on two, and on two that do not talk to each other.

    The last is what the machine gives: no exchange, and nobody waits for anybody.
    """
    iterations, repeats, measured, rows, apart = 10, 15, {1: [], 2: []}, [], []
    places = cluster_places(client)
    with (
        ClusterEngine(store, client, places=places[:1]) as one,
        ClusterEngine(store, client, places=places) as two,
    ):
        for repeat in range(repeats + 1):
            for workers, engine in ((1, one), (2, two)):
                times = timed(engine, solver(engine, iterations))
                measured[workers] += [times] if repeat else []
            began = time.perf_counter()
            two.on_shares(solve_alone, inner_solve(two, iterations))
            apart += [time.perf_counter() - began] if repeat else []
    name = f"{store.nnz:,} entries of {'×'.join(map(str, store.shape))}"
    for workers, times in measured.items():
        whole = statistics.median(whole for whole, _ in times)
        outside = statistics.median(1 - busy / whole for whole, busy in times)
        rows.append(
            (
                f"{workers} worker(s), {name}",
                f"{1e3 * whole / iterations:.0f} ms a sweep, during {100 * outside:.1f} % of which "
                f"no worker computes",
            )
        )
    one_worker, two_workers = ([whole for whole, _ in measured[n]] for n in (1, 2))
    return [
        *rows,
        ("two workers against one", ratios(one_worker, two_workers)),
        ("two that do not talk to each other against one", ratios(one_worker, apart)),
    ]


def ratios(slow: list[float], fast: list[float]) -> str:
    """The median ratio of times measured in turns, how far they spread, and that of the shortest.

    What else runs on a shared machine makes times longer, never shorter, and those of two workers
    more than those of one: the shortest of each tell most of the program.
    """
    each = sorted(a / b for a, b in zip(slow, fast, strict=True))
    shortest = min(slow) / min(fast)
    return (
        f"{statistics.median(each):.2f} × ({each[0]:.2f} to {each[-1]:.2f}; shortest times "
        f"{shortest:.2f} ×)"
    )


def timed(engine: Engine, solve: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a solve, and in how many of them the slowest worker of the round computed."""
    engine.on_shares(forget_rounds)
    began = time.perf_counter()
    solve()
    whole = time.perf_counter() - began
    rounds = zip(*engine.on_shares(round_seconds), strict=True)
    return whole, sum(max(workers) for workers in rounds)


def streamed_rows(
    directory: Path, sizes: list[int], kind: str = "entries"
) -> list[tuple[str, str]]:
    """A fit on two small workers: throughput, and peaks beside their plan."""
    _, fewer, entries = sizes
    store, iterations = store_of(directory, entries, kind), 10
    settings = FitSettings(ranks=RANKS, C=1.0)
    with cluster(2, 0) as client, ClusterEngine(store_of(directory, fewer, kind), client) as engine:
        resident = iterations * fewer / seconds_of(solver(engine, iterations), repeats=9)
    with cluster(2, WORKER_LIMIT) as client:
        plan = plan_of(store, settings, client=client)
        print(plan, flush=True)
        streamed = {str(w.place.address): w.block_entries for w in plan.workers if w.block_entries}
        with ClusterEngine(store, client, streamed=streamed, sections=plan.sections) as engine:
            speed = iterations * entries / seconds_of(solver(engine, iterations))
        began = time.perf_counter()
        done = slrt.complete(store, RANKS, C=1.0, max_iterations=3, client=client)
        took = time.perf_counter() - began
        peaks = list(client.run(peak_bytes).values())
        answered = answering_seconds(done, client)
        later = list(client.run(peak_bytes).values())
    sweeps = sum(record.sweeps for record in done.records)
    how = "streamed" if streamed else "not streamed, because they fit in memory"
    how += f", fibre sums in {plan.sections} sections" if plan.sections > 1 else ""
    shape = "×".join(map(str, store.shape))
    return [
        (f"{entries:,} entries of {shape}, {how}", f"{speed / 1e6:.1f} M entries/s"),
        (f"the same against {fewer:,} in memory", f"{speed / resident:.2f} ×"),
        ("three outer iterations", f"{took:.0f} s, {sweeps} sweeps"),
        ("peak of each worker", ", ".join(map(readable, peaks))),
        ("planned", readable(plan.largest.total)),
        ("peak of the driver", f"{readable(peak_bytes())} (planned {readable(plan.driver)})"),
        (
            f"{PLACES:,} places at random, and {CHUNKS} chunks of the whole, on the same workers",
            f"{' and '.join(f'{seconds:.0f} s' for seconds in answered)}, peaks then "
            f"{', '.join(map(readable, later))}",
        ),
    ]


def answering_seconds(done: slrt.Completion, client: Client) -> tuple[float, float]:
    """Seconds for predictions at random places, and for some chunks of the completed tensor."""
    generator = np.random.default_rng(0)
    places = np.array([generator.integers(0, length, PLACES) for length in done.shape])
    with client.as_current():
        began = time.perf_counter()
        done.predict(places)
        between = time.perf_counter()
        whole = done.to_dask()
        chosen = [generator.integers(0, count, CHUNKS).tolist() for count in whole.numblocks]
        dask.compute(*(whole.blocks[block].mean() for block in zip(*chosen, strict=True)))
        return between - began, time.perf_counter() - between


@contextlib.contextmanager
def cluster(workers: int, memory_limit: Any) -> Iterator[Client]:
    options = {"memory_limit": memory_limit, "dashboard_address": None}
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=workers, threads_per_worker=1, **options) as made,
        Client(made, set_as_default=False) as client,
    ):
        yield client


MEASUREMENTS = {
    "linear": linear_rows,
    "cluster": cluster_rows,
    "streamed": streamed_rows,
    "sections": partial(streamed_rows, kind="wide"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how sweeps scale.")
    parser.add_argument("directory", type=Path, help="where stores are made, and kept")
    parser.add_argument("--entries", type=int, default=100_000_000, help="the largest store")
    parser.add_argument("--only", choices=list(MEASUREMENTS), help="one of the questions")
    parser.add_argument("--make", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="entries", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        if options.kind in CLUSTER_SHAPES:
            shape, partition = CLUSTER_SHAPES[options.kind], PARTITION_ENTRIES
        else:
            shape, partition = shape_of(options.make, options.kind), max(1, options.make // 50)
        make(options.directory, options.make, shape, partition)
        return
    options.directory.mkdir(parents=True, exist_ok=True)
    sizes = [options.entries // 100, options.entries // 10, options.entries]
    if options.only:
        with threadpool_limits(limits=1, user_api="blas"):
            rows = MEASUREMENTS[options.only](options.directory, sizes)
        for what, measured in rows:
            print(f"| {what} | {measured} |", flush=True)
        return
    for question in MEASUREMENTS:
        # Each in a process of its own, so that peaks are its own.
        subprocess.run([sys.executable, *sys.argv, "--only", question], check=True)


if __name__ == "__main__":
    main()
