"""From a store to a completion: plan, engine, problem, method, loop, and the model on disk."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import dask
import distributed
import numpy as np
from dask.utils import parse_bytes
from distributed.system import MEMORY_LIMIT
from threadpoolctl import threadpool_limits

from slrt_dask import model_files
from slrt_dask.checkpoint import CheckpointObserver
from slrt_dask.completion import Completion, TemporaryPlace
from slrt_dask.config import FitSettings
from slrt_dask.data.location import normal_path
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.certificate import Certificate
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.problem import DualProblem, Evaluation
from slrt_dask.dual.sampling import ValidationError
from slrt_dask.dual.start import spectral_start
from slrt_dask.dual.writing import WriteFibreSums, write_dual_partitions
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.base import Engine
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.placement import Place, cluster_places
from slrt_dask.engine.plan import Plan, plan_fit
from slrt_dask.errors import InvalidConfig, InvalidInput, NotYetAvailable, StoreExists
from slrt_dask.model_files import ModelHeader
from slrt_dask.monitor import JsonLinesObserver, LogObserver
from slrt_dask.optim.loop import Outcome, minimise
from slrt_dask.optim.rcg import ConjugateGradient
from slrt_dask.optim.records import Observer
from slrt_dask.optim.rtr import TrustRegion
from slrt_dask.optim.stopping import StopRules

logger = logging.getLogger("slrt_dask")
Number = TypeVar("Number", int, float)


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
    validation : a store of held-out observations; its error is recorded with every certificate
    run_directory : where records, checkpoints and the completion are kept; a new directory
    client : a distributed client; without one the fit runs in this process, with threads
    memory_limit : bytes that a worker (or this process) may use, as a number or like "4GB"
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
            f"the validation store has shape {validation.shape}, the observations {store.shape}"
        )
    plan = plan_of(
        store,
        settings,
        client=client,
        memory_limit=memory_limit,
        threads=threads,
        held_out=0 if validation is None else validation.nnz,
    )
    plan.check()
    logger.info("plan\n%s", plan)
    if run_directory is not None:
        _refuse_used_directory(run_directory)
    offset = store.mean if settings.center else 0.0
    # A BLAS that starts threads for the driver's small matrices leaves them spinning on the cores
    # which the kernels need: two threads were then no faster than one.
    with (
        threadpool_limits(limits=1, user_api="blas"),
        _engine(store, settings, client, plan, offset, validation) as engine,
    ):
        return _fit(engine, settings, offset, run_directory, observers, validation is not None)


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


def _fit(
    engine: Engine,
    settings: FitSettings,
    offset: float,
    run_directory: str | os.PathLike[str] | None,
    observers: Sequence[Observer[Any]],
    validated: bool,
) -> Completion:
    store = engine.store
    weights = settings.lambdas or tuple(float(length) for length in store.shape)
    problem = DualProblem(
        engine,
        settings.ranks,
        cost_weight=settings.C,
        weights=weights,
        certificate_rtol=min(1e-3, max(0.1 * settings.gap_tolerance, 1e-10)),
    )

    # Only now that nothing has been refused: a directory that is made stays.
    run = None if run_directory is None else _new_run(run_directory, store, settings)

    def validation_error(evaluation: Evaluation) -> float:
        factors = Factors.of(evaluation.point)
        return float(engine.run(ValidationError(evaluation.dual.name, factors, weights)))

    outcome = minimise(
        problem,
        METHODS[settings.method](),
        spectral_start(problem, settings.seed),
        StopRules(
            settings.gap_tolerance,
            settings.gradient_tolerance,
            settings.max_iterations,
            settings.max_seconds,
        ),
        observers=[LogObserver(), *_run_observers(run, store, settings), *observers],
        validate=validation_error if validated else None,
    )
    return _written(problem, outcome, offset, run)


METHODS = {"auto": ConjugateGradient, "rcg": ConjugateGradient, "rtr": TrustRegion}


def _written(
    problem: DualProblem, outcome: Outcome[Any], offset: float, run: Path | None
) -> Completion:
    """Write the model where the run is kept, or to a temporary place that lives with the result."""
    engine = problem.engine
    evaluation = cast(Evaluation, outcome.evaluation)
    held = None if run is not None else TemporaryPlace()
    path = normal_path(Path(held.path if held is not None else str(run)) / "completion")
    store = engine.store.header
    header = ModelHeader(
        dual=replace(store, kind="dual", dtype="float64", mean=0.0, digest=""),
        cost_weight=problem.cost_weight,
        lambdas=problem.weights,
        offset=offset,
        certificate=cast(Certificate, outcome.certificate),
        stop_reason=outcome.reason,
        records=outcome.records,
        observations=store.digest,
        checksums={},
    )

    def write_dual(target: str) -> tuple[int, ...]:
        checksums: dict[int, int] = {}
        for part in engine.on_shares(write_dual_partitions, target, evaluation.dual.name):
            checksums.update(part)
        return tuple(checksums[number] for number in range(len(store.partitions)))

    def write_sums(group: str) -> dict[str, int]:
        factors = Factors.of(evaluation.point)
        program = WriteFibreSums(evaluation.dual.name, factors, store.slab_mode, group)
        checksums: dict[str, int] = engine.run(program)
        return checksums

    written = model_files.write_model(path, header, evaluation.point, write_dual, write_sums)
    return Completion(path, written, evaluation.point, held)


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


def _run_observers(
    run: Path | None, store: ObservationStore, settings: FitSettings
) -> list[Observer[Any]]:
    if run is None:
        return []
    binding = {"observations": store.digest, "settings": settings.to_dict()}
    return [JsonLinesObserver(run / "records.jsonl"), CheckpointObserver(run, binding)]


def _refuse_used_directory(directory: str | os.PathLike[str]) -> Path:
    run = Path(normal_path(directory))
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise StoreExists(f"{run} already exists and is not empty; choose a new run directory")
    return run


def _new_run(
    directory: str | os.PathLike[str], store: ObservationStore, settings: FitSettings
) -> Path:
    run = _refuse_used_directory(directory)
    run.mkdir(parents=True, exist_ok=True)
    content = {"store": store.path, "observations": store.digest, "settings": settings.to_dict()}
    (run / "settings.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return run


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
