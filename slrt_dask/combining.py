"""Several constraints as one: bounds that hold together, and all linear rows in a line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.constraints import Bounds, bounds_of
from slrt_dask.errors import InvalidInput, NotYetAvailable
from slrt_dask.hankel import Hankel, hankel_of
from slrt_dask.linear import Linear, linear_of
from slrt_dask.row_patterns import Coefficients

Table = dict[str, Any]
Constraint = Bounds | Linear | Hankel


@dataclass(frozen=True)
class Constraints:
    """What a completed tensor has to satisfy, all of it."""

    bounds: Bounds | None = None
    linear: tuple[Linear, ...] = ()
    hankel: Hankel | None = None

    def __bool__(self) -> bool:
        return bool(self._all)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse what cannot be constraints of a tensor of this shape."""
        for constraint in self._all:
            constraint.check_shape(shape)

    @property
    def are_stored(self) -> bool:
        """Whether all of it can be written as tables."""
        return all(linear.is_stored for linear in self.linear)

    def stored(self, path: str, shape: tuple[int, ...], slab_mode: int) -> Constraints:
        """The same with large parts in stores below a path, and bound to what stores hold now."""
        linear = tuple(
            rows.stored(f"{path}-{number}", shape, slab_mode)
            for number, rows in enumerate(self.linear)
        )
        bounds = None if self.bounds is None else self.bounds.bound_to_store()
        return Constraints(bounds, linear, self.hankel)

    def to_table(self) -> Table | tuple[Table, ...] | None:
        """As it is written into settings."""
        tables = tuple(constraint.to_dict() for constraint in self._all)
        if len(tables) > 1:
            return tables
        return tables[0] if tables else None

    @property
    def _all(self) -> tuple[Constraint, ...]:
        alone = [one for one in (self.bounds, self.hankel) if one is not None]
        return (*alone, *self.linear)


def constraints_of(value: Any) -> Constraints:
    """Constraints from what a caller gave, or from tables of a file: one, several, or none."""
    if isinstance(value, Constraints):
        return value
    given = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    single = [_one(item) for item in given]
    bounds = [item for item in single if isinstance(item, Bounds)]
    linear = [item for item in single if isinstance(item, Linear)]
    hankel = [item for item in single if isinstance(item, Hankel)]
    joined, rows = _joined_bounds(bounds)
    if len(hankel) > 1:
        raise InvalidInput("Hankel was given twice; give one, with a tau for every mode")
    if hankel and (linear or rows):
        raise NotYetAvailable(
            "Hankel together with linear rows (or with bounds at several sets of places) is not "
            "yet available; give it alone or with one set of bounds"
        )
    return Constraints(joined, (*linear, *rows), hankel[0] if hankel else None)


def _one(value: Any) -> Constraint:
    if isinstance(value, (Bounds, Linear, Hankel)):
        return value
    if not isinstance(value, dict):
        raise InvalidInput(
            f"constraint is {value!r}; give Nonnegative(…), Bounds(…), Linear(…) or Hankel(…), a "
            f"list of these, or leave it out"
        )
    if "tau" in value:
        return hankel_of(value)
    return linear_of(value) if "rows" in value else bounds_of(value)


def _joined_bounds(given: Iterable[Bounds]) -> tuple[Bounds | None, list[Linear]]:
    """One set of bounds, and rows for those at places of their own that it cannot take in."""
    by_place: dict[Any, Bounds] = {}
    for bounds in given:
        held = by_place.get(bounds.where)
        by_place[bounds.where] = bounds if held is None else _together(held, bounds)
    places = [bounds for bounds in by_place.values() if bounds.where_places is not None]
    wide = [bounds for bounds in by_place.values() if bounds.where_places is None]
    if len(wide) > 1:
        names = " and ".join(repr(bounds.where) for bounds in wide)
        raise InvalidInput(
            f"bounds where={names} cannot be combined; give them the same where, or index arrays"
        )
    if not wide and len(places) == 1:
        return places[0], []
    return (wide[0] if wide else None), [rows for bounds in places for rows in _rows(bounds)]


def _together(one: Bounds, other: Bounds) -> Bounds:
    """Both bounds at the same places."""
    modes = {bounds.mode for bounds in (one, other) if bounds.mode is not None}
    if len(modes) > 1:
        raise InvalidInput(
            f"bounds along the modes {sorted(modes)} cannot be combined; give them along one mode, "
            f"or as rows of a Linear constraint"
        )
    lengths = {len(side) for side in _sides(one, other) if isinstance(side, tuple)}
    if len(lengths) > 1:
        raise InvalidInput(
            f"bounds along mode {min(modes)} have different lengths: {sorted(lengths)}"
        )
    return Bounds(
        _tighter(one.lower, other.lower, np.maximum),
        _tighter(one.upper, other.upper, np.minimum),
        where=one.where,
        mode=next(iter(modes), None),
    )


def _sides(*given: Bounds) -> tuple[Any, ...]:
    return tuple(side for bounds in given for side in (bounds.lower, bounds.upper))


def _tighter(one: Any, other: Any, choose: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return choose(np.asarray(one), np.asarray(other))


def _rows(bounds: Bounds) -> list[Linear]:
    """Bounds at places that were given, each as a row of its own."""
    places = bounds.where_places
    assert places is not None
    numbers = np.arange(places.shape[1])
    shape = _covering(bounds, tuple(int(row.max()) + 1 for row in places))
    bounds.check_shape(shape)
    mode, lower, upper = bounds.vectors(shape)
    rows = []
    for kind, side in ((">=", lower), ("<=", upper)):
        limits = side[places[mode]]
        if np.isfinite(limits).any():
            chosen = np.isfinite(limits)
            coefficients = Coefficients(
                int(chosen.sum()), numbers[: chosen.sum()], places[:, chosen],
                np.ones(int(chosen.sum())), (),
            )  # fmt: skip
            rows.append(Linear(coefficients, limits[chosen], kind))
    return rows


def _covering(bounds: Bounds, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that has the length of the bounds' own vectors in their mode."""
    lengths = [len(side) for side in (bounds.lower, bounds.upper) if isinstance(side, tuple)]
    return tuple(
        lengths[0] if mode == bounds.mode and lengths else length
        for mode, length in enumerate(shape)
    )
