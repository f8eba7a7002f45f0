"""Mixing of 64-bit integers (splitmix64), for decisions that must not depend on order.

Not cryptography. The numbers decide which observations are held out, so changing them changes
every split ever made: this module should not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


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
