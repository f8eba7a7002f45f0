"""What a cluster needs for problems of several sizes, without having their data.

    python pipelines/bench/sizing.py [--workers 4] [--threads 2] [--ranks 10,10,10]

Memory and traffic are what the planner would say of a store of that size; the time of a sweep is a
rate that was measured (README.md of this folder), divided by the cores. The table is Markdown.
"""

from __future__ import annotations

import click

from slrt_dask.cli.options import WHOLE_NUMBERS
from slrt_dask.data.layout import PartitionInfo, StoreHeader
from slrt_dask.dual.costs import SlabCosts, plan_fit
from slrt_dask.engine.plan import Plan
from slrt_dask.engine.watch import Place
from slrt_dask.spending import readable

SHAPES = {
    1_000_000: (1000, 500, 200),
    10_000_000: (2000, 1000, 500),
    100_000_000: (10_000, 1000, 1000),
    1_000_000_000: (100_000, 1000, 1000),
}
"""About one entry in a hundred is observed."""
RANKS = ((5, 5, 5), (10, 10, 10), (30, 30, 30))
SWEEP_NANOSECONDS = 50.0
"""Of an entry, on one core, at ranks (10, 10, 10)."""
PRODUCT_MILLISECONDS = {4: 6.6, 32: 17.7}
"""Of one product by rank, from the table of kernels: how the time of a sweep grows."""
TOO_LITTLE = 1
"""Bytes of a limit below which nothing stays in memory and blocks are the smallest."""


def hypothetical_store(observed: int, shape: tuple[int, ...], partitions: int) -> StoreHeader:
    """The header of a store with equal partitions along its longest mode."""
    slab_mode = shape.index(max(shape))
    cuts = [shape[slab_mode] * part // partitions for part in range(partitions + 1)]
    parts = tuple(
        PartitionInfo(f"p{part:05d}", observed // partitions, cuts[part], cuts[part + 1])
        for part in range(partitions)
    )
    total = sum(part.count for part in parts)
    return StoreHeader("observations", shape, total, slab_mode, "float64", parts)


def planned(header: StoreHeader, ranks: tuple[int, ...], workers: int, threads: int) -> list[Plan]:
    """The plan with all in memory, and the one with the least memory that it can be done in."""
    return [
        plan_fit(
            SlabCosts(header, ranks),
            [Place(f"worker-{number}", threads, limit) for number in range(workers)],
        )
        for limit in (None, TOO_LITTLE)
    ]


def sweep_seconds(observed: int, ranks: tuple[int, ...], cores: int) -> float:
    """One pass over all observations, if the cores share it evenly."""
    (low, fast), (high, slow) = PRODUCT_MILLISECONDS.items()
    slope = (slow - fast) / (high - low)
    mean = sum(ranks) / len(ranks)
    growth = (fast + slope * (mean - low)) / (fast + slope * (10 - low))
    return observed * SWEEP_NANOSECONDS * 1e-9 * growth / cores


def row(observed: int, ranks: tuple[int, ...], workers: int, threads: int) -> str:
    shape = SHAPES[observed]
    # At most two million entries a partition, as ingest cuts them, and as many for every worker.
    header = hypothetical_store(observed, shape, workers * -(-observed // (2_000_000 * workers)))
    resident, streamed = planned(header, ranks, workers, threads)
    seconds = sweep_seconds(header.nnz, ranks, workers * threads)
    cells = [
        f"{observed:,} of {'×'.join(map(str, shape))}",
        f"({','.join(map(str, ranks))})",
        readable(resident.largest.total),
        readable(streamed.largest.total),
        readable(streamed.largest.scratch),
        readable(resident.exchange_bytes),
        f"{seconds:.2g} s",
    ]
    return f"| {' | '.join(cells)} |"


@click.command(help=__doc__)
@click.option("--workers", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--ranks", type=WHOLE_NUMBERS, metavar="R,R,R", help="Only these.")
def main(workers: int, threads: int, ranks: tuple[int, ...] | None) -> None:
    if ranks is not None and (len(ranks) != 3 or min(ranks) < 1):
        raise click.UsageError(f"--ranks is {ranks}; give three numbers, at least 1")
    click.echo(
        "| observed | ranks | in memory, a worker | streamed, at least | and on its disk "
        "| crosses in an inner iteration | a sweep |\n|---|---|---|---|---|---|---|"
    )
    for observed in SHAPES:
        for chosen in RANKS if ranks is None else (ranks,):
            click.echo(row(observed, chosen, workers, threads))


if __name__ == "__main__":
    main()
