"""The passes over bounded entries do what their formulas say, entry by entry."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from slrt_dask.kernels import bounds as passes
from slrt_dask.kernels.bounds import ACTIVE, AT_LOWER, AT_UPPER, BOUNDED, OBSERVED

TWICE_C, MU = 3.0, 0.4
TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}
# Whether there is a lower and an upper bound; or where each is missing, if that differs.
SIDES = {"lower": (1, 0), "upper": (0, 1), "both": (1, 1), "neither": (0, 0), "mixed": None}


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def dtype(request):
    return request.param


@pytest.fixture(params=SIDES)
def sides(request):
    return request.param


def draw(dtype, sides="mixed", size=400, seed=0):
    """Entries with every kind of mark; centres have the signs that multipliers may have."""
    rng = np.random.default_rng(seed)
    lower, upper = -rng.random(7) - 0.1, rng.random(7) + 0.1
    if SIDES[sides] is None:
        lower[[1, 4]], upper[[2, 4, 6]] = -np.inf, np.inf
    else:
        has_lower, has_upper = SIDES[sides]
        lower = lower if has_lower else np.full(7, -np.inf)
        upper = upper if has_upper else np.full(7, np.inf)
    places = rng.integers(0, 7, size)
    marks = np.array([OBSERVED, BOUNDED, OBSERVED + BOUNDED])[rng.integers(0, 3, size)]
    centre = rng.standard_normal(size) * (rng.random(size) < 0.5) * ((marks & BOUNDED) > 0)
    made = SimpleNamespace(
        marks=marks.astype(dtype), places=places, lower=lower, upper=upper,
        low=lower[places], high=upper[places],
        observed=(marks & OBSERVED) > 0, bounded=(marks & BOUNDED) > 0,
        **{name: rng.standard_normal(size).astype(dtype) for name in ("y", "x", "w")},
    )  # fmt: skip
    made.centre = possible(made, centre).astype(dtype)
    return made


def possible(made, s):
    """The nearest multipliers that there may be: of one sign where one bound is missing."""
    least = np.where(np.isfinite(made.high), -np.inf, 0.0)
    return np.clip(s, least, np.where(np.isfinite(made.low), np.inf, 0.0))


def exact(*vectors):
    return [vector.astype(np.float64) for vector in vectors]


def answer(made, w):
    """z and s with which every entry answers to w."""
    centre, y = exact(made.centre, made.y)
    s = np.maximum(centre + (made.low - w) / MU, 0.0)
    s += np.minimum(centre + (made.high - w) / MU, 0.0)
    return np.where(made.observed, TWICE_C * (y - w), 0.0), np.where(made.bounded, s, 0.0)


def conductance(made, w):
    return TWICE_C * made.observed + (answer(made, w)[1] != 0.0) / MU


def price(made, z, s, mu=MU, chosen=slice(None)):
    """What a split is worth to the dual, the model's quadratic term left out."""
    bound = np.where(s > 0.0, made.low[chosen], np.where(s < 0.0, made.high[chosen], 0.0))
    y, centre = exact(made.y[chosen], made.centre[chosen])
    return z * y - 0.5 * z**2 / TWICE_C + s * bound - 0.5 * mu * (s - centre) ** 2


def best_split(made, e, mu):
    """The s of the highest price for an x = z + s, on a grid drawn together around the best."""
    x = float(made.x[e])
    first, last = (possible(made, np.full(len(made.x), limit))[e] for limit in (-50.0, 50.0))
    for _ in range(12):
        s = np.unique(np.append(np.linspace(first, last, 201), np.clip(0.0, first, last)))
        best = int(np.argmax(price(made, x - s, s, mu, [e])))
        first, last = s[max(best - 1, 0)], s[min(best + 1, len(s) - 1)]
    return s[best]


def bounds_of(made):
    return made.marks, made.places, made.lower, made.upper


def classified(made, **changed):
    parts, r = {**vars(made), **changed}, np.full_like(made.x, np.nan)
    found = passes.classify(
        *bounds_of(made), made.y, made.centre, parts["x"], parts["w"], TWICE_C, MU, r
    )
    return found, r


def test_the_residual_vanishes_where_x_is_the_answer_to_w(sides, dtype):
    made, tolerance = draw(dtype, sides), 10 * TOLERANCE[dtype]
    x = sum(answer(made, *exact(made.w))).astype(dtype)
    (squares, primal, dual, _, stranded, impossible), r = classified(made, x=x)
    assert squares <= len(x) * tolerance**2
    assert np.abs(r).max() <= tolerance
    assert (stranded, impossible) == (0, 0)
    assert primal == pytest.approx(dual, rel=tolerance, abs=tolerance)


