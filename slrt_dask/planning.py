"""What a fit would need, before it runs: the plan in the words of those who call `complete`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import distributed

from slrt_dask.arguments import Free, settings_for
from slrt_dask.combining import Constraint, constraints_of
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
    """Say what `complete` with the same arguments would hold and where; nothing is computed.

    Printed, it is a table with the reasons. `plan.check()` raises MemoryBudgetExceeded where it
    does not fit, as `complete` would.
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
    return plan_of(
        store, settings, client=client, memory_limit=memory_limit, threads=threads,
        held_out=held_out,
    )  # fmt: skip
