"""The command that searches for settings, and shows what it tried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slrt_dask.cli.centring import MODES, CentringCommand, center_options
from slrt_dask.cli.computing import Computing, computing_options
from slrt_dask.cli.fit_options import HELD_OUT, HUBER, PRECISION
from slrt_dask.cli.fit_settings import loss_of
from slrt_dask.cli.options import (
    AUTO,
    DIRECTORY,
    NUMBER_OR_AUTO,
    NUMBERS,
    WHOLE_NUMBERS,
    WHOLE_NUMBERS_OR_AUTO,
    common_options,
    is_verbose,
)
from slrt_dask.cli.progress import quiet_option

if TYPE_CHECKING:
    from slrt_dask.tuning.tuning import Tuning


@click.command(
    cls=CentringCommand, short_help="Search for ranks and weights, and show what was tried."
)
@click.argument("store", type=DIRECTORY)
@click.option("--ranks", type=WHOLE_NUMBERS_OR_AUTO, metavar="R,R,…|auto", default=AUTO,
              help="Ranks to keep; searched for if left out.")  # fmt: skip
@click.option("--C", "C", type=NUMBER_OR_AUTO, metavar="NUMBER|auto", default=AUTO,
              help="A weight of the misfit to keep; searched for if left out.")  # fmt: skip
@click.option("--lambdas", type=NUMBERS, metavar="L,L,…", help="Weights of the modes to keep.")
@center_options
@HUBER
@click.option("--hankel", type=WHOLE_NUMBERS, metavar="T,T,…",
              help="Windows of low rank: offsets in every mode, 1 for a mode without.")  # fmt: skip
@click.option(
    "--validation", type=DIRECTORY, metavar="STORE2", help="Held-out observations to judge on."
)
@HELD_OUT
@click.option(
    "--run", type=DIRECTORY, metavar="DIR", help="Keep every trial there; the same again goes on."
)
@click.option("--precision", type=PRECISION, default="float64", help="Of the solver's vectors.")
@click.option(
    "--max-seconds",
    type=float,
    help="Try nothing more after this time; with --run, the same again goes on.",
)
@click.option("--output", metavar="JSON", help="Write what was tried to a file.")
@click.option("--plot", metavar="PICTURE", help="Draw it, to a .png or .pdf.")
@quiet_option
@computing_options
@common_options
def tune(
    store: str,
    validation: str | None,
    hankel: tuple[int, ...] | None,
    output: str | None,
    plot: str | None,
    quiet: bool,
    run: str | None,
    held_out: str | None,
    huber: float | str | None,
    computing: Computing,
    **flags: Any,
) -> None:
    """Search for the ranks and weights that predict held-out observations of STORE best.

    What was tried is shown as a table, the best last. A fit without --ranks and --C does the same
    first, and then fits the best settings to all observations.

    \b
    Examples:
      slrt-dask tune cube-train --plot search.png
      slrt-dask tune cube-train --ranks 10,10,5 --workers 2
      slrt-dask tune cube-train --held-out fibres:2 --run searched
    """
    from slrt_dask.data.store import open_store
    from slrt_dask.hankel import Hankel
    from slrt_dask.show.progress import LiveProgress, rest_shown
    from slrt_dask.tuning.api import tune as search

    _check_files(output, plot)
    progress = LiveProgress()
    try:
        with rest_shown(run), computing.connected() as client:
            found = search(
                open_store(store),
                constraint=None if hankel is None else Hankel(hankel),
                loss=loss_of(huber),
                validation=None if validation is None else open_store(validation),
                held_out=held_out or AUTO,
                run_directory=run,
                client=client,
                memory_limit=computing.memory_limit,
                threads=computing.threads,
                observers=None if quiet or is_verbose() else [progress],
                **flags,
            )
    finally:
        progress.on_end()
    click.echo(table(found))
    if output is not None:
        found.start.write_tried(Path(output))
    if plot is not None:
        from slrt_dask.plot import save_figure, tuning_figure

        others = found.offsets.others if found.offsets else ()
        save_figure(tuning_figure(found.history, others=others), plot)


def _check_files(output: str | None, plot: str | None) -> None:
    """Refuse files that cannot be written now, rather than after the search."""
    if plot is not None:
        from slrt_dask.show.figures import check_can_draw

        check_can_draw(plot)
    for flag, path in (("--output", output), ("--plot", plot)):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise click.UsageError(
                f"{flag} {path} is in a directory that does not exist; make it first."
            )


def table(found: Tuning) -> str:
    """All that was tried, from the worst to the best, and what to do with it."""
    from slrt_dask.show.text import describe_trial
    from slrt_dask.tuning.offsets import WITH_MEAN, WITH_OFFSETS

    rows = sorted(found.history, key=lambda tried: -tried.error)
    offsets = found.offsets
    others = sorted(offsets.others if offsets else (), key=lambda tried: -tried.error)
    what = WITH_MEAN if offsets and offsets.used else WITH_OFFSETS
    ranks = ",".join(map(str, found.settings.ranks))
    lambdas = ",".join(f"{weight:.6g}" for weight in found.settings.lambdas or ())
    return "\n".join(
        [
            *(f"{describe_trial(tried)}, {what}" for tried in others),
            *(describe_trial(tried) for tried in rows),
            str(found),
            "next  slrt-dask fit STORE --run DIR, which searches like this and keeps the factors; "
            "or, to fit these settings until they converge, "
            f"with --ranks {ranks} --C {found.settings.C:.6g} --lambdas {lambdas}"
            + {False: "", True: " --center", MODES: f" --center {MODES}"}[found.settings.center]
            + (f" --huber {found.settings.huber:.6g}" if found.settings.huber else ""),
        ]
    )
