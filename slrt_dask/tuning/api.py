"""The search alone: what complete(store, "auto") does first, for those who want to look at it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import distributed

from slrt_dask.arguments import Free, settings_for
from slrt_dask.combining import Constraint, constraints_of
from slrt_dask.connection import Connection
from slrt_dask.data.holding_out import KindLike
from slrt_dask.data.location import normal_path
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import InvalidInput
from slrt_dask.losses import Huber
from slrt_dask.request import Request
from slrt_dask.runs import SEARCHING, SETTINGS, refuse_used_directory
from slrt_dask.searching import kept
from slrt_dask.show.progress import watched
from slrt_dask.tuning.journal import ALONE
from slrt_dask.tuning.tuning import Tuning, tuned


def tune(
    store: ObservationStore,
    ranks: tuple[int, ...] | str = "auto",
    *,
    constraint: Constraint | Sequence[Constraint] | None = None,
    C: float | str = "auto",
    lambdas: tuple[float, ...] | None = None,
    loss: Huber | None = None,
    center: bool | str | None = None,
    max_seconds: float | None = None,
    validation: ObservationStore | None = None,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    precision: str = "float64",
    seed: int = 0,
    observers: Sequence[Any] | None = (),
    held_out: KindLike = "auto",
    run_directory: str | os.PathLike[str] | None = None,
) -> Tuning:
    """Find the ranks and weights that predict held-out observations best; fit nothing else.

    The arguments are those of `complete`. Of constraints only a Hankel structure matters here.
    observers : those with a method `on_trial` are told of every setting that was tried; without
        any, a terminal or a notebook shows a search that lasts, and None shows nothing
    held_out : what to judge on: "entries", ("fibres", mode) or ("slices", mode); or "auto", what
        most of the gaps are
    max_seconds : try nothing more when so much time has passed in this call
    run_directory : where every trial is kept as it is made; called again with the same settings,
        the search goes on from there, or tells what it found; only max_seconds may then differ
    """
    constraints = constraints_of(constraint)
    free = Free.of(ranks, C, held_out, center, constraints)
    if free.certified:
        raise InvalidInput("certified ranks grow during a fit; search with ranks 'auto' or numbers")
    if not free.anything:
        raise InvalidInput("ranks and C are both given, so there is nothing to search for")
    settings = settings_for(
        store,
        free,
        constraints,
        ranks=ranks,
        C=C,
        lambdas=lambdas,
        loss=loss,
        center=center,
        validation=validation,
        max_seconds=max_seconds,
        precision=precision,
        seed=seed,
    )
    with (
        watched(observers) as seen,
        contextlib.nullcontext() if client is None else Connection(client) as connection,
    ):
        told = tuple(observer.on_trial for observer in seen if hasattr(observer, "on_trial"))
        request = Request(store, settings, connection, memory_limit, threads, validation)
        where = None if run_directory is None else _search_directory(run_directory)
        with kept(where, request, free, ALONE) as journal:
            return tuned(request, free, told, journal)


def _search_directory(directory: str | os.PathLike[str]) -> Path:
    """A directory that is new or empty, or holds a search."""
    path = Path(normal_path(directory))
    if (path / SEARCHING).exists() and not (path / SETTINGS).exists():
        return path
    return refuse_used_directory(directory)
