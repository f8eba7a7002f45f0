"""The command that shows the package at work on made-up data."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from slrt_dask.cli.options import common_options, is_verbose
from slrt_dask.cli.progress import quiet_option


@click.command(short_help="See it work on made-up data; nothing else is needed.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Directory for the picture.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Another seed, another landscape.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep stores and run in the output directory too.")
@quiet_option
@common_options
def demo(output: Path, seed: int, keep: bool, quiet: bool) -> None:
    """Complete a small made-up landscape of which a tenth is observed; no file or cluster needed.

    Ends in a table and the picture demo.png: what was there, what was seen, what was made of it.

    \b
    Example:
      slrt-dask demo --output demo-output --keep
    """
    from slrt_dask.demo import demonstrate, describe, draw
    from slrt_dask.errors import MissingDependency
    from slrt_dask.show.progress import LiveProgress

    output.mkdir(parents=True, exist_ok=True)
    place: AbstractContextManager[str] = (
        nullcontext(str(output)) if keep else tempfile.TemporaryDirectory(prefix="slrt-demo-")
    )
    progress = LiveProgress()
    with place as directory:
        try:
            observers = [] if quiet or is_verbose() else [progress]
            result = demonstrate(Path(directory), seed=seed, observers=observers)
        finally:
            progress.on_end()
        click.echo(describe(result))
        picture = output / "demo.png"
        try:
            draw(result, picture)
        except MissingDependency:
            click.echo("\nFor the picture, install matplotlib: pip install 'slrt-dask[plot]'.")
        else:
            click.echo(f"\nThe picture is {picture}.")
        if keep:
            click.echo(
                f"Stores and run are in {output}; try: slrt-dask evaluate "
                f"{output / 'run'} {output / 'test'}"
            )
