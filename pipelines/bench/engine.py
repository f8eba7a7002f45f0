"""Measurements in this process: threads, orchestration, other versions, starting, certificates."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from kernels import CUBE, CUBE_ENTRIES, CUBE_RANKS, LARGE, LARGE_ENTRIES, product_on
from measuring import Row, in_turns, spinning
from solving import in_process, random_operator, solver, store_of

import slrt_dask as slrt
from slrt_dask.dual import operator, solve

HERE = Path(__file__).resolve().parents[2]
ITERATIONS, FITS = 20, 7
FITTING = """
import sys, time
began = time.perf_counter()
import slrt_dask
print(slrt_dask.__file__, time.perf_counter() - began, sep="\\n", flush=True)
store = slrt_dask.open_store(sys.argv[1])
for line in sys.stdin:
    threads, iterations = map(int, line.split())
    began = time.perf_counter()
    rows = slrt_dask.complete(
        store, (10, 10, 5), C=1000.0, lambdas=(1.0, 1.0, 1.0),
        gradient_tolerance=0.0, max_iterations=iterations, threads=threads,
    ).records
    whole = time.perf_counter() - began
    iterating, sweeps = rows[-1].seconds - rows[0].seconds, sum(row.sweeps for row in rows[1:])
    print(whole, iterating, sweeps, flush=True)
"""
"""Uses the public API only, so that any version of the package can run it."""


def rows(directory: Path, before: Path | None) -> list[Row]:
    small = store_of(directory, CUBE, CUBE_ENTRIES)
    large = store_of(directory, LARGE, LARGE_ENTRIES)
    path = Path(str(small.path))
    versions = [_version(path, before, threads) for threads in (1, 2)] if before else []
    threads = [_threads(small, 20, 41), _threads(large, 10, 15)]
    return [*threads, *versions, *_orchestration(small), *_starting(path), _digits()]


def _threads(store: slrt.ObservationStore, iterations: int, repeats: int) -> Row:
    """Two threads against one, and how much faster two threads compute without memory or waits."""
    with in_process(store, 1) as one, in_process(store, 2) as two:
        solves = [solver(engine, CUBE_RANKS, iterations) for engine in (one, two)]
        single, both, alone, twice = in_turns(*solves, spinning(1), spinning(2), repeats=repeats)
    return Row(
        f"inner solve of {store.nnz:,} entries, two threads",
        f"{single / both:.2f} × one thread",
        f"{1e3 * both / iterations:.1f} ms an iteration; arithmetic in registers "
        f"{2 * alone / twice:.2f} ×",
    )


class Fits:
    """A process that makes one fit after the other, with the package of a checkout."""

    def __init__(self, store: Path, checkout: Path) -> None:
        checkout = checkout.resolve()
        command = [sys.executable, "-P", "-c", FITTING, str(store)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        home, imported = self._line(), self._line()
        if not Path(home).is_relative_to(checkout):
            raise SystemExit(f"{checkout} has no package: {home} was imported")
        self.import_seconds = float(imported)

    def fit(self, threads: int, iterations: int) -> tuple[float, float, int]:
        """Seconds of a fit, of its iterations, and their sweeps."""
        print(threads, iterations, file=self._process.stdin, flush=True)
        whole, iterating, sweeps = self._line().split()
        return float(whole), float(iterating), int(sweeps)

    def _line(self) -> str:
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"the process with fits ended with {self._process.wait()}")
        return line

    def __enter__(self) -> Fits:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()


def _version(store: Path, before: Path, threads: int) -> Row:
    """A fit with this package and one with another version's, in turns."""
    with Fits(store, HERE) as now, Fits(store, before) as then:
        sides: tuple[list[float], ...] = ([], [])
        for repeat in range(FITS + 1):
            found = [fits.fit(threads, 10) for fits in (now, then)]
            for side, (_, seconds, sweeps) in zip(sides, found, strict=True):
                side += [seconds / sweeps] if repeat else []
    new, old = map(statistics.median, sides)
    return Row(
        f"fit of {CUBE_ENTRIES:,} entries against {before.resolve().name}, {threads} thread(s)",
        f"{new / old:.2f} × its time a sweep",
        f"{1e3 * new:.2f} and {1e3 * old:.2f} ms; {found[0][2]} and {found[1][2]} sweeps",
    )


