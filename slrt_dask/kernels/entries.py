"""Passes over the entries of an inner problem in which dual numbers have boxes.

Given w, what the model says of an entry, the entry answers with a dual number x = z + s:

    z = 2C (y − w), clipped to ±most      where it is observed; most is 2Cδ, or infinite
    s = centre + (b − w)/μ                where it is bounded and w has passed a bound b; else 0

With `below` = lower + μ·centre and `above` = upper + μ·centre that is s = (below − w)/μ for w <
below and (above − w)/μ for w > above. The answer falls as w rises, in straight pieces. So every x
belongs to an interval [w₁, w₂] of w: a single number where the answer falls, and x is *free* to
move; a longer one where the answer stays the same, at z = ±most or s = 0, and x is *held* there for
as long as w stays inside. The inner problem minimises F(x) = Σ_e ψ_e(x_e) + ½⟨x, L x⟩, and the
slope of F at an entry is w − [w₁, w₂].

Vectors may be float32; every sum is kept in float64.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from numba import njit

OBSERVED, BOUNDED, COUPLED = 1, 2, 4
"""What an entry is. COUPLED: it is held for the sake of a linear constraint only."""

Entries = namedtuple(
    "Entries", "marks places lower upper centre values weights twice_c most penalty kinds"
)
"""What passes read of entries.

