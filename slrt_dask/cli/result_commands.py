"""Commands that use a completion: its errors, some of its entries, all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from slrt_dask.cli.computing import Computing, computing_options
from slrt_dask.cli.options import DIRECTORY, FILE, WHOLE_NUMBERS, common_options
from slrt_dask.cli.progress import quiet_option, stage_line

if TYPE_CHECKING:
    from slrt_dask.cli.index_files import Block
    from slrt_dask.data.ingest import Progress


@click.command(short_help="Compare predictions with observations, such as held-out ones.")
@click.argument("run", type=DIRECTORY)
@click.argument("store", type=DIRECTORY)
@click.option("--peak", type=float, help="Largest possible value, for PSNR; the largest observed.")
@click.option(
    "--kind",
    metavar="entries|fibres:MODE|slices:MODE",
    default="entries",
    show_default=True,
    help="What was held out as a whole; errors within it are alike.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@quiet_option
@computing_options
@common_options
def evaluate(
    run: str,
    store: str,
    peak: float | None,
    kind: str,
    as_json: bool,
    quiet: bool,
    computing: Computing,
) -> None:
    """Compare the predictions of RUN with the observations in STORE, such as held-out ones.

    RUN is a run directory, or the path of a completion.

    \b
    Example:
      slrt-dask evaluate first cube-test
    """
    from slrt_dask.cli.supporting import resting_on_nothing
    from slrt_dask.completion import load_completion
    from slrt_dask.data.store import open_store
    from slrt_dask.scoring import evaluate as scores_of

    completion, observed = load_completion(run), open_store(store)
    with computing.connected(), stage_line(quiet) as progress:
        scores = scores_of(completion, observed, peak=peak, kind=kind, progress=progress)
    if as_json:
        click.echo(json.dumps(asdict(scores)))
        return
    for name, text in (
        ("RMSE", f"{scores.rmse:.6g}"),
        ("standard error", f"{scores.rmse_error:.2g}"),
        ("MAE", f"{scores.mae:.6g}"),
        ("relative error", f"{scores.relative_error:.6g}"),
        ("PSNR", f"{scores.psnr:.4g} dB"),
        ("count", f"{scores.count:,}"),
    ):
        click.echo(f"{name:<16}{text:>12}")
    if scores.unsupported:
        click.echo(resting_on_nothing(scores.unsupported, scores.count, completion))


@click.command(short_help="Predict the entries at the indices in a file.")
@click.argument("run", type=DIRECTORY)
@click.argument("indices", type=FILE)
@click.option("-o", "--output", required=True, metavar="OUT", help="A new .csv, .npy or .npz.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is there.")
@click.option(
    "--support", is_flag=True, help="Add how many observations the fibres through an entry have."
)
@quiet_option
@computing_options
@common_options
def predict(
    run: str,
    indices: str,
    output: str,
    overwrite: bool,
    support: bool,
    quiet: bool,
    computing: Computing,
) -> None:
    """Predict entries: those at the INDICES in a file, one line or column each.

    INDICES is a .csv (from 0, with or without a header), a .tns (from 1), or a .npy or .npz with
    an array of shape (modes, entries) or (entries, modes). A value after the indices of a line is
    not looked at. OUT gets the indices, from 0, and the values; a .npy the values only. With
    --support it gets, for every mode, the number of observations in the fibre through the entry;
    those of entries that nothing was observed about are counted in any case.

    \b
    Example:
      slrt-dask predict first wanted.csv -o found.csv --support
    """
    from slrt_dask.cli.index_files import read_indices, write_predictions
    from slrt_dask.cli.supporting import resting_on_nothing
    from slrt_dask.completion import load_completion
    from slrt_dask.data.ingest import tell
    from slrt_dask.scoring import count_unsupported

    completion = load_completion(run)
    order = len(completion.shape)

    if support:
        from slrt_dask.support import check_support

        check_support(completion.header)
    unsupported = 0

    def predicted(progress: Progress | None) -> Iterator[Block]:
        nonlocal unsupported
        done = 0
        for places in read_indices(indices, completion.shape):
            tell(progress, "predict", done, None)
            values = completion.predict(places)
            unsupported += count_unsupported(completion, places, values)
            yield places, values, completion.support(places) if support else None
            done += places.shape[1]

    names = completion.header.names or tuple(f"index_{mode}" for mode in range(order))
    with computing.connected(), stage_line(quiet) as progress:
        count = write_predictions(output, predicted(progress), names, overwrite=overwrite)
    click.echo(f"{output}: {count:,} predictions")
    if unsupported:
        click.echo(resting_on_nothing(unsupported, count, completion))


@click.command(short_help="Write the whole completed tensor to a zarr array.")
@click.argument("run", type=DIRECTORY)
@click.argument("output", type=DIRECTORY, metavar="OUT.zarr")
@click.option(
    "--chunks", type=WHOLE_NUMBERS, metavar="N,N,…", help="Lengths of a chunk; 32 MiB if left out."
)
@click.option("--enforce", is_flag=True, help="Clip what misses the bounds of the fit.")
@click.option(
    "--xarray", "coordinates", is_flag=True, help="Write a group for xarray, with coordinates."
)
@quiet_option
@computing_options
@common_options
def export(
    run: str,
    output: str,
    chunks: tuple[int, ...] | None,
    enforce: bool,
    coordinates: bool,
    quiet: bool,
    computing: Computing,
) -> None:
    """Write the whole completed tensor of RUN to a new zarr array, chunk by chunk.

    With --xarray it becomes a group that xarray.open_zarr opens, in which the array has the
    coordinates of the input, and its certificate among its attributes.

    \b
    Examples:
      slrt-dask export first completed.zarr --chunks 64,64,50
      slrt-dask export first completed.zarr --xarray
    """
    from slrt_dask.completion import load_completion
    from slrt_dask.data import location

    completion = load_completion(run)
    place = location.normal_path(output)
    location.refuse_existing(place)
    with computing.connected(), stage_line(quiet) as progress:
        array = completion.to_zarr(
            place, chunks=chunks, enforce=enforce, coordinates=coordinates, progress=progress
        )
    lengths, pieces = " × ".join(map(str, array.shape)), " × ".join(map(str, array.chunks))
    click.echo(f"{place}: {lengths}, {array.dtype}, in chunks of {pieces}")
