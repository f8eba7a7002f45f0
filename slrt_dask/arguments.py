"""What callers give for a fit's numbers, and which of them they leave to a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from slrt_dask.combining import Constraints
from slrt_dask.config import MODES, WITHOUT_CONSTRAINTS, FitSettings, check_combination
from slrt_dask.data.holding_out import FIBRES, SLICES, Kind, KindLike
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import InvalidConfig, InvalidInput
from slrt_dask.losses import delta_of

Number = TypeVar("Number", int, float)
AUTO, CERTIFIED = "auto", "certified"
HIGHEST = 50
"""The rank up to which certified ranks grow where nothing else is said."""


@dataclass(frozen=True)
class Free:
    """What is to be searched for: the ranks, the weights, whether modes have offsets, or several.

    certified : whether ranks are found by growth, during the fit itself
    held_out : what is held out to judge on; "auto" for what most of the gaps are
    center : whether to subtract an offset per mode, or the mean only, is to be found
    """

    ranks: bool
    C: bool
    certified: bool = False
    held_out: KindLike | Kind = AUTO
    center: bool = False

    @property
    def numbers(self) -> bool:
        """Whether numbers are searched for: factors that are found with them are then kept."""
        return self.ranks or self.C

    @property
    def anything(self) -> bool:
        return self.numbers or self.center

    @classmethod
    def of(
        cls,
        ranks: object,
        C: object,
        held_out: KindLike | Kind = AUTO,
        center: object = False,
        constraints: Constraints | None = None,
    ) -> Free:
        if isinstance(ranks, str) and ranks not in (AUTO, CERTIFIED):
            raise InvalidConfig(
                f"ranks is {ranks!r}; give one rank per mode, 'auto' or 'certified'"
            )
        if isinstance(C, str) and C != AUTO:
            raise InvalidConfig(f"C is {C!r}; give a positive number, or 'auto'")
        certified = isinstance(ranks, str) and ranks == CERTIFIED
        is_auto = isinstance(ranks, str) and not certified
        open_center = is_auto if center is None else isinstance(center, str) and center == AUTO
        free_center = open_center and not constraints  # with which there are no offsets per mode
        return cls(is_auto, isinstance(C, str), certified, held_out, free_center)

    def check(
        self,
        store: ObservationStore,
        validation: ObservationStore | None,
        tau: tuple[int, ...] | None,
    ) -> None:
        """Refuse to hold out what no completion could predict, and to do so for nothing."""
        if self.held_out == AUTO:
            return
        kind = Kind.of(self.held_out, store.order, store.dimension_names)
        if validation is not None or not self.anything:
            found = "validation is given" if self.anything else "nothing is searched for"
            raise InvalidInput(
                f"held_out is {self.held_out!r}, but {found}, so nothing has to be held out; "
                "leave it out"
            )
        mode = kind.mode if kind.what == SLICES else None
        if store.order == 2 and kind.what == FIBRES and kind.mode is not None:
            mode = 1 - kind.mode  # fibres of a matrix are slices
        if mode is not None and (tau is None or tau[mode] == 1):
            raise InvalidInput(
                f"{kind} cannot be held out: low rank predicts nothing of a slice without "
                "observations; hold out fibres or entries, or give a Hankel structure in that mode"
            )


def settings_for(
    store: ObservationStore,
    free: Free,
    constraints: Constraints,
    *,
    ranks: object,
    C: object,
    lambdas: object,
    center: bool | str | None,
    validation: ObservationStore | None,
    loss: object = None,
    max_ranks: object = None,
    **others: Any,
) -> FitSettings:
    """Checked settings, with numbers that will do in the place of those to be searched for.

    Of constraints only a Hankel structure is in them: the others need a place for their rows.
    """
    _check_store("the observations", store)
    if validation is not None:
        _check_store("validation", validation)
    constraints.check_shape(store.shape)
    if others.get("inner") == "alternating" and constraints.linear:
        raise InvalidInput("inner='alternating' takes bounds, not Linear constraints; use 'joint'")
    huber = delta_of(loss, store)
    hankel = constraints.hankel
    check_combination(
        others.get("method", AUTO), huber, hankel is not None, bool(constraints.linear)
    )
    if max_ranks is not None and not free.certified:
        raise InvalidConfig("max_ranks goes with ranks='certified', which grow up to them")
    if free.certified:
        ranks = _highest_ranks(store, hankel.tau if hankel else None, max_ranks)
    settings = FitSettings(
        ranks=(1,) * store.order if free.ranks else numbers("ranks", ranks, int),
        certified=free.certified,
        C=1.0 if free.C else cast(float, C),
        lambdas=None if lambdas is None else numbers("lambdas", lambdas, float),
        center=_centring(center, free, constraints),
        constraint=hankel.to_dict() if hankel else None,
        huber=huber,
        **others,
    )
    settings.check_shape(store.shape)
    free.check(store, validation, settings.tau)
    if settings.patience is not None and validation is None:
        raise InvalidConfig(
            f"patience is {settings.patience}, but there are no held-out observations to be "
            "patient with; patience needs `validation`: give a store"
        )
    if validation is not None and validation.shape != store.shape:
        raise InvalidInput(
            f"the validation store has shape {validation.shape}, the observations {store.shape}; "
            f"they must be entries of the same tensor"
        )
    return settings


def _centring(center: bool | str | None, free: Free, constraints: Constraints) -> bool | str:
    """What is subtracted, or what will do in its place as long as that is not known."""
    if center == MODES and constraints:
        raise InvalidConfig(WITHOUT_CONSTRAINTS)
    if center is None:
        return free.ranks and not constraints.hankel
    if center == AUTO:
        return not constraints.hankel
    return center


def _check_store(name: str, given: object) -> None:
    """Refuse an array, or a path, where there has to be a store."""
    if not isinstance(given, ObservationStore):
        kind = type(given).__name__
        raise InvalidInput(
            f"{name} must be a store, not of type {kind}; make one with "
            "slrt.from_array(path, array), or open one with slrt.open_store(path)"
        )


def _highest_ranks(
    store: ObservationStore, tau: tuple[int, ...] | None, given: object
) -> tuple[int, ...]:
    """Up to where certified ranks may grow: as given, but never beyond what a mode can have."""
    offsets = tau or (1,) * store.order
    lengths = tuple(n - t + 1 for n, t in zip(store.shape, offsets, strict=True))
    if given is None:
        given = HIGHEST
    if isinstance(given, int) and not isinstance(given, bool):
        given = (given,) * store.order
    wanted = numbers("max_ranks", given, int)
    if len(wanted) != store.order or any(rank < 1 for rank in wanted):
        raise InvalidConfig(f"max_ranks is {given!r}; give one positive number per mode, or one")
    return tuple(min(pair) for pair in zip(wanted, lengths, strict=True))


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
