"""The passes over bounded entries do what their formulas say, entry by entry."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from slrt_dask.kernels import bounds as passes
from slrt_dask.kernels.bounds import ACTIVE, AT_LOWER, AT_UPPER, BOUNDED, OBSERVED

TWICE_C, MU = 3.0, 0.4
TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}
SIDES = {
    "lower": (True, False),
    "upper": (False, True),
    "both": (True, True),
    "neither": (False, False),
    "mixed": (None, None),
}


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def dtype(request):
    return request.param


def draw(dtype, sides="mixed", size=400, seed=0):
    """Entries with every kind of mark; centres have the signs that multipliers may have."""
    rng = np.random.default_rng(seed)
    lower, upper = -rng.random(7) - 0.1, rng.random(7) + 0.1
    has_lower, has_upper = SIDES[sides]
    if has_lower is None:
        lower[[1, 4]], upper[[2, 4, 6]] = -np.inf, np.inf
    else:
        lower = lower if has_lower else np.full(7, -np.inf)
        upper = upper if has_upper else np.full(7, np.inf)
    places = rng.integers(0, 7, size)
    kinds = np.array([OBSERVED, BOUNDED, OBSERVED + BOUNDED])
    marks = kinds[rng.integers(0, 3, size)]
    centre = rng.standard_normal(size) * (rng.random(size) < 0.5)
    centre = np.where(np.isneginf(lower[places]), np.minimum(centre, 0.0), centre)
    centre = np.where(np.isposinf(upper[places]), np.maximum(centre, 0.0), centre)
    centre = np.where(marks & BOUNDED, centre, 0.0)
    vectors = {name: rng.standard_normal(size).astype(dtype) for name in ("y", "x", "w")}
    made = SimpleNamespace(
        marks=marks.astype(dtype), places=places, lower=lower, upper=upper,
        centre=centre.astype(dtype), **vectors,
    )  # fmt: skip
    made.low, made.high = lower[places], upper[places]
    made.observed, made.bounded = (marks & OBSERVED) > 0, (marks & BOUNDED) > 0
    return made


def answer(made, w):
    """z and s with which every entry answers to w."""
    centre, y = made.centre.astype(np.float64), made.y.astype(np.float64)
    z = np.where(made.observed, TWICE_C * (y - w), 0.0)
    s = np.maximum(centre + (made.low - w) / MU, 0.0)
    s += np.minimum(centre + (made.high - w) / MU, 0.0)
    return z, np.where(made.bounded, s, 0.0)


def conductance(made, w):
    _, s = answer(made, w)
    return np.where(made.observed, TWICE_C, 0.0) + np.where(s != 0.0, 1.0 / MU, 0.0)


def price(made, z, s):
    """What a split is worth to the dual, the model's quadratic term left out."""
    bound = np.where(s > 0.0, made.low, np.where(s < 0.0, made.high, 0.0))
    y, centre = made.y.astype(np.float64), made.centre.astype(np.float64)
    return z * y - 0.5 * z**2 / TWICE_C + s * bound - 0.5 * MU * (s - centre) ** 2


def classified(made, **changed):
    parts = {**vars(made), **changed}
    r = np.full_like(made.x, np.nan)
    found = passes.classify(
        parts["marks"], made.places, made.lower, made.upper, made.y, made.centre, parts["x"],
        parts["w"], TWICE_C, MU, r,
    )  # fmt: skip
    return found, r


@pytest.mark.parametrize("sides", SIDES)
def test_the_residual_vanishes_where_x_is_the_answer_to_w(sides, dtype):
    made = draw(dtype, sides)
    w = made.w.astype(np.float64)
    x = sum(answer(made, w)).astype(dtype)
    (squares, primal, dual, _, stranded, impossible), r = classified(made, x=x)
    assert squares <= len(x) * TOLERANCE[dtype] ** 2 * 10
    assert np.abs(r).max() <= 10 * TOLERANCE[dtype]
    assert (stranded, impossible) == (0, 0)
    assert primal == pytest.approx(dual, rel=10 * TOLERANCE[dtype], abs=10 * TOLERANCE[dtype])


