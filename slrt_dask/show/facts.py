"""Everything that a report says of a run, as data, read from where the run is kept.

A run that has no result, because it is under way or was killed, has facts as well: what is not
known is None.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from slrt_dask.combining import Constraints, constraints_of
from slrt_dask.completion import Completion, load_completion
from slrt_dask.config import MODES, FitSettings
from slrt_dask.data.coordinates import decode
from slrt_dask.data.location import normal_path
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.certificate import Certificate
from slrt_dask.errors import InvalidInput, SlrtError, StoreNotFound
from slrt_dask.locking import is_locked
from slrt_dask.losses import center_name, error_name, spread_of
from slrt_dask.optim.records import IterationRecord, stage_begins
from slrt_dask.optim.stopping import StopReason
from slrt_dask.posing import weights_of
from slrt_dask.runs import SEARCHING, SETTINGS, RunDirectory, Start, open_run
from slrt_dask.show.observed import Observed, Plane, look_through, planes_of
from slrt_dask.show.text import counted, label
from slrt_dask.tuning.journal import ASKED, what_goes_on
from slrt_dask.usage import Usage, read_usage, read_versions, versions

DRAWN = 4096
"""Entries drawn at random, of which it is asked whether anything was observed about them."""
RISEN, SURELY = 0.05, 3.0
"""By what part of itself the lowest error on held-out observations has to have risen to be worth a
word, and by how many of its standard errors."""


class Standing(Enum):
    """How far a run is."""

    ENDED = "ended"
    UNDER_WAY = "under way"
    STOPPED = "stopped without a result"


@dataclass(frozen=True)
class Model:
    """The problem that was posed.

    deviation : δ of a Hankel structure;  huber : δ of Huber's loss
    has_effects : whether every index of every mode has an offset of its own, besides `offset`
    """

    C: float
    lambdas: tuple[float, ...] | None
    offset: float | None
    constraints: Constraints
    deviation: float | None
    has_effects: bool
    huber: float | None


class Facts:
    """A run, for a report: of a run directory, or of a completion, with its run if it has one.

    modes : the two modes that slices show

    path : of the run, or of the completion
    store : the observations, None if they are not where they were;  missing : and why
    certificate : of the result, or the newest one in the history;  certified_at : its iteration
    settings : None of a completion that was not kept with its run
    slices : what is shown: planes, cells observed and cells completed, None where unknown
    unseen : of `DRAWN` entries, those that nothing was observed about
    labels : the coordinates (n,) of the modes that have some, by name
    held_out : how many observations errors are measured on, None if that is not known
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Completion,
        modes: tuple[int, int] | None = None,
    ) -> None:
        run, done = _opened(source)
        self.path = str(run.path) if run is not None else done.path if done else ""
        self.settings: FitSettings | None = None if run is None else run.settings
        self.records = (run.read_records() if run else ()) or (done.records if done else ())
        self.search: Start | None = None if run is None else run.read_start()
        self.usage: Usage | None = None if run is None else read_usage(run.path)
        self.versions = (run and read_versions(run.path)) or versions()
        self.store, self.held_out, self.missing = _observations(run)
        self.model = _model(self.settings, done, self.store)
        # Of a run that was interrupted and resumed there may be a result of its earlier part.
        newest = done if done and len(done.records) >= len(self.records) else None
        self.standing = Standing.ENDED if newest else Standing.STOPPED
        if run is not None and run.is_in_use:
            self.standing = Standing.UNDER_WAY
        self.stop_reason: StopReason | None = None if newest is None else newest.stop_reason
        self.certificate, self.certified_at = _certificate(newest, self.records)
        header = self.store.header if self.store else done.header.dual if done else None
        self.shape = None if header is None else header.shape
        self.names = None if header is None else header.dimension_names
        self.labels = {} if header is None else decode(header.coordinates) or {}
        planes = () if self.shape is None else planes_of(self.shape, modes)
        self.observed = None if self.store is None else _look(self.store, planes, self.model)
        self.unseen = _unseen(done)
        self.slices = [
            (
                plane,
                None if self.observed is None else self.observed.cells[number],
                None if done is None else done.predict(plane.places()).reshape(plane.cells),
            )
            for number, plane in enumerate(planes)
        ]

    @property
    def density(self) -> float | None:
        return None if self.store is None else self.store.nnz / math.prod(self.store.shape)

    @property
    def ranks(self) -> tuple[int, ...] | None:
        if self.records:
            return self.records[-1].ranks
        return None if self.settings is None else self.settings.ranks

    @property
    def held_out_error(self) -> float | None:
        """The last error on held-out observations, or the best of the search for settings."""
        errors = [row.validation_rmse for row in self.records if row.validation_rmse is not None]
        return errors[-1] if errors else min((row["error"] for row in self.tried), default=None)

    @property
    def tried(self) -> list[dict[str, Any]]:
        """What a search could choose from when it had settled the offsets."""
        rows = [] if self.search is None else self.search.tried
        return [row for row in rows if row.get("center") == rows[-1].get("center")]

    @property
    def iterations(self) -> int:
        return self.records[-1].iteration if self.records else 0

    @property
    def center_name(self) -> str:
        return center_name(self.model.huber)

    @property
    def error_name(self) -> str:
        return error_name(self.model.huber)

    @property
    def stage_begins(self) -> tuple[int, ...]:
        return stage_begins(self.records)

    @property
    def has_ended(self) -> bool:
        return self.standing is Standing.ENDED

    @property
    def seconds(self) -> float | None:
        """That all of it took: the search for settings, loading, iterations and writing."""
        if self.usage is None:
            return self.records[-1].seconds if self.records else None
        iterations = self.records[-1].seconds if self.records else 0.0
        return max(self.usage.wall, iterations) + (self.search.took if self.search else 0.0)

    @property
    def risen(self) -> tuple[float, int, float] | None:
        """The lowest held-out error, its iteration, and the last; None where it did not rise."""
        errors = [
            (row.validation_rmse, row.iteration)
            for row in self.records
            if row.validation_rmse is not None
        ]
        if not errors:
            return None
        lowest, at = min(errors)
        # The standard error of the root mean square of so many errors, relative to it.
        spread = 1.0 / math.sqrt(2.0 * self.held_out) if self.held_out else 0.0
        last = errors[-1][0]
        return (lowest, at, last) if last > (1.0 + max(RISEN, SURELY * spread)) * lowest else None

    def mode_name(self, mode: int) -> str:
        return f"mode {mode}" if self.names is None else self.names[mode]

    def place_name(self, mode: int, index: int) -> str:
        """A slice by its coordinate, where the mode has some."""
        name = self.mode_name(mode)
        if name not in self.labels:
            return f"{name} = {index:,}"
        return f"{name} {label(self.labels[name][index])} (index {index:,})"


