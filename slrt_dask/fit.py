"""From a store to a completion: arguments, plan and engine; then `pipeline.Fit` does the work."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import dask
import distributed
import numpy as np
from dask.utils import parse_bytes
from distributed.system import MEMORY_LIMIT
from threadpoolctl import threadpool_limits

from slrt_dask.checkpoint import newest_iteration
from slrt_dask.completion import Completion, load_completion
from slrt_dask.config import FitSettings
from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.base import Engine
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.placement import Place, cluster_places
from slrt_dask.engine.plan import Plan, plan_fit
from slrt_dask.errors import InvalidConfig, InvalidInput, NotYetAvailable, SlrtError
from slrt_dask.optim.records import Observer
from slrt_dask.optim.stopping import StopReason
from slrt_dask.pipeline import Fit
from slrt_dask.recovery import persist
from slrt_dask.runs import RunDirectory, create_run, open_run, refuse_used_directory

logger = logging.getLogger("slrt_dask")
Number = TypeVar("Number", int, float)
UNFINISHED = (StopReason.INTERRUPTED,)


def complete(
    store: ObservationStore,
    ranks: tuple[int, ...] | str,
    *,
    constraint: object = None,
    C: float | str = "auto",
    lambdas: tuple[float, ...] | None = None,
    method: str = "auto",
    center: bool = False,
    gap_tolerance: float = 1e-3,
    gradient_tolerance: float = 1e-6,
    max_iterations: int = 200,
    max_seconds: float | None = None,
    validation: ObservationStore | None = None,
    run_directory: str | os.PathLike[str] | None = None,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    precision: str = "float64",
    seed: int = 0,
    checkpoint_every: int = 1,
    observers: Sequence[Observer[Any]] = (),
) -> Completion:
    """Complete a tensor from its observations; the answer comes with a certificate.

    ranks : one rank per mode
    C, lambdas : weights of the misfit and of the modes; only their products matter. `lambdas=None`
        weighs every mode by its length
    method : "rcg", "rtr", or "auto" (conjugate gradients: fewer sweeps on every tensor measured)
    center : fit the deviations from the observed mean
    gap_tolerance : stop when the answer is certified to be this close to the global optimum,
        relative to its objective
    gradient_tolerance : or when the gradient norm is this small, relative to the cost
    validation : a store of held-out observations; its error is recorded with every iteration
    run_directory : where records, checkpoints and the completion are kept; a new directory
    client : a distributed client; without one the fit runs in this process, with threads
    memory_limit : bytes that a worker (or this process) may use, as a number or like "4GB"
    checkpoint_every : iterations between checkpoints, where there is a run directory
    """
    _refuse_what_is_not_there(ranks, C, constraint)
    settings = FitSettings(
        ranks=_numbers("ranks", ranks, int),
        C=cast(float, C),
        lambdas=None if lambdas is None else _numbers("lambdas", lambdas, float),
        method=method,
        center=center,
        gap_tolerance=gap_tolerance,
        gradient_tolerance=gradient_tolerance,
        max_iterations=max_iterations,
        max_seconds=max_seconds,
        precision=precision,
        seed=seed,
    )
    settings.check_shape(store.shape)
    if validation is not None and validation.shape != store.shape:
        raise InvalidInput(
            f"the validation store has shape {validation.shape}, the observations {store.shape}; "
            f"they must be entries of the same tensor"
        )
    request = _Request(store, settings, client, memory_limit, threads, validation)
    request.plan()
    if run_directory is not None:
        refuse_used_directory(run_directory)
    made: list[RunDirectory] = []

    def attempt(event: str) -> Completion:
        with request.fitting() as fit:
            # Only now that nothing has been refused: a directory that is made stays.
            if run_directory is not None and not made:
                made.append(create_run(run_directory, store, validation, settings))
            try:
                return fit.run(made[0] if made else None, observers, checkpoint_every, event)
            except BaseException:
                if made and not made[0].records_file.exists():
                    shutil.rmtree(made.pop().path, ignore_errors=True)
                raise

    def reached() -> int:
        return newest_iteration(made[0].checkpoints) if made else -1

    remedy = "start workers and resume the run" if run_directory else "give a run directory"
    return cast(Completion, persist(attempt, client, reached, remedy))


def resume(
    run_directory: str | os.PathLike[str],
    *,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    checkpoint_every: int = 1,
    observers: Sequence[Observer[Any]] = (),
) -> Completion:
    """Go on with a run that was stopped or killed, from its newest checkpoint.

    A run that had ended by itself is returned as it is. The answer is that of an undisturbed run;
    where it computes may differ: `client`, `memory_limit` and `threads` are as in `complete`.
    """
    run = open_run(run_directory)
    with contextlib.suppress(SlrtError):
        done = load_completion(run.completion)
        if done.stop_reason not in UNFINISHED:
            return done
    validation = run.open_validation()
    request = _Request(run.open_store(), run.settings, client, memory_limit, threads, validation)

    def attempt(event: str) -> Completion:
        with request.fitting() as fit:
            return fit.run(run, observers, checkpoint_every, event or "resumed")

    def reached() -> int:
        return newest_iteration(run.checkpoints)

    return cast(Completion, persist(attempt, client, reached, "start workers and resume again"))


@dataclass(frozen=True)
class _Request:
    """A fit that was asked for, and where it may run."""

    store: ObservationStore
    settings: FitSettings
    client: distributed.Client | None
    memory_limit: int | str | None
    threads: int | None
    validation: ObservationStore | None

    def plan(self) -> Plan:
        """The plan for the workers that there are now; refused if it does not fit."""
        plan = plan_of(
            self.store,
            self.settings,
            client=self.client,
            memory_limit=self.memory_limit,
            threads=self.threads,
            held_out=0 if self.validation is None else self.validation.nnz,
        )
        plan.check()
        return plan

    @contextlib.contextmanager
    def fitting(self) -> Iterator[Fit]:
        """A fit whose observations are loaded, for as long as the context lasts."""
        plan = self.plan()
        logger.info("plan\n%s", plan)
        offset = self.store.mean if self.settings.center else 0.0
        # A BLAS that starts threads for the driver's small matrices leaves them spinning on the
        # cores which the kernels need: two threads were then no faster than one.
        with (
            threadpool_limits(limits=1, user_api="blas"),
            _engine(
                self.store, self.settings, self.client, plan, offset, self.validation
            ) as engine,
        ):
            yield Fit.of(engine, self.settings, offset, self.validation is not None)


def plan_of(
    store: ObservationStore,
    settings: FitSettings,
    *,
    client: distributed.Client | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    held_out: int = 0,
) -> Plan:
    """What a fit with these settings would need, on a client's workers or in this process."""
    limit = None if memory_limit is None else _bytes_of(memory_limit)
    if client is None:
        places = [Place(None, _threads_or_all(threads), int(MEMORY_LIMIT))]
    else:
        places = cluster_places(client)
    if limit is not None:
        places = [replace(place, memory_limit=limit) for place in places]
    value_bytes = 8 if settings.precision == "float64" else 4
    return plan_fit(
        store.header, settings.ranks, places=places, value_bytes=value_bytes, held_out=held_out
    )


