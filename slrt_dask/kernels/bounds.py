"""Passes over the entries of a problem with bounds: which are active, and what follows from it.

An entry may be observed, bounded, or both, which its mark says. It carries one dual number
x = z + s: z for the misfit to its value y, s for its bound. Given w, what the model says there, the
entry answers with z = 2C (y − w) where it is observed, and where its bound is active with
s = centre + (b − w)/μ: positive at the lower bound, negative at the upper one, else zero. In other
words it has a conductance c, 2C and 1/μ added up as they apply, and a drive t, with x = t − c w. An
entry without either is idle: its x is zero.

lower, upper : one number for every index of one mode;  places : the entries' indices in that mode
Vectors may be float32; every sum is kept in float64.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from slrt_dask.kernels.simd import FAST_MATH
from slrt_dask.kernels.vectors import dot

OBSERVED, BOUNDED, AT_LOWER, AT_UPPER, COUPLED = 1, 2, 4, 8, 16
"""COUPLED: here for the sake of a linear constraint; it may be observed or bounded besides."""
KIND = OBSERVED + BOUNDED + COUPLED
ACTIVE = AT_LOWER + AT_UPPER


@njit(nogil=True, cache=True, inline="always")
def _activity(mark, centre, w, lower, upper, mu):
    """The part of a mark that says which bound is active at w."""
    if mark & BOUNDED:
        if mu * centre + lower - w > 0.0:
            return AT_LOWER
        if mu * centre + upper - w < 0.0:
            return AT_UPPER
    return 0


@njit(nogil=True, cache=True, inline="always")
def _answer(mark, y, centre, lower, upper, twice_c, mu):
    """Conductance and drive of an entry."""
    conductance, drive = 0.0, 0.0
    if mark & OBSERVED:
        conductance += twice_c
        drive += twice_c * y
    if mark & ACTIVE:
        bound = lower if mark & AT_LOWER else upper
        conductance += 1.0 / mu
        drive += centre + bound / mu
    return conductance, drive


@njit(nogil=True, cache=True, inline="always")
def _primal_value(mark, y, centre, w, lower, upper, twice_c, mu):
    """Misfit and bound's price at w: the largest that any answer to w is worth."""
    value = 0.0
    if mark & OBSERVED:
        value += 0.5 * twice_c * (w - y) ** 2
    if mark & ACTIVE:
        excess = (lower if mark & AT_LOWER else upper) - w
        value += centre * excess + 0.5 * excess * excess / mu
    elif mark & BOUNDED:
        value -= 0.5 * mu * centre * centre
    return value


@njit(nogil=True, cache=True, inline="always")
def _dual_value(mark, x, y, centre, lower, upper, twice_c, mu):
    """What x is worth to the dual objective, but for the quadratic term of the model."""
    conductance, drive = _answer(mark, y, centre, lower, upper, twice_c, mu)
    value = 0.0
    if conductance > 0.0:
        # The w to which x is the answer; then z and s are the answers to that.
        w = (drive - x) / conductance
        if mark & OBSERVED:
            z = twice_c * (y - w)
            value += z * y - 0.5 * z * z / twice_c
        if mark & ACTIVE:
            bound = lower if mark & AT_LOWER else upper
            s = centre + (bound - w) / mu
            value += bound * s - 0.5 * mu * (s - centre) ** 2
    if mark & BOUNDED and not mark & ACTIVE:
        value -= 0.5 * mu * centre * centre
    return value


@njit(nogil=True, cache=True)
def classify(marks, places, lower, upper, y, centre, x, w, twice_c, mu, r):
    """Find out which bounds are active at w, and leave the residual of every entry in r.

    Returns the squared residual, primal and dual value, how many marks changed, how many entries
    are idle with an x that is not zero, and how many have an x that no multiplier may be. Residuals
    are in units of w; an idle entry's is counted, but r is zero there: it is not solved for.
    """
    squares, primal, dual, changed, stranded, impossible = 0.0, 0.0, 0.0, 0, 0, 0
    for e in range(x.size):
        old, low, high = int(marks[e]), lower[places[e]], upper[places[e]]
        value, multiplier = np.float64(x[e]), np.float64(centre[e])
        image, wanted = np.float64(w[e]), np.float64(y[e])
        mark = (old & KIND) + _activity(old, multiplier, image, low, high, mu)
        changed += int(mark != old)
        marks[e] = mark
        conductance, drive = _answer(mark, wanted, multiplier, low, high, twice_c, mu)
        if conductance > 0.0:
            residual = (drive - value) / conductance - image
            r[e] = residual
        else:
            residual = -mu * value
            r[e] = 0.0
            stranded += int(value != 0.0)
        wrong = (value < 0.0 and math.isinf(high)) or (value > 0.0 and math.isinf(low))
        wrong = wrong or (value != 0.0 and not mark & BOUNDED)
        impossible += int(wrong and not mark & OBSERVED)
        squares += residual * residual
        primal += _primal_value(mark, wanted, multiplier, image, low, high, twice_c, mu)
        primal += 0.5 * value * image
        dual += _dual_value(mark, value, wanted, multiplier, low, high, twice_c, mu)
        dual -= 0.5 * value * image
    return squares, primal, dual, changed, stranded, impossible


@njit(nogil=True, cache=True)
def strand(marks, x):
    """x ← 0 at idle entries."""
    for e in range(x.size):
        if not int(marks[e]) & (OBSERVED + ACTIVE):
            x[e] = 0.0


