"""What a completed tensor may be asked to satisfy, in the words of the caller.

A constraint is a plain value: checked when it is made, written into a run's settings as a table,
and read from there. What it means for the dual problem is the business of `dual`.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slrt_dask.data.location import normal_path
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.errors import CheckpointMismatch, InvalidConfig, InvalidInput

BOUNDS_KEYS = ("lower", "upper", "where", "mode", "digest")
MOST_PLACES = 100_000
"""Places that a constraint may name itself; more of them belong into a store."""
Bound = float | tuple[float, ...] | None
Places = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Bounds:
    """lower ≤ W ≤ upper at some entries of the tensor.

    lower, upper : a number, one number for every index of `mode`, or None for no bound
    where : "all" entries; the "observed" ones; those of a store (or its path); or those of an index
        array (K, m), up to 100,000 of them. Only "all" needs the whole tensor to be looked through
    mode : which mode a bound that is not a single number runs along

    digest : of the store that says where, once a run depends on it

    Observed values may lie outside: they are noisy. Bounds are in the units of the data, also with
    `center=True`.
    """

    lower: Bound = None
    upper: Bound = None
    where: Any = "all"
    mode: int | None = None
    digest: str = ""

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _checked_bound(name, getattr(self, name)))
        object.__setattr__(self, "where", _checked_where(self.where))
        lengths = {len(bound) for bound in (self.lower, self.upper) if isinstance(bound, tuple)}
        if lengths and self.mode is None:
            raise InvalidInput("a bound with several numbers needs the mode it runs along: mode=…")
        if len(lengths) > 1:
            raise InvalidInput(f"lower and upper have different lengths: {sorted(lengths)}")
        if self.mode is not None and (
            isinstance(self.mode, bool) or not isinstance(self.mode, int)
        ):
            raise InvalidInput(f"mode is {self.mode!r}; give the number of a mode, the first is 0")
        if self.lower is None and self.upper is None:
            raise InvalidInput("give a lower bound, an upper one, or both")
        low, high = self._vectors(max(lengths, default=1))
        if (low > high).any():
            place = int(np.argmax(low > high))
            raise InvalidInput(
                f"the lower bound {low[place]:g} is above the upper bound {high[place]:g}"
                + (f" at index {place} of mode {self.mode}" if lengths else "")
                + "; no tensor satisfies both"
            )

    @property
    def everywhere(self) -> bool:
        return isinstance(self.where, str) and self.where == "all"

    @property
    def where_store(self) -> str | None:
        """The path of a store that says where the bounds hold."""
        named = isinstance(self.where, str) and self.where not in ("all", "observed")
        return str(self.where) if named else None

    @property
    def where_places(self) -> NDArray[np.int64] | None:
        """Places (K, m) where the bounds hold, if they were given as such."""
        return None if isinstance(self.where, str) else np.array(self.where, dtype=np.int64)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse what cannot be bounds of a tensor of this shape."""
        if self.mode is not None:
            if not 0 <= self.mode < len(shape):
                raise InvalidInput(
                    f"mode {self.mode} of the bounds is not one of {len(shape)} modes"
                )
            for name in ("lower", "upper"):
                bound = getattr(self, name)
                if isinstance(bound, tuple) and len(bound) != shape[self.mode]:
                    raise InvalidInput(
                        f"{name} has {len(bound)} numbers, mode {self.mode} {shape[self.mode]} "
                        f"indices; give one for each"
                    )
        places = self.where_places
        if places is not None:
            check_places(places, shape)
        store = self.open_where()
        if store is not None and store.shape != tuple(shape):
            raise InvalidInput(
                f"the bounds hold where {store.path} has entries, a tensor of shape {store.shape}, "
                f"but the observations have shape {shape}"
            )

    def open_where(self) -> ObservationStore | None:
        """The store that says where the bounds hold, if one does and it is still the same."""
        if self.where_store is None:
            return None
        store = open_store(self.where_store)
        if self.digest and store.digest != self.digest:
            raise CheckpointMismatch(
                f"{store.path} holds other places (digest {store.digest[:12]}) than the run was "
                f"made for ({self.digest[:12]}); start a new run"
            )
        return store

    def bound_to_store(self) -> Bounds:
        """The same, good only for what its store holds now."""
        store = self.open_where()
        return self if store is None else replace(self, digest=store.digest)

    def vectors(self, shape: tuple[int, ...]) -> tuple[int, NDArray[Any], NDArray[Any]]:
        """A mode, and for each of its indices the lower and the upper bound."""
        mode = 0 if self.mode is None else self.mode
        return mode, *self._vectors(shape[mode])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _vectors(self, length: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        low = -np.inf if self.lower is None else self.lower
        high = np.inf if self.upper is None else self.upper
        return np.full(length, low, dtype=np.float64), np.full(length, high, dtype=np.float64)


def Nonnegative(where: Any = "all") -> Bounds:
    """W ≥ 0, everywhere or at some entries: `where` is as in `Bounds`, in the units of the data."""
    return Bounds(lower=0.0, where=where)


def bounds_of(table: dict[str, Any]) -> Bounds:
    """Bounds from a table of a file."""
    unknown = sorted(set(table) - set(BOUNDS_KEYS))
    if unknown:
        raise InvalidConfig(
            f"a constraint has no key {unknown[0]!r}; known keys are lower, upper, where, mode, "
            f"or rows, bound, kind"
        )
    return Bounds(**table)


def _checked_bound(name: str, bound: Any) -> Bound:
    if bound is None:
        return None
    try:
        numbers = np.asarray(bound)
    except ValueError as error:
        raise InvalidInput(f"{name} must be one number, or a list of numbers: {error}") from error
    if numbers.dtype.kind not in "iuf" or numbers.ndim > 1 or np.isnan(numbers).any():
        raise InvalidInput(f"{name} is {bound!r}; give a number, or one for every index of a mode")
    empty = -math.inf if name == "lower" else math.inf
    if np.any(np.isinf(numbers) & (numbers != empty)):
        raise InvalidInput(f"{name} is {-empty}; no tensor satisfies that")
    if np.all(numbers == empty):
        return None
    if numbers.ndim == 0:
        return float(numbers)
    return tuple(float(number) for number in numbers)


def _checked_where(where: Any) -> str | Places:
    if isinstance(where, ObservationStore):
        return where.path
    if isinstance(where, (str, os.PathLike)):
        text = os.fspath(where)
        return text if text in ("all", "observed") else normal_path(text)
    return _places_of(where)


def _places_of(where: ArrayLike) -> Places:
    try:
        places = np.asarray(where)
    except ValueError as error:
        raise InvalidInput(f"where must be rows of equal length: {error}") from error
    if places.ndim != 2 or places.dtype.kind not in "iu":
        raise InvalidInput(
            "where must be 'all', 'observed', a store, or whole-number indices of shape (K, m)"
        )
    if places.shape[1] == 0:
        raise InvalidInput("where names no place; give some, or leave the constraint out")
    if places.max() > np.iinfo(np.int64).max:
        raise InvalidInput(f"where has the index {places.max()}, which no tensor has")
    if places.shape[1] > MOST_PLACES:
        raise InvalidInput(
            f"where names {places.shape[1]:,} places, more than {MOST_PLACES:,}; put them into a "
            f"store with from_coo and give that"
        )
    return tuple(tuple(int(index) for index in row) for row in places)


def check_places(places: NDArray[np.int64], shape: tuple[int, ...]) -> None:
    if places.shape[0] != len(shape):
        raise InvalidInput(
            f"where has {places.shape[0]} rows for a tensor of order {len(shape)}; give one a mode"
        )
    for mode, (row, length) in enumerate(zip(places, shape, strict=True)):
        outside = (row < 0) | (row >= length)
        if outside.any():
            number = int(np.argmax(outside))
            raise InvalidInput(
                f"place {number} of where has index {int(row[number])} in mode {mode}, which is "
                f"out of range for the shape {shape}"
            )
