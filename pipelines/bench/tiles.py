"""Products on dense tiles against products entry by entry, on one core, and whole fits with both.

By density, rank, order and precision. First what is done slice by slice, which is what tiles
change; then a whole product with the operator, the slab mode's part included; then `complete`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from kernels import product_on
from measuring import Row, in_turns

import slrt_dask as slrt
from slrt_dask.data import from_batches, low_rank_observations
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.operator import Factors, add_local
from slrt_dask.engine import tiling
from slrt_dask.engine.local import LocalEngine

CUBE = (200, 150, 100)
"""Slices of 150×100."""
DENSITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
RANKS = (3, 30)
OTHERS = ((200, 100, 30), (60, 50, 40, 35), (25, 24, 20, 18, 20), (512, 512, 3))
FIT, FIT_RANKS, FIT_ITERATIONS, FIT_C = (200, 200, 100), (10, 10, 10), 5, 2.0
"""A fit long enough for its start not to matter."""


@dataclass(frozen=True)
class Measured:
    """Seconds of what is done slice by slice, and of a whole product, in both ways."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    store: ObservationStore
    precision: str
    local: tuple[float, float]
    whole: tuple[float, float]

    def row(self) -> Row:
        lengths = "×".join(map(str, self.shape))
        chosen = tiling.Tiling.of(self.store.header)
        (entries, tiles), (all_entries, all_tiles) = self.local, self.whole
        nanoseconds = [1e9 * seconds / self.store.nnz for seconds in self.local]
        return Row(
            f"{self.precision}, {100 * chosen.observed:.0f} % of {lengths}, ranks {self.ranks}",
            f"{entries / tiles:.2f} ×, whole product {all_entries / all_tiles:.2f} ×",
            f"{nanoseconds[0]:.1f} and {nanoseconds[1]:.1f} ns an entry; the plan takes "
            + ("tiles" if chosen.used else "entries"),
        )


def store_of(directory: Path, shape: tuple[int, ...], density: float) -> ObservationStore:
    """Random observations, made once."""
    entries = round(density * math.prod(shape))
    path = directory / f"{'x'.join(map(str, shape))}-{entries}"
    if not path.exists():
        from_batches(path, low_rank_observations(shape, (3,) * len(shape), entries, seed=0), shape)
    return slrt.open_store(path)


def measured(
    directory: Path, shape: tuple[int, ...], rank: int, density: float, precision: str = "float64"
) -> Measured:
    """Both ways in turns."""
    store, ranks = store_of(directory, shape, density), tuple(min(rank, n) for n in shape)
    generator = np.random.default_rng(0)
    factors = Factors.of(
        tuple(generator.standard_normal((n, r)) for n, r in zip(shape, ranks, strict=True))
    )
    weights = (1.0,) * len(shape)
    with (
        LocalEngine(store, threads=1, precision=precision) as entries,
        LocalEngine(store, threads=1, precision=precision, tiles=True) as tiles,
    ):
        local = in_turns(*(local_on(engine, factors, weights) for engine in (entries, tiles)))
        whole = in_turns(
            *(product_on(engine, factors, weights, 0.5) for engine in (entries, tiles))
        )
    return Measured(shape, ranks, store, precision, (local[0], local[1]), (whole[0], whole[1]))


def local_on(
    engine: LocalEngine, factors: Factors, weights: tuple[float, ...]
) -> Callable[[], None]:
    """A call that does on every block what is done slice by slice."""
    blocks = [resting.block for resting in engine.on_shares(lambda share: share.blocks)[0]]

    def product() -> None:
        for block in blocks:
            add_local(block, factors, factors, weights, block.values, block.fresh("w"))

    return product


def fits(directory: Path) -> Row:
    """`complete` with what the plan takes, which is tiles, and without them."""
    store = store_of(directory, FIT, 0.5)
    inner: list[int] = []

    def fit() -> None:
        done = slrt.complete(
            store, FIT_RANKS, C=FIT_C, max_iterations=FIT_ITERATIONS, gap_tolerance=0.0, threads=1
        )
        inner.append(sum(record.inner_iterations for record in done.records))

    def without() -> None:
        with mock.patch.object(tiling, "enough_for_tiles", return_value=None):
            fit()

    entries, tiles = in_turns(without, fit, repeats=3)
    lengths = "×".join(map(str, FIT))
    return Row(
        f"`complete`, 50 % of {lengths}, ranks {FIT_RANKS}, one thread",
        f"{entries / tiles:.2f} ×",
        f"{entries:.1f} and {tiles:.1f} s; "
        f"{FIT_ITERATIONS} iterations, {inner[-2]} and {inner[-1]} inner ones",
    )


def rows(directory: Path) -> list[Row]:
    found = [measured(directory, CUBE, 10, density) for density in DENSITIES]
    found += [measured(directory, CUBE, rank, 0.5) for rank in RANKS]
    found.append(measured(directory, CUBE, 10, 0.5, "float32"))
    found += [measured(directory, shape, 10, 0.5) for shape in OTHERS]
    return [*(each.row() for each in found), fits(directory)]
