"""The yardstick: one loop nest per mode over index, fibre number and rank, as numba compiles it."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True)
def plain_mode(rows, fibres, x, factor, sums, weight, out):
    """out += weight * (X ×_k U Uᵀ) at the entries, for one mode."""
    rank = factor.shape[1]
    sums[:] = 0.0
    for e in range(x.size):
        for a in range(rank):
            sums[fibres[e], a] += x[e] * factor[rows[e], a]
    for e in range(x.size):
        total = 0.0
        for a in range(rank):
            total += factor[rows[e], a] * sums[fibres[e], a]
        out[e] += weight * total


def plain_product(columns, shape, factors, weights, shift, x, out, room):
    """out = A x with the plain loops; `room` holds K arrays (fibres, rank)."""
    np.multiply(x, shift, out=out)
    for mode, factor in enumerate(factors):
        plain_mode(columns[mode], room["fibres"][mode], x, factor, room["sums"][mode],
                   weights[mode], out)  # fmt: skip


def plain_room(columns, shape, ranks):
    """Fibre numbers and fibre sums of every mode, in the mode's own dense numbering."""
    fibres, sums = [], []
    for mode in range(len(shape)):
        number = np.zeros(len(columns[0]), dtype=np.int64)
        for other, length in enumerate(shape):
            if other != mode:
                number = number * length + columns[other]
        fibres.append(number.astype(np.int32))
        sums.append(np.zeros((int(np.prod(shape)) // shape[mode], ranks[mode])))
    return {"fibres": fibres, "sums": sums}
