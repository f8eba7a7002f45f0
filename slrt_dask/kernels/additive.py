"""Passes over observations for a model that adds up one number per index of every mode.

The unknowns of all modes are one vector: the first is added to every entry, and mode k's begin at
`starts[k]`. Values may be float32; every sum is kept in float64.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def residual_sums(columns, starts, unknowns, y, scale, limit, sums):
    """Add scale · y − model to sums, at the places of all unknowns that an entry has a part of.

    Residuals are clipped to ±limit, which may be infinite. Returns the sum of their squares. With
    scale 0 and no limit the sums are a product with the normal matrix.
    """
    squares, whole = 0.0, 0.0
    for e in range(y.size):
        residual = scale * np.float64(y[e]) - unknowns[0]
        for mode in range(len(columns)):
            residual -= unknowns[starts[mode] + columns[mode][e]]
        residual = min(max(residual, -limit), limit)
        for mode in range(len(columns)):
            sums[starts[mode] + columns[mode][e]] += residual
        whole += residual
        squares += residual * residual
    sums[0] += whole
    return squares


@njit(nogil=True, cache=True)
def subtract(columns, starts, unknowns, values):
    """Take the model away from values, in place."""
    for e in range(values.size):
        value = np.float64(values[e]) - unknowns[0]
        for mode in range(len(columns)):
            value -= unknowns[starts[mode] + columns[mode][e]]
        values[e] = value
