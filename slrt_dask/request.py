"""A fit that was asked for: planned for where it may run, and put on an engine there."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import dask
import distributed
from dask.utils import parse_bytes
from distributed.system import MEMORY_LIMIT

from slrt_dask.blas import SingleBlasThread
from slrt_dask.combining import Constraints, constraints_of
from slrt_dask.config import MODES, FitSettings
from slrt_dask.connection import Connection
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.costs import CouplingSize, SlabCosts, plan_fit
from slrt_dask.dual.hankel.costs import EmbeddedCosts, plan_embedded
from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.mode_effects import subtract_effects
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.offsets import Offset
from slrt_dask.engine.base import Engine, LocalEngine
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.plan import Plan, WorkerPlan
from slrt_dask.engine.share import Assignment
from slrt_dask.engine.watch import Place, cluster_places
from slrt_dask.errors import InvalidInput, StateLost
from slrt_dask.losses import Spread, spread_of
from slrt_dask.pipeline import Fit
from slrt_dask.posing import embedded
from slrt_dask.runs import Start

logger = logging.getLogger("slrt_dask")


@dataclass(frozen=True)
class Request:
    """Observations, settings, and where they may be computed with."""

    store: ObservationStore
    settings: FitSettings
    connection: Connection | None
    memory_limit: int | str | None
    threads: int | None
    validation: ObservationStore | None
    start: Start | None = None
    """Where to start from; from the observations' leading directions if None."""
    only: tuple[str, ...] | None = None
    """Addresses of the workers to use; all that there are if None."""
    offset: Offset | None = None
    """The offset per mode, where there is to be one and it is known; else it is estimated."""

    def plan(self) -> Plan:
        """The plan for the workers that there are now; refused if it does not fit."""
        plan = plan_of(
            self.store,
            self.settings,
            client=None if self.connection is None else self.connection.client,
            memory_limit=self.memory_limit,
            threads=self.threads,
            held_out=0 if self.validation is None else self.validation.nnz,
            only=self.only,
        )
        plan.check()
        return plan

    @contextlib.contextmanager
    def fitting(self) -> Iterator[Fit]:
        """A fit whose observations are loaded, for as long as the context lasts."""
        plan = self.plan()
        logger.info("plan\n%s", plan)
        self._tell_who_is_left_out(plan)
        # A BLAS that starts threads for the driver's small matrices leaves them spinning on the
        # cores which the kernels need: two threads were then no faster than one.
        with SingleBlasThread(), self._engine(plan) as engine:
            if self.settings.tau is None:
                number_fibres(engine)
            yield Fit.of(
                engine,
                self.settings,
                self._subtracted(engine),
                self.validation,
                plan,
                self.start,
            )

    def _tell_who_is_left_out(self, plan: Plan) -> None:
        if self.connection is not None and self.only is None:
            left_out = len(cluster_places(self.connection.client)) - plan.available
            if left_out > 0:
                which = "worker is" if left_out == 1 else "workers are"
                logger.warning("%d %s too small for a share and left out", left_out, which)

    @functools.cached_property
    def _spread(self) -> Spread:
        return spread_of(self.store)

    @property
    def _middle(self) -> float:
        """What is subtracted from observations as they are loaded.

        With Huber's loss that is the median: a few absurd values would take the mean with them, and
        the others would then all be far from zero.
        """
        if not self.settings.center:
            return 0.0
        return self.store.mean if self.settings.huber is None else self._spread.median

    @property
    def limit(self) -> float:
        """How far from what is fitted a value may count as being when offsets are estimated."""
        huber = self.settings.huber
        return math.inf if huber is None else max(huber, self._spread.delta)

    def _subtracted(self, engine: Engine) -> Offset:
        """What the engine's observations are without, from here on."""
        if self.settings.center != MODES:
            return Offset(self._middle)
        return subtract_effects(engine, self._middle, self.offset, self.limit)

    @property
    def _beside(self) -> ObservationStore | None:
        """Held-out observations that blocks have to hold; those of chunks have no use for them."""
        return self.validation if self.settings.tau is None else None

    def _engine(self, plan: Plan) -> Engine:
        if self.connection is None:
            return LocalEngine(self._assignment(plan.workers[0]))
        assignments = {
            str(worker.place.address): self._assignment(worker) for worker in plan.workers
        }
        return ClusterEngine(self.connection.client, assignments)

    def _assignment(self, worker: WorkerPlan) -> Assignment:
        store = embedded(self.store, self.settings)
        return Assignment(
            store,
            worker.partitions,
            worker.place.threads,
            self.settings.precision,
            self._middle,
            self._beside,
            worker.block_entries,
            dask.config.get("temporary-directory", None),
            store if isinstance(store, EmbeddedStore) else None,
        )


