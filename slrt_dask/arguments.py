"""What callers give for a fit's numbers, and which of them they leave to a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from slrt_dask.combining import Constraints
from slrt_dask.config import FitSettings
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import InvalidConfig, InvalidInput, NotYetAvailable

Number = TypeVar("Number", int, float)
AUTO = "auto"


@dataclass(frozen=True)
class Free:
    """What is to be searched for: the ranks, the weights, or both."""

    ranks: bool
    C: bool

    @classmethod
    def of(cls, ranks: object, C: object) -> Free:
        if isinstance(ranks, str) and ranks == "certified":
            raise NotYetAvailable(
                "ranks='certified' is not yet available; give one rank per mode, such as "
                "(10, 10, 5), or 'auto' for those that predict best"
            )
        if isinstance(ranks, str) and ranks != AUTO:
            raise InvalidConfig(f"ranks is {ranks!r}; give one rank per mode, or 'auto'")
        if isinstance(C, str) and C != AUTO:
            raise InvalidConfig(f"C is {C!r}; give a positive number, or 'auto'")
        return cls(isinstance(ranks, str), isinstance(C, str))


def settings_for(
    store: ObservationStore,
    free: Free,
    constraints: Constraints,
    *,
    ranks: object,
    C: object,
    lambdas: object,
    center: bool | None,
    validation: ObservationStore | None,
    **others: Any,
) -> FitSettings:
    """Checked settings, with numbers that will do in the place of those to be searched for.

    Of constraints only a Hankel structure is in them: the others need a place for their rows.
    """
    hankel = constraints.hankel
    settings = FitSettings(
        ranks=(1,) * store.order if free.ranks else numbers("ranks", ranks, int),
        C=1.0 if free.C else cast(float, C),
        lambdas=None if lambdas is None else numbers("lambdas", lambdas, float),
        center=(free.ranks and not hankel) if center is None else center,
        constraint=hankel.to_dict() if hankel else None,
        **others,
    )
    settings.check_shape(store.shape)
    if validation is not None and validation.shape != store.shape:
        raise InvalidInput(
            f"the validation store has shape {validation.shape}, the observations {store.shape}; "
            f"they must be entries of the same tensor"
        )
    return settings


def numbers(name: str, given: object, kind: type[Number]) -> tuple[Number, ...]:
    """Numbers from a tuple, a list or an array; whatever is not one is left for the settings."""
    try:
        values = np.asarray(given)
    except ValueError:  # ragged
        values = np.zeros(())
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InvalidConfig(f"{name} must be one number per mode, not {given!r}")
    if kind is int and values.dtype.kind == "f":
        return tuple(values.tolist())
    return tuple(kind(value) for value in values.tolist())
