"""Commands that fit: what a fit would need, the fit itself, and going on with one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from slrt_dask.cli.centring import CentringCommand
from slrt_dask.cli.computing import Computing, computing_options
from slrt_dask.cli.fit_options import (
    HUBER,
    INNER,
    METHOD,
    PRECISION,
    constraint_options,
    fit_options,
    run_options,
)
from slrt_dask.cli.fit_settings import FitRequest, constraint_table, loss_of, requested
from slrt_dask.cli.options import DIRECTORY, FILE, WHOLE_NUMBERS, common_options, is_verbose

if TYPE_CHECKING:
    from slrt_dask.completion import Completion
    from slrt_dask.data.store import ObservationStore
    from slrt_dask.optim.records import Observer
    from slrt_dask.runs import RunDirectory
    from slrt_dask.searching import KeptSearch

EXIT_DOES_NOT_FIT = 1
EXIT_INTERRUPTED = 130


@click.command(short_help="Say what a fit would need, and whether that fits.")
@click.argument("store", type=DIRECTORY)
@click.option(
    "--ranks", type=WHOLE_NUMBERS, required=True, metavar="R,R,…", help="One rank per mode."
)
@click.option(
    "--precision",
    type=PRECISION,
    default="float64",
    show_default=True,
    help="Of the solver's vectors.",
)
@click.option(
    "--validation", type=DIRECTORY, metavar="STORE2", help="Held-out observations of the fit."
)
@METHOD
@INNER
@HUBER
@constraint_options
@computing_options
@common_options
def plan(
    store: str,
    ranks: tuple[int, ...],
    precision: str,
    validation: str | None,
    method: str | None,
    inner: str | None,
    huber: float | str | None,
    computing: Computing,
    **flags: Any,
) -> None:
    """Say what a fit of STORE would need, whether that fits, and how long it will take.

    A few sweeps are made to measure that. The exit code is 1 if it does not fit.

    \b
    Example:
      slrt-dask plan cube --ranks 10,10,5 --workers 4 --memory-limit 2GB
    """
    from slrt_dask.config import FitSettings
    from slrt_dask.data.store import open_store
    from slrt_dask.errors import MemoryBudgetExceeded
    from slrt_dask.losses import delta_of
    from slrt_dask.planning import calibrated_plan

    opened = open_store(store)
    given = {key: value for key, value in flags.items() if value is not None}
    settings = FitSettings(
        ranks=ranks,
        C=1.0,
        method=method or "auto",
        inner=inner or "joint",
        precision=precision,
        constraint=constraint_table(given),
        huber=delta_of(loss_of(huber), opened),
    )
    settings.check_shape(opened.shape)
    with computing.connected() as client:
        held_out = 0 if validation is None else open_store(validation).nnz
        found = calibrated_plan(
            opened, settings, client, computing.memory_limit, computing.threads, held_out
        )
    click.echo(str(found))
    try:
        found.check()
    except MemoryBudgetExceeded as error:
        click.echo(f"This does not fit: {error}.")
        click.get_current_context().exit(EXIT_DOES_NOT_FIT)
    click.echo("This fits.")


@click.command(
    cls=CentringCommand, short_help="Complete a tensor; ranks and C are searched for if left out."
)
@click.argument("store", type=DIRECTORY, required=False)
@fit_options
@constraint_options
@click.option(
    "--validation",
    type=DIRECTORY,
    metavar="STORE2",
    help="Held-out observations; their error is shown too.",
)
@click.option(
    "--run", type=DIRECTORY, metavar="DIR", help="A new directory for records and result."
)
@click.option(
    "--config",
    type=FILE,
    metavar="TOML",
    help="Read settings from the table [fit] of this file.",
)
@run_options
@computing_options
@common_options
def fit(
    config: str | None,
    quiet: bool,
    checkpoint_every: str,
    computing: Computing,
    **flags: Any,
) -> None:
    """Complete the tensor observed in STORE, and keep the result in a run directory.

    Settings come from flags, or from a file, whose keys are the flags' names (max_iterations),
    with store, run and validation; flags win over the file, and paths in the file are relative to
    it. Ranks and C that are not given are searched for, with a tenth of the observations held out
    (or with --validation), of the kind that most of the gaps are (--held-out), and the best are
    then fitted to all of them.

    Ctrl-C ends the fit early, with its result and certificate written, and exit code 130; a search
    for settings is ended by it without a result. Either goes on with slrt-dask resume, also if it
    was killed; no trial that was finished is made twice.

    \b
    Examples:
      slrt-dask fit cube-train --run found
      slrt-dask fit cube-train --ranks 10,10,5 --C 1000 --run first
      slrt-dask fit cube-train --ranks 10,10,5 --C 1000 --nonnegative --run second
      slrt-dask fit ratings --center modes --run third
      slrt-dask fit --config fit.toml --max-iterations 50 --workers 4
    \b
    where fit.toml has:
      [fit]
      store = "cube-train"
      run = "first"
      ranks = [10, 10, 5]
      C = 1000.0
      constraint = { lower = 0.0, upper = 1.0 }
    """
    from slrt_dask.show.progress import rest_shown

    request = requested(config, flags)
    with rest_shown(request.run), computing.connected() as client:
        done = _fitted(request, client, computing, checkpoint_every, quiet)
    _tell(done, request.run)


@click.command(short_help="Go on with a fit that was stopped or killed.")
@click.argument("run", type=DIRECTORY)
@run_options
@computing_options
@common_options
def resume(run: str, quiet: bool, checkpoint_every: str, computing: Computing) -> None:
    """Go on with the fit in the directory RUN that was stopped or killed, from its last checkpoint.

    The answer is that of a fit that was never disturbed. Settings are those of the run; where it
    computes may be another place than before. Ctrl-C ends it early again, as it does a fit. A run
    that had already ended is shown, and left as it is.

    \b
    Examples:
      slrt-dask resume first
      slrt-dask resume first --workers 4
    """
    from slrt_dask.fit import ended
    from slrt_dask.runs import open_run
    from slrt_dask.searching import open_search
    from slrt_dask.show.progress import rest_shown

    opened: RunDirectory | KeptSearch | None = open_search(run)
    done = None
    if opened is None:
        opened = begun = open_run(run)
        done = ended(begun)
    if done is not None:
        click.echo("This run had already ended; nothing was computed. Its result:")
    else:
        with rest_shown(run), computing.connected() as client:
            done = _resumed(opened, client, computing, checkpoint_every, quiet)
    _tell(done, run)


def _fitted(
    request: FitRequest, client: Any, computing: Computing, checkpoint_every: str, quiet: bool
) -> Completion:
    from slrt_dask.combining import constraints_of
    from slrt_dask.data.store import open_store
    from slrt_dask.fit import complete

    store, given = open_store(request.store), request.arguments
    held_out = None if request.validation is None else open_store(request.validation)
    # Chunks of an embedded tensor are divided among workers, whatever the store's partitions are.
    divided = None if constraints_of(given["constraint"]).hankel else store
    with _watched(divided, client, quiet) as observers:
        return complete(
            store,
            **given,
            **_where(client, computing, checkpoint_every, observers),
            validation=held_out,
            run_directory=request.run,
        )


def _resumed(
    run: RunDirectory | KeptSearch,
    client: Any,
    computing: Computing,
    checkpoint_every: str,
    quiet: bool,
) -> Completion:
    from slrt_dask.fit import resume as go_on

    divided = run.open_store() if run.settings.tau is None else None
    with _watched(divided, client, quiet) as observers:
        return go_on(run.path, **_where(client, computing, checkpoint_every, observers))


def _where(
    client: Any, computing: Computing, checkpoint_every: str, observers: list[Observer[Any]]
) -> dict[str, Any]:
    """What is not settings: where a fit computes, and who watches it."""
    return {
        "client": client,
        "memory_limit": computing.memory_limit,
        "threads": computing.threads,
        "checkpoint_every": checkpoint_every,
        "observers": observers,
    }


@contextmanager
def _watched(
    store: ObservationStore | None, client: Any, quiet: bool
) -> Iterator[list[Observer[Any]]]:
    """Observers that show how far a fit is, while it runs.

    store : whose partitions are divided among the workers, if they are
    """
    from slrt_dask.show.progress import LiveProgress

    progress = LiveProgress()
    # the log, when it is shown, has a line for every iteration already
    observers: list[Observer[Any]] = [] if quiet or is_verbose() else [progress]
    if client is not None and store is not None and not quiet:
        _tell_of_idle_workers(store, client)
    if observers and sys.stderr.isatty():
        click.echo("loading the observations", err=True)
    try:
        yield observers
    finally:
        progress.on_end()


def _tell_of_idle_workers(store: ObservationStore, client: Any) -> None:
    """Say that there are fewer partitions than workers, if so, and what to do about it."""
    from slrt_dask.engine.watch import cluster_places

    busy, workers = len(store.partitions), len(cluster_places(client))
    if busy < workers:
        click.echo(
            f"{busy} of {workers} workers {'has' if busy == 1 else 'have'} work to do, one for "
            f"each partition of the store; ingest with --partition-entries "
            f"{-(-store.nnz // workers)} or fewer to occupy more",
            err=True,
        )


def _tell(done: Completion, run: str) -> None:
    """Say what a fit came to; one that was interrupted ends the command with its exit code."""
    from slrt_dask.show.text import outcome

    click.echo(outcome(done, run))
    if done.stop_reason.name == "INTERRUPTED":
        click.get_current_context().exit(EXIT_INTERRUPTED)
