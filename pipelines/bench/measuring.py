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
SPIN_STEPS = 40_000_000


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


@njit(nogil=True)
def _spin(steps):
    a, b, c, d, e, f = 1, 2, 3, 4, 5, 6
    for i in range(steps):
        a, b, c = (a ^ (b >> 3)) + i, (b + (c << 1)) ^ i, (c ^ d) + a
        d, e, f = (d + e) ^ (a >> 1), (e ^ f) + i, (f + a) ^ (d >> 5)
    return a + b + c + d + e + f


def spinning(threads: int, steps: int = SPIN_STEPS) -> Callable[[], object]:
    """A call in which every thread does the same arithmetic in registers.

    It uses no memory and never waits, so it shows what a second thread gains on this machine at
    best: other programs may use the same cores.
    """
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(_spin, [steps] * threads))


@njit(nogil=True)
def _triad(target, left, right):
    for position in range(target.size):
        target[position] = left[position] + 3.0 * right[position]


def bandwidth() -> float:
    """Bytes that one core reads and writes in a second, in long vectors."""
    left, right, target = (np.ones(TRIAD_NUMBERS) for _ in range(3))
    (seconds,) = in_turns(lambda: _triad(target, left, right), repeats=5)
    return 3 * target.nbytes / seconds
