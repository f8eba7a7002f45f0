"""What surrounds the kernels: threads, orchestration, starting up, and sweeps to a digit of gap."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from kernels import CUBE, CUBE_ENTRIES, CUBE_RANKS, LARGE, LARGE_ENTRIES, product_on
from measuring import Row, in_turns, spinning
from slrt_dask.dual.inner import ConjugateGradient
from slrt_dask.engine.chains import Chain
from slrt_dask.engine.local import LocalEngine

import slrt_dask as slrt
from slrt_dask.data import from_batches, low_rank_observations
from slrt_dask.dual import inner, iteration, operator
from slrt_dask.dual.operator import Factors
from slrt_dask.engine.share import Share

ITERATIONS = 20
WEIGHTS = (1.0, 1.0, 1.0)
FIRST_FIT = """
import time, sys
began = time.perf_counter()
import slrt_dask
imported = time.perf_counter() - began
store = slrt_dask.open_store(sys.argv[1])
for _ in range(2):
    began = time.perf_counter()
    slrt_dask.complete(store, (10, 10, 5), C=1000.0, lambdas=(1.0, 1.0, 1.0), max_iterations=2)
    print(time.perf_counter() - began)
print(imported)
"""


class Timed:
    """A module of kernels whose calls are timed."""

    def __init__(self, module: ModuleType, seconds: list[float]) -> None:
        self._module, self._seconds = module, seconds

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._module, name)

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = kernel(*arguments)
            self._seconds.append(time.perf_counter() - began)
            return result

        return timed


@contextmanager
def kernels_timed() -> Iterator[list[float]]:
    """Seconds of every call of a kernel meanwhile."""
    seconds: list[float] = []
    places = [(inner, "vectors"), (operator, "sweeps")]
    places += [(iteration, "crossing"), (iteration, "local")]
    kept = [getattr(module, name) for module, name in places]
    for (module, name), kernels in zip(places, kept, strict=True):
        setattr(module, name, Timed(kernels, seconds))
    try:
        yield seconds
    finally:
        for (module, name), kernels in zip(places, kept, strict=True):
            setattr(module, name, kernels)


def rows(directory: Path) -> list[Row]:
    small, large = (
        from_batches(
            directory / name, low_rank_observations(shape, CUBE_RANKS, entries, seed=0), shape
        )
        for name, shape, entries in (
            ("engine", CUBE, CUBE_ENTRIES),
            ("large", LARGE, LARGE_ENTRIES),
        )
    )
    threads = [_threads(small, 20, 41), _threads(large, 10, 15)]
    return [*threads, *_solves(small), *_starting(directory / "engine"), *_digits(directory)]


def _factors(store: slrt.ObservationStore) -> Factors:
    generator = np.random.default_rng(0)
    lengths = zip(store.shape, CUBE_RANKS, strict=True)
    return Factors.of(tuple(generator.standard_normal((n, r)) / n for n, r in lengths))


def _solver(engine: LocalEngine, iterations: int = ITERATIONS) -> Callable[[], Any]:
    store = engine.store
    program = ConjugateGradient(
        _factors(store), WEIGHTS, store.slab_mode, 1e-6, "solution", None, None, 0.0, iterations
    )
    return lambda: engine.run(program)


def _threads(store: slrt.ObservationStore, iterations: int, repeats: int) -> Row:
    """Two threads against one, beside two that never wait for each other.

    These only make products of their own halves, or do arithmetic without a look at memory.
    """
    with LocalEngine(store, threads=1) as one, LocalEngine(store, threads=2) as two:
        solves = [_solver(engine, iterations) for engine in (one, two)]
        never = *_halves(two, iterations), spinning(1), spinning(2)
        times = in_turns(*solves, *never, repeats=repeats)
    single, both, in_turn, at_once, alone, beside = times
    return Row(
        f"inner solve of {store.nnz:,} entries, two threads",
        f"{single / both:.2f} × one thread",
        f"{1e3 * both / iterations:.1f} ms an iteration; where none waits for another, kernels do "
        f"{in_turn / at_once:.2f} × the work of one thread, and arithmetic in registers "
        f"{2 * alone / beside:.2f} ×",
    )


def _halves(engine: LocalEngine, products: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Products with the local modes on the blocks of each thread: one after the other, at once."""
    chains, factors = engine.on_shares(_chains_of)[0], _factors(engine.store)
    pool = ThreadPoolExecutor(len(chains))

    def multiply(chain: Chain) -> None:
        for _ in range(products):
            for block in chain.opened():
                x, out = block.values, block.fresh("product")
                operator.add_local(block, factors, factors, WEIGHTS, x, out, 1e-6)

    return lambda: list(map(multiply, chains)), lambda: list(pool.map(multiply, chains))


def _chains_of(share: Share) -> list[Chain]:
    return share._chains


def _solves(store: slrt.ObservationStore) -> list[Row]:
    with LocalEngine(store, threads=1) as one:
        solve = _solver(one)
        shares = []
        for _ in range(8):
            with kernels_timed() as seconds:
                began = time.perf_counter()
                solve()
                shares.append(1.0 - sum(seconds) / (time.perf_counter() - began))
        outside = float(np.median(shares[1:]))
        product = product_on(one, _factors(store), WEIGHTS, 1e-6)
        alone, bare = in_turns(solve, product, repeats=7)
    return [
        Row(
            f"orchestration of one partition of {CUBE_ENTRIES:,} entries",
            f"{100 * outside:.1f} % of an inner solve",
            "all that is not kernels",
        ),
        Row(
            "inner iteration beside its product",
            f"{alone / ITERATIONS / bare:.2f} × the product alone",
            f"{1e3 * alone / ITERATIONS:.1f} ms",
        ),
    ]


def _starting(path: Path) -> list[Row]:
    """In processes of their own, compiled code being kept from one to the next."""
    command = [sys.executable, "-c", FIRST_FIT, str(path)]
    for _ in range(2):
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    first, second, imported = map(float, said)
    return [
        Row("import slrt_dask", f"{imported:.2f} s", ""),
        Row(
            "first fit of a process beside its second",
            f"{first - second:.1f} s more",
            f"{first:.1f} and {second:.1f} s, compiled code being kept",
        ),
    ]


def _digits(directory: Path) -> list[Row]:
    """Sweeps of fits that are to certify one digit after the other."""
    shape = (60, 50, 20)
    tensor = slrt.low_rank_tensor(shape, ranks=(3, 3, 3), seed=0)
    generator = np.random.default_rng(0)
    places = np.stack(np.nonzero(generator.random(shape) < 0.2))
    values = tensor[tuple(places)] + 0.1 * tensor.std() * generator.standard_normal(places.shape[1])
    store = slrt.from_coo(directory / "digits", places, values, shape)
    spent = []
    for digits in (1, 2, 3, 4):
        done = slrt.complete(
            store, (30, 30, 20), C=0.1, gap_tolerance=10.0**-digits, gradient_tolerance=0.0,
            max_iterations=500, threads=1,
        )  # fmt: skip
        spent.append((sum(record.sweeps for record in done.records), done.certificate.relative_gap))
    told = ", ".join(f"{sweeps} to {gap:.0e}" for sweeps, gap in spent)
    each = (spent[-1][0] - spent[0][0]) / (len(spent) - 1)
    return [Row("sweeps to a certified relative gap", told, f"{each:.0f} a digit, 60×50×20")]
