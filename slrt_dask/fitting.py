"""A request, fitted: in a run directory or without one, and again when workers are lost or join."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slrt_dask.checkpoint import Cadence, newest_iteration
from slrt_dask.completion import Completion
from slrt_dask.data.location import scratch_parent
from slrt_dask.optim.records import Observer
from slrt_dask.recovery import persist
from slrt_dask.request import Request
from slrt_dask.runs import CHECKPOINTS, RunDirectory, create_run
from slrt_dask.temporary import TemporaryPlace
from slrt_dask.usage import UsageKeeper

WITHOUT_A_DIRECTORY = "60s"
"""How often a fit on a cluster that keeps no run makes sure that it need not begin again."""


def fit_without_a_directory(
    request: Request, observers: Sequence[Observer[Any]], events: list[str]
) -> Completion:
    """Fit on a cluster; what workers may lose is kept beside the observations, which they see."""
    held = TemporaryPlace(scratch_parent(request.store.path))
    where, cadence = Path(held.path) / "run", Cadence.of(WITHOUT_A_DIRECTORY)
    done = fit_in(request, where, observers, cadence, "give a run directory", events, held)
    shutil.rmtree(where / CHECKPOINTS, ignore_errors=True)
    return done


def fit_in(
    request: Request,
    where: Path | None,
    observers: Sequence[Observer[Any]],
    cadence: Cadence,
    remedy: str,
    events: list[str],
    held: TemporaryPlace | None = None,
) -> Completion:
    """Fit with a new run directory, or without one."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def run() -> RunDirectory | None:
            # Not before the fit is loaded and nothing was refused: a directory that is made stays.
            if where is None:
                return None
            return stack.enter_context(
                create_run(
                    where, request.store, request.validation, request.settings, held, request.start
                )
            )

        return fit_persistently(request, run, where, observers, cadence, events, remedy)


def fit_persistently(
    request: Request,
    run: Callable[[], RunDirectory | None],
    where: Path | None,
    observers: Sequence[Observer[Any]],
    cadence: Cadence,
    events: list[str],
    remedy: str,
) -> Completion:
    """Fit, and begin again from the newest checkpoint when workers are lost or join."""

    usage = UsageKeeper()

    def attempt() -> Completion:
        with request.fitting() as fit:
            return fit.run(run(), observers, cadence, events, usage)

    def reached() -> int:
        return -1 if where is None else newest_iteration(where / CHECKPOINTS)

    try:
        return persist(
            attempt,
            request.connection,
            plan=request.plan,
            reached=reached,
            events=events,
            remedy=remedy,
        )
    finally:
        for observer in observers:
            if hasattr(observer, "on_end"):
                observer.on_end()
