"""The facts of a run, read from where it is kept; nothing is drawn."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from slrt_dask.combining import constraints_of
from slrt_dask.completion import Completion, load_completion
from slrt_dask.config import MODES, FitSettings
from slrt_dask.data.coordinates import decode
from slrt_dask.data.location import normal_path
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.certificate import Certificate
from slrt_dask.errors import InvalidInput, SlrtError, StoreNotFound
from slrt_dask.locking import is_locked
from slrt_dask.losses import spread_of
from slrt_dask.optim.records import IterationRecord
from slrt_dask.posing import weights_of
from slrt_dask.reporting.facts import DRAWN, Facts, Model, Picture, Standing
from slrt_dask.reporting.observed import Observed, look_through
from slrt_dask.reporting.planes import Plane, planes_of
from slrt_dask.reporting.wording import counted
from slrt_dask.runs import SEARCHING, SETTINGS, RunDirectory, open_run
from slrt_dask.tuning.journal import ASKED, what_goes_on
from slrt_dask.usage import read_usage, read_versions, versions


def facts_of(
    source: str | os.PathLike[str] | Completion, modes: tuple[int, int] | None = None
) -> Facts:
    """The facts of a run directory, or of a completion, with those of its run if it has one.

    modes : the two modes that slices show
    """
    run, completion = _opened(source)
    if run is not None and completion is None:
        completion = _result_of(run)
    store, missing = _observations(run)
    header = store.header if store is not None else completion.header.dual if completion else None
    shape = None if header is None else header.shape
    settings = None if run is None else run.settings
    model = _model(settings, completion, store)
    records = (run.read_records() if run else ()) or (completion.records if completion else ())
    # Of a run that was interrupted and resumed there may be a result of its earlier part.
    newest = completion if completion and len(completion.records) >= len(records) else None
    certificate, certified_at = _certificate(newest, records)
    planes = () if shape is None else planes_of(shape, modes)
    observed = None if store is None else _observed(store, planes, model)
    return Facts(
        path=str(run.path) if run is not None else completion.path if completion else "",
        standing=_standing(run, newest),
        shape=shape,
        names=None if header is None else header.dimension_names,
        store=store,
        missing=missing,
        observed=observed,
        model=model,
        settings=settings,
        records=records,
        certificate=certificate,
        certified_at=certified_at,
        stop_reason=None if newest is None else newest.stop_reason,
        search=None if run is None else run.read_start(),
        usage=None if run is None else read_usage(run.path),
        versions=(run and read_versions(run.path)) or versions(),
        pictures=_pictures(planes, observed, completion),
        labels=decode(header.coordinates) or {} if header is not None else {},
        held_out=_held_out(run),
        unseen=_unseen(newest),
    )


def _opened(
    source: str | os.PathLike[str] | Completion,
) -> tuple[RunDirectory | None, Completion | None]:
    if isinstance(source, Completion):
        return _run_around(source), source
    path = Path(normal_path(source))
    if (path / SETTINGS).exists():
        return open_run(path), None
    _refuse_search(path)
    try:
        completion = load_completion(path)
    except StoreNotFound as error:
        raise StoreNotFound(
            f"{path} holds neither a run nor a completion; check the path"
        ) from error
    return _run_around(completion), completion


def _refuse_search(path: Path) -> None:
    """Say how far a search for settings is, of which there is no fit yet."""
    search = path / SEARCHING
    if not (search / ASKED).exists():
        return
    rows = (json.loads(file.read_text(encoding="utf-8")) for file in search.rglob("[0-9]*.json"))
    tried = counted(sum("error" in row for row in rows), "trial")
    if is_locked(path):
        raise InvalidInput(
            f"{path} is still searching for its settings, with {tried} so far; make a page when "
            "its fit has begun"
        )
    raise InvalidInput(
        f"{path} holds a search for settings that is without a fit, after {tried}; "
        f"{what_goes_on(search)} goes on with it"
    )


def _run_around(completion: Completion) -> RunDirectory | None:
    """The run that a completion is the result of, if it is still in its place."""
    parent = Path(completion.path).parent
    if not (parent / SETTINGS).exists():
        return None
    run = open_run(parent)
    return run if Path(completion.path) == run.completion else None


def _result_of(run: RunDirectory) -> Completion | None:
    try:
        return load_completion(run.path)
    except SlrtError:
        return None


def _standing(run: RunDirectory | None, completion: Completion | None) -> Standing:
    if run is not None and run.is_in_use:
        return Standing.UNDER_WAY
    return Standing.STOPPED if completion is None else Standing.ENDED


def _observations(run: RunDirectory | None) -> tuple[ObservationStore | None, str]:
    if run is None:
        return None, "the fit was not kept in a run directory, so where they are is not known"
    try:
        return run.open_store(), ""
    except (SlrtError, OSError) as error:
        return None, str(error)


def _held_out(run: RunDirectory | None) -> int | None:
    try:
        held_out = None if run is None else run.open_validation()
    except (SlrtError, OSError):
        return None
    return None if held_out is None else held_out.nnz


def _unseen(completion: Completion | None) -> int | None:
    """Of entries drawn at random, those that nothing was observed about; None if not known."""
    if completion is None:
        return None
    lengths = np.array(completion.shape)[:, None]
    drawn = np.random.default_rng(0).integers(0, lengths, (len(lengths), DRAWN))
    with suppress(InvalidInput):  # a model that does not tell
        return int(np.count_nonzero(completion.rests_on_nothing(drawn)))
    return None


def _observed(store: ObservationStore, planes: tuple[Plane, ...], model: Model) -> Observed:
    bounds = model.constraints.bounds
    if bounds is not None and bounds.where not in ("all", "observed"):
        bounds = None  # which observations it is about would have to be looked up
    return look_through(store, planes, bounds)


def _model(
    settings: FitSettings | None, completion: Completion | None, store: ObservationStore | None
) -> Model:
    if completion is not None:
        lambdas: tuple[float, ...] | None = completion.lambdas
        offset: float | None = completion.header.offset
        C, table = completion.C, completion.header.constraint
        has_effects, huber = completion.header.has_effects, completion.header.huber
    else:
        assert settings is not None
        has_effects, huber = settings.center == MODES, settings.huber
        C, table = settings.C, settings.constraint
        lambdas, offset = settings.lambdas, None
        if store is not None:
            lambdas = weights_of(settings, store.shape)
            offset = 0.0
            if settings.center:
                offset = store.mean if huber is None else spread_of(store).median
    constraints = constraints_of(table)
    hankel, deviation = constraints.hankel, None
    if hankel is not None and lambdas is not None:
        deviation = hankel.stages(lambdas)[-1]
    return Model(C, lambdas, offset, constraints, deviation, has_effects, huber)


def _certificate(
    completion: Completion | None, records: tuple[IterationRecord, ...]
) -> tuple[Certificate | None, int | None]:
    """The result's certificate, or the newest one in the history."""
    if completion is not None:
        return completion.certificate, records[-1].iteration if records else None
    for record in reversed(records):
        if record.primal is not None and record.dual is not None:
            primal, dual = record.primal, record.dual
            values: dict[str, Any] = {
                name: getattr(record, name) or 0.0
                for name in ("relative_gap", "paper_gap", "violation", "complementarity")
            }
            return Certificate(primal, dual, primal - dual, **values), record.iteration
    return None, None


def _pictures(
    planes: tuple[Plane, ...], observed: Observed | None, completion: Completion | None
) -> tuple[Picture, ...]:
    if observed is None and completion is None:
        return ()
    return tuple(
        Picture(
            plane,
            None if observed is None else observed.cells[number],
            None if completion is None else completion.predict(plane.places()).reshape(plane.cells),
        )
        for number, plane in enumerate(planes)
    )