@pytest.mark.parametrize("sides", SIDES)
def test_the_residual_is_how_far_x_is_from_the_answer(sides, dtype):
    made = draw(dtype, sides)
    w, x = made.w.astype(np.float64), made.x.astype(np.float64)
    c = conductance(made, w)
    away = sum(answer(made, w)) - x
    wanted = np.divide(away, c, out=np.zeros_like(c), where=c > 0.0)
    (squares, *_, stranded, impossible), r = classified(made)
    np.testing.assert_allclose(r, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    idle = c == 0.0
    assert squares == pytest.approx(wanted @ wanted + MU**2 * (x[idle] @ x[idle]), rel=1e-9)
    assert stranded == np.count_nonzero(x[idle])
    no_multiplier = ((x < 0) & np.isposinf(made.high)) | ((x > 0) & np.isneginf(made.low))
    assert impossible == np.count_nonzero(no_multiplier & ~made.observed)


@pytest.mark.parametrize("sides", SIDES)
def test_marks_say_which_bound_is_active_and_are_counted_when_they_change(sides, dtype):
    made = draw(dtype, sides)
    kinds = made.marks.astype(int)
    _, s = answer(made, made.w.astype(np.float64))
    wanted = kinds + np.where(s > 0, AT_LOWER, 0) + np.where(s < 0, AT_UPPER, 0)
    changed = classified(made)[0][3]
    np.testing.assert_array_equal(made.marks, wanted)
    assert changed == np.count_nonzero(s)
    assert classified(made)[0][3] == 0
    # Far inside the bounds of nothing, everything active is let go.
    if sides == "lower":
        far = np.full_like(made.w, 1e6)
        assert classified(made, w=far)[0][3] == np.count_nonzero(s)
        np.testing.assert_array_equal(made.marks, kinds)


@pytest.mark.parametrize("sides", SIDES)
def test_primal_and_dual_value_are_their_formulas(sides, dtype):
    made = draw(dtype, sides)
    w, x = made.w.astype(np.float64), made.x.astype(np.float64)
    z, s = answer(made, w)
    c = conductance(made, w)
    wanted = np.sum(price(made, z, s) - (z + s) * w) + 0.5 * x @ w
    (_, primal, dual, *_), _ = classified(made)
    assert primal == pytest.approx(wanted, rel=1e-9)
    # Their distance is the residual's, and idle entries have to give up what they hold.
    away = z + s - x
    gap = np.divide(0.5 * away**2, c, out=x * w, where=c > 0.0)
    assert primal - dual == pytest.approx(gap.sum(), rel=1e-8)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("seed", range(5))
def test_no_possible_x_is_worth_more_than_any_w_costs(sides, seed):
    made = draw(np.float64, sides, size=60, seed=seed)
    classified(made)
    passes.strand(made.marks, made.x)
    (_, primal, dual, *_), _ = classified(made)
    assert primal > dual


def test_only_idle_entries_are_stranded(dtype):
    made = draw(dtype)
    classified(made)
    before = made.x.copy()
    passes.strand(made.marks, made.x)
    idle = (made.marks.astype(int) & (OBSERVED + ACTIVE)) == 0
    assert 0 < idle.sum() < idle.size
    np.testing.assert_array_equal(made.x, np.where(idle, 0.0, before))


def test_the_residual_for_given_marks_is_the_one_found_with_them(dtype):
    made = draw(dtype)
    _, wanted = classified(made)
    r, marks = np.full_like(made.x, np.nan), made.marks.copy()
    passes.residual(
        made.marks, made.places, made.lower, made.upper, made.y, made.centre, made.x, made.w,
        TWICE_C, MU, r,
    )  # fmt: skip
    np.testing.assert_allclose(r, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(made.marks, marks)


def test_the_residual_for_other_marks_does_not_look_which_bounds_are_active():
    made = draw(np.float64, "lower")
    made.marks[:] = BOUNDED + AT_LOWER
    r = np.empty_like(made.x)
    passes.residual(
        made.marks, made.places, made.lower, made.upper, made.y, made.centre, made.x, made.w,
        TWICE_C, MU, r,
    )  # fmt: skip
    np.testing.assert_allclose(r, MU * (made.centre - made.x) + made.low - made.w, atol=1e-12)


@pytest.fixture
def stepping(dtype):
    """Marks as they are during a solve, the vectors of one, and each entry's resistance."""
    made = draw(dtype)
    c = conductance(made, made.w.astype(np.float64))
    classified(made)
    rng = np.random.default_rng(8)
    vectors = [rng.standard_normal(len(c)).astype(dtype) for _ in range(5)]
    return made.marks, vectors, np.divide(1.0, c, out=np.zeros_like(c), where=c > 0.0)


def test_scaling_divides_by_each_entrys_conductance(stepping, dtype):
    marks, (r, *_), resistance = stepping
    w = np.full_like(r, np.nan)
    rr = passes.scale_by_resistance(marks, r, TWICE_C, MU, w)
    r = r.astype(np.float64)
    assert rr == pytest.approx(r @ r, rel=1e-12)
    np.testing.assert_allclose(w, resistance * r, rtol=TOLERANCE[dtype])
    assert len(np.unique(resistance)) == 4  # idle, observed, bounded, and both


def test_a_conjugate_step_is_its_recurrences_and_leaves_idle_entries_alone(stepping, dtype):
    marks, drawn, resistance = stepping
    x, r, p, s, w = (vector.copy() for vector in drawn)
    rr = passes.conjugate_step(marks, x, r, p, s, w, 0.3, 0.8, TWICE_C, MU)
    old = [vector.astype(np.float64) for vector in drawn]
    new_p, new_s = old[1] + 0.8 * old[2], old[4] + 0.8 * old[3]
    new_r = old[1] - 0.3 * new_s
    moving = resistance > 0.0
    assert 0 < moving.sum() < moving.size
    assert rr == pytest.approx(new_r[moving] @ new_r[moving], rel=10 * TOLERANCE[dtype])
    wanted = (old[0] + 0.3 * new_p, new_r, new_p, new_s, resistance * new_r)
    for found, value, before in zip((x, r, p, s, w), wanted, drawn, strict=True):
        np.testing.assert_allclose(
            found[moving], value[moving], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )
        np.testing.assert_array_equal(found[~moving], before[~moving])


@pytest.mark.parametrize("sides", SIDES)
def test_what_is_made_feasible_is_the_nearest_possible_multiplier(sides, dtype):
    made = draw(dtype, sides)
    before = made.x.copy()
    passes.make_feasible(made.marks, made.places, made.lower, made.upper, made.x)
    nearest = np.clip(
        before,
        np.where(np.isposinf(made.high), 0.0, -np.inf),
        np.where(np.isneginf(made.low), 0.0, np.inf),
    )
    np.testing.assert_array_equal(made.x, np.where(made.observed, before, nearest))
    assert classified(made)[0][5] == 0


def multipliers_of(made, x):
    s = np.full_like(made.x, np.nan)
    found = passes.multipliers(
        made.marks, made.places, made.lower, made.upper, made.y, made.centre, x, TWICE_C, MU, s
    )
    return s, found


@pytest.mark.parametrize("sides", SIDES)
def test_multipliers_of_an_answer_are_its_bounds_part(sides, dtype):
    made = draw(dtype, sides)
    z, wanted = answer(made, made.w.astype(np.float64))
    s, (squares, largest) = multipliers_of(made, (z + wanted).astype(dtype))
    np.testing.assert_allclose(s, wanted, atol=20 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    away = wanted - made.centre
    assert squares == pytest.approx(away @ away, rel=20 * TOLERANCE[dtype])
    assert largest == pytest.approx(np.abs(away).max(), rel=20 * TOLERANCE[dtype])


def best_split(made, e, value):
    """The s of the highest price, found by search on both sides of zero."""
    low, high = made.low[e], made.high[e]
    one = SimpleNamespace(
        low=low, high=high, y=made.y[e : e + 1], centre=made.centre[e : e + 1]
    )  # fmt: skip
    sides = [(0.0, 50.0)] * bool(np.isfinite(low)) + [(-50.0, 0.0)] * bool(np.isfinite(high))
    found = [
        minimize_scalar(
            lambda s: -price(one, value - s, np.array([s]))[0],
            bounds=side,
            method="bounded",
            options={"xatol": 1e-9},
        ).x
        for side in sides
    ]
    found.append(0.0)
    return max(found, key=lambda s: price(one, value - s, np.array([s]))[0])


@pytest.mark.parametrize("sides", ["lower", "upper", "both", "mixed"])
def test_multipliers_split_any_x_in_the_best_way(sides):
    made = draw(np.float64, sides, size=60, seed=3)
    s, _ = multipliers_of(made, made.x)
    both = np.flatnonzero(made.observed & made.bounded)
    assert np.count_nonzero(s[both]) > 2
    for e in both:
        assert s[e] == pytest.approx(best_split(made, e, made.x[e]), abs=1e-5)
    np.testing.assert_array_equal(s[~made.observed], made.x[~made.observed])
    np.testing.assert_array_equal(s[~made.bounded], 0.0)


@pytest.mark.parametrize("sides", ["lower", "upper", "both", "mixed"])
def test_a_certificate_splits_x_in_the_best_way_and_adds_up(sides, dtype):
    made = draw(dtype, sides, size=60, seed=5)
    passes.make_feasible(made.marks, made.places, made.lower, made.upper, made.x)
    middle = np.linspace(-0.05, 0.05, 7)
    found = passes.certified_sums(
        made.marks, made.places, made.lower, made.upper, middle, made.y, made.x, made.w, TWICE_C
    )
    y, x, w = (vector.astype(np.float64) for vector in (made.y, made.x, made.w))
    # Without a proximal term: the centre is s itself.
    made.centre = np.zeros(len(x))
    s = np.where(made.observed, 0.0, x)
    for e in np.flatnonzero(made.observed & made.bounded):
        s[e] = best_split_without_centre(made, e)
    z = x - s
    bound = np.where(s > 0, made.low, np.where(s < 0, made.high, 0.0))
    seen = made.observed
    outside = np.maximum(made.low - w, w - made.high)[made.bounded]
    wanted = (
        np.sum((w - y)[seen] ** 2),
        z @ z,
        z[seen] @ y[seen] + s @ bound,
        np.sum((middle[made.places] - y)[seen] ** 2),
        max(outside.max(), 0.0),
        np.sum(np.abs(s * (w - bound))),
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def best_split_without_centre(made, e):
    """s of the highest zy − z²/4C + s b, on a grid that is drawn together around the best."""
    y, x, low, high = float(made.y[e]), float(made.x[e]), made.low[e], made.high[e]
    first, last = -50.0 * np.isfinite(high), 50.0 * np.isfinite(low)
    for _ in range(12):
        s = np.unique(np.append(np.linspace(first, last, 201), np.clip(0.0, first, last)))
        bound = np.where(s > 0, low, np.where(s < 0, high, 0.0))
        z = x - s
        best = int(np.argmax(z * y - 0.5 * z**2 / TWICE_C + s * bound))
        first, last = s[max(best - 1, 0)], s[min(best + 1, len(s) - 1)]
    return s[best]


def test_no_entries_have_no_sums(dtype):
    made = draw(dtype, size=0)
    assert classified(made)[0] == (0.0, 0.0, 0.0, 0, 0, 0)
    assert multipliers_of(made, made.x)[1] == (0.0, 0.0)
    empty = [made.x.copy() for _ in range(5)]
    assert passes.conjugate_step(made.marks, *empty, 0.3, 0.8, TWICE_C, MU) == 0.0
    assert passes.scale_by_resistance(made.marks, made.x, TWICE_C, MU, empty[0]) == 0.0
    found = passes.certified_sums(
        made.marks, made.places, made.lower, made.upper, np.zeros(7), made.y, made.x, made.w,
        TWICE_C,
    )  # fmt: skip
    assert found == (0.0,) * 6


def test_short_numbers_are_summed_in_long_ones():
    # A float32 sum would not get beyond 2**24 in steps of one.
    ones = np.ones(2**20, dtype=np.float32)
    ones[0] = 2**12
    wanted = 2**24 + len(ones) - 1
    marks = np.full(len(ones), OBSERVED, dtype=np.float32)
    places = np.zeros(len(ones), dtype=np.int64)
    assert passes.scale_by_resistance(marks, ones, TWICE_C, MU, ones.copy()) == wanted
    free = np.array([-np.inf]), np.array([np.inf])
    zz = passes.certified_sums(
        marks, places, *free, np.zeros(1), np.ones_like(ones), ones, ones, TWICE_C
    )[1]
    assert zz == wanted