class Timed:
    """A kernel, or a module of kernels, whose calls are timed."""

    def __init__(self, kernels: Any, seconds: list[float]) -> None:
        self._kernels, self._seconds = kernels, seconds

    def __getattr__(self, name: str) -> Timed:
        return Timed(getattr(self._kernels, name), self._seconds)

    def __call__(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = self._kernels(*arguments)
        self._seconds.append(time.perf_counter() - began)
        return result


@contextmanager
def kernels_timed() -> Iterator[list[float]]:
    """Seconds of every call of a kernel meanwhile."""
    seconds: list[float] = []
    with ExitStack() as patches:
        for module, name in ((solve, "vectors"), (solve, "crossing_step"), (operator, "sweeps")):
            timed = Timed(getattr(module, name), seconds)
            patches.enter_context(mock.patch.object(module, name, timed))
        yield seconds


def _orchestration(store: slrt.ObservationStore) -> list[Row]:
    with in_process(store, 1) as engine:
        solving = solver(engine, CUBE_RANKS, ITERATIONS)
        product = product_on(engine, random_operator(store, CUBE_RANKS))
        alone, bare = in_turns(solving, product, repeats=7)
        shares = []
        for _ in range(7):
            with kernels_timed() as seconds:
                began = time.perf_counter()
                solving()
                shares.append(1.0 - sum(seconds) / (time.perf_counter() - began))
    return [
        Row(
            f"orchestration of {CUBE_ENTRIES:,} entries, one thread",
            f"{100 * statistics.median(shares):.1f} % of an inner solve",
            "all that is not kernels",
        ),
        Row(
            "inner iteration against its product",
            f"{alone / ITERATIONS / bare:.2f} × the product alone",
            f"{1e3 * alone / ITERATIONS:.1f} ms",
        ),
    ]


def _starting(store: Path) -> list[Row]:
    """In processes of their own; the first leaves compiled code for the second."""
    for _ in range(2):
        with Fits(store, HERE) as fits:
            (first, *_), (second, *_) = fits.fit(1, 2), fits.fit(1, 2)
    return [
        Row("import slrt_dask", f"{fits.import_seconds:.2f} s", ""),
        Row(
            "first fit of a process against its second",
            f"{first - second:.1f} s more",
            f"{first:.1f} and {second:.1f} s, with compiled code in numba's cache",
        ),
    ]


def _digits() -> Row:
    """Sweeps of fits that have to certify one digit after the other."""
    shape = (60, 50, 20)
    tensor = slrt.low_rank_tensor(shape, ranks=(3, 3, 3), seed=0)
    generator = np.random.default_rng(0)
    places = np.stack(np.nonzero(generator.random(shape) < 0.2))
    values = tensor[tuple(places)] + 0.1 * tensor.std() * generator.standard_normal(places.shape[1])
    spent = []
    with tempfile.TemporaryDirectory() as name:
        store = slrt.from_coo(Path(name) / "digits", places, values, shape)
        for digits in (1, 2, 3, 4):
            done = slrt.complete(
                store, (30, 30, 20), C=0.1, gap_tolerance=10.0**-digits, gradient_tolerance=0.0,
                max_iterations=500, threads=1,
            )  # fmt: skip
            sweeps = sum(record.sweeps for record in done.records)
            spent.append((sweeps, done.certificate.relative_gap))
    found = ", ".join(f"{sweeps} to {gap:.0e}" for sweeps, gap in spent)
    each = (spent[-1][0] - spent[0][0]) / (len(spent) - 1)
    return Row("sweeps to a certified relative gap", found, f"{each:.0f} a digit, 60×50×20")
