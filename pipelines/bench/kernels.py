"""Products with the operator: ours, plain numba loops, and scipy's CSR products, on one core.

By rank, order, density and precision. A product is one application of the inner operator to a
vector over the observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from csr import csr_product
from measuring import Row, bandwidth, in_turns
from plain import plain_product, plain_room
from solving import Shape, in_process, random_operator, store_of

from slrt_dask.dual.operator import Operator
from slrt_dask.engine.base import LocalEngine
from slrt_dask.engine.block import Block, Buffers
from slrt_dask.engine.share import Share

CUBE, CUBE_RANKS, CUBE_ENTRIES = (145, 145, 200), (10, 10, 5), 420_500
LARGE, LARGE_ENTRIES = (1000, 1000, 100), 10_000_000
RANKS = (2, 4, 8, 16, 32)
ORDERS = ((2000, 2000), (145, 145, 200), (60, 50, 40, 35), (25, 24, 20, 18, 20))
DENSITIES = {0.001: (750, 750, 750), 0.01: (350, 350, 345), 0.1: (145, 145, 200), 0.5: (90, 95, 98)}
"""Shapes of which these shares are about as many entries."""
PRECISIONS, SHIFT = ("float64", "float32"), 0.5


@dataclass(frozen=True)
class Measured:
    """Seconds of one product."""

    shape: Shape
    ranks: Shape
    entries: int
    precision: str
    ours: float
    plain: float
    csr: float
    bytes_moved: int

    @property
    def throughput(self) -> float:
        """Entries a second."""
        return self.entries / self.ours

    @property
    def operations(self) -> float:
        """Floating-point operations a second; those on padding are not counted."""
        return 4 * sum(self.ranks) * self.throughput

    def row(self, triad: float) -> Row:
        lengths = "×".join(map(str, self.shape))
        share = self.bytes_moved / self.ours / triad
        return Row(
            f"{self.precision}, {self.entries:,} of {lengths}, ranks {self.ranks}",
            f"{self.plain / self.ours:.2f} × plain, {self.csr / self.ours:.1f} × CSR",
            f"{self.throughput / 1e6:.0f} M entries/s, {self.operations / 1e9:.1f} GFlop/s, "
            f"{100 * share:.0f} % of the memory's bandwidth",
        )


def product_on(engine: LocalEngine, operator: Operator) -> Callable[[], None]:
    """A call that applies the operator once on every block, without the engine's rounds."""
    blocks = engine.on_shares(blocks_of)[0]

    def product() -> None:
        for block in blocks:
            out = block.fresh("w")
            operator.add_local(block, block.values, out, SHIFT)
            operator.add_crossing(block, operator.crossing_sums(block, block.values), out)

    return product


def blocks_of(share: Share) -> list[Block]:
    """A share's blocks, each with the fibre sums' buffers of one thread."""
    buffers = Buffers()
    return [block.open(buffers) for block in share.blocks]


def measured(
    directory: Path,
    shape: Shape,
    ranks: Shape,
    entries: int,
    precision: str = "float64",
    repeats: int = 7,
) -> Measured:
    """All three in turns, on one random tensor."""
    order = len(shape)
    with in_process(store_of(directory, shape, entries), 1, precision) as engine:
        operator = random_operator(engine.store, ranks)
        (block,) = engine.on_shares(blocks_of)[0]
        columns, x = block.columns, block.values
        matrices, weights = operator.gather.unpad(operator.gather.padded), (1.0,) * order
        room, out = plain_room(columns, shape, ranks), np.zeros_like(x)
        ours, plain, csr = in_turns(
            product_on(engine, operator),
            lambda: plain_product(columns, shape, matrices, weights, SHIFT, x, out, room),
            csr_product(columns, room["fibres"], shape, matrices, weights, SHIFT, x),
            repeats=repeats,
        )
    # The least that has to be moved: every mode's index and fibre number, x, and w both ways.
    moved = order * (2 * columns[0].nbytes + 3 * x.nbytes)
    return Measured(shape, ranks, entries, precision, ours, plain, csr, moved)


def everything(directory: Path) -> dict[str, list[Measured]]:
    """The measurements by what varies in them."""
    cube = [
        measured(directory, CUBE, CUBE_RANKS, CUBE_ENTRIES, precision, 15)
        for precision in PRECISIONS
    ]
    large = [
        measured(directory, LARGE, CUBE_RANKS, LARGE_ENTRIES, precision, 5)
        for precision in PRECISIONS
    ]
    return {
        "sizes": [*cube, *large],
        "ranks": [measured(directory, CUBE, (rank,) * 3, CUBE_ENTRIES) for rank in RANKS],
        "orders": [
            measured(directory, shape, (8,) * len(shape), min(CUBE_ENTRIES, math.prod(shape) // 10))
            for shape in ORDERS
        ],
        "densities": [
            measured(directory, shape, (8,) * 3, round(density * math.prod(shape)))
            for density, shape in DENSITIES.items()
        ],
    }


def rows(found: dict[str, list[Measured]]) -> list[Row]:
    triad = bandwidth()
    lines = [each.row(triad) for varied in found.values() for each in varied]
    by_rank = found["ranks"]
    first, last = by_rank[1], by_rank[-1]
    growth = last.ours / first.ours / (sum(last.ranks) / sum(first.ranks))
    lines.append(
        Row(
            f"cost of a product per unit of Σr, ranks {last.ranks[0]} against {first.ranks[0]}",
            f"{growth:.2f} ×",
            f"{1e3 * first.ours:.1f} and {1e3 * last.ours:.1f} ms",
        )
    )
    return lines
