"""What an iteration of conjugate gradients does where its sums cross slabs, in strips.

Each slice has entries all over the slab mode's fibre sums, which are larger than a cache. A strip
is a range of fibre numbers. Where the entries of a slice are sorted by fibre, those of a strip
follow each other in it: one strip serves all slices before the next one does, and stays in a cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from slrt_dask.kernels.blocks import BlockIndex
from slrt_dask.kernels.simd import FAST_MATH, add_scaled_row, prefetch_row, row_product
from slrt_dask.kernels.sweeps import AHEAD

STRIP_BYTES = 2**19
"""Of fibre sums in a strip; an iteration reads one such and writes another."""
SHORTEST = 32
"""Entries that a strip must have in a slice, on average: each such run begins anew."""


def strip_borders(fibres: int, width: int, entries: int, slices: int) -> NDArray[np.int64]:
    """The fibre numbers between which strips lie, from 0 to `fibres`; about equally many in each.

    width : of the fibre sums
    """
    most = max(1, entries // (SHORTEST * max(1, slices)))
    strips = min(most, -(-fibres * width * 8 // STRIP_BYTES))
    return np.linspace(0, fibres, max(1, strips) + 1).astype(np.int64)


@njit(nogil=True, cache=True)
def strip_bounds(starts, fibres, borders):
    """Where in every slice each strip begins: (borders, slices) positions, the last being its end.

    Without rows if there is a slice whose entries are not sorted by fibre.
    """
    bounds = np.empty((borders.size, starts.size - 1), dtype=np.int64)
    for s in range(starts.size - 1):
        e = starts[s]
        for number in range(borders.size):
            while e < starts[s + 1] and fibres[e] < borders[number]:
                if e > starts[s] and fibres[e] < fibres[e - 1]:
                    return bounds[:0]
                e += 1
            bounds[number, s] = e
    return bounds


def strips_of(index: BlockIndex, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Borders and bounds of a block's strips, for fibre sums of a width."""
    fibres, count = index.fibres[index.slab_mode], index.buffer_rows[index.slab_mode]
    borders = strip_borders(count, width, index.entries, index.slices)
    bounds = strip_bounds(index.starts, fibres, borders)
    if len(bounds):
        return borders, bounds
    # Entries that were added later are not sorted by fibre: one strip is all.
    return np.array([0, count]), np.stack([index.starts[:-1], index.starts[1:]])


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def crossing_step(
    borders, bounds, rows, fibres, sums, factor, lanes, weight, x, r, p, s, w, alpha, beta, new_sums
):
    """All that an iteration of conjugate gradients does between two local products, in one pass.

    Completes w = A r with the slab mode's fibre sums (`sweeps.sample`), makes the step
    (`vectors.conjugate_step`), and adds the new residual to new fibre sums (`sweeps.fibre_sums`).
    Returns ⟨r, r⟩. In a slice all entries have one row.

    borders, bounds : of strips (`strip_bounds`)
    """
    rr = 0.0
    for strip in range(borders.size - 1):
        _prefetch(sums, new_sums, borders[strip], borders[strip + 1], lanes)
        for number in range(bounds.shape[1]):
            first, stop = bounds[strip, number], bounds[strip + 1, number]
            if first == stop:
                continue
            row = rows[first]
            for e in range(first, stop):
                ahead = fibres[min(e + AHEAD, r.size - 1)]
                prefetch_row(sums, ahead, lanes)
                prefetch_row(new_sums, ahead, lanes)
                product = w[e] + weight * row_product(factor, row, sums, fibres[e], lanes)
                direction = r[e] + beta * p[e]
                image = product + beta * s[e]
                p[e] = direction
                s[e] = image
                x[e] += alpha * direction
                residual = np.float64(r[e] - alpha * image)
                r[e] = residual
                rr += residual * residual
                add_scaled_row(new_sums, fibres[e], residual, factor, row, lanes)
    return rr


@njit(nogil=True, cache=True, inline="always")
def _prefetch(sums, new_sums, first, stop, lanes):
    """Ask for all of a strip, if a cache can hold it.

    Rows that are asked for one after the other come much faster than as they are needed, and where
    there are few entries for a fibre they wait for nothing else.
    """
    if (stop - first) * sums.shape[1] * 8 <= 4 * STRIP_BYTES:
        for f in range(first, stop):
            prefetch_row(sums, f, lanes)
            prefetch_row(new_sums, f, lanes)
