"""Products with the operator where most of a slice is observed: dense tiles and matrix products.

A slice's entries are put into a dense array of zeros, the tile; the products of all the modes that
do not leave the slice are made of that by BLAS; and the outcome is read off at the entries. Against
`sweeps.apply_slices` this makes products where nothing is observed too, but each at a small part of
the cost, and it goes through the entries twice for all modes instead of three times for each.

`places[e]` says where in its slice entry e is, in C order of the modes that remain: the number of
its slab mode's fibre, where every possible fibre has a number. All arithmetic is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from slrt_dask.kernels.rows import FAST_MATH

Matrix = NDArray[np.float64]
Room = Callable[[Hashable, tuple[int, ...], Any], NDArray[Any]]
"""Gives room for an array by key, shape and type."""


def apply_tiles(
    starts: NDArray[np.int64],
    places: NDArray[np.integer[Any]],
    x: NDArray[np.floating[Any]],
    gathers: tuple[Matrix, ...],
    scatters: tuple[Matrix, ...],
    weights: tuple[float, ...],
    room: Room,
    out: NDArray[np.floating[Any]],
    fresh: bool,
    shift: float,
) -> float:
    """out += Σ_k weight_k (X ×_k scatter_k gather_kᵀ) at the entries; ⟨x, what was added⟩.

    gathers, scatters : (n_k, width_k) for each mode of a slice
    fresh : whether out is shift · x before, whatever it was
    """
    # What came over a wire may be of another kind to the compiler, and all have to be of one.
    gathers = tuple(np.require(matrix, requirements=("C", "A", "W")) for matrix in gathers)
    lengths = tuple(matrix.shape[0] for matrix in gathers)
    widths = tuple(matrix.shape[1] for matrix in gathers)
    weighted = tuple(weight * matrix for weight, matrix in zip(weights, scatters, strict=True))
    tile, made = (room(("tile", name), lengths, np.float64) for name in ("tile", "made"))
    flat = tile.reshape(-1), made.reshape(-1)
    if len(lengths) == 2:
        left, right = (
            room(("tile", mode), (sum(widths), lengths[mode]), np.float64) for mode in (0, 1)
        )
        left[: widths[0]], right[widths[0] :] = weighted[0].T, weighted[1].T
        sides = left, left[widths[0] :], right, right[: widths[0]]
        return float(
            _apply_to_matrices(
                starts, places, x, *gathers, tile, made, *sides, *flat, out, fresh, shift
            )
        )
    part = room(("tile", "part"), (math.prod(lengths),), np.float64)
    sums = room(("tile", "sums"), (_most_sums(lengths, widths),), np.float64)
    return float(
        _apply_to_tensors(
            starts, places, x, gathers, weighted, *flat, part, sums, out, fresh, shift
        )
    )


def tile_bytes(lengths: tuple[int, ...], widths: tuple[int, ...]) -> int:
    """Bytes of the room that `apply_tiles` asks for."""
    if len(lengths) == 2:
        return 8 * (2 * math.prod(lengths) + sum(widths) * sum(lengths))
    return 8 * (3 * math.prod(lengths) + _most_sums(lengths, widths))


def _most_sums(lengths: tuple[int, ...], widths: tuple[int, ...]) -> int:
    """Numbers in the fibre sums of a slice, in the mode in which there are the most."""
    cells = math.prod(lengths)
    return max(width * (cells // length) for length, width in zip(lengths, widths, strict=True))


@njit(nogil=True, cache=True, fastmath=FAST_MATH, inline="always")
def _fill(first, stop, places, x, tile):
    for place in range(tile.size):
        tile[place] = 0.0
    for e in range(first, stop):
        tile[places[e]] = x[e]


@njit(nogil=True, cache=True, fastmath=FAST_MATH, inline="always")
def _read_off(first, stop, places, x, made, out, fresh, shift):
    energy = 0.0
    for e in range(first, stop):
        added, value = made[places[e]], np.float64(x[e])
        out[e] = added + (shift * value if fresh else np.float64(out[e]))
        energy += added * value
    return energy


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def _apply_to_matrices(
    starts, places, x, gather_a, gather_b, tile, made,
    left, left_sums, right, right_sums, flat_tile, flat_made, out, fresh, shift,
):  # fmt: skip
    """Slices of two modes. S_a (G_aᵀ X) + (X G_b) S_bᵀ is one product of two wide matrices.

    left : [S_a, X G_b]ᵀ, of which the sums are the second part
    right : [G_aᵀ X; S_bᵀ], of which the sums are the first part
    """
    energy = 0.0
    for s in range(starts.size - 1):
        first, stop = starts[s], starts[s + 1]
        _fill(first, stop, places, x, flat_tile)
        np.dot(gather_a.T, tile, right_sums)
        np.dot(gather_b.T, tile.T, left_sums)
        np.dot(left.T, right, made)
        energy += _read_off(first, stop, places, x, flat_made, out, fresh, shift)
    return energy


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def _apply_to_tensors(
    starts, places, x, gathers, scatters, tile, made, part, sums, out, fresh, shift
):
    """Slices of any number of modes, one after the other."""
    energy = 0.0
    for s in range(starts.size - 1):
        first, stop = starts[s], starts[s + 1]
        _fill(first, stop, places, x, tile)
        before, after = 1, tile.size // gathers[0].shape[0]
        _multiply(gathers[0], scatters[0], before, after, tile, made, sums)
        for mode in range(1, len(gathers)):
            before *= gathers[mode - 1].shape[0]
            after //= gathers[mode].shape[0]
            _multiply(gathers[mode], scatters[mode], before, after, tile, part, sums)
            for place in range(made.size):
                made[place] += part[place]
        energy += _read_off(first, stop, places, x, made, out, fresh, shift)
    return energy


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def _multiply(gather, scatter, before, after, tile, part, sums):
    """part = tile ×_k scatter gatherᵀ, there being `before` and `after` places around mode k."""
    length, width = gather.shape
    if after == 1:
        rows = sums[: before * width].reshape(before, width)
        np.dot(tile.reshape(before, length), gather, rows)
        np.dot(rows, scatter.T, part.reshape(before, length))
        return
    fibres = sums[: width * after].reshape(width, after)
    pieces = tile.reshape(before, length, after)
    products = part.reshape(before, length, after)
    for piece in range(before):
        np.dot(gather.T, pieces[piece], fibres)
        np.dot(scatter, fibres, products[piece])