def plan_of(
    store: ObservationStore,
    settings: FitSettings,
    *,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    held_out: int = 0,
    only: tuple[str, ...] | None = None,
) -> Plan:
    """What a fit with these settings would need, on a client's workers or in this process.

    only : the addresses of the workers to use; all that there are if None
    """
    limit = None if memory_limit is None else _bytes_of(memory_limit)
    if client is None:
        places = [Place(None, _threads_or_all(threads), int(MEMORY_LIMIT))]
    else:
        places = [
            place for place in cluster_places(client) if only is None or place.address in only
        ]
        if not places:
            raise StateLost(f"the worker {', '.join(only or ())} is gone")
    if limit is not None:
        places = [
            replace(place, memory_limit=min(limit, place.memory_limit or limit)) for place in places
        ]

    constraints = constraints_of(settings.constraint)
    coupling = coupling_of(store, constraints)
    held = embedded(store, settings)

    value_bytes = 8 if settings.precision == "float64" else 4

    def planned(places: list[Place], extra: int | None) -> Plan:
        if isinstance(held, EmbeddedStore):
            return plan_embedded(EmbeddedCosts(held, settings.ranks, value_bytes), places)
        costs = SlabCosts(
            store.header,
            settings.ranks,
            value_bytes,
            held_out,
            extra,
            coupling=coupling,
            hessian=settings.method == "rtr",
            alternating=settings.inner == "alternating",
        )
        return plan_fit(costs, places)

    *generous, least = working_sets(store, constraints)
    for extra in generous:
        plan = _on_those_that_fit(functools.partial(planned, extra=extra), places)
        if plan.in_memory:
            return plan
    return _on_those_that_fit(functools.partial(planned, extra=least), places)


def working_sets(store: ObservationStore, constraints: Constraints) -> list[int | None]:
    """How many entries beside the observed ones to have room for, the most generous first."""
    if not constraints or constraints.hankel:
        return [None]
    others = math.prod(store.shape) - store.nnz
    coupled = sum(linear.store.nnz for linear in constraints.linear)
    wanted, bounds = [0], constraints.bounds
    if bounds is not None:
        places, named = bounds.where_places, bounds.open_where()
        if named is not None:
            wanted = [named.nnz]
        elif places is not None:
            wanted = [places.shape[1]]
        elif bounds.everywhere:
            wanted = [factor * store.nnz for factor in (10, 3, 1)]
    return [min(others, coupled + more) for more in wanted]


def coupling_of(store: ObservationStore, constraints: Constraints) -> CouplingSize | None:
    """How large linear constraints are, and in which slices of the tensor."""
    if not constraints.linear:
        return None
    rows, pieces = 0, []
    for linear in constraints.linear:
        held = linear.store
        rows += held.shape[0]
        along = held.slab_mode == store.slab_mode + 1
        for part in held.partitions:
            whole = 0, store.shape[store.slab_mode]
            low, high = (part.first_slice, part.stop_slice) if along else whole
            pieces.append((low, high, part.count))
    return CouplingSize(rows, tuple(pieces))


def _on_those_that_fit(planned: Callable[[list[Place]], Plan], places: list[Place]) -> Plan:
    """Leave out workers too small for their share, if the others can take it.

    If they cannot, the plan is the one for all, so that it is refused with its numbers.
    """
    first, available = planned(places), len(places)
    plan = first
    while small := [worker.place for worker in plan.workers if not worker.fits]:
        places = [place for place in places if place not in small]
        if not places:
            return first
        plan = planned(places)
    return replace(plan, left_out=available - len(places))


def _bytes_of(memory_limit: int | str) -> int:
    try:
        count = int(parse_bytes(memory_limit)) if str(memory_limit).strip() else 0
    except (ValueError, TypeError, OverflowError):
        count = 0
    if count <= 0:
        raise InvalidInput(f"memory_limit is {memory_limit!r}; give bytes, or a size like '4GB'")
    return count


def _threads_or_all(threads: int | None) -> int:
    if threads is None:
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    if threads < 1:
        raise InvalidInput(f"threads is {threads}; give at least 1")
    return threads
