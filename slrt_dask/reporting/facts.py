"""Everything that a page says of a run, as data; `gathering.py` reads it from where the run is.

A run that has no result, because it is under way or was killed, has facts as well: what is not
known is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.combining import Constraints
from slrt_dask.config import FitSettings
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.certificate import Certificate
from slrt_dask.losses import center_name, error_name
from slrt_dask.optim.records import IterationRecord
from slrt_dask.optim.stopping import StopReason
from slrt_dask.reporting.observed import Observed
from slrt_dask.reporting.planes import Plane
from slrt_dask.reporting.wording import label
from slrt_dask.runs import Start
from slrt_dask.usage import Usage

DRAWN = 4096


class Standing(Enum):
    """How far a run is."""

    ENDED = "ended"
    UNDER_WAY = "under way"
    STOPPED = "stopped without a result"


@dataclass(frozen=True)
class Picture:
    """What is shown of one plane, in its cells; NaN where there is nothing, None where unknown."""

    plane: Plane
    observed: NDArray[np.float64] | None
    completed: NDArray[np.float64] | None


@dataclass(frozen=True)
class Model:
    """The problem that was posed: what the formula on the page stands for."""

    C: float
    lambdas: tuple[float, ...] | None
    offset: float | None
    constraints: Constraints
    deviation: float | None
    """δ of a Hankel structure."""
    has_effects: bool = False
    """Whether every index of every mode has an offset of its own, besides."""
    huber: float | None = None
    """δ of Huber's loss."""


@dataclass(frozen=True)
class Facts:
    """A run, for a page.

    store : the observations, None if they are not where they were;  missing : and why
    certificate : of the result, or the newest one in the history;  certified_at : its iteration
    settings : None of a completion that was not kept with its run
    labels : the coordinates (n,) of the modes that have some, by name
    held_out : how many observations errors are measured on, None if that is not known
    unseen : how many of DRAWN entries, drawn at random, nothing was observed about, if known
    """

    path: str
    standing: Standing
    shape: tuple[int, ...] | None
    names: tuple[str, ...] | None
    store: ObservationStore | None
    missing: str
    observed: Observed | None
    model: Model
    settings: FitSettings | None
    records: tuple[IterationRecord, ...]
    certificate: Certificate | None
    certified_at: int | None
    stop_reason: StopReason | None
    search: Start | None
    usage: Usage | None
    versions: dict[str, str]
    pictures: tuple[Picture, ...]
    labels: dict[str, NDArray[Any]]
    held_out: int | None
    unseen: int | None

    @property
    def density(self) -> float | None:
        if self.store is None:
            return None
        return self.store.nnz / math.prod(self.store.shape)

    @property
    def ranks(self) -> tuple[int, ...] | None:
        if self.records:
            return self.records[-1].ranks
        return None if self.settings is None else self.settings.ranks

    @property
    def held_out_error(self) -> float | None:
        """The last error on held-out observations, or the best of the search for settings."""
        for record in reversed(self.records):
            if record.validation_rmse is not None:
                return record.validation_rmse
        tried = [] if self.search is None else taken(self.search.tried)
        return min((row["error"] for row in tried), default=None)

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
    def seconds(self) -> float | None:
        """That all of it took: the search for settings, loading, iterations and writing."""
        if self.usage is None:
            return None
        iterations = self.records[-1].seconds if self.records else 0.0
        searching = self.search.took if self.search else 0.0
        return max(self.usage.wall, iterations) + searching

    @property
    def is_longer(self) -> bool:
        """Whether it may have taken more than is known: it was killed, or is still under way."""
        return self.standing is not Standing.ENDED

    def mode_name(self, mode: int) -> str:
        return f"mode {mode}" if self.names is None else self.names[mode]

    def place_name(self, mode: int, index: int) -> str:
        """A slice by its coordinate, where the mode has some."""
        name = self.mode_name(mode)
        if name not in self.labels:
            return f"{name} = {index:,}"
        return f"{name} {label(self.labels[name][index])} (index {index:,})"


def taken(tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of all that a search tried, what it could choose from when it had settled the offsets."""
    return [row for row in tried if row.get("center") == tried[-1].get("center")]
