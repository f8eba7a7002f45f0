"""Measure the hot loops and what surrounds them, as ratios within one run.

    python pipelines/bench/run.py                    prints a table; about a minute
    python pipelines/bench/run.py --array cube.npz   also sweeps and time to a test error

Two sides of a ratio are measured in turns and their medians compared, because machines are noisy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from plain import plain_product, plain_room
from threadpoolctl import threadpool_limits

import slrt_dask as slrt
from slrt_dask.data import from_batches, low_rank_observations
from slrt_dask.dual.inner import ConjugateGradient
from slrt_dask.dual.operator import Factors, add_crossing, add_local, crossing_sums
from slrt_dask.engine.local import LocalEngine

REPEATS = 15


def in_turns(*sides, repeats: int = REPEATS) -> list[float]:
    """Median seconds of each side, the sides taking turns."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for _ in range(repeats):
        for side, seconds in zip(sides, times, strict=True):
            began = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in times]


def product_on(engine: LocalEngine, factors: Factors, weights, shift: float):
    """A call that applies the operator once on every block, without the engine's loop."""
    blocks = [resting.block for resting in engine.on_shares(lambda share: share.blocks)[0]]

    def product() -> None:
        for block in blocks:
            out = block.fresh("w")
            np.multiply(block.values, shift, out=out)
            add_local(block, factors, factors, weights, block.values, out)
            add_crossing(block, factors, weights, crossing_sums(block, factors, block.values), out)

    return product


def kernel_rows(shape, ranks, entries: int, directory: Path) -> list[tuple[str, ...]]:
    """Our product with the operator against the plain loops, one core, both precisions."""
    batches = low_rank_observations(shape, ranks, entries, seed=0)
    store = from_batches(directory / f"kernel{entries}", batches, shape)
    generator = np.random.default_rng(0)
    matrices = tuple(generator.standard_normal((n, r)) for n, r in zip(shape, ranks, strict=True))
    weights, shift, rows = (1.0,) * len(shape), 0.5, []
    repeats = REPEATS if entries < 2_000_000 else 5
    for precision in ("float64", "float32"):
        with LocalEngine(store, threads=1, precision=precision) as engine:
            held = engine.on_shares(lambda share: share.blocks)[0]
            blocks = [resting.block for resting in held]
            columns = tuple(
                np.concatenate([block.columns[mode] for block in blocks])
                for mode in range(len(shape))
            )
            x = np.concatenate([block.values for block in blocks])
            room, out = plain_room(columns, shape, ranks), np.zeros_like(x)

            def plain(x=x, out=out, room=room, columns=columns) -> None:
                plain_product(columns, shape, matrices, weights, shift, x, out, room)

            ours = product_on(engine, Factors.of(matrices), weights, shift)
            mine, theirs = in_turns(ours, plain, repeats=repeats)
        rows.append(
            (
                f"product, {precision}, {entries:,} entries of {'×'.join(map(str, shape))}",
                f"{theirs / mine:.2f} × plain numba loops",
                f"{1e3 * mine:.1f} ms, {entries / mine / 1e6:.0f} M entries/s",
            )
        )
    return rows


def engine_rows(directory: Path) -> list[tuple[str, ...]]:
    """Two threads against one, and what the rounds of the engine add to the kernels."""
    shape, ranks, entries = (145, 145, 200), (10, 10, 5), 420_500
    batches = low_rank_observations(shape, ranks, entries, seed=0)
    store = from_batches(directory / "engine", batches, shape)
    generator = np.random.default_rng(0)
    factors = Factors.of(
        tuple(generator.standard_normal((n, r)) / n for n, r in zip(shape, ranks, strict=True))
    )
    weights, iterations = (1.0, 1.0, 1.0), 20

    def solver(engine: LocalEngine):
        program = ConjugateGradient(
            factors, weights, store.slab_mode, 1e-6, "solution", None, None, 0.0, iterations
        )
        return lambda: engine.run(program)

    with LocalEngine(store, threads=1) as one, LocalEngine(store, threads=2) as two:
        alone, both, bare = in_turns(
            solver(one), solver(two), product_on(one, factors, weights, 1e-6), repeats=7
        )
    return [
        ("inner solve, two threads", f"{alone / both:.2f} × one thread", f"{1e3 * both:.0f} ms"),
        (
            "inner iteration beside its product",
            f"{alone / iterations / bare:.2f} × the product alone",
            f"{1e3 * alone / iterations:.1f} ms",
        ),
    ]


def error_rows(path: Path, target: float) -> list[tuple[str, ...]]:
    """Sweeps and seconds of a fit until the held-out error is below a target."""

    class Watch:
        def __init__(self) -> None:
            self.rows: list[tuple[float, int, float]] = []
            self.sweeps = 0

        def on_record(self, record, state) -> None:
            self.sweeps += record.sweeps
            self.rows.append((record.validation_rmse or np.inf, self.sweeps, record.seconds))

    with np.load(path, allow_pickle=False) as content:
        array = content[content.files[0]].astype(np.float64)
    array /= np.abs(array).max()
    with tempfile.TemporaryDirectory() as directory:
        places = np.random.default_rng(0).permutation(array.size)
        count = array.size // 10
        stores = []
        for name, chosen in (("train", places[:count]), ("test", places[count : 2 * count])):
            indices = np.stack(np.unravel_index(chosen, array.shape))
            stores.append(
                slrt.from_coo(Path(directory) / name, indices, array[tuple(indices)], array.shape)
            )
        watch = Watch()
        slrt.complete(
            stores[0], (10, 10, 5), C=1000.0, lambdas=(1.0, 1.0, 1.0), max_iterations=20,
            validation=stores[1], observers=[watch],
        )  # fmt: skip
    for error, sweeps, seconds in watch.rows:
        if error <= target:
            return [(f"{path.stem}, test RMSE {target}", f"{sweeps} sweeps", f"{seconds:.1f} s")]
    return [(f"{path.stem}, test RMSE {target}", "not reached", "")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--array", type=Path, help="an .npz with one array of order 3")
    parser.add_argument("--target", type=float, default=0.0190)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, threadpool_limits(limits=1, user_api="blas"):
        directory = Path(name)
        rows = kernel_rows((145, 145, 200), (10, 10, 5), 420_500, directory)
        rows += kernel_rows((1000, 1000, 100), (10, 10, 5), 10_000_000, directory)
        rows += engine_rows(directory)
    if arguments.array:
        rows += error_rows(arguments.array, arguments.target)
    print("| what | ratio | measured |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
