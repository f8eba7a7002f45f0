"""What an iteration of conjugate gradients does where its sums cross slabs, in strips.

Each slice has entries all over the slab mode's fibre sums, which are larger than a cache. A strip
is a range of fibre numbers. Where the entries of a slice are sorted by fibre, those of a strip
follow each other in it: one strip can serve all slices before the next one does, and threads can
take strips of one matrix of sums without ever touching the same numbers.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit

from slrt_dask.kernels.rows import (
    FAST_MATH,
    add_scaled_row,
    clear_row,
    prefetch_row,
    row_product,
)
from slrt_dask.kernels.sweeps import AHEAD
from slrt_dask.kernels.turns import DONE, GIVEN_UP, TAKEN, count_of, count_up, vector_at

STRIP_BYTES = 2**20
"""Of fibre sums in the largest strip; an iteration reads one such and writes another."""
SHARES = 8
"""Of a thread's part of all fibres, how much the smallest strips are; it waits for the last one."""
SHORTEST = 32
"""Entries that a strip must have in a slice, on average: each such run begins anew."""


@lru_cache(maxsize=64)
def strip_borders(
    fibres: int, width: int, entries: int, slices: int, threads: int
) -> tuple[int, ...]:
    """The fibre numbers between which strips lie, from 0 to `fibres`; smaller ones come later.

    width : of the fibre sums;  entries, slices : of all blocks;  threads : that will take strips
    """
    shortest = max(1, -(-SHORTEST * slices * fibres // max(1, entries)))
    largest = max(shortest, STRIP_BYTES // (8 * width))
    smallest = min(largest, max(shortest, fibres // (SHARES * threads)))
    borders = [0]
    while borders[-1] < fibres:
        left = fibres - borders[-1]
        wanted = left if threads == 1 else max(smallest, left // (2 * threads))
        length = min(left, wanted, largest)
        # No rest that is hardly worth a turn.
        borders.append(fibres if 2 * (left - length) < smallest else borders[-1] + length)
    return tuple(borders)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def fill_bounds(starts, fibres, borders, bounds):
    """Fill in what `strip_bounds` returns; whether the entries of every slice are sorted."""
    for s in range(starts.size - 1):
        e = starts[s]
        for number in range(borders.size):
            while e < starts[s + 1] and fibres[e] < borders[number]:
                if e > starts[s] and fibres[e] < fibres[e - 1]:
                    return False
                e += 1
            bounds[number, s] = e
    return True


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def strip_bounds(starts, fibres, borders):
    """Where in every slice each strip begins: (borders, slices) positions, the last being its end.

    Without rows if there is a slice whose entries are not sorted by fibre.
    """
    bounds = np.empty((borders.size, starts.size - 1), dtype=np.int64)
    if fill_bounds(starts, fibres, borders, bounds):
        return bounds
    return np.empty((0, 0), dtype=np.int64)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def crossing_step(
    firsts, stops, rows, fibres, sums, factor, lanes, weight, r, s, w, alpha, beta,
    new_sums, moves, x, p, alpha_before, beta_before,
):  # fmt: skip
    """All that an iteration of conjugate gradients does between two local products, in one pass.

    Completes w = A r with the slab mode's fibre sums (`sweeps.sample`), makes the step, and adds
    the new residual to new fibre sums (`sweeps.fibre_sums`). Returns ⟨r, r⟩ of what was done. In a
    slice all entries have one row.

    firsts, stops : (slices,) the entries of every slice that this is done for
    moves : whether x and p are moved, by this step and by the one before, which has left them for
        it (`vectors.conjugate_steps`): passes over vectors are what such steps wait for. If not,
        any vectors will do for them
    alpha_before, beta_before : of the step that has left them
    """
    rr = 0.0
    for number in range(firsts.size):
        first, stop = firsts[number], stops[number]
        if first == stop:
            continue
        row = rows[first]
        for e in range(first, stop):
            ahead = fibres[min(e + AHEAD, r.size - 1)]
            prefetch_row(sums, ahead, lanes)
            prefetch_row(new_sums, ahead, lanes)
            product = w[e] + weight * row_product(factor, row, sums, fibres[e], lanes)
            image = product + beta * s[e]
            if moves:
                before = r[e] + alpha_before * s[e] + beta_before * p[e]
                direction = r[e] + beta * before
                p[e] = direction
                x[e] += alpha_before * before + alpha * direction
            s[e] = image
            residual = np.float64(r[e] - alpha * image)
            r[e] = residual
            rr += residual * residual
            add_scaled_row(new_sums, fibres[e], residual, factor, row, lanes)
    return rr


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def prepare_strip(sums, new_sums, first, stop, lanes, fresh):
    """Clear a strip's new sums, if they are fresh, and ask for all of it, if a cache can hold it.

    Rows that are asked for one after the other come much faster than as they are needed, and where
    there are few entries for a fibre they wait for nothing else.
    """
    asked = (stop - first) * sums.shape[1] * 8 <= 2 * STRIP_BYTES
    for f in range(first, stop):
        if asked:
            prefetch_row(sums, f, lanes)
        if fresh:
            clear_row(new_sums, f, lanes)
        elif asked:
            prefetch_row(new_sums, f, lanes)


ENTRIES, SLICES, STEP, BOUNDS, ROWS, FIBRES, R, S, W, X, P = range(11)
"""What `crossing_turns` is told of a block: lengths, and addresses. Bounds tell where in each slice
the first strip begins, and a step further where the next one does; rows and fibres are the slab
mode's."""


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def crossing_turns(
    counters, borders, blocks, indices, kinds, numbers, sums, factor, lanes, weight, alpha, beta,
    new_sums, fresh, moves, alpha_before, beta_before, squares,
):  # fmt: skip
    """`crossing_step` for one strip of all blocks after the other, as this thread gets its turns.

    Returns whether it has done the last one.

    counters : see `turns`
    borders : (strips + 1,) fibre numbers between which strips lie
    blocks : (blocks, 11) what there is to know of them
    indices, kinds, numbers : arrays of the kinds that rows, fibres and vectors have
    new_sums, fresh : cleared here, strip by strip, if they are fresh; else added to
    squares : (strips,) for ⟨r, r⟩ of each
    """
    last = False
    while True:
        strip = count_up(counters, TAKEN)
        if strip >= borders.size - 1 or count_of(counters, GIVEN_UP):
            return last
        prepare_strip(sums, new_sums, borders[strip], borders[strip + 1], lanes, fresh)
        rr = 0.0
        for number in range(blocks.shape[0]):
            block = blocks[number]
            slices, entries = block[SLICES], block[ENTRIES]
            firsts = block[BOUNDS] + 8 * block[STEP] * strip
            rr += crossing_step(
                vector_at(firsts, slices, borders),
                vector_at(firsts + 8 * block[STEP], slices, borders),
                vector_at(block[ROWS], entries, indices), vector_at(block[FIBRES], entries, kinds),
                sums, factor, lanes, weight, vector_at(block[R], entries, numbers),
                vector_at(block[S], entries, numbers), vector_at(block[W], entries, numbers),
                alpha, beta, new_sums, moves, vector_at(block[X], entries, numbers),
                vector_at(block[P], entries, numbers), alpha_before, beta_before,
            )  # fmt: skip
        squares[strip] = rr
        last = count_up(counters, DONE) == borders.size - 2
