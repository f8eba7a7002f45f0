"""How everything here is measured: sides in turns, medians, and what the memory can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numba import njit

REPEATS = 15
TRIAD_NUMBERS = 20_000_000
SPIN_NUMBERS = 2048


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    what: str
    ratio: str
    measured: str


def in_turns(*sides: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Median seconds of each side, the sides taking turns."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for _ in range(repeats):
        for side, seconds in zip(sides, times, strict=True):
            began = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in times]


@njit(nogil=True, fastmath=True)
def _spin(numbers, times):
    total = 0.0
    for _ in range(times):
        for place in range(numbers.size):
            total += numbers[place] * numbers[place]
    return total


def spinning(threads: int, times: int = 40_000) -> Callable[[], object]:
    """A call in which threads add up products, each in a core's own cache: what the machine gives.

    Every thread does the same work, so two would take as long as one.
    """
    pool = ThreadPoolExecutor(threads)
    parts = [np.ones(SPIN_NUMBERS) for _ in range(threads)]
    return lambda: list(pool.map(lambda numbers: _spin(numbers, times), parts))


@njit(nogil=True)
def _triad(target, left, right):
    for position in range(target.size):
        target[position] = left[position] + 3.0 * right[position]


def bandwidth() -> float:
    """Bytes that one core reads and writes in a second, in long vectors."""
    left, right, target = (np.ones(TRIAD_NUMBERS) for _ in range(3))
    (seconds,) = in_turns(lambda: _triad(target, left, right), repeats=5)
    return 3 * target.nbytes / seconds
