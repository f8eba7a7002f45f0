"""Passes over the entries of a problem with Huber's loss: which are held, and what follows from it.

    h(t) = t² where |t| ≤ δ, and 2δ|t| − δ² beyond

Given w, what the model says of an entry, the entry answers with x = 2C (y − w), but never with more
than ±`most` = 2Cδ: from there on it is held, at just that. So an entry whose value is absurd pulls
no harder than one that is off by δ.

Vectors may be float32; every sum is kept in float64.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from slrt_dask.kernels.rows import FAST_MATH


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
def classify(y, x, w, twice_c, most, held, r):
    """Find out which entries are held at w, ±1 in `held`, and leave the others' residual in r.

    Returns the squared residual, primal and dual value, how many entries are held or let go anew,
    how many are held with another x than they should have, and how many x are more than `most`.
    Residuals are in units of w; that of a held entry is counted, but r is zero there: it is not
    solved for.
    """
    squares, primal, dual, changed, stranded, outside = 0.0, 0.0, 0.0, 0, 0, 0
    delta = most / twice_c
    for e in range(x.size):
        value, image, wanted = np.float64(x[e]), np.float64(w[e]), np.float64(y[e])
        answer = twice_c * (wanted - image)
        side = int(answer > most) - int(answer < -most)
        changed += int(side != held[e])
        held[e] = side
        if side:
            answer = side * most
            stranded += int(value != answer)
            r[e] = 0.0
        else:
            r[e] = (answer - value) / twice_c
        outside += int(abs(value) > most)
        squares += ((answer - value) / twice_c) ** 2
        primal += 0.5 * twice_c * _loss(image - wanted, delta) + 0.5 * value * image
        dual += value * (wanted - 0.5 * value / twice_c - 0.5 * image)
    return squares, primal, dual, changed, stranded, outside


@njit(nogil=True, cache=True)
def slopes(y, before, x, image, w, twice_c, most, places, found):
    """Add to `found` the slope of the primal value at some places between 0, `before`, and 1, x.

    image, w : what the model says of the two
    """
    for e in range(x.size):
        start, way = np.float64(before[e]), np.float64(x[e]) - np.float64(before[e])
        low, climb = np.float64(image[e]), np.float64(w[e]) - np.float64(image[e])
        wanted = np.float64(y[e])
        for n in range(places.size):
            answer = twice_c * (wanted - low - places[n] * climb)
            answer = min(max(answer, -most), most)
            found[n] += (start + places[n] * way - answer) * climb


@njit(nogil=True, cache=True)
def hold(held, most, x):
    """x of held entries becomes what they are held at."""
    for e in range(x.size):
        if held[e] != 0.0:
            x[e] = held[e] * most


@njit(nogil=True, cache=True)
def residual(held, y, x, w, twice_c, r):
    """r of the entries that are not held, as these are now."""
    for e in range(x.size):
        r[e] = y[e] - w[e] - x[e] / twice_c if held[e] == 0.0 else 0.0


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def conjugate_step(held, x, r, p, s, w, alpha, beta, shift):
    """As `vectors.conjugate_step`; held entries stay as they are."""
    squares = 0.0
    for e in range(x.size):
        if held[e] != 0.0:
            w[e] = 0.0
            continue
        direction = r[e] + beta * p[e]
        image = w[e] + beta * s[e]
        p[e] = direction
        s[e] = image
        x[e] += alpha * direction
        left = np.float64(r[e] - alpha * image)
        r[e] = left
        w[e] = shift * left
        squares += left * left
    return squares


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
