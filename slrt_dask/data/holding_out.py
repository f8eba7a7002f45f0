"""What is held out together: single entries, whole fibres of a mode, or whole slices of one.

Held-out observations stand for what is missing, so they have to be missing in the same way: an
entry is easily predicted from its neighbours in a fibre, and not where the whole fibre is missing.
The choice is made by hashes of indices (splitmix64), so that it depends on no order; other hashes
would change every split ever made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import InvalidInput

ENTRIES, FIBRES, SLICES, AUTO = "entries", "fibres", "slices", "auto"
BATCHES, BATCH_SEED = 256, 11
KindLike = str | tuple[str, int | str]
"""What callers give: "entries", ("fibres", 2) or "fibres:2", ("slices", 0) or "slices:time"."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Kind:
    """Which observations are held out together; `mode` is None for single entries."""

    what: str = ENTRIES
    mode: int | None = None

    @classmethod
    def of(cls, given: object, order: int, names: tuple[str, ...] | None = None) -> Kind:
        """From a word, a pair, or both in one word; a mode is a number, or a dimension's name."""
        if isinstance(given, Kind):
            return given
        if given == ENTRIES:
            return cls()
        pair = given.split(":", 1) if isinstance(given, str) else given
        if isinstance(pair, tuple | list) and len(pair) == 2 and pair[0] in (FIBRES, SLICES):
            mode = _mode_of(pair[1], order, names)
            if mode is not None and (order > 1 or pair[0] == SLICES):
                return cls(str(pair[0]), mode)
        known = "" if names is None else f" or one of {', '.join(names)}"
        raise InvalidInput(
            f"{given!r} is nothing that can be held out; give 'entries', ('fibres', mode) or "
            f"('slices', mode), the mode a number from 0 to {order - 1}{known}"
        )

    def units(self, columns: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        """Of K index arrays (m,), those that say which entries belong together."""
        if self.what == FIBRES:
            return tuple(column for mode, column in enumerate(columns) if mode != self.mode)
        return (columns[self.mode],) if self.mode is not None else tuple(columns)

    def uniform(self, columns: Sequence[NDArray[Any]], seed: int) -> NDArray[np.float64]:
        """A number in [0, 1) for each entry, (m,), the same for those that belong together."""
        # The top 53 bits are a uniform number that a float64 holds exactly.
        hashed = hash_indices(self.units(columns), seed)
        return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def __str__(self) -> str:
        return self.what if self.mode is None else f"{self.what} of mode {self.mode}"

    @property
    def word(self) -> str:
        """As the command line and files have it."""
        return self.what if self.mode is None else f"{self.what}:{self.mode}"


SINGLY = Kind()


def _mode_of(given: object, order: int, names: tuple[str, ...] | None) -> int | None:
    if isinstance(given, str) and names is not None and given in names:
        return names.index(given)
    if isinstance(given, str) and given.isdecimal():
        given = int(given)
    is_number = isinstance(given, int | np.integer) and not isinstance(given, bool)
    return int(given) if is_number and 0 <= int(given) < order else None  # type: ignore[call-overload]


@dataclass(frozen=True)
class SquaredErrors:
    """Sums of squared errors on held-out observations, by batches of what was held out together.

    counts, squares : (BATCHES,), how many observations fell in a batch and their squared errors; or
        the sums of their weights, and of weighted squares
    """

    counts: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        kind: Kind,
        columns: Sequence[NDArray[Any]],
        errors: NDArray[np.float64],
        weights: NDArray[Any] | None = None,
    ) -> SquaredErrors:
        """columns : K index arrays (m,);  errors : predicted less observed, (m,), with weights"""
        batch = (kind.uniform(columns, BATCH_SEED) * BATCHES).astype(np.int64)
        return cls(
            np.bincount(batch, weights, BATCHES).astype(np.float64),
            np.bincount(batch, errors**2 * (1.0 if weights is None else weights), BATCHES).astype(
                np.float64
            ),
        )

    @classmethod
    def none(cls) -> SquaredErrors:
        return cls(np.zeros(BATCHES), np.zeros(BATCHES))

    def __add__(self, other: SquaredErrors) -> SquaredErrors:
        return SquaredErrors(self.counts + other.counts, self.squares + other.squares)

    @property
    def rmse(self) -> float:
        """The root of the mean squared error, weighted where observations have weights."""
        return math.sqrt(self.squares.sum() / (self.counts.sum() or 1.0))

    @property
    def standard_error(self) -> float:
        """Of that root: by how much it would differ on others, held out in the same way.

        Errors of one fibre or slice are alike, so it is what was held out together that counts:
        the variance between batches, carried to the root by its derivative.
        """
        filled = int(np.count_nonzero(self.counts))
        if filled < 2:
            return math.inf
        count, rmse = self.counts.sum(), self.rmse
        if rmse == 0.0:
            return 0.0
        deviations = self.squares - rmse**2 * self.counts
        variance = filled / (filled - 1) * float(deviations @ deviations) / count**2
        return math.sqrt(variance) / (2.0 * rmse)


def mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One splitmix64 step, (m,) to (m,); a bijection of 64-bit numbers."""
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _FIRST_FACTOR
    state = (state ^ (state >> np.uint64(27))) * _SECOND_FACTOR
    return state ^ (state >> np.uint64(31))


def hash_indices(indices: Sequence[NDArray[Any]], seed: int) -> NDArray[np.uint64]:
    """indices : K arrays (m,). A well mixed number (m,) for each index under this seed."""
    state = mixed(np.full(np.shape(indices[0]), seed % 2**64, dtype=np.uint64))
    for column in indices:
        state = mixed(state ^ column.astype(np.uint64))
    return state


def scattered(positions: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """A pseudo-random permutation of 0 … size − 1, evaluated at these positions (m,).

    A Feistel network permutes the next power of four; values that fall outside are sent round
    again until they fall inside, which keeps it a permutation and needs no table.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    found = _feistel(positions.astype(np.uint64), half, seed)
    outside = np.flatnonzero(found >= np.uint64(size))
    while outside.size:
        found[outside] = _feistel(found[outside], half, seed)
        outside = outside[found[outside] >= np.uint64(size)]
    return found.astype(np.int64)


def _feistel(state: NDArray[np.uint64], half: int, seed: int) -> NDArray[np.uint64]:
    low = np.uint64(2**half - 1)
    shift = np.uint64(half)
    left, right = state >> shift, state & low
    for turn in range(6):
        key = np.uint64((seed * 0x2545F4914F6CDD1D + turn * 0x9E3779B97F4A7C15) % 2**64)
        left, right = right, left ^ (mixed(right ^ key) & low)
    return (left << shift) | right