marks : what every entry is; empty if all are observed and none is bounded
places, lower, upper : the entries' indices in one mode, and bounds by index of that mode
centre, penalty : of the multipliers' proximal term, μ/2 (s − centre)²
weights : of the observations; empty if all are 1
kinds : the marks that count
"""


@njit(nogil=True, cache=True, inline="always")
def _rounded_down(most, like):
    """The largest number of a vector's precision that is not above a limit.

    An x in that precision is then at its limit, or below it, but never almost there.
    """
    held = like.dtype.type(most)
    return np.float64(held if held <= most else np.nextafter(held, like.dtype.type(0.0)))


@njit(nogil=True, cache=True, inline="always")
def _entry(these, e):
    """Mark, y, 2Cw, the largest z, and between which w no bound is active."""
    mark, below, above = OBSERVED, -math.inf, math.inf
    if these.marks.size:
        mark = int(these.marks[e]) & these.kinds
        if mark & BOUNDED:
            pulled = these.penalty * np.float64(these.centre[e])
            below = these.lower[these.places[e]] + pulled
            above = these.upper[these.places[e]] + pulled
    if not mark & OBSERVED:
        return mark, 0.0, 0.0, 0.0, below, above
    y = np.float64(these.values[e])
    if not these.weights.size:
        return mark, y, these.twice_c, these.most, below, above
    weight = np.float64(these.weights[e])
    most = _rounded_down(weight * these.most, these.values)
    return mark, y, weight * these.twice_c, most, below, above


@njit(nogil=True, cache=True, inline="always")
def _misfit_answer(w, y, twice_c, most):
    """z at w."""
    return min(max(twice_c * (y - w), -most), most) if twice_c > 0.0 else 0.0


@njit(nogil=True, cache=True, inline="always")
def _bound_answer(w, below, above, mu):
    """s at w."""
    if w < below:
        return (below - w) / mu
    return (above - w) / mu if w > above else 0.0


@njit(nogil=True, cache=True, inline="always")
def _at_bound(x, y, twice_c, most, bound, mu):
    """(w, w, how fast the answer falls) of an x in which the multiplier of a bound has a part."""
    if twice_c > 0.0:
        conductance = twice_c + 1.0 / mu
        w = (twice_c * y + bound / mu - x) / conductance
        z = twice_c * (y - w)
        if -most <= z <= most:
            return w, w, conductance
        x -= most if z > most else -most
    w = bound - mu * x
    return w, w, 1.0 / mu


@njit(nogil=True, cache=True, inline="always")
def _interval(x, y, twice_c, most, below, above, mu):
    """(w₁, w₂, how fast the answer falls) of x."""
    if below > -math.inf:
        at_bound = _misfit_answer(below, y, twice_c, most)
        if x > at_bound or (x == at_bound and below == above and twice_c > 0.0):
            return _at_bound(x, y, twice_c, most, below, mu)
    if above < math.inf and x < _misfit_answer(above, y, twice_c, most):
        return _at_bound(x, y, twice_c, most, above, mu)
    if twice_c == 0.0:
        return below, above, 0.0
    if x >= most:
        end = min(y - most / twice_c, above)
        return (below, end, 0.0) if below < end else (end, end, twice_c)
    if x <= -most:
        end = max(y + most / twice_c, below)
        return (end, above, 0.0) if end < above else (end, end, twice_c)
    w = y - x / twice_c
    return w, w, twice_c


@njit(nogil=True, cache=True, inline="always")
def _held_at(x, to, place, low, high):
    """`place` if the way from x to `to` passes it, or cannot go on from it; else `to`.

    low, high : whether x may be below the place, and above
    """
    if to > place and (x < place or (x == place and not high)):
        return place
    if to < place and (x > place or (x == place and not low)):
        return place
    return to


@njit(nogil=True, cache=True, inline="always")
def _stopped(x, to, y, twice_c, most, below, above):
    """How far x gets on its way `to` somewhere: to the next number at which it is held."""
    low, high = above < math.inf, below > -math.inf
    if twice_c == 0.0:
        return _held_at(x, to, 0.0, low, high) if below < above else to
    if most < math.inf:
        if below < min(y - most / twice_c, above):
            to = _held_at(min(x, most) if not high else x, to, most, True, high)
        if max(y + most / twice_c, below) < above:
            to = _held_at(max(x, -most) if not low else x, to, -most, low, True)
    return to


@njit(nogil=True, cache=True)
def begin(these, x):
    """Every x becomes one that its entry may have."""
    for e in range(x.size):
        mark, _, twice_c, most, below, above = _entry(these, e)
        value = np.float64(x[e]) if twice_c > 0.0 or mark & BOUNDED else np.float64(0.0)
        lowest = -most if above == math.inf else -math.inf
        highest = most if below == -math.inf else math.inf
        x[e] = min(max(value, lowest), highest)


@njit(nogil=True, cache=True)
def standing(these, x, w, length, r):
    """How far x is from the solution, given w = L x; r becomes minus the slope of free entries.

    Returns the squares of how far entries are from their answers, in units of w; of r where entries
    are free, and of the slope where they are held but should not be; the first of these again, with
    no part of it that a step of this length would be stopped from; and the dual value.
    """
    mu, squares, free, chopped, reachable, dual = these.penalty, 0.0, 0.0, 0.0, 0.0, 0.0
    for e in range(x.size):
        mark, y, twice_c, most, below, above = _entry(these, e)
        r[e] = 0.0
        if twice_c == 0.0 and not mark & BOUNDED:
            continue
        value, image = np.float64(x[e]), np.float64(w[e])
        first, last, falling = _interval(value, y, twice_c, most, below, above, mu)
        at = min(max(image, first), last)
        left = at - image
        if left != 0.0:
            z, s = _misfit_answer(image, y, twice_c, most), _bound_answer(image, below, above, mu)
            falls = (twice_c if abs(z) < most else 0.0) + (1.0 / mu if s != 0.0 else 0.0)
            if falls == 0.0:
                falls = twice_c if twice_c > 0.0 else 1.0 / mu
            squares += ((z + s - value) / falls) ** 2
            if falling == 0.0:
                chopped += left * left
            else:
                free += left * left
                r[e] = left
                to = _stopped(value, value + length * left, y, twice_c, most, below, above)
                reachable += abs(left) * min(abs(left), abs(to - value) / length)
        z, s = value, 0.0
        if first < below or last > above:
            z = _misfit_answer(first if first < below else last, y, twice_c, most)
            s = value - z
        if twice_c > 0.0:
            dual += z * y - 0.5 * z * z / twice_c
        if mark & BOUNDED:
            pulled = mu * np.float64(these.centre[e])
            if s != 0.0:
                dual += s * ((below if s > 0.0 else above) - pulled)
            dual -= 0.5 * mu * (s - np.float64(these.centre[e])) ** 2
        dual -= 0.5 * value * image
    return squares, free, chopped, reachable, dual


@njit(nogil=True, cache=True)
def turn(these, x, r, beta, p, w):
    """p ← r + βp where entries are free, zero where they are held; w ← p / (how fast they fall).

    Returns ⟨r, p⟩ and ⟨p, w⟩.
    """
    gain, energy = 0.0, 0.0
    for e in range(x.size):
        mark, y, twice_c, most, below, above = _entry(these, e)
        direction, own = 0.0, 0.0
        if twice_c > 0.0 or mark & BOUNDED:
            _, _, falling = _interval(
                np.float64(x[e]), y, twice_c, most, below, above, these.penalty
            )
            if falling > 0.0:
                direction = np.float64(r[e]) + beta * p[e]
                own = direction / falling
                gain += np.float64(r[e]) * direction
                energy += direction * own
        p[e] = direction
        w[e] = own
    return gain, energy


@njit(nogil=True, cache=True)
def move(these, x, image, p, w, alpha):
    """x ← x + αp, stopped where entries are held on the way, and image ← image + αw.

    Returns how many were stopped. Unless there are some, image is L x if it was and w is L p.
    """
    stopped = 0
    for e in range(x.size):
        image[e] += alpha * w[e]
        if p[e] != 0.0:
            _, y, twice_c, most, below, above = _entry(these, e)
            value = np.float64(x[e])
            to = value + alpha * np.float64(p[e])
            held = _stopped(value, to, y, twice_c, most, below, above)
            stopped += int(held != to)
            x[e] = held
    return stopped


@njit(nogil=True, cache=True)
def slide(these, x, w, length):
    """x takes a step of this length down the slope, held entries too, and is stopped likewise."""
    for e in range(x.size):
        mark, y, twice_c, most, below, above = _entry(these, e)
        if twice_c > 0.0 or mark & BOUNDED:
            value, image = np.float64(x[e]), np.float64(w[e])
            first, last, _ = _interval(value, y, twice_c, most, below, above, these.penalty)
            to = value + length * (min(max(image, first), last) - image)
            x[e] = _stopped(value, to, y, twice_c, most, below, above)


@njit(nogil=True, cache=True)
def resistances(these, x, out):
    """1 / (how fast entries' answers fall) at x; zero where entries are held."""
    for e in range(x.size):
        mark, y, twice_c, most, below, above = _entry(these, e)
        falling = 0.0
        if twice_c > 0.0 or mark & BOUNDED:
            _, _, falling = _interval(
                np.float64(x[e]), y, twice_c, most, below, above, these.penalty
            )
        out[e] = 1.0 / falling if falling > 0.0 else 0.0


@njit(nogil=True, cache=True)
def multipliers(these, x, s):
    """s of every entry, for x as it is; returns ‖s − centre‖²."""
    squares = 0.0
    for e in range(x.size):
        mark, y, twice_c, most, below, above = _entry(these, e)
        found = 0.0
        if mark & BOUNDED:
            value = np.float64(x[e])
            first, last, _ = _interval(value, y, twice_c, most, below, above, these.penalty)
            if first < below or last > above:
                w = first if first < below else last
                found = value - _misfit_answer(w, y, twice_c, most)
            squares += (found - np.float64(these.centre[e])) ** 2
        s[e] = found
    return squares


@njit(nogil=True, cache=True, inline="always")
def loss(misfit, delta):
    """h(t): t² up to δ, and 2δ|t| − δ² beyond."""
    size = abs(misfit)
    return size * size if size <= delta else delta * (2.0 * size - delta)


@njit(nogil=True, cache=True)
def total_loss(values, weights, delta):
    """Σ w h(values)."""
    total = 0.0
    for e in range(values.size):
        weight = np.float64(weights[e]) if weights.size else 1.0
        total += weight * loss(np.float64(values[e]), delta)
    return total


@njit(nogil=True, cache=True)
def certified_sums(these, middle, delta, x, w):
    """What a certificate needs of x and of w, whatever the multipliers' centre is.

    Returns Σ h(w − y), Σ h(middle − y), ‖z‖²/2C, ⟨z, y⟩ + ⟨s, b⟩, Σ |s (w − b)|, the largest |z|
    as a part of what it may be, and the largest violation of a bound. The split of x into z and s
    is the best one.
    """
    misfit, middle_misfit, energy, overlap, slack = 0.0, 0.0, 0.0, 0.0, 0.0
    largest, violation = 0.0, 0.0
    for e in range(x.size):
        mark, y, twice_c, most, _, _ = _entry(these, e)
        value, image = np.float64(x[e]), np.float64(w[e])
        low, high, z = -math.inf, math.inf, value
        if mark & BOUNDED:
            low, high = these.lower[these.places[e]], these.upper[these.places[e]]
            violation = max(violation, low - image, image - high)
            if low > -math.inf:
                z = min(z, _misfit_answer(low, y, twice_c, most))
            if high < math.inf:
                z = max(z, _misfit_answer(high, y, twice_c, most))
        s = value - z
        if mark & OBSERVED:
            weight = twice_c / these.twice_c
            misfit += weight * loss(image - y, delta)
            energy += z * z / twice_c
            overlap += z * y
            largest = max(largest, abs(z) / most)
            if middle.size:
                middle_misfit += weight * loss(middle[these.places[e]] - y, delta)
        if s != 0.0:
            bound = low if s > 0.0 else high
            overlap += s * bound
            slack += abs(s * (image - bound))
    return misfit, middle_misfit, energy, overlap, slack, largest, violation