@njit(nogil=True, cache=True)
def residual(marks, places, lower, upper, y, centre, x, w, twice_c, mu, r):
    """r of the entries that are solved for, their marks being as they are."""
    for e in range(x.size):
        mark, low, high = int(marks[e]), lower[places[e]], upper[places[e]]
        conductance, drive = _answer(
            mark, np.float64(y[e]), np.float64(centre[e]), low, high, twice_c, mu
        )
        r[e] = (drive - np.float64(x[e])) / conductance - w[e] if conductance > 0.0 else 0.0


@njit(nogil=True, cache=True, inline="always")
def _resistance(mark, twice_c, mu):
    """1 / conductance; zero for an idle entry."""
    conductance = twice_c if mark & OBSERVED else 0.0
    if mark & ACTIVE:
        conductance += 1.0 / mu
    return 1.0 / conductance if conductance > 0.0 else 0.0


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def scale_by_resistance(marks, r, twice_c, mu, w):
    """w ← r / c, the diagonal's part of a product; returns ⟨r, r⟩.

    In two passes, so that the sum does not depend on where vectors lie: see `vectors.difference`.
    """
    for e in range(r.size):
        w[e] = _resistance(int(marks[e]), twice_c, mu) * np.float64(r[e])
    return dot(r, r)


@njit(nogil=True, cache=True, fastmath=FAST_MATH)
def conjugate_step(marks, x, r, p, s, w, alpha, beta, twice_c, mu):
    """As `vectors.conjugate_step`, each entry with a diagonal of its own; idle ones stay as is."""
    squares = 0.0
    for e in range(x.size):
        resistance = _resistance(int(marks[e]), twice_c, mu)
        if resistance == 0.0:
            continue
        direction = r[e] + beta * p[e]
        image = w[e] + beta * s[e]
        p[e] = direction
        s[e] = image
        x[e] += alpha * direction
        left = np.float64(r[e] - alpha * image)
        r[e] = left
        w[e] = resistance * left
        squares += left * left
    return squares


@njit(nogil=True, cache=True)
def make_feasible(marks, places, lower, upper, x):
    """x of entries that only have a bound gets a sign that a multiplier may have."""
    for e in range(x.size):
        mark = int(marks[e])
        if not mark & (OBSERVED + BOUNDED):
            x[e] = 0.0
        elif not mark & OBSERVED:
            if lower[places[e]] == -math.inf:
                x[e] = min(x[e], 0.0)
            if upper[places[e]] == math.inf:
                x[e] = max(x[e], 0.0)


@njit(nogil=True, cache=True)
def _multiplier(mark, value, y, centre, low, high, twice_c, mu):
    """The s in an entry's x."""
    if not mark & BOUNDED:
        return 0.0
    if not mark & OBSERVED:
        return value
    for side in (AT_LOWER, AT_UPPER):
        bound = low if side == AT_LOWER else high
        if math.isinf(bound):
            continue
        conductance, drive = _answer(OBSERVED + BOUNDED + side, y, centre, low, high, twice_c, mu)
        found = centre + (bound - (drive - value) / conductance) / mu
        if (side == AT_LOWER and found > 0.0) or (side == AT_UPPER and found < 0.0):
            return found
    return 0.0


@njit(nogil=True, cache=True)
def mark_active(marks, places, lower, upper, y, centre, x, twice_c, mu):
    """Marks as x itself tells them, whatever was marked before."""
    for e in range(x.size):
        mark = int(marks[e]) & KIND
        s = _multiplier(
            mark, np.float64(x[e]), np.float64(y[e]), np.float64(centre[e]),
            lower[places[e]], upper[places[e]], twice_c, mu,
        )  # fmt: skip
        if s > 0.0:
            mark += AT_LOWER
        elif s < 0.0:
            mark += AT_UPPER
        marks[e] = mark


@njit(nogil=True, cache=True)
def multipliers(marks, places, lower, upper, y, centre, x, twice_c, mu, s):
    """s of every entry, for x as it is; returns ‖s − centre‖² and the largest |s − centre|."""
    squares, largest = 0.0, 0.0
    for e in range(x.size):
        multiplier = np.float64(centre[e])
        found = _multiplier(
            int(marks[e]), np.float64(x[e]), np.float64(y[e]), multiplier,
            lower[places[e]], upper[places[e]], twice_c, mu,
        )  # fmt: skip
        s[e] = found
        squares += (found - multiplier) ** 2
        largest = max(largest, abs(found - multiplier))
    return squares, largest


@njit(nogil=True, cache=True)
def certified_sums(marks, places, lower, upper, middle, y, x, w, twice_c):
    """What a certificate needs of x and of w, without any centre or μ.

    Returns ‖w − y‖², ‖z‖², ⟨z, y⟩ + ⟨s, b⟩, ‖middle − y‖² over observed entries, the largest
    violation of a bound, and Σ |s (w − b)|. The split of x into z and s is the best one.
    """
    misfit, zz, overlap, middle_misfit, violation, slack = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for e in range(x.size):
        mark, low, high = int(marks[e]), lower[places[e]], upper[places[e]]
        value, image, wanted = np.float64(x[e]), np.float64(w[e]), np.float64(y[e])
        z, s = (value, 0.0) if mark & OBSERVED else (0.0, value)
        if mark & OBSERVED:
            misfit += (image - wanted) ** 2
            middle_misfit += (middle[places[e]] - wanted) ** 2
            if mark & BOUNDED:
                if value - twice_c * (wanted - low) > 0.0:
                    s = value - twice_c * (wanted - low)
                elif value - twice_c * (wanted - high) < 0.0:
                    s = value - twice_c * (wanted - high)
                z = value - s
        zz += z * z
        overlap += z * wanted
        if s != 0.0:
            bound = low if s > 0.0 else high
            overlap += s * bound
            slack += abs(s * (image - bound))
        if mark & BOUNDED:
            violation = max(violation, low - image, image - high)
    return misfit, zz, overlap, middle_misfit, violation, slack
