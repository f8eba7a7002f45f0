"""The three sums over observations of which every product with the operator is made.

For one mode k, `rows[e]` is the index of entry e in mode k and `fibres[e]` the number of its
mode-k fibre. With a factor U of shape (n_k, width):

    fibre sums   T[f] += Σ_{e in f} x_e U[rows[e]]        the columns of Uᵀ X_k
    sampling     out_e += weight · ⟨U[rows[e]], T[f(e)]⟩   entries of the mode product X ×_k U Uᵀ
    row sums     G[i] += Σ_{rows[e] = i} x_e T[f(e)]       X_k Tᵀ, the gradient

The `*_slices` forms serve the modes that do not cross slabs: entries come sorted by slice of the
slab mode, every fibre lies inside one slice, and the fibre sums live in a buffer that is reused
from slice to slice and stays in cache. The `*_runs` forms serve the one of those modes whose
fibres' entries follow each other, if there is one: their sums live in registers. Vectors `x` and
`out` may be float32; all sums are float64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from slrt_dask.kernels.simd import (
    FAST_MATH,
    add_scaled_row,
    clear_row,
    gather_run,
    prefetch_row,
    row_product,
    sample_run,
    scatter_run,
)

AHEAD = 16
"""Fibre sums that cross slabs do not stay in cache, and the order in which they are needed is too
irregular for the processor to foresee: rows are asked for this many entries before they are."""


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def fibre_sums(rows, fibres, x, factor, lanes, sums):
    """sums[fibres[e]] += x[e] * factor[rows[e]] for every entry."""
    for e in range(x.size):
        prefetch_row(sums, fibres[min(e + AHEAD, x.size - 1)], lanes)
        add_scaled_row(sums, fibres[e], np.float64(x[e]), factor, rows[e], lanes)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def sample(rows, fibres, sums, factor, lanes, weight, out):
    """out[e] += weight * <factor[rows[e]], sums[fibres[e]]> for every entry."""
    for e in range(out.size):
        prefetch_row(sums, fibres[min(e + AHEAD, out.size - 1)], lanes)
        out[e] += weight * row_product(factor, rows[e], sums, fibres[e], lanes)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def row_sums(rows, fibres, x, sums, lanes, totals):
    """totals[rows[e]] += x[e] * sums[fibres[e]] for every entry."""
    for e in range(x.size):
        prefetch_row(sums, fibres[min(e + AHEAD, x.size - 1)], lanes)
        add_scaled_row(totals, rows[e], np.float64(x[e]), sums, fibres[e], lanes)


@njit(nogil=True, cache=True, fastmath=FAST_MATH, inline="always")
def _slice_fibre_sums(first, stop, rows, fibres, x, factor, lanes, buffer):
    # Slices of very sparse tensors touch only a small part of the buffer: clearing just that costs
    # one store an entry. Where there are more entries than rows, clearing all of it costs less.
    if stop - first < buffer.shape[0]:
        for e in range(first, stop):
            clear_row(buffer, fibres[e], lanes)
    else:
        for f in range(buffer.shape[0]):
            clear_row(buffer, f, lanes)
    for e in range(first, stop):
        add_scaled_row(buffer, fibres[e], np.float64(x[e]), factor, rows[e], lanes)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def apply_slices(
    starts, rows, fibres, x, gather, scatter, lanes, buffer, weight, out, fresh, shift
):
    """out += weight * (X ×_k scatter gatherᵀ) at the entries, slice by slice; ⟨x, what was added⟩.

    `gather` and `scatter` are both (n_k, width); they are the same matrix in the operator itself
    and differ in its derivative. If `fresh`, out is shift · x before, whatever it was: a product
    that is begun so reads and writes one vector less.
    """
    energy = 0.0
    for s in range(starts.size - 1):
        first, stop = starts[s], starts[s + 1]
        _slice_fibre_sums(first, stop, rows, fibres, x, gather, lanes, buffer)
        for e in range(first, stop):
            part = weight * row_product(scatter, rows[e], buffer, fibres[e], lanes)
            value = np.float64(x[e])
            out[e] = part + (shift * value if fresh else np.float64(out[e]))
            energy += part * value
    return energy


@njit(nogil=True, cache=True, fastmath=FAST_MATH, inline="always")
def _run_stop(fibres, first, end):
    """Where the run of one fibre's entries that begins at `first` is over."""
    stop = first + 1
    while stop < end and fibres[stop] == fibres[first]:
        stop += 1
    return stop


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def apply_runs(starts, rows, fibres, x, gather, scatter, lanes, buffer, weight, out, fresh, shift):
    """The same as `apply_slices` where the entries of every fibre follow each other."""
    energy = 0.0
    for s in range(starts.size - 1):
        first, end = starts[s], starts[s + 1]
        while first < end:
            stop = _run_stop(fibres, first, end)
            gather_run(x, rows, gather, first, stop, buffer, lanes)
            energy += sample_run(
                x, rows, scatter, first, stop, buffer, lanes, weight, out, fresh, shift
            )
            first = stop
    return energy


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def row_sums_runs(starts, rows, fibres, x, factor, lanes, buffer, totals):
    """The same as `row_sums_slices` where the entries of every fibre follow each other."""
    for s in range(starts.size - 1):
        first, end = starts[s], starts[s + 1]
        while first < end:
            stop = _run_stop(fibres, first, end)
            gather_run(x, rows, factor, first, stop, buffer, lanes)
            scatter_run(x, rows, totals, first, stop, buffer, lanes)
            first = stop


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def row_sums_slices(starts, rows, fibres, x, factor, lanes, buffer, totals):
    """totals += X_k (X_kᵀ factor), slice by slice."""
    for s in range(starts.size - 1):
        first, stop = starts[s], starts[s + 1]
        _slice_fibre_sums(first, stop, rows, fibres, x, factor, lanes, buffer)
        for e in range(first, stop):
            add_scaled_row(totals, rows[e], np.float64(x[e]), buffer, fibres[e], lanes)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def derivative_row_sums_slices(
    starts, rows, fibres, x, x_dot, factor, factor_dot, lanes, buffer, buffer_dot, totals
):
    """totals += d/dt [X_k (X_kᵀ factor)] along (x_dot, factor_dot), slice by slice."""
    for s in range(starts.size - 1):
        first, stop = starts[s], starts[s + 1]
        _slice_fibre_sums(first, stop, rows, fibres, x, factor, lanes, buffer)
        _slice_fibre_sums(first, stop, rows, fibres, x, factor_dot, lanes, buffer_dot)
        for e in range(first, stop):
            add_scaled_row(buffer_dot, fibres[e], np.float64(x_dot[e]), factor, rows[e], lanes)
        for e in range(first, stop):
            add_scaled_row(totals, rows[e], np.float64(x[e]), buffer_dot, fibres[e], lanes)
            add_scaled_row(totals, rows[e], np.float64(x_dot[e]), buffer, fibres[e], lanes)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def sample_slices(
    bounds, rows, fibres, x, query_starts, query_rows, query_fibres, factor, lanes, buffer,
    weight, out,
):  # fmt: skip
    """out += weight * (X ×_k factor factorᵀ) at other places than the entries of X.

    `bounds` gives begin and end, among the entries, of each slice in which there are queries. A
    query whose fibre holds no entry gets nothing.
    """
    for s in range(query_starts.size - 1):
        first, stop = query_starts[s], query_starts[s + 1]
        for q in range(first, stop):
            clear_row(buffer, query_fibres[q], lanes)
        _slice_fibre_sums(bounds[0, s], bounds[1, s], rows, fibres, x, factor, lanes, buffer)
        for q in range(first, stop):
            out[q] += weight * row_product(factor, query_rows[q], buffer, query_fibres[q], lanes)