def _engine(
    store: ObservationStore,
    settings: FitSettings,
    client: distributed.Client | None,
    plan: Plan,
    offset: float,
    validation: ObservationStore | None,
) -> Engine:
    streamed = {
        str(worker.place.address): worker.block_entries
        for worker in plan.workers
        if worker.block_entries is not None
    }
    if client is not None:
        return ClusterEngine(
            store,
            client,
            precision=settings.precision,
            offset=offset,
            validation=validation,
            streamed=streamed,
            places=[worker.place for worker in plan.workers],
        )
    here = plan.workers[0]
    streaming = None
    if here.block_entries is not None:
        streaming = Streaming(here.block_entries, dask.config.get("temporary-directory", None))
    return LocalEngine(
        store,
        threads=here.place.threads,
        precision=settings.precision,
        offset=offset,
        validation=validation,
        streaming=streaming,
    )


def _numbers(name: str, given: object, kind: type[Number]) -> tuple[Number, ...]:
    """Numbers from a tuple, a list or an array; whatever is not one is left for the settings."""
    values = np.asarray(given)
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InvalidConfig(f"{name} must be one number per mode, not {given!r}")
    if kind is int and values.dtype.kind == "f":
        return tuple(values.tolist())
    return tuple(kind(value) for value in values.tolist())


def _bytes_of(memory_limit: int | str) -> int:
    try:
        count = int(parse_bytes(memory_limit))
    except (ValueError, TypeError):
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


def _refuse_what_is_not_there(ranks: object, C: object, constraint: object) -> None:
    if isinstance(ranks, str):
        raise NotYetAvailable(
            f"ranks={ranks!r} is not yet available; give one rank per mode, such as (10, 10, 5)"
        )
    if isinstance(C, str):
        raise NotYetAvailable(
            f"C={C!r} is not yet available; give a number, larger for a closer fit to the data"
        )
    if constraint is not None:
        raise NotYetAvailable("constraints are not yet available; leave constraint out")
