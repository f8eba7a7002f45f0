"""The command that makes a page about a run."""

from __future__ import annotations

import click

from slrt_dask.cli.computing import Computing, computing_options
from slrt_dask.cli.options import DIRECTORY, WHOLE_NUMBERS, common_options


@click.command(short_help="Write a page about a run, to be opened in a browser.")
@click.argument("run", type=DIRECTORY)
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    metavar="PAGE",
    help="A new file.",
)
@click.option("--overwrite", is_flag=True, help="Replace PAGE if it is there.")
@click.option(
    "--modes",
    type=WHOLE_NUMBERS,
    metavar="N,N",
    help="The two modes that slices show, from 0; those of the most similar lengths if left out.",
)
@computing_options
@common_options
def report(
    run: str,
    output: str,
    overwrite: bool,
    modes: tuple[int, ...] | None,
    computing: Computing,
) -> None:
    """Write one HTML page about RUN: what was solved, its certificate, how it converged, what it
    took, slices of the answer, and what to be aware of.

    RUN is a run directory, also of a run that is under way or was killed, whose search for settings
    has ended, if it had one; or the path of a completion. The page stands on its own and needs no
    network.

    \b
    Example:
      slrt-dask report first -o first.html
    """
    from slrt_dask.data.location import exists, normal_path
    from slrt_dask.errors import InvalidInput, StoreNotFound
    from slrt_dask.show.report import new_page
    from slrt_dask.show.report import report as write_report

    if modes is not None and len(modes) != 2:
        raise InvalidInput(f"--modes names {len(modes)} modes; give two, such as 0,1")
    if not exists(place := normal_path(run)):
        raise StoreNotFound(f"{place} holds neither a run nor a completion; check the path")
    target = new_page(output, overwrite=overwrite)
    pair = None if modes is None else (modes[0], modes[1])
    with computing.connected():
        page = write_report(run, target, overwrite=overwrite, modes=pair)
    click.echo(f"{page}: {page.stat().st_size / 1000:,.0f} kB, to be opened in a browser")
