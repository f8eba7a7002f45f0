"""Measurements on two worker processes, and of growth: rounds, speed-up, sweeps, small memory."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Row, in_turns, spinning
from solving import Shape, cluster, in_process, on_workers, solver, store_of

import slrt_dask as slrt
from slrt_dask.data.ingest import ingest_bytes
from slrt_dask.engine.block import Block
from slrt_dask.engine.plan import readable
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.spending import ShareSpending, peak_bytes

RANKS = (10, 10, 10)
MESSAGES = {"8 kB": 1_000, "8 MB": 1_000_000}
"""Numbers in the array that every round sends and sums."""
VIDEO, VIDEO_ENTRIES = (5000, 200, 100), 10_000_000
GROWING = (100_000, 1_000_000, 10_000_000)
DENSITY, WIDTHS = 0.005, (1000, 500)
"""Of tensors whose first mode grows with their entries."""
WORKER_LIMIT = "1GiB"


@dataclass(frozen=True)
class EmptyRounds(Program):
    """Rounds in which every block adds an array of ones to the last round's message."""

    count: int
    length: int

    at_once = 8

    def rounds(self) -> Rounds:
        total = np.zeros(self.length)
        for _ in range(self.count):
            (total,) = yield Sweep(EmptyRounds._step, (total,))
        return float(total[0])

    def _step(self, block: Block, total: Any, message: Any) -> Any:
        sums = block.buffers.sums((self.length,), message) if total is None else total[0]
        sums += 1.0
        return (sums,)


def rounds(directory: Path, count: int = 40) -> list[Row]:
    """What a round between two workers takes where nothing is computed."""
    store = store_of(directory, (100, 20, 20), 10_000)
    with cluster(2) as client, on_workers(store, client, 2) as engine:
        programs = [EmptyRounds(count, length) for length in MESSAGES.values()]
        sides = [lambda program=program: engine.run(program) for program in programs]
        times = in_turns(*sides, repeats=9)
    return [
        Row(f"round of two workers, messages of {size}", f"{1e3 * seconds / count:.1f} ms", "")
        for size, seconds in zip(MESSAGES, times, strict=True)
    ]


def workers(
    directory: Path, shape: Shape = VIDEO, entries: int = VIDEO_ENTRIES, iterations: int = 10
) -> list[Row]:
    """Two workers of one thread against one."""
    store = store_of(directory, shape, entries, slab_mode=0)
    with (
        cluster(2) as client,
        on_workers(store, client, 1) as one,
        on_workers(store, client, 2) as two,
    ):
        began = two.spending()
        solves = [solver(engine, RANKS, iterations) for engine in (one, two)]
        single, both, alone, twice = in_turns(*solves, spinning(1), spinning(2))
        ended = two.spending()
    exchange, whole = (
        sum(of(after) - of(before) for before, after in zip(began, ended, strict=True))
        for of in (_exchange, _rounds)
    )
    name = f"{entries:,} entries of {'×'.join(map(str, shape))}"
    return [
        Row(
            f"two workers against one, {name}",
            f"{single / both:.2f} ×",
            f"{1e3 * single / iterations:.0f} and {1e3 * both / iterations:.0f} ms a sweep; "
            f"arithmetic in registers on two threads {2 * alone / twice:.2f} ×",
        ),
        Row("of the two workers' rounds, waiting for each other", f"{exchange / whole:.1%}", ""),
    ]


def _exchange(spent: ShareSpending) -> float:
    return spent.exchange


def _rounds(spent: ShareSpending) -> float:
    return spent.computing + spent.exchange


def growth(directory: Path, sizes: tuple[int, ...] = GROWING) -> list[Row]:
    """Sweeps of more and more entries, on one thread, in memory."""
    rows, first = [], 0.0
    for entries in sizes:
        iterations = max(3, min(50, 20_000_000 // entries))
        store = store_of(directory, growing_shape(entries), entries, slab_mode=0)
        with in_process(store, 1) as engine:
            (seconds,) = in_turns(solver(engine, RANKS, iterations), repeats=5)
        each = 1e9 * seconds / iterations / entries
        first = first or each
        rows.append(
            Row(f"sweep of {entries:,} entries", f"{each / first:.2f} ×", f"{each:.1f} ns an entry")
        )
    return rows


def growing_shape(entries: int) -> Shape:
    """A tensor of the same density for any number of entries."""
    return (max(1, round(entries / DENSITY / (WIDTHS[0] * WIDTHS[1]))), *WIDTHS)


def streamed(directory: Path, entries: int, memory_limit: str = WORKER_LIMIT) -> list[Row]:
    """Ingest and a fit of more entries than fit in memory: peaks and their plans."""
    shape = growing_shape(entries)
    path = directory / "streamed"
    shutil.rmtree(path, ignore_errors=True)
    with ProcessPoolExecutor(1, get_context("spawn")) as own:
        seconds, peak = own.submit(ingest, path, shape, entries).result()
    store = store_of(path, shape, entries, slab_mode=0)
    with cluster(2, memory_limit) as client:
        plan = slrt.plan(store, RANKS, client=client)
        print(plan, flush=True)
        began = time.perf_counter()
        done = slrt.complete(store, RANKS, C=1.0, max_iterations=3, client=client)
        took = time.perf_counter() - began
        peaks = client.run(peak_bytes).values()
    sweeps = sum(record.sweeps for record in done.records)
    speed = entries * sweeps / done.records[-1].seconds / 1e6
    blocks = ", ".join(f"{worker.block_entries or worker.entries:,}" for worker in plan.workers)
    planned = readable(plan.largest.total)
    return [
        Row(
            f"ingest of {entries:,} entries of {'×'.join(map(str, shape))}",
            f"{entries / seconds / 1e6:.2f} M entries/s",
            f"peak {readable(peak)}, planned {readable(ingest_bytes(len(shape)))}",
        ),
        Row(
            f"three outer iterations, blocks of {blocks} entries",
            f"{took:.0f} s",
            f"{sweeps} sweeps, {speed:.1f} M entries/s",
        ),
        Row("peak of each worker", ", ".join(map(readable, peaks)), f"planned {planned}"),
        Row("peak of the driver", readable(peak_bytes()), f"planned {readable(plan.driver)}"),
    ]


def ingest(directory: Path, shape: Shape, entries: int) -> tuple[float, int]:
    """Seconds it takes, and the peak of the process."""
    began = time.perf_counter()
    store_of(directory, shape, entries, slab_mode=0)
    return time.perf_counter() - began, peak_bytes()
