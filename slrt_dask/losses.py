"""What a misfit costs, in the words of the caller: its square, or less than that when it is large.

This changes when there is another loss, or another way to choose where one turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.config import check_huber
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import InvalidConfig, InvalidInput

AUTO = "auto"
TUNING = 1.345
"""Standard deviations of good data at which Huber's loss is 95 % as efficient as the square."""
NORMAL = 1.4826
"""What turns a median absolute deviation into the standard deviation of normal data."""
MOST_LOOKED_AT = 2_000_000
"""Observed values of which the spread is taken, at most."""


@dataclass(frozen=True)
class Huber:
    """Huber's loss: a misfit t costs t² where |t| ≤ delta, and 2·delta·|t| − delta² beyond.

    delta : from where on a misfit counts as that of an outlier, in the units of the data. "auto":
        1.345 × 1.4826 × the median absolute deviation of the observed values from their median.
        That is known before anything is fitted, and generous: where noise is much smaller than
        the spread of the data, a few times its standard deviation is better
    """

    delta: float | str = AUTO

    def __post_init__(self) -> None:
        if isinstance(self.delta, str) and self.delta == AUTO:
            return
        check_huber(self.delta)
        object.__setattr__(self, "delta", float(self.delta))


def delta_of(loss: Any, store: ObservationStore) -> float | None:
    """δ of the loss that a caller gave, for these observations; None for the square."""
    if loss is None:
        return None
    if not isinstance(loss, Huber):
        raise InvalidConfig(
            f"loss is {loss!r}; give Huber(delta), or leave it out for the squared misfit"
        )
    return float(loss.delta) if not isinstance(loss.delta, str) else spread_delta(store)


@dataclass(frozen=True)
class Spread:
    """Where observed values lie, which half of them being absurd cannot change.

    median : of the values;  deviation : the median of how far they are from it
    """

    median: float
    deviation: float

    @property
    def delta(self) -> float:
        """From where on values would be outliers, if all the others were the same but for noise."""
        return TUNING * NORMAL * self.deviation


def spread_of(store: ObservationStore) -> Spread:
    """The spread of the observed values."""
    apart = max(1, -(-store.nnz // MOST_LOOKED_AT))
    parts = range(len(store.partitions))
    values = np.concatenate([store.read_partition(number)[1][::apart] for number in parts])
    median = float(np.median(values))
    return Spread(median, float(np.median(np.abs(values - median))))


def spread_delta(store: ObservationStore) -> float:
    """δ from the spread of the observed values."""
    spread = spread_of(store)
    if not spread.deviation > 0.0:
        raise InvalidInput(
            "delta is 'auto', but more than half of the observed values are the same, so that "
            "their median absolute deviation is 0; give a number: Huber(delta)"
        )
    return spread.delta


def center_name(delta: float | None) -> str:
    """What centring subtracts: the mean, or with Huber's loss what outliers cannot move."""
    return "mean" if delta is None else "median"


def error_name(delta: float | None) -> str:
    """What errors on held-out observations are: with Huber's loss the root of its mean."""
    return "RMSE" if delta is None else "robust RMSE"
