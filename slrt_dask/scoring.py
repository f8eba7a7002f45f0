"""How well a completion predicts observations that it has not seen."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.completion import Completion
from slrt_dask.data.holding_out import Kind, KindLike, SquaredErrors
from slrt_dask.data.ingest import Progress, tell
from slrt_dask.data.location import StorePath
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.errors import InvalidInput
from slrt_dask.given import given_observations
from slrt_dask.support import check_support


@dataclass(frozen=True)
class Scores:
    """Errors over a store of observations.

    rmse, mae : root mean square and mean absolute error
    rmse_error : standard error of the root mean square error: by how much it would differ on other
        observations that were held out in the same way
    relative_error : ‖predicted − observed‖ / ‖observed‖
    psnr : peak signal-to-noise ratio in decibels, the peak being the largest observed magnitude
    unsupported : how many predictions nothing was observed about (`Completion.rests_on_nothing`);
        0 for models that cannot tell

    All errors are weighted if the observations have weights.
    """

    count: int
    rmse: float
    mae: float
    relative_error: float
    psnr: float
    rmse_error: float
    unsupported: int


def evaluate(
    completion: Completion,
    store: ObservationStore | StorePath | Any,
    *,
    peak: float | None = None,
    kind: KindLike = "entries",
    progress: Progress | None = None,
) -> Scores:
    """Compare predictions with a store's observations, a partition at a time.

    store : a store, the path of one, or an array in which NaN is what is not compared
    peak : the signal's largest possible value, for the PSNR; the largest observed if None
    kind : what the store holds: "entries", ("fibres", mode) or ("slices", mode) that were held out
        as a whole; their errors are alike, and the standard error is then larger
    progress : called with ("evaluate", observations compared, observations in all)
    """
    with _opened(store) as observed:
        return _scores(completion, observed, peak, kind, progress)


@contextlib.contextmanager
def _opened(given: Any) -> Iterator[ObservationStore]:
    """The store that was given, or that is at a path, or one made of an array for the time."""
    if isinstance(given, ObservationStore):
        yield given
    elif isinstance(given, str | os.PathLike):
        yield open_store(given)
    else:
        with given_observations(given, None, None) as made:
            yield made.store


def _scores(
    completion: Completion,
    store: ObservationStore,
    peak: float | None,
    kind: KindLike,
    progress: Progress | None,
) -> Scores:
    if completion.shape != store.shape:
        raise InvalidInput(
            f"the completion has shape {completion.shape}, the observations {store.shape}; they "
            "must agree"
        )
    together = Kind.of(kind, store.order, store.dimension_names)
    squares, absolutes, energy, largest = SquaredErrors.none(), 0.0, 0.0, 0.0
    compared = unsupported = 0
    counted = 0.0
    tell(progress, "evaluate", 0, store.nnz)
    for number in range(len(store.partitions)):
        columns, values, known = store.read_weighted(number)
        wanted = values.astype(np.float64)
        places = np.stack(columns)
        predicted = completion.predict(places)
        unsupported += count_unsupported(completion, places, predicted)
        errors = predicted - wanted
        weights = np.ones(len(wanted)) if known is None else known.astype(np.float64)
        squares += SquaredErrors.of(together, columns, errors, weights)
        counted += float(weights.sum())
        absolutes += float(weights @ np.abs(errors))
        energy += float(weights @ wanted**2)
        largest = max(largest, float(np.abs(wanted).max()))
        compared += wanted.size
        tell(progress, "evaluate", compared, store.nnz)
    rmse = squares.rmse
    top = largest if peak is None else peak
    return Scores(
        store.nnz,
        rmse,
        absolutes / counted,
        rmse * math.sqrt(counted / energy) if energy > 0.0 else math.inf,
        20.0 * math.log10(top / rmse) if rmse > 0.0 and top > 0.0 else math.inf,
        squares.standard_error,
        unsupported,
    )


def count_unsupported(
    completion: Completion, places: NDArray[Any], values: NDArray[np.float64]
) -> int:
    """How many predictions nothing was observed about; 0 for models that cannot tell."""
    try:
        check_support(completion.header)
    except InvalidInput:
        return 0
    if completion.header.constraint is None:
        # Nothing was added to the offset; but for rounding where a slice was never observed.
        offset = completion.offset.at(places)
        places = places[:, np.abs(values - offset) <= 1e-9 * np.maximum(1.0, np.abs(offset))]
    return int(np.count_nonzero(completion.rests_on_nothing(places)))
