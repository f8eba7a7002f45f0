"""The search alone: what complete(store, "auto") does first, for those who want to look at it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import distributed

from slrt_dask.arguments import Free, settings_for
from slrt_dask.combining import Constraint, constraints_of
from slrt_dask.connection import Connection
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import InvalidInput
from slrt_dask.request import Request
from slrt_dask.tuning.tuning import Tuning, tuned


def tune(
    store: ObservationStore,
    ranks: tuple[int, ...] | str = "auto",
    *,
    constraint: Constraint | Sequence[Constraint] | None = None,
    C: float | str = "auto",
    lambdas: tuple[float, ...] | None = None,
    center: bool | None = None,
    max_seconds: float | None = None,
    validation: ObservationStore | None = None,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    precision: str = "float64",
    seed: int = 0,
    observers: Sequence[Any] = (),
) -> Tuning:
    """Find the ranks and weights that predict held-out observations best; fit nothing else.

    The arguments are those of `complete`. Of constraints only a Hankel structure matters here.
    observers : those with a method `on_trial` are told of every setting that was tried
    """
    free = Free.of(ranks, C)
    if free.certified:
        raise InvalidInput("certified ranks grow during a fit; search with ranks 'auto' or numbers")
    if not (free.ranks or free.C):
        raise InvalidInput("ranks and C are both given, so there is nothing to search for")
    constraints = constraints_of(constraint)
    constraints.check_shape(store.shape)
    settings = settings_for(
        store,
        free,
        constraints,
        ranks=ranks,
        C=C,
        lambdas=lambdas,
        center=center,
        validation=validation,
        max_seconds=max_seconds,
        precision=precision,
        seed=seed,
    )
    told = tuple(observer.on_trial for observer in observers if hasattr(observer, "on_trial"))
    with contextlib.nullcontext() if client is None else Connection(client) as connection:
        request = Request(store, settings, connection, memory_limit, threads, validation)
        return tuned(request, free, told)
