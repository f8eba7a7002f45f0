"""What a fit would need, before it runs: the plan in the words of those who call `complete`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import distributed

from slrt_dask.arguments import Free, settings_for
from slrt_dask.calibration import measured
from slrt_dask.combining import Constraint, constraints_of
from slrt_dask.config import FitSettings
from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.plan import Plan
from slrt_dask.errors import InvalidInput
from slrt_dask.losses import Huber
from slrt_dask.request import plan_of
from slrt_dask.temporary import TemporaryPlace


def plan(
    store: ObservationStore,
    ranks: tuple[int, ...] | str,
    *,
    constraint: Constraint | Sequence[Constraint] | None = None,
    loss: Huber | None = None,
    validation: ObservationStore | None = None,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    method: str = "auto",
    inner: str = "joint",
    precision: str = "float64",
) -> Plan:
    """Say what `complete` with the same arguments would hold and where, and how long it will take.

    Printed, it is a table with the reasons. `plan.check()` raises MemoryBudgetExceeded where it
    does not fit, as `complete` would. Times are estimates from a few sweeps over one partition,
    which are made now.
    """
    if isinstance(ranks, str):
        raise InvalidInput(f"ranks is {ranks!r}; a plan is for ranks that are known: give numbers")
    constraints = constraints_of(constraint)
    settings = settings_for(
        store,
        Free(ranks=False, C=False),
        constraints,
        ranks=ranks,
        C=1.0,
        lambdas=None,
        loss=loss,
        center=False,
        validation=None,
        method=method,
        inner=inner,
        precision=precision,
    )
    held = TemporaryPlace()  # of rows that are in memory
    stored = constraints.stored(f"{held.path}/rows", store.shape, store.slab_mode)
    settings = replace(settings, constraint=stored.to_table())
    held_out = 0 if validation is None else validation.nnz
    return calibrated_plan(store, settings, client, memory_limit, threads, held_out)


def calibrated_plan(
    store: ObservationStore,
    settings: FitSettings,
    client: distributed.Client | None,
    memory_limit: int | str | None,
    threads: int | None,
    held_out: int,
) -> Plan:
    """The plan of a fit; with rates that are measured on its machines, if it fits there."""
    place_it = partial(plan_of, store, settings, memory_limit=memory_limit, held_out=held_out)
    found = place_it(client=client, threads=threads)
    if not all(worker.fits for worker in found.workers):
        return found
    threads_here = 0
    if client is not None:
        alone = plan_of(store, settings, held_out=held_out)
        threads_here = alone.workers[0].place.threads if alone.in_memory else 0
    return measured(found, store, settings, client, threads_here)