def test_residual_marks_and_values_are_their_formulas(sides, dtype):
    made = draw(dtype, sides)
    kinds, (w, x) = made.marks.astype(int), exact(made.w, made.x)
    (z, s), c = answer(made, w), conductance(made, w)
    (squares, primal, dual, changed, stranded, impossible), r = classified(made)
    away, idle = z + s - x, c == 0.0
    wanted = np.divide(away, c, out=np.zeros_like(c), where=~idle)
    np.testing.assert_allclose(r, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert squares == pytest.approx(wanted @ wanted + MU**2 * (x[idle] @ x[idle]), rel=1e-9)
    assert stranded == np.count_nonzero(x[idle])
    assert impossible == np.count_nonzero((possible(made, x) != x) & ~made.observed)
    marks = kinds + np.where(s > 0, AT_LOWER, 0) + np.where(s < 0, AT_UPPER, 0)
    np.testing.assert_array_equal(made.marks, marks)
    assert changed == np.count_nonzero(s)
    assert classified(made)[0][3] == 0  # no mark changes twice
    value = np.sum(price(made, z, s) - (z + s) * w) + 0.5 * x @ w
    assert primal == pytest.approx(value, rel=1e-9)
    # Their distance is the residual's, and idle entries have to give up what they hold.
    gap = np.divide(0.5 * away**2, c, out=x * w, where=~idle)
    assert primal - dual == pytest.approx(gap.sum(), rel=1e-8)
    # For given marks the residual is the one found with them, and only idle entries are stranded.
    again, before = np.full_like(made.x, np.nan), made.x.copy()
    passes.residual(*bounds_of(made), made.y, made.centre, made.x, made.w, TWICE_C, MU, again)
    np.testing.assert_allclose(again, r, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(made.marks, marks)
    passes.strand(made.marks, made.x)
    unseen = (marks & (OBSERVED + ACTIVE)) == 0
    np.testing.assert_array_equal(made.x, np.where(unseen, 0.0, before))
    (_, primal, dual, *_), _ = classified(made)
    assert primal > dual  # no possible x is worth more than any w costs


@pytest.fixture
def stepping(dtype):
    """Marks as they are during a solve, the vectors of one, and each entry's resistance."""
    made = draw(dtype)
    c = conductance(made, *exact(made.w))
    classified(made)
    rng = np.random.default_rng(8)
    vectors = [rng.standard_normal(len(c)).astype(dtype) for _ in range(5)]
    return made.marks, vectors, np.divide(1.0, c, out=np.zeros_like(c), where=c > 0.0)


def test_steps_divide_by_each_entrys_conductance_and_leave_idle_entries_alone(stepping, dtype):
    marks, drawn, resistance = stepping
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    x, r, p, s, w = exact(*drawn)
    scaled = np.full_like(drawn[0], np.nan)
    assert passes.scale_by_resistance(marks, drawn[1], TWICE_C, MU, scaled) == pytest.approx(r @ r)
    np.testing.assert_allclose(scaled, resistance * r, **close)
    assert len(np.unique(resistance)) == 4  # idle, observed, bounded, and both
    found = [vector.copy() for vector in drawn]
    rr = passes.conjugate_step(marks, *found, 0.3, 0.8, TWICE_C, MU)
    new_p, new_s = r + 0.8 * p, w + 0.8 * s
    new_r = r - 0.3 * new_s
    moving = resistance > 0.0
    assert rr == pytest.approx(new_r[moving] @ new_r[moving], rel=10 * TOLERANCE[dtype])
    wanted = (x + 0.3 * new_p, new_r, new_p, new_s, resistance * new_r)
    for one, value, before in zip(found, wanted, drawn, strict=True):
        np.testing.assert_allclose(one[moving], value[moving], **close)
        np.testing.assert_array_equal(one[~moving], before[~moving])


def test_what_is_made_feasible_is_the_nearest_possible_multiplier(sides, dtype):
    made = draw(dtype, sides)
    before = made.x.copy()
    passes.make_feasible(*bounds_of(made), made.x)
    np.testing.assert_array_equal(made.x, np.where(made.observed, before, possible(made, before)))
    assert classified(made)[0][5] == 0


def test_multipliers_and_certificates_split_any_x_in_the_best_way(sides, dtype):
    made = draw(dtype, sides, size=60, seed=5)
    passes.make_feasible(*bounds_of(made), made.x)
    both = np.flatnonzero(made.observed & made.bounded)
    s = np.full_like(made.x, np.nan)
    squares, largest = passes.multipliers(
        *bounds_of(made), made.y, made.centre, made.x, TWICE_C, MU, s
    )
    away = (np.float64(s) - made.centre)[made.bounded]
    assert squares == pytest.approx(away @ away, rel=1e-5)
    assert largest == pytest.approx(np.abs(away).max(), rel=1e-5)
    for e in both:
        assert s[e] == pytest.approx(best_split(made, e, MU), abs=1e-4)
    np.testing.assert_array_equal(s[~made.observed], made.x[~made.observed])
    np.testing.assert_array_equal(s[~made.bounded], 0.0)
    # A certificate has no proximal term.
    middle = np.linspace(-0.05, 0.05, 7)
    found = passes.certified_sums(*bounds_of(made), middle, made.y, made.x, made.w, TWICE_C)
    y, x, w = exact(made.y, made.x, made.w)
    s = np.where(made.observed, 0.0, x)
    s[both] = [best_split(made, e, 0.0) for e in both]
    bound = np.where(s > 0, made.low, np.where(s < 0, made.high, 0.0))
    z, seen = x - s, made.observed
    outside = np.maximum(made.low - w, w - made.high)[made.bounded]
    wanted = (
        np.sum((w - y)[seen] ** 2), z @ z, z[seen] @ y[seen] + s @ bound,
        np.sum((middle[made.places] - y)[seen] ** 2), max(outside.max(), 0.0),
        np.sum(np.abs(s * (w - bound))),
    )  # fmt: skip
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-9)


def test_short_numbers_are_summed_in_long_ones():
    # A float32 sum would not get beyond 2**24 in steps of one.
    ones = np.ones(2**20, dtype=np.float32)
    ones[0] = 2**12
    wanted = 2**24 + len(ones) - 1
    marks = np.full(len(ones), OBSERVED, dtype=np.float32)
    assert passes.scale_by_resistance(marks, ones, TWICE_C, MU, ones.copy()) == wanted
    free = np.zeros(len(ones), dtype=np.int64), np.array([-np.inf]), np.array([np.inf])
    zeros = np.zeros_like(ones)
    sums = passes.certified_sums(marks, *free, np.zeros(1), zeros, ones, zeros, TWICE_C)
    assert sums[1] == wanted
