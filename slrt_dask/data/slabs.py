"""Arithmetic of slabs: which mode is cut, where it is cut, and in which order entries stand.

Pure integers in memory, no files. A slab is a range of slices of one mode; a partition holds the
entries of one slab in lexicographic order, the slab mode first. This changes when partitions are
to be balanced or ordered differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A histogram of this many bins is 32 MB. A longer mode is counted in bins of several slices, and
# cut at their edges only, so that memory does not grow with the length of the mode.
MOST_BINS = 2**22


@dataclass(frozen=True)
class Slab:
    """`count` entries with slab index in [first, stop)."""

    first: int
    stop: int
    count: int


class SliceHistogram:
    """Counts of entries along the slab mode, gathered batch by batch."""

    def __init__(self, length: int, most_bins: int = MOST_BINS) -> None:
        self.length = length
        self.width = math.ceil(length / most_bins)
        self.counts = np.zeros(math.ceil(length / self.width), dtype=np.int64)

    def add(self, positions: NDArray[np.int64]) -> None:
        self.counts += np.bincount(positions // self.width, minlength=self.counts.shape[0])

    def slabs(self, most_entries: int) -> tuple[Slab, ...]:
        """Slabs that tile the mode, cut as `cut_slices` cuts."""
        return tuple(
            Slab(slab.first * self.width, min(slab.stop * self.width, self.length), slab.count)
            for slab in cut_slices(self.counts, most_entries)
        )


def cut_slices(counts: NDArray[np.int64], most_entries: int) -> tuple[Slab, ...]:
    """Ranges that tile the slices, none empty, with at most `most_entries` entries each.

    Only a single slice with more entries than that may exceed it. There are as few ranges as
    that allows, and among those the largest is as small as it can be: 5 M entries at 2 M become
    three of about 1.67 M, not 2, 2 and 1.
    """
    through = np.cumsum(counts, dtype=np.int64)
    fewest = len(_filled(through, most_entries))
    low, high = 1, most_entries
    while low < high:
        middle = (low + high) // 2
        if len(_filled(through, middle, fewest)) <= fewest:
            high = middle
        else:
            low = middle + 1
    stops = _filled(through, high)
    edges = [0, *stops[:-1], counts.shape[0]]
    reached = [0, *(int(through[stop - 1]) for stop in stops)]
    return tuple(
        Slab(edges[number], edges[number + 1], reached[number + 1] - reached[number])
        for number in range(len(stops))
    )


def choose_slab_mode(shape: Sequence[int]) -> int:
    """The longest mode, the first of them if there are several."""
    return int(np.argmax(np.array(shape, dtype=np.int64)))


def lexicographic_order(
    indices: Sequence[NDArray[np.int64]], shape: Sequence[int], slab_mode: int
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """A stable order by (slab mode, other modes in order), and which entries repeat.

    Returns (order, repeated), both (m,): in that order, repeated[i] says that entry i has the
    same index as the one before it.
    """
    modes = [slab_mode, *(mode for mode in range(len(shape)) if mode != slab_mode)]
    count = indices[0].shape[0]
    repeated = np.zeros(count, dtype=np.bool_)
    if math.prod(shape) < 2**63:
        key = indices[slab_mode].astype(np.int64)
        for mode in modes[1:]:
            key *= shape[mode]
            key += indices[mode]
        order = np.argsort(key, kind="stable")
        key = key[order]
        repeated[1:] = key[1:] == key[:-1]
        return order, repeated
    order = np.lexsort([indices[mode] for mode in reversed(modes)])
    repeated[1:] = True
    for column in indices:
        ordered = column[order]
        repeated[1:] &= ordered[1:] == ordered[:-1]
    return order, repeated


def _filled(through: NDArray[np.int64], capacity: int, most: int | None = None) -> list[int]:
    """Stops of slabs filled one after another up to `capacity`; given up after `most` + 1."""
    total, done = int(through[-1]), 0
    stops: list[int] = []
    while done < total and (most is None or len(stops) <= most):
        stop = int(np.searchsorted(through, done + capacity, side="right"))
        if stop == 0 or int(through[stop - 1]) <= done:
            # The next slice that holds anything exceeds the capacity: it stands alone.
            stop = int(np.searchsorted(through, done, side="right")) + 1
        stops.append(stop)
        done = int(through[stop - 1])
    return stops
