"""Passes of the alternation over z and s, each solved for with the other fixed.

x = z + s as in `kernels.bounds`; only bounded entries have an s. Vectors may be float32; every sum
is kept in float64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from slrt_dask.kernels.bounds import BOUNDED


@njit(nogil=True, cache=True, inline="always")
def _nearest(value, lower, upper, step):
    """The u that minimises ½ (u − value)² + step · (the price of the multiplier u)."""
    if value + step * lower > 0.0:
        return value + step * lower
    if value + step * upper < 0.0:
        return value + step * upper
    return 0.0


@njit(nogil=True, cache=True)
def projected_step(marks, places, lower, upper, s, gradient, step, change):
    """s takes a step along its gradient, projected; what it changed by is left in `change`."""
    for e in range(s.size):
        change[e] = 0.0
        if int(marks[e]) & BOUNDED:
            old = np.float64(s[e])
            place = places[e]
            new = _nearest(old - step * np.float64(gradient[e]), lower[place], upper[place], step)
            s[e] = new
            change[e] = new - old


@njit(nogil=True, cache=True)
def gradient_sums(marks, places, lower, upper, s, centre, w, mu, change, gradient):
    """The gradient with respect to s at w, and what the next step's length is made of.

    Returns ‖change‖², ⟨change, change of the gradient⟩, and the square of how far a step of length
    one would go: zero at the solution.
    """
    squares, curvature, left = 0.0, 0.0, 0.0
    for e in range(s.size):
        if int(marks[e]) & BOUNDED:
            value, moved = np.float64(s[e]), np.float64(change[e])
            found = np.float64(w[e]) + mu * (value - np.float64(centre[e]))
            squares += moved * moved
            curvature += moved * (found - np.float64(gradient[e]))
            gradient[e] = found
            place = places[e]
            way = _nearest(value - found, lower[place], upper[place], 1.0) - value
            left += way * way
    return squares, curvature, left