def _opened(
    source: str | os.PathLike[str] | Completion,
) -> tuple[RunDirectory | None, Completion | None]:
    """A run and its result, as far as there are."""
    if not isinstance(source, Completion):
        path = Path(normal_path(source))
        if (path / SETTINGS).exists():
            try:
                return open_run(path), load_completion(path)
            except SlrtError:
                return open_run(path), None
        _refuse_search(path)
        try:
            source = load_completion(path)
        except StoreNotFound as error:
            raise StoreNotFound(
                f"{path} holds neither a run nor a completion; check the path"
            ) from error
    parent = Path(source.path).parent
    if (parent / SETTINGS).exists() and Path(source.path) == (run := open_run(parent)).completion:
        return run, source
    return None, source


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


def _observations(
    run: RunDirectory | None,
) -> tuple[ObservationStore | None, int | None, str]:
    """The store of a run, how many observations are held out, and why there is no store."""
    if run is None:
        return None, None, "the fit was not kept in a run directory"
    held_out = None
    with suppress(SlrtError, OSError):
        validation = run.open_validation()
        held_out = None if validation is None else validation.nnz
    try:
        return run.open_store(), held_out, ""
    except (SlrtError, OSError) as error:
        return None, held_out, str(error)


def _look(store: ObservationStore, planes: tuple[Plane, ...], model: Model) -> Observed:
    bounds = model.constraints.bounds
    if bounds is not None and bounds.where not in ("all", "observed"):
        bounds = None  # which observations it is about would have to be looked up
    return look_through(store, planes, bounds)


def _model(
    settings: FitSettings | None, done: Completion | None, store: ObservationStore | None
) -> Model:
    lambdas: tuple[float, ...] | None
    offset: float | None
    if done is not None:
        header = done.header
        C, lambdas, offset, table = done.C, done.lambdas, header.offset, header.constraint
        has_effects, huber = header.has_effects, header.huber
    else:
        assert settings is not None
        C, lambdas, table = settings.C, settings.lambdas, settings.constraint
        has_effects, huber, offset = settings.center == MODES, settings.huber, None
        if store is not None:
            lambdas = weights_of(settings, store.shape)
            center = store.mean if huber is None else spread_of(store).median
            offset = center if settings.center else 0.0
    constraints = constraints_of(table)
    hankel = constraints.hankel
    deviation = hankel.stages(lambdas)[-1] if hankel and lambdas else None
    return Model(C, lambdas, offset, constraints, deviation, has_effects, huber)


def _certificate(
    done: Completion | None, records: Sequence[IterationRecord]
) -> tuple[Certificate | None, int | None]:
    """The result's certificate, or the newest one in the history, and its iteration."""
    if done is not None:
        return done.certificate, records[-1].iteration if records else None
    for record in reversed(records):
        if record.primal is not None and record.dual is not None:
            row = asdict(record) | {"gap": record.primal - record.dual}
            names = Certificate.__dataclass_fields__
            return Certificate(**{name: row[name] or 0.0 for name in names}), record.iteration
    return None, None


def _unseen(done: Completion | None) -> int | None:
    """How many of some entries drawn at random rest on no observation, where that can be known."""
    if done is None:
        return None
    random = np.random.default_rng(0)
    places = np.stack([random.integers(0, length, DRAWN) for length in done.shape])
    with suppress(InvalidInput):
        return int(np.count_nonzero(done.rests_on_nothing(places)))
    return None
