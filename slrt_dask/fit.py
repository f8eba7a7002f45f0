"""From a store to a completion: arguments checked, a run directory, and persistence."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed

from slrt_dask.arguments import Free, settings_for
from slrt_dask.checkpoint import Cadence
from slrt_dask.combining import Constraint, Constraints, constraints_of
from slrt_dask.completion import Completion, load_completion
from slrt_dask.connection import Connection
from slrt_dask.data.holding_out import KindLike
from slrt_dask.data.location import scratch_parent
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import SlrtError
from slrt_dask.fitting import fit_in, fit_persistently, fit_without_a_directory
from slrt_dask.given import accepting_arrays
from slrt_dask.losses import Huber
from slrt_dask.optim.records import Observer
from slrt_dask.optim.stopping import StopReason
from slrt_dask.request import Request
from slrt_dask.runs import (
    ROWS,
    RunDirectory,
    is_begun,
    open_run,
    refuse_used_directory,
    remove_leftovers,
)
from slrt_dask.searching import open_search, searched
from slrt_dask.show.progress import watched
from slrt_dask.temporary import TemporaryPlace

UNFINISHED = (StopReason.INTERRUPTED,)


@accepting_arrays
def complete(
    store: ObservationStore | Any,
    ranks: tuple[int, ...] | str = "auto",
    *,
    weights: Any = None,
    constraint: Constraint | Sequence[Constraint] | None = None,
    C: float | str = "auto",
    lambdas: tuple[float, ...] | None = None,
    method: str = "auto",
    inner: str = "joint",
    loss: Huber | None = None,
    center: bool | str | None = None,
    gap_tolerance: float = 1e-3,
    gradient_tolerance: float = 1e-6,
    max_iterations: int = 200,
    max_seconds: float | None = None,
    validation: ObservationStore | None = None,
    patience: int | None = None,
    held_out: KindLike = "auto",
    run_directory: str | os.PathLike[str] | None = None,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    precision: str = "float64",
    seed: int = 0,
    checkpoint_every: int | str = 1,
    observers: Sequence[Observer[Any]] | None = (),
    max_ranks: tuple[int, ...] | int | None = None,
) -> Completion:
    """Complete a tensor from its observations; the answer comes with a certificate.

    store : observations, as `open_store` and the `from_…` functions give them; or an array with
        NaN or a mask where nothing was observed (numpy, xarray, dask, zarr) or a sparse.COO, of
        which a store is made that goes with the run directory, or with the fit without one
    ranks : one rank per mode; or "auto": those that predict held-out observations best; or
        "certified": they grow from one, up to `max_ranks` (50 if None), until the certified gap
        closes, so that the answer is a global optimum of the convex problem
    weights : of the observations of an array, in its shape or one that broadcasts to it: a misfit
        costs as many times as much (not with Hankel). Those of a store are in it: `from_array` and
        the others take them
    constraint : Nonnegative(…), Bounds(…) or Linear(…), or a list of them: what the completed
        tensor has to satisfy; or Hankel(…): what structure it has
    C, lambdas : weights of the misfit and of the modes; only their products matter. C="auto" finds
        them on held-out observations, together with the ranks if these are "auto" too;
        `lambdas=None` then leaves every mode's weight free, and else weighs it by its length
    method : "lbfgs" (quasi-Newton steps of limited memory), "rcg" (conjugate gradients), "rtr"
        (trust region), or "auto": conjugate gradients with bounds and rows, otherwise "lbfgs",
        which took the fewest sweeps on every tensor measured
    inner : how bounds are solved for: "joint", or "alternating" between the misfit's part and the
        multipliers, as in the paper, which takes many more sweeps
    loss : Huber(delta), for data with outliers, not with Hankel; errors on held-out
        observations are then the root of its mean. None for the squared misfit
    center : fit the deviations from the observed mean (True); or, with "modes", from offsets: that
        mean and one number per index of every mode (users and items, stations and hours), shrunken
        where there are few observations; "auto" takes the better of the two on held-out
        observations, and None does so where ranks are searched for. With Huber's loss it is the
        median in the place of the mean. The mean is weighted if observations have weights, which
        the median and the numbers per index ignore. Constraints go with the mean only, which "auto"
        and such a None then take, but for Hankel, where they take none
    gap_tolerance : stop when the answer is certified to be this close to the global optimum,
        relative to its objective
    gradient_tolerance : or when the gradient norm is this small, relative to the cost
    max_iterations, max_seconds : or when so many iterations were made, or so much time has passed
    validation : a store of held-out observations; its error is recorded with every iteration,
        weighted if the store is. What is "auto" is judged on it, and without it on a tenth of the
        observations, which the answer is then fitted to again. It keeps the factors that were
        found: but for Hankel, where they are only its start, `method`, `max_iterations` and the
        tolerances do not matter
    patience : stop when the error on `validation` has not fallen for so many iterations, and
        return the factors of the iteration where it was the least
    held_out : what is held out where something is "auto": "entries", ("fibres", mode) or
        ("slices", mode), or what most of the gaps are
    run_directory : where records, checkpoints and the completion are kept; a new directory
    client : a distributed client; without one the fit runs in this process, with threads
    memory_limit : bytes that a worker (or this process) may use, as a number or like "4GB"
    threads : that compute in this process; all cores if None
    precision : "float64", or "float32" vectors, which take half the memory; sums are float64
    seed : of the first factors and of what is held out
    checkpoint_every : iterations between checkpoints, or a time such as "30s", where there is a
        run directory
    observers : told of every iteration (`on_record`), of every setting that is tried (`on_trial`)
        and of the end (`on_end`), as `LiveProgress()` is. Without one, a fit that takes longer than
        some seconds shows its progress on a terminal and in a notebook, unless the log of
        `slrt_dask` is shown there; elsewhere it is quiet, and everywhere with `observers=None`
    """
    constraints = constraints_of(constraint)
    free = Free.of(ranks, C, held_out, center, constraints)
    settings = settings_for(
        store,
        free,
        constraints,
        ranks=ranks,
        C=C,
        lambdas=lambdas,
        center=center,
        validation=validation,
        method=method,
        inner=inner,
        loss=loss,
        gap_tolerance=gap_tolerance,
        gradient_tolerance=gradient_tolerance,
        max_iterations=max_iterations,
        max_seconds=max_seconds,
        precision=precision,
        seed=seed,
        max_ranks=max_ranks,
        patience=patience,
    )
    cadence = Cadence.of(checkpoint_every)
    where = None if run_directory is None else refuse_used_directory(run_directory)
    with (
        watched(observers) as observers,
        _connected(client) as connection,
        _stored(constraints, where, store, beside=connection is not None) as table,
    ):
        settings = replace(settings, constraint=table)  # checked again, with its constraint
        request = Request(store, settings, connection, memory_limit, threads, validation)
        request.plan()
        events: list[str] = []
        if free.anything:
            request, events = searched(request, free, observers, where)
        if where is None and connection is not None:
            return fit_without_a_directory(request, observers, events)
        remedy = "start workers and resume the run"
        return fit_in(request, where, observers, cadence, remedy, events)


def resume(
    run_directory: str | os.PathLike[str],
    *,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    checkpoint_every: int | str = 1,
    observers: Sequence[Observer[Any]] | None = (),
) -> Completion:
    """Go on with a run that was stopped or killed, from its newest checkpoint or trial.

    A run that had ended by itself is returned as it is. The answer is that of an undisturbed run;
    where it computes may differ: `client`, `memory_limit` and `threads` are as in `complete`, and
    so are `observers`.
    """
    with watched(observers) as told:
        return _resumed(run_directory, client, memory_limit, threads, checkpoint_every, told)


def _resumed(
    run_directory: str | os.PathLike[str],
    client: distributed.Client | None,
    memory_limit: int | str | None,
    threads: int | None,
    checkpoint_every: int | str,
    observers: Sequence[Observer[Any]],
) -> Completion:
    cadence, remedy = Cadence.of(checkpoint_every), "start workers and resume again"
    found = open_search(run_directory)
    if found is not None:
        with _connected(client) as connection:
            request = Request(
                found.store, found.settings, connection, memory_limit, threads, found.validation
            )
            request, events = searched(request, found.free, observers, found.path)
            events.insert(0, "resumed")
            return fit_in(request, found.path, observers, cadence, remedy, events)
    run = open_run(run_directory)
    with contextlib.ExitStack() as stack:
        done = ended(run)
        if done is None:
            stack.enter_context(run.locked())
            done = ended(run)  # by a process that held the lock until now
        if done is not None:
            return done
        remove_leftovers(run.path)  # of a process that was killed before it could
        connection = stack.enter_context(_connected(client))
        store, validation = run.open_store(), run.open_validation()
        request = Request(
            store, run.settings, connection, memory_limit, threads, validation, run.read_start()
        )
        return fit_persistently(
            request, lambda: run, run.path, observers, cadence, ["resumed"], remedy
        )


def ended(run: RunDirectory) -> Completion | None:
    """The result of a run with nothing left to do."""
    with contextlib.suppress(SlrtError):
        done = load_completion(run.completion)
        if done.stop_reason not in UNFINISHED:
            return done
    return None


@contextlib.contextmanager
def _connected(client: distributed.Client | None) -> Iterator[Connection | None]:
    if client is None:
        yield None
    else:
        with Connection(client) as connection:
            yield connection


@contextlib.contextmanager
def _stored(
    constraints: Constraints, where: Path | None, store: ObservationStore, *, beside: bool
) -> Iterator[dict[str, Any] | tuple[dict[str, Any], ...] | None]:
    """Constraints as tables, what is too large for one being in stores as long as it is needed.

    These are part of the run; without one they lie beside the observations, where workers see them.
    """
    if constraints.are_stored:
        yield constraints.stored("", store.shape, store.slab_mode).to_table()
    elif where is None:
        place = TemporaryPlace(scratch_parent(store.path) if beside else None)
        path = f"{place.path}/rows"
        yield constraints.stored(path, store.shape, store.slab_mode).to_table()
    else:
        is_new = not where.exists()
        where.mkdir(parents=True, exist_ok=True)
        path = tempfile.mkdtemp(prefix=ROWS, dir=where)
        try:
            yield constraints.stored(f"{path}/rows", store.shape, store.slab_mode).to_table()
        except BaseException:
            if not is_begun(where):
                shutil.rmtree(where if is_new else path, ignore_errors=True)
            raise
