"""Commands about observations: make a store of a file, and hold some of a store out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slrt_dask.cli.options import DIRECTORY, FILE, WHOLE_NUMBERS, common_options
from slrt_dask.cli.progress import quiet_option, stage_line

if TYPE_CHECKING:
    from slrt_dask.data.sorting import DuplicateRule
    from slrt_dask.data.store import ObservationStore


@click.command(short_help="Make a store of a file of observations, or of pictures.")
@click.argument("source", type=FILE)
@click.argument("store", type=DIRECTORY)
@click.option(
    "--shape", type=WHOLE_NUMBERS, metavar="N,N,…", help="Lengths, if the file does not say."
)
@click.option(
    "--variable",
    "--key",
    "key",
    metavar="NAME",
    help="Which array of an .npz or zarr group, or variable of a .nc, where there are several.",
)
@click.option("--delimiter", help="What separates the columns of a .csv; a comma if left out.")
@click.option(
    "--weights",
    metavar="NAME",
    help="Which column, array or variable has weights of the observations.",
)
@click.option(
    "--duplicates",
    type=click.Choice(["error", "mean", "sum", "last"]),
    default="error",
    show_default=True,
    help="What to do with an entry that comes twice.",
)
@click.option(
    "--partition-entries",
    type=click.IntRange(min=1),
    help="Observations per partition, at most (unless one slice has more).",
)
@click.option("--slab-mode", type=int, help="The mode along which to cut; the longest if left out.")
@click.option("--dtype", type=click.Choice(["float64", "float32"]), help="Type of stored values.")
@quiet_option
@common_options
def ingest(
    source: str,
    store: str,
    shape: tuple[int, ...] | None,
    key: str | None,
    delimiter: str | None,
    weights: str | None,
    duplicates: DuplicateRule,
    partition_entries: int | None,
    slab_mode: int | None,
    dtype: str | None,
    quiet: bool,
) -> None:
    """Make a STORE of the observations in SOURCE: a file, or a folder of images.

    Files with coordinates: .tns (indices from 1, then the value), .csv (indices from 0, then the
    value), both also .gz; .parquet; .npz (arrays indices and values, or a saved sparse.COO). Dense
    files, where NaN or a mask says what is missing: .npy, .npz, netCDF (.nc, .nc4, .cdf, .netcdf)
    and zarr directories. Of netCDF files and of zarr groups that xarray wrote, names and
    coordinates are kept. A file may be larger than memory.

    Pictures, all of whose pixels are observations: an image (.png, .jpg, .jpeg, .tif, .tiff, .bmp,
    .webp) is rows × columns, or rows × columns × colours; a folder of images of one size, in the
    order of their names, or the frames of a video (.mp4, .avi, .mkv, .mov, .webm, .mpg, .mpeg,
    .m4v, .gif; with slrt-dask[video]) have one more mode, the last.

    \b
    Examples:
      slrt-dask ingest measured.tns cube --shape 145,145,200
      slrt-dask ingest climate.nc temperature --variable t2m
      slrt-dask ingest clip.mp4 frames
    """
    from slrt_dask.data.files import from_file
    from slrt_dask.data.ingest import PARTITION_ENTRIES

    with stage_line(quiet) as progress:
        made = from_file(
            store,
            source,
            shape=shape,
            key=key,
            delimiter=delimiter,
            weights=weights,
            duplicates=duplicates,
            partition_entries=partition_entries or PARTITION_ENTRIES,
            slab_mode=slab_mode,
            dtype=dtype,
            progress=progress,
        )
    click.echo(summary(made))


@click.command(short_help="Hold out a part of a store, to judge a fit by.")
@click.argument("store", type=DIRECTORY)
@click.option(
    "--test", type=float, default=0.1, show_default=True, help="Share of observations to hold out."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, another split.")
@click.option(
    "--kind",
    metavar="entries|fibres:MODE|slices:MODE|auto",
    default="entries",
    show_default=True,
    help="What to hold out; auto: what most of the gaps are.",
)
@click.option("--train-path", help="Where the larger part goes; STORE-train if left out.")
@click.option("--test-path", help="Where the rest goes; STORE-test if left out.")
@quiet_option
@common_options
def split(
    store: str,
    test: float,
    seed: int,
    kind: str,
    train_path: str | None,
    test_path: str | None,
    quiet: bool,
) -> None:
    """Split a STORE in two new ones: one to fit, one held out to judge the fit by.

    \b
    Example:
      slrt-dask split cube --test 0.1 --seed 0
      slrt-dask split cube --kind fibres:2
    """
    from slrt_dask.data.store import open_store

    with stage_line(quiet) as progress:
        parts = open_store(store).split(
            test, seed, train_path, test_path, kind=kind, progress=progress
        )
    for part in parts:
        click.echo(summary(part))


def summary(store: ObservationStore) -> str:
    """One line about a store."""
    cells = 1.0
    for length in store.shape:
        cells *= length
    parts = len(store.partitions)
    return (
        f"{store.path}: {' × '.join(map(str, store.shape))}, {store.nnz:,} observed "
        f"({100 * store.nnz / cells:.3g} %), {parts} partition{'s' * (parts != 1)}, "
        f"{'weighted ' * store.weighted}mean {store.mean:.6g}"
    )
