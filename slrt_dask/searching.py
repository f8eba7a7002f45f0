"""A fit whose settings are searched for first: from a request that leaves some open to a full one.

A run keeps its search in `<run>/search` until the fit begins, so that a process that is killed on
the way need not begin anew. This changes with what has to be known to go on with a search.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slrt_dask.arguments import Free
from slrt_dask.config import FitSettings
from slrt_dask.data.holding_out import AUTO, Kind
from slrt_dask.data.location import normal_path
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import CheckpointMismatch, InvalidInput
from slrt_dask.locking import locked
from slrt_dask.request import Request
from slrt_dask.runs import (
    SEARCHING,
    SETTINGS,
    is_begun,
    open_unchanged,
    settings_from,
)
from slrt_dask.tuning.journal import ASKED, FIT, Journal, read_asked
from slrt_dask.tuning.tuning import seconds_spent, tuned

RANKS_TO_SEARCH_WITH = 10
"""For the weights, where ranks are to grow afterwards."""
SHORTEST = 1e-3
"""Seconds that are left to a fit when the search before it took all that were allowed."""


def searched(
    request: Request, free: Free, observers: Sequence[Any], where: Path | None
) -> tuple[Request, list[str]]:
    """The request with the settings that were found, to be fitted; and what befell the search.

    where : the run directory, if there is one
    """
    told = tuple(observer.on_trial for observer in observers if hasattr(observer, "on_trial"))
    asked = request.settings
    with kept(where, request, free, FIT) as journal:
        if free.certified:  # the weights are searched for with ranks that are quickly fitted
            narrow = tuple(min(RANKS_TO_SEARCH_WITH, rank) for rank in asked.ranks)
            request = replace(request, settings=replace(asked, ranks=narrow, certified=False))
        # The limit is one of the whole run, however often that is resumed.
        tuning = tuned(request, free, told, journal, spent=seconds_spent(journal, free))
    # The factors are kept as they were chosen; a structure in stages is fitted again from them, and
    # so is a fit whose numbers were all given.
    left = asked.max_seconds
    settings = replace(
        tuning.settings,
        ranks=asked.ranks if free.certified else tuning.settings.ranks,
        certified=free.certified,
        chosen=asked.tau is None and free.numbers and not free.certified,
        max_seconds=None if left is None else max(left - tuning.seconds, SHORTEST),
    )
    found = replace(request, settings=settings, start=tuning.start)
    found.plan()
    return found, list(tuning.events)


@contextlib.contextmanager
def kept(where: Path | None, request: Request, free: Free, purpose: str) -> Iterator[Journal]:
    """The journal of a search, in a directory that is locked meanwhile; or in memory only.

    A directory in which nothing was tried is removed again when the search fails.
    """
    if where is None:
        yield Journal()
        return
    is_new = not where.exists()
    where.mkdir(parents=True, exist_ok=True)
    with locked(where):
        try:
            yield Journal.opened(where / SEARCHING, _asked(request, free, purpose))
        except BaseException:
            if not is_begun(where):
                shutil.rmtree(where if is_new else where / SEARCHING, ignore_errors=True)
            raise


@dataclass(frozen=True)
class KeptSearch:
    """A search that a run was stopped in, and everything that is needed to go on with it."""

    path: Path
    store: ObservationStore
    validation: ObservationStore | None
    settings: FitSettings
    free: Free

    def open_store(self) -> ObservationStore:
        return self.store


def open_search(directory: str | os.PathLike[str]) -> KeptSearch | None:
    """The search that the run in a directory is to go on with; None if it is past it."""
    path = Path(normal_path(directory))
    if (path / SETTINGS).exists() or not (path / SEARCHING / ASKED).exists():
        return None
    asked = read_asked(path / SEARCHING)
    if asked.get("purpose") != FIT:
        raise InvalidInput(
            f"{path} holds a search and no fit; tune with the same settings goes on with it, or "
            "tells what it found"
        )
    try:
        opened = [
            None if asked[name] is None else open_unchanged(asked[name], asked[digest], path)
            for name, digest in (("store", "observations"), ("validation", "held_out_observations"))
        ]
        assert opened[0] is not None
        free = Free(**asked["free"])
        return KeptSearch(path, opened[0], opened[1], settings_from(asked["settings"]), free)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointMismatch):
            raise
        raise CheckpointMismatch(f"{path}/{SEARCHING}/{ASKED} cannot be read: {error}") from error


def _asked(request: Request, free: Free, purpose: str) -> dict[str, Any]:
    """What the answer of a search depends on, as JSON takes it, and where that is."""
    store, validation = request.store, request.validation
    word = AUTO
    if free.held_out != AUTO:
        word = Kind.of(free.held_out, store.order, store.dimension_names).word
    return {
        "purpose": purpose,
        "store": store.path,
        "observations": store.digest,
        "validation": None if validation is None else validation.path,
        "held_out_observations": None if validation is None else validation.digest,
        "settings": _without_default(request.settings.to_dict(), "huber"),
        "free": _without_default({**asdict(free), "held_out": word}, "center"),
    }


def _without_default(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Without what earlier searches do not know of, where it is as they had it."""
    return table if table[name] else {key: table[key] for key in table if key != name}
