"""Passes over the vectors of a conjugate gradient iteration, fused so that each is read once.

Vectors may be float32; every sum is kept in float64.
"""

from __future__ import annotations

from numba import njit

from slrt_dask.kernels.rows import FAST_MATH


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def add_gathered(rows, table, weight, out):
    """out[e] += weight * table[rows[e]]."""
    for e in range(out.size):
        out[e] += weight * table[rows[e]]


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def dot(left, right):
    """Inner product of two vectors."""
    total = 0.0
    for e in range(left.size):
        total += float(left[e]) * float(right[e])
    return total


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def precondition(r, inverse_diagonal, shift, u, w):
    """u = r * inverse_diagonal and w = shift * u, ready for a product to be added to w."""
    for e in range(r.size):
        u[e] = r[e] * inverse_diagonal[e]
        w[e] = shift * u[e]


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def conjugate_step(x, r, p, s, u, w, alpha, beta):
    """Advance a conjugate gradient iteration in which w = A u and s = A p.

    p ← u + βp,  s ← w + βs,  x ← x + αp,  r ← r − αs
    """
    for e in range(x.size):
        direction = u[e] + beta * p[e]
        image = w[e] + beta * s[e]
        p[e] = direction
        s[e] = image
        x[e] += alpha * direction
        r[e] -= alpha * image


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def solution_products(x, r, b):
    """(⟨b, x⟩, ⟨r, x⟩, ⟨x, x⟩, ⟨r, r⟩) in one pass."""
    bx, rx, xx, rr = 0.0, 0.0, 0.0, 0.0
    for e in range(x.size):
        value, residual = float(x[e]), float(r[e])
        bx += float(b[e]) * value
        rx += residual * value
        xx += value * value
        rr += residual * residual
    return bx, rx, xx, rr


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def sweep_products(r, u, w):
    """(⟨r, u⟩, ⟨u, w⟩) in one pass."""
    ru, uw = 0.0, 0.0
    for e in range(r.size):
        value = float(u[e])
        ru += float(r[e]) * value
        uw += value * float(w[e])
    return ru, uw
