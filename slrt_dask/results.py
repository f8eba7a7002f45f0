"""The result of a fit, written from where its parts are to a model on disk."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from slrt_dask import model_files
from slrt_dask.completion import Completion
from slrt_dask.data.layout import StoreHeader
from slrt_dask.data.location import normal_path
from slrt_dask.dual.certificate import Certificate
from slrt_dask.dual.hankel.problem import HankelProblem
from slrt_dask.dual.operator import Operator, terms_of
from slrt_dask.dual.problem import Evaluation
from slrt_dask.dual.working_set import partition_extents
from slrt_dask.dual.writing import (
    SLICES_ARRAY,
    WriteFibreSums,
    slice_counts,
    write_array,
    write_dual_partitions,
    write_extra,
)
from slrt_dask.model_files import EFFECTS_ARRAY, ModelHeader
from slrt_dask.optim.loop import Outcome
from slrt_dask.optim.records import IterationRecord
from slrt_dask.runs import RunDirectory
from slrt_dask.temporary import TemporaryPlace

if TYPE_CHECKING:
    from slrt_dask.pipeline import Fit

Value = TypeVar("Value")


def write_result(
    fit: Fit,
    outcome: Outcome[Any],
    records: tuple[IterationRecord, ...],
    run: RunDirectory | None,
) -> Completion:
    """Write the model where the run is kept, or to a place that goes with the result."""
    evaluation = cast(Evaluation, outcome.evaluation)
    held: TemporaryPlace | None
    if run is None:
        own = TemporaryPlace()
        held, path = own, normal_path(Path(own.path) / "completion")
    else:
        held, path = run.held, run.prepare_completion()
    header = ModelHeader(
        dual=without_entries(fit.engine.store.header),
        cost_weight=fit.settings.C,
        lambdas=fit.problem.weights,
        offset=fit.offset.mean,
        certificate=cast(Certificate, outcome.certificate),
        stop_reason=outcome.reason,
        records=records,
        observations=fit.engine.store.digest,
        checksums={},
        constraint=json.loads(json.dumps(fit.settings.constraint)),
        huber=fit.settings.huber,
    )
    write = _write_tensor if isinstance(fit.problem, HankelProblem) else _write_dual
    written = write(fit, path, header, evaluation)
    if run is not None:
        run.forget_old_completion()
    return Completion(path, written, evaluation.point, held)


def _write_tensor(fit: Fit, path: str, header: ModelHeader, evaluation: Evaluation) -> ModelHeader:
    """Of a Hankel fit the tensor itself is kept: it is smaller than what it is made of."""
    problem = cast(HankelProblem, fit.problem)

    def write(group: str) -> dict[str, int]:
        problem.write_tensor(evaluation, group)
        return {}

    dense = replace(header, dense=True)
    return model_files.write_model(path, dense, evaluation.point, lambda target: (), write)


def _write_dual(fit: Fit, path: str, header: ModelHeader, evaluation: Evaluation) -> ModelHeader:
    """Dual entries, fibre sums, and what makes rows of a linear constraint hold."""
    engine, store = fit.engine, fit.engine.store.header

    def write_entries(target: str, *, name: str) -> tuple[int, ...]:
        checksums = joined(engine.on_shares(write_dual_partitions, target, name))
        return tuple(checksums[number] for number in range(len(store.partitions)))

    marked = fit.problem.has_multipliers

    def write_sums(group: str) -> dict[str, int]:
        operator = Operator.of(terms_of(fit.problem.weights), evaluation.point, store.slab_mode)
        program = WriteFibreSums(evaluation.dual.name, operator, group, marked)
        checksums: dict[str, int] = engine.run(program)
        if marked:
            for written in engine.on_shares(write_extra, group):
                checksums.update(written)
        by_share = engine.on_shares(slice_counts)
        for mode, counts in enumerate(map(sum, zip(*by_share, strict=True))):
            name = f"{SLICES_ARRAY}{mode}"
            checksums[name] = write_array(group, name, counts)
        for mode, effects in enumerate(fit.offset.effects):
            name = f"{EFFECTS_ARRAY}{mode}"
            checksums[name] = write_array(group, name, effects)
        return checksums

    extents = joined(engine.on_shares(partition_extents))
    correction = fit.problem.correction(evaluation)
    return model_files.write_model(
        path,
        replace(
            header,
            dual=dual_header(store, extents),
            drawn=0.0 if correction is None else correction.drawn,
        ),
        evaluation.point,
        functools.partial(write_entries, name=evaluation.dual.name),
        write_sums,
        None
        if correction is None
        else functools.partial(write_entries, name=correction.changes.name),
    )


def without_entries(store: StoreHeader) -> StoreHeader:
    """The header of a store that has no dual entries, only what is known of the tensor."""
    return replace(
        store, kind="dual", dtype="float64", mean=0.0, mean_weight=None, digest="", nnz=0,
        partitions=(),
    )  # fmt: skip


def dual_header(store: StoreHeader, extents: dict[int, tuple[int, int, int]]) -> StoreHeader:
    """The header of a store for dual entries, of which there may be more than observations."""
    partitions = tuple(
        replace(part, count=count, first_slice=first, stop_slice=stop)
        for part, (count, first, stop) in zip(
            store.partitions, (extents[number] for number in sorted(extents)), strict=True
        )
    )
    entries = sum(part.count for part in partitions)
    return replace(without_entries(store), nnz=entries, partitions=partitions)


def joined(parts: list[dict[int, Value]]) -> dict[int, Value]:
    """What shares told of their partitions, in one dictionary."""
    together: dict[int, Value] = {}
    for part in parts:
        together.update(part)
    return together
