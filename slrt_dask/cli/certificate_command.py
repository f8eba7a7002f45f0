"""The command that makes the certificates of a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from slrt_dask.certificates import DAYS, make_certificates
from slrt_dask.cli.options import common_options


@click.command(short_help="Make certificates that keep others out of your cluster.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--days",
    type=click.IntRange(min=1, max=3650),
    default=DAYS,
    show_default=True,
    help="How long they are valid.",
)
@common_options
def certificates(directory: Path, days: int) -> None:
    """Make certificates in the new DIRECTORY, so that only who holds one can use your cluster.

    Whoever reaches a dask scheduler can run any code as the user who started it. With these
    certificates, a cluster speaks only to those who have one, and all it says is encrypted. Give
    the directory to whatever starts the cluster, and to the commands that use it, as --tls.

    \b
    Example:
      slrt-dask certificates certs
      python cluster/local.py --workers 4 --tls certs
      slrt-dask fit cube --ranks 10,10,5 --C 1000 --run first --scheduler tls://… --tls certs
    """
    made = make_certificates(directory, days)
    click.echo(
        f"Certificates for scheduler, workers and clients are in {made.path}, for {days} days.\n"
        "Keep the files that end in -key.pem to yourself: who has one can run code on the cluster."
    )
