"""What a search judges its candidates on: observations of the kind that is missing, held out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from slrt_dask.data import location
from slrt_dask.data.holding_out import AUTO, SINGLY, Kind, KindLike
from slrt_dask.data.location import is_url, scratch_parent
from slrt_dask.data.split import observe, shape_of_gaps
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.errors import InvalidInput, SlrtError
from slrt_dask.request import Request
from slrt_dask.temporary import TemporaryPlace

HELD_OUT = 0.1
"""The part of the observations that candidates are judged on."""
HELD_OUT_SEED = 1
FEWEST = 50
"""Observations of which some can be held out."""
logger = logging.getLogger("slrt_dask")


@dataclass(frozen=True)
class Divided:
    """A request with held-out observations.

    kind : what was held out;  why : a clause that says why; empty where they were given
    """

    request: Request
    kind: Kind
    why: str


@contextlib.contextmanager
def divided(
    request: Request, held_out: KindLike | Kind, directory: Path | None
) -> Iterator[Divided]:
    """The request with held-out observations: those given, or some of its own.

    held_out : what to hold out, or "auto";  directory : where the two parts are kept, if anywhere
    """
    if request.validation is not None:
        yield Divided(request, SINGLY, "")
        return
    store = request.store
    if store.nnz < FEWEST:
        raise InvalidInput(
            f"{store.nnz} observations are too few to hold some of them out and find ranks, C or "
            "offsets; give both numbers, and no center='auto'"
        )
    if request.connection is not None and is_url(store.path):
        raise InvalidInput(
            f"{store.path} is a URL, and workers may not see what is held out on the disk of this "
            "machine; split the store yourself, and give one part as validation"
        )
    kind, why = _chosen(request, held_out)
    if directory is None:
        place = TemporaryPlace(scratch_parent(store.path) if request.connection else None)
        directory = Path(place.path)
    train, test = _parts(store, kind, directory)
    logger.info("held out are %d observations (%s): %s", test.nnz, kind, why)
    yield Divided(replace(request, store=train, validation=test), kind, why)


def _chosen(request: Request, held_out: KindLike | Kind) -> tuple[Kind, str]:
    store = request.store
    if held_out != AUTO:
        return Kind.of(held_out, store.order, store.dimension_names), "as was asked"
    tau = request.settings.tau
    foreseen = None if tau is None else tuple(offsets > 1 for offsets in tau)
    found = shape_of_gaps(observe(store.path, store.header), foreseen)
    return found.kind, f"because {found.why}"


def _parts(
    store: ObservationStore, kind: Kind, directory: Path
) -> tuple[ObservationStore, ObservationStore]:
    """The two parts in a directory; made if they are not there, whole, from before."""
    paths = f"{directory}/train", f"{directory}/test"
    with contextlib.suppress(SlrtError):
        train, test = (open_store(path) for path in paths)
        if train.nnz + test.nnz == store.nnz:
            return train, test
    for path in paths:
        location.remove(path)
    return store.split(HELD_OUT, HELD_OUT_SEED, *paths, kind)
