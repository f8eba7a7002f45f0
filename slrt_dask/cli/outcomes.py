"""What a fit came to, as commands tell of it; the same whichever of them does, and when."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slrt_dask.completion import Completion


def outcome(done: Completion, run: str) -> str:
    """What a fit came to, and what to do with it."""
    from slrt_dask.losses import error_name
    from slrt_dask.printing import searched

    iterations, sweeps = max(0, len(done.records) - 1), sum(row.sweeps for row in done.records)
    errors = [row.validation_rmse for row in done.records if row.validation_rmse is not None]
    validated = [f"validation   {error_name(done.header.huber)} {errors[-1]:.6g}"] if errors else []
    settings = [f"settings     {done.records[0].event}"] if searched(done) else []
    loss = [] if done.loss is None else [f"loss         Huber's, delta {done.loss.delta:.6g}"]
    name = shlex.quote(run)
    further = f"resume {name} to go on, " if done.stop_reason.name == "INTERRUPTED" else ""
    return "\n".join(
        [
            *settings,
            *_ranks(done),
            *loss,
            f"certificate  {done.certificate}",
            f"stop         {done.stop_reason.value}",
            f"effort       {iterations:,} iteration{'s' * (iterations != 1)}, {sweeps:,} sweeps, "
            f"{_took(done, run)}",
            *validated,
            f"completion   {done.path}",
            f"next         slrt-dask {further}report {name}, evaluate {name} STORE, "
            f"predict {name} INDICES -o OUT, or export {name} OUT.zarr",
        ]
    )


def _ranks(done: Completion) -> list[str]:
    """The ranks of the answer, unless they are those that the line about a search names."""
    from slrt_dask.printing import searched

    first = done.records[0].ranks if done.records else done.ranks
    if done.ranks != first:
        return [f"ranks        {done.ranks}, grown from {first}"]
    return [] if searched(done) else [f"ranks        {done.ranks}"]


def _took(done: Completion, run: str) -> str:
    """The seconds of all parts of the run, with loading and writing, as the run has kept them."""
    from slrt_dask.runs import open_run
    from slrt_dask.usage import read_usage

    kept = open_run(run)
    usage, start = read_usage(kept.path), kept.read_start()
    seconds = done.records[-1].seconds if usage is None else usage.wall
    if start is None:
        return f"{seconds:.1f} s"
    searching = sum(float(row["seconds"]) for row in start.tried)
    return f"{seconds:.1f} s after a search of {searching:.1f} s"


@contextmanager
def rest_shown(run: str | None) -> Iterator[None]:
    """Say what is left, and how to go on, when Ctrl-C ends what has no result to show.

    run : where a fit or a search is kept, if it is
    """
    try:
        yield
    except KeyboardInterrupt:
        if run is not None:
            sys.stderr.write(f"{_rest(run)}\n")
        raise


def _rest(run: str) -> str:
    from slrt_dask.errors import SlrtError
    from slrt_dask.runs import SEARCHING, open_run
    from slrt_dask.tuning.journal import what_goes_on

    resuming = f"slrt-dask resume {shlex.quote(run)}"
    with suppress(SlrtError):
        begun = open_run(run).read_records()
        what = "the run has no result yet, but its checkpoints" if begun else "the run has begun"
        return f"{what}: {resuming} goes on"
    with suppress(SlrtError):
        command = what_goes_on(Path(run, SEARCHING))
        command = resuming if command in resuming else command
        return f"the settings tried so far are kept: {command} goes on"
    return "nothing was computed yet, and nothing is kept"
