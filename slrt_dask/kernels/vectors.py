"""Passes over the vectors of a conjugate gradient iteration, fused so that each is read once.

Vectors may be float32; every sum is kept in float64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from slrt_dask.kernels.simd import FAST_MATH


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def dot(left, right):
    """Inner product of two vectors."""
    total = 0.0
    for e in range(left.size):
        total += np.float64(left[e]) * np.float64(right[e])
    return total


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def start(source, target, cleared):
    """target ← source, and every vector of the tuple `cleared` ← 0; returns ⟨source, source⟩."""
    squared = 0.0
    for e in range(source.size):
        value = np.float64(source[e])
        target[e] = value
        for vector in cleared:
            vector[e] = 0.0
        squared += value * value
    return squared


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def difference(left, right, out):
    """out ← left − right; returns ⟨out, out⟩.

    In two passes: a sum in the loop that writes would be made in another order where vectors lie
    closer to each other than a few registers are long, and the last bit would depend on that.
    """
    for e in range(out.size):
        out[e] = left[e] - right[e]
    return dot(out, out)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def conjugate_step(x, r, p, s, w, alpha, beta):
    """Advance a conjugate gradient iteration in which w = A r and s = A p; returns ⟨r, r⟩.

    p ← r + βp,  s ← w + βs,  x ← x + αp,  r ← r − αs
    """
    rr = 0.0
    for e in range(x.size):
        direction = r[e] + beta * p[e]
        image = w[e] + beta * s[e]
        p[e] = direction
        s[e] = image
        x[e] += alpha * direction
        residual = r[e] - alpha * image
        r[e] = residual
        rr += np.float64(residual) * np.float64(residual)
    return rr


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def solution_products(x, r, b):
    """(⟨b, x⟩, ⟨r, x⟩, ⟨x, x⟩, ⟨r, r⟩) in one pass."""
    bx, rx, xx, rr = 0.0, 0.0, 0.0, 0.0
    for e in range(x.size):
        value, residual = np.float64(x[e]), np.float64(r[e])
        bx += np.float64(b[e]) * value
        rx += residual * value
        xx += value * value
        rr += residual * residual
    return bx, rx, xx, rr


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def scale(diagonal, x, out):
    """out ← diagonal · x; returns ⟨x, out⟩."""
    product = 0.0
    for e in range(x.size):
        value = np.float64(diagonal[e]) * np.float64(x[e])
        out[e] = value
        product += np.float64(x[e]) * value
    return product


@njit(nogil=True, cache=True)
def clear_where_zero(diagonal, out):
    """out ← 0 where the diagonal is zero."""
    for e in range(out.size):
        if diagonal[e] == 0.0:
            out[e] = 0.0
