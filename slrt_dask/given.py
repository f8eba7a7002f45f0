"""What is given to a fit: a store, or an array that has to become one first.

A store made here is part of the run if there is a run directory, so that the run can be resumed;
without one it lies in a temporary place. On a cluster every worker has to see it, which is tried
out before anything is written.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import dask
import distributed

from slrt_dask.completion import Completion
from slrt_dask.data.arrays import from_array, from_coo
from slrt_dask.data.libraries import is_dataset, is_sparse_coo
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import InvalidInput
from slrt_dask.runs import OBSERVATIONS, STORE, is_begun, refuse_used_directory
from slrt_dask.temporary import TemporaryPlace

Fitting = TypeVar("Fitting", bound=Callable[..., Completion])


@dataclass(frozen=True)
class Given:
    """Observations to fit.

    held : the temporary place they are in, unless that is the run directory
    """

    store: ObservationStore
    held: TemporaryPlace | None

    def kept_for(self, done: Completion) -> Completion:
        """The result, which may lie in the place of the observations; those are needed no more."""
        if self.held is not None:
            shutil.rmtree(self.store.path, ignore_errors=True)
            done.stays_within(self.held)
        return done


def accepting_arrays(fit: Fitting) -> Fitting:
    """A function that fits a store, and then also an array in its place."""

    @functools.wraps(fit)
    def fit_given(store: Any, *arguments: Any, **options: Any) -> Completion:
        weights = options.pop("weights", None)
        if isinstance(store, ObservationStore):
            if weights is not None:
                raise InvalidInput(
                    "weights go with an array; those of a store are in it: make it with "
                    "slrt.from_array(path, array, weights=…), from_coo, from_file or from_batches"
                )
            return fit(store, *arguments, **options)
        directory = options.get("run_directory")
        where = None if directory is None else refuse_used_directory(directory)
        with given_observations(store, where, options.get("client"), weights) as given:
            return given.kept_for(fit(given.store, *arguments, **options))

    return cast(Fitting, fit_given)


@contextlib.contextmanager
def given_observations(
    given: Any, where: Path | None, client: distributed.Client | None, weights: Any = None
) -> Iterator[Given]:
    """A store made of an array, and weights of the same shape.

    where : the run directory; what is put there goes again if no run is made
    """
    _refuse_what_is_no_array(given)
    if where is None:
        place = TemporaryPlace(dask.config.get("temporary-directory", None))
        _check_seen(place.path, client)
        yield Given(_stored(f"{place.path}/observations", given, weights, client), place)
        return
    is_new = not where.exists()
    where.mkdir(parents=True, exist_ok=True)
    path = tempfile.mkdtemp(prefix=OBSERVATIONS, dir=where)
    try:
        _check_seen(path, client)
        yield Given(_stored(f"{path}/{STORE}", given, weights, client), None)
    except BaseException:
        if not is_begun(where):
            shutil.rmtree(where if is_new else path, ignore_errors=True)
        raise


def _stored(
    path: str, array: Any, weights: Any, client: distributed.Client | None
) -> ObservationStore:
    # What a lazy array is computed from may be on the cluster only.
    with contextlib.nullcontext() if client is None else client.as_current():
        if is_sparse_coo(array):
            return from_coo(path, array, weights=weights)
        return from_array(path, array, weights=weights)


def _refuse_what_is_no_array(given: object) -> None:
    if isinstance(given, str | os.PathLike):
        raise InvalidInput(
            f"{os.fspath(given)!r} is a path; give what is there: slrt.open_store(path), or an "
            "array."
        )
    if is_dataset(given):
        raise InvalidInput(
            f"a Dataset holds several arrays ({', '.join(map(str, given))}); give one of "  # type: ignore[call-overload]
            "them, such as dataset['name']."
        )


def _check_seen(path: str, client: distributed.Client | None) -> None:
    """Refuse a directory that some worker of a cluster does not have."""
    if client is None:
        return
    seen = client.run(os.path.isdir, path)
    blind = sorted(str(worker) for worker, there in seen.items() if there is not True)
    if blind:
        raise InvalidInput(
            f"an array is written to {path} to be fitted, which {len(blind)} of {len(seen)} "
            f"workers do not see (such as {blind[0]}); give a run_directory on a file system that "
            "all of them see, or make a store there with from_array."
        )
