"""Passes over the entries of a problem with Huber's loss, which bounds every one of them.

    h(t) = t² where |t| ≤ δ, and 2δ|t| − δ² beyond

Given w, what the model says of an entry, the entry answers with x = 2C (y − w), but never with more
than ±`most` = 2Cδ: from there on it is held, at just that. So an entry whose value is absurd pulls
no harder than one that is off by δ.

Vectors may be float32; every sum is kept in float64.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, inline="always")
def _loss(misfit, delta):
    size = abs(misfit)
    return size * size if size <= delta else delta * (2.0 * size - delta)


@njit(nogil=True, cache=True)
def total_loss(errors, delta):
    """Σ h(errors)."""
    total = 0.0
    for e in range(errors.size):
        total += _loss(np.float64(errors[e]), delta)
    return total


@njit(nogil=True, cache=True)
def turn(z, r, most, beta, p, shift, w):
    """p ← r + βp, r where an entry is free to move and zero where it is held, and w ← shift · p.

    Returns ⟨r, p⟩ and ⟨p, w⟩.
    """
    gain, energy = 0.0, 0.0
    for e in range(z.size):
        free = abs(z[e]) < most
        direction = np.float64((r[e] if free else 0.0) + beta * p[e])
        p[e] = direction
        w[e] = shift * direction
        gain += np.float64(r[e]) * direction
        energy += shift * direction * direction
    return gain, energy


@njit(nogil=True, cache=True)
def move(z, r, p, w, alpha, most):
    """z ← z + αp, clipped, and r ← r − αw; returns how many entries had to be clipped.

    If there are any, r is not the residual of z.
    """
    clipped = 0
    for e in range(z.size):
        value = z[e] + alpha * p[e]
        if abs(value) > most:
            clipped += 1
            value = most if value > 0.0 else -most
        z[e] = value
        r[e] -= alpha * w[e]
    return clipped


@njit(nogil=True, cache=True)
def standing(y, z, r, twice_c, most, length):
    """How far from the solution z is, given its residual r = y − w − z / 2C.

    Returns the squares of how far entries are from their answers, in units of w; of r where entries
    are free to move, and where they are held but should not be; the first of these again, with no
    part of it that a step of this length would clip; and the dual value.
    """
    squares, free, chopped, reachable, dual = 0.0, 0.0, 0.0, 0.0, 0.0
    for e in range(z.size):
        value, left = np.float64(z[e]), np.float64(r[e])
        answer = min(max(value + twice_c * left, -most), most)
        squares += ((answer - value) / twice_c) ** 2
        dual += 0.5 * value * (np.float64(y[e]) + left)
        if abs(value) < most:
            room = (most - value if left > 0.0 else most + value) / length
            free += left * left
            reachable += abs(left) * min(abs(left), room)
        elif value * left < 0.0:
            chopped += left * left
    return squares, free, chopped, reachable, dual


@njit(nogil=True, cache=True)
def certified_sums(y, x, w, delta):
    """What a certificate needs of x and of w: Σ h(w − y), ⟨x, x⟩, ⟨x, y⟩, and the largest |x|."""
    loss, squares, overlap, largest = 0.0, 0.0, 0.0, 0.0
    for e in range(x.size):
        value, image, wanted = np.float64(x[e]), np.float64(w[e]), np.float64(y[e])
        loss += _loss(image - wanted, delta)
        squares += value * value
        overlap += value * wanted
        largest = max(largest, abs(value))
    return loss, squares, overlap, largest
