"""The passes over entries do what an entry's answer to w says, whatever its bounds and its loss."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slrt_dask.kernels import entries as passes
from slrt_dask.kernels.entries import BOUNDED, COUPLED, OBSERVED

TWICE_C, MU, SIZE = 3.0, 0.4, 300
TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}
SIDES = ("lower", "upper", "both", "equal", "neither", "mixed")
EVERY = OBSERVED + BOUNDED + COUPLED


class Entries:
    """Entries with every kind of mark, and what each answers to w, in plain numpy.

    sides : which bounds there are;  most : the largest |z|, before weights
    """

    def __init__(self, sides="mixed", most=np.inf, *, weighted=False, dtype=np.float64, seed=0):
        rng = np.random.default_rng(seed)
        lower, upper = -rng.random(7) - 0.1, rng.random(7) + 0.1
        if sides in ("upper", "neither"):
            lower[:] = -np.inf
        if sides in ("lower", "neither"):
            upper[:] = np.inf
        if sides == "equal":
            upper = lower.copy()
        if sides == "mixed":
            lower[[1, 4]], upper[[2, 4, 6]] = -np.inf, np.inf
            lower[5] = upper[5]
        places = rng.integers(0, 7, SIZE)
        kinds = np.array([OBSERVED, BOUNDED, OBSERVED + BOUNDED, COUPLED])
        marks = kinds[rng.integers(0, 4, SIZE)]
        self.seen, self.bounded = (marks & OBSERVED) > 0, (marks & BOUNDED) > 0
        self.low = np.where(self.bounded, lower[places], -np.inf)
        self.high = np.where(self.bounded, upper[places], np.inf)
        self.lower, self.upper, self.places = lower, upper, places
        self.y, self.w, x, centre = (rng.standard_normal((4, SIZE)) * 1.5).astype(dtype)
        self.centre = np.where(rng.random(SIZE) < 0.5, self.signed(centre), 0.0).astype(dtype)
        weights = rng.uniform(0.3, 3.0, SIZE).astype(dtype) if weighted else np.zeros(0, dtype)
        self.these = passes.Entries(
            marks.astype(dtype), places, lower, upper, self.centre, self.y, weights, TWICE_C, most,
            MU, EVERY,
        )  # fmt: skip
        self.weight = np.where(self.seen, weights if weighted else 1.0, 0.0).astype(np.float64)
        self.twice_c = TWICE_C * self.weight
        limit = (np.where(self.seen, self.weight, 1.0) * most).astype(dtype)
        if np.isfinite(most):  # x is rounded, but not beyond its limit
            beyond = limit > np.where(self.seen, self.weight, 1.0) * most
            limit = np.where(beyond, np.nextafter(limit, dtype(0)), limit)
        self.most = np.where(self.seen, limit.astype(np.float64), 0.0)
        # Not so large that free numbers would be rare, and some exactly where entries are held.
        self.x = 2.0 * x
        held = rng.random(SIZE) < 0.3
        limit = np.where(np.isfinite(self.most), self.most, 0.0).astype(dtype)
        self.x = np.where(held, limit * rng.choice([-1, 1], SIZE), self.x).astype(dtype)
        # A multiplier of equal bounds that is exactly zero waits for a step down the slope.
        self.x[(self.x == 0.0) & ~self.seen & (self.low == self.high)] = 0.1
        passes.begin(self.these, self.x)

    @property
    def dtype(self):
        return self.x.dtype.type

    @property
    def tolerance(self):
        return TOLERANCE[self.dtype]

    def signed(self, s):
        """The nearest multipliers that there may be: of one sign where one bound is missing."""
        return np.clip(s, np.where(self.high < np.inf, -np.inf, 0.0),
                       np.where(self.low > -np.inf, np.inf, 0.0))  # fmt: skip

    def possible(self, x):
        return np.clip(x, np.where(self.high < np.inf, -np.inf, -self.most),
                       np.where(self.low > -np.inf, np.inf, self.most))  # fmt: skip

    def answer(self, w):
        """z and s."""
        z = np.clip(self.twice_c * (self.y.astype(float) - w), -self.most, self.most)
        centre = self.centre.astype(float)
        above, below = centre + (self.low - w) / MU, centre + (self.high - w) / MU
        return z, np.where(self.bounded, np.maximum(above, 0.0) + np.minimum(below, 0.0), 0.0)

    def price(self, z, s, mu=MU):
        """What dual numbers are worth, without the model's quadratic term, by entry."""
        y, centre = self.y.astype(float), self.centre.astype(float)
        square = np.divide(z**2, 2 * self.twice_c, out=np.zeros(SIZE), where=self.seen)
        bound = np.where(s > 0.0, self.low, np.where(s < 0.0, self.high, 0.0))
        proximal = np.where(self.bounded, 0.5 * mu * (s - centre) ** 2, 0.0)
        return z * y - square + s * bound - proximal

    def interval(self, x, far=1e3):
        """The least and the largest w whose answer is x, by bisection."""
        ends = []
        for slack in (1e-10, -1e-10):
            low, high = np.full(SIZE, -far), np.full(SIZE, far)
            for _ in range(80):
                w = 0.5 * (low + high)
                falls_later = sum(self.answer(w)) > x + slack
                low, high = np.where(falls_later, w, low), np.where(falls_later, high, w)
            ends.append(low)
        return ends

    def splits(self, mu):
        """The s of the highest price for x = z + s, on a grid drawn together around the best."""
        x = self.x.astype(float)
        first, last = self.signed(np.full(SIZE, -50.0)), self.signed(np.full(SIZE, 50.0))
        first, last = np.maximum(first, x - self.most), np.minimum(last, x + self.most)
        for _ in range(25):
            grid = [first + part * (last - first) for part in np.linspace(0, 1, 21)]
            grid.append(np.clip(0.0, first, last))
            worth = np.array([self.price(x - s, s, mu) for s in grid])
            best, grid = np.argmax(worth, axis=0), np.array(grid)
            s = grid[best, np.arange(SIZE)]
            width = (last - first) / 20
            first, last = np.maximum(first, s - width), np.minimum(last, s + width)
        return s

    def standing(self, x=None, w=None, length=0.1):
        x, w = self.x if x is None else x, self.w if w is None else w
        r = np.full_like(self.x, np.nan)
        return passes.standing(self.these, x, w, length, r), r


@pytest.fixture(
    params=[
        (sides, most, weighted, dtype)
        for sides, most in itertools.product(SIDES, (np.inf, 1.5))
        for weighted, dtype in ((False, np.float64), (True, np.float64), (True, np.float32))
    ],
    ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}-{np.dtype(case[3])}",
)
def made(request):
    sides, most, weighted, dtype = request.param
    return Entries(sides, most, weighted=weighted, dtype=dtype)


def test_nothing_is_left_to_do_exactly_where_x_is_the_answer_to_w(made):
    x = sum(made.answer(made.w.astype(float)))
    (squares, free, chopped, reachable, dual), r = made.standing(x.astype(made.dtype))
    assert max(squares, free, chopped, reachable) <= SIZE * (10 * made.tolerance) ** 2
    assert np.abs(r).max() <= 10 * made.tolerance
    worth = made.price(*made.answer(made.w.astype(float))).sum() - 0.5 * x @ made.w
    assert dual == pytest.approx(worth, rel=10 * made.tolerance)
    # And nowhere else: a number that is not the answer is seen.
    other = made.possible(x + 0.1)
    (squares, *_), _ = made.standing(other.astype(made.dtype))
    moved = other - x
    assert squares >= 0.5 * np.sum((moved / (made.twice_c + 1 / MU)) ** 2)
    assert (squares > 0.0) == (np.abs(moved).max() > 0.0)


def test_slopes_are_how_far_w_is_from_the_numbers_that_x_answers_to(made):
    low, high = made.interval(made.x.astype(float))
    w, active = made.w.astype(float), made.seen | made.bounded
    left = np.where(active, np.clip(w, low, high) - w, 0.0)
    held = high - low > 1e-6
    (_, free, chopped, reachable, _), r = made.standing()
    close = {"rtol": 1e3 * made.tolerance, "atol": 1e3 * made.tolerance + 1e-8}
    np.testing.assert_allclose(r, np.where(held, 0.0, left), **close)
    assert free == pytest.approx(np.sum(left[~held] ** 2), rel=1e-4)
    assert chopped == pytest.approx(np.sum(left[held] ** 2), rel=1e-4, abs=1e-9)
    assert 0.0 <= reachable <= free * (1 + 1e-9)
    # What a free entry has on the diagonal is how fast w falls as x rises.
    resistance = np.full_like(made.x, np.nan)
    passes.resistances(made.these, made.x, resistance)
    np.testing.assert_array_equal(resistance > 0.0, active & ~held)
    step = 1e-3
    there = made.interval(made.x.astype(float) + step)[0]
    inside = (resistance > 0.0) & (high - low < 1e-9)
    inside &= np.abs(made.interval(made.x.astype(float) - step)[0] + there - 2 * low) < 1e-8
    assert inside.sum() > 30
    np.testing.assert_allclose((low - there)[inside] / step, resistance[inside], rtol=1e-3)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("most", [np.inf, 1.5])
def test_the_dual_value_is_that_of_the_best_split_never_above_the_primal_one(sides, most):
    made = Entries(sides, most, weighted=True)
    rng = np.random.default_rng(1)
    L = rng.standard_normal((SIZE, 20)) @ rng.standard_normal((20, SIZE)) / 20
    L = 0.1 * L @ L.T
    w = L @ made.x
    (squares, *_, dual), r = made.standing(w=w)
    s = made.splits(MU)
    assert dual == pytest.approx((made.price(made.x - s, s) - 0.5 * made.x * w).sum(), rel=1e-7)
    z, t = made.answer(w)
    primal = (made.price(z, t) - (z + t) * w).sum() + 0.5 * made.x @ w
    assert squares > 0.0
    assert dual < primal
    # Its slope along a direction of free entries is that of differences.
    p, step = np.zeros(SIZE), 1e-6
    gain, energy = passes.turn(made.these, made.x, r, 0.0, p, np.zeros(SIZE))
    ahead, behind = (
        made.standing(made.x + sign * step * p, L @ (made.x + sign * step * p))[0][-1]
        for sign in (1, -1)
    )
    assert gain == pytest.approx(r @ p)
    assert energy > 0.0
    assert (ahead - behind) / (2 * step) == pytest.approx(gain, rel=1e-3)


def test_directions_leave_held_entries_alone(made):
    resistance = np.zeros_like(made.x)
    passes.resistances(made.these, made.x, resistance)
    rng = np.random.default_rng(2)
    r, p, w = rng.standard_normal((3, SIZE)).astype(made.dtype)
    wanted = np.where(resistance > 0.0, r + 0.5 * p.astype(float), 0.0)
    gain, energy = passes.turn(made.these, made.x, r, 0.5, p, w)
    close = {"rtol": 10 * made.tolerance, "atol": 10 * made.tolerance}
    np.testing.assert_allclose(p, wanted, **close)
    np.testing.assert_allclose(w, resistance * wanted, **close)
    assert gain == pytest.approx(r.astype(float) @ wanted, rel=1e-5)
    assert energy == pytest.approx(resistance * wanted @ wanted, rel=1e-5)


@pytest.mark.parametrize("how", ["move", "slide"])
def test_no_step_leaves_the_box_or_passes_a_number_at_which_entries_are_held(made, how):
    before, image = made.x.copy(), made.w.copy()
    resistance = np.zeros_like(made.x)
    passes.resistances(made.these, made.x, resistance)
    if how == "move":
        p = np.where(resistance > 0.0, np.random.default_rng(3).standard_normal(SIZE) * 4, 0.0)
        p, change = p.astype(made.dtype), made.y
        to = before + 0.7 * p.astype(float)
        stopped = passes.move(made.these, made.x, image, p, change, 0.7)
        np.testing.assert_allclose(image, made.w + 0.7 * change, rtol=1e-5, atol=1e-5)
        assert stopped == np.count_nonzero(np.abs(made.x - to) > 100 * made.tolerance)
    else:
        low, high = made.interval(before.astype(float))
        slope = np.clip(image, low, high) - image
        to = np.where(made.seen | made.bounded, before + 5.0 * slope, before)
        passes.slide(made.these, made.x, made.w, 5.0)
    after = made.x.copy()
    passes.begin(made.these, after)
    np.testing.assert_array_equal(after, made.x)  # nothing had to be brought back
    close = 1e3 * made.tolerance + 1e-6
    short = np.abs(made.x - to) > close
    between = (made.x - before) * (to - made.x) >= -close
    assert between.all()
    passes.resistances(made.these, made.x, resistance)
    assert not resistance[short].any()
    some = np.isfinite(made.low) | np.isfinite(made.high)
    held = np.where(made.seen, np.isfinite(made.most), some & (made.low < made.high))
    assert short.any() == held.any()


def test_what_is_begun_with_is_the_nearest_number_that_is_possible(made):
    x = 3.0 * made.w
    wanted = made.possible(x.astype(float))
    passes.begin(made.these, x)
    np.testing.assert_allclose(x, wanted, rtol=made.tolerance)


def test_multipliers_and_certificates_split_any_x_in_the_best_way(made):
    s = np.full_like(made.x, np.nan)
    squares = passes.multipliers(made.these, made.x, s)
    away = (s.astype(float) - made.centre)[made.bounded]
    assert squares == pytest.approx(away @ away, rel=1e-5)
    np.testing.assert_allclose(s, made.splits(MU), atol=1e-4)
    # A certificate has no proximal term.
    middle, delta = np.linspace(-0.05, 0.05, 7), float(made.these.most) / TWICE_C
    found = passes.certified_sums(made.these, middle, delta, made.x, made.w)
    y, x, w = (vector.astype(float) for vector in (made.y, made.x, made.w))
    s, seen = made.splits(0.0), made.seen
    z, bound = x - s, np.where(s > 0, made.low, np.where(s < 0, made.high, 0.0))

    def loss(misfit):
        size = np.minimum(np.abs(misfit), delta)
        return made.weight * (size**2 + 2 * np.where(size < np.abs(misfit), delta, 0.0)
                              * (np.abs(misfit) - size))  # fmt: skip

    outside = np.maximum(made.low - w, w - made.high)[made.bounded]
    wanted = (
        loss(w - y).sum(), loss(middle[made.places] - y).sum(),
        np.sum(z[seen] ** 2 / made.twice_c[seen]), z[seen] @ y[seen] + s @ bound,
        np.sum(np.abs(s * (w - bound))), np.max(np.abs(z[seen]) / made.most[seen]),
        max(outside.max(), 0.0),
    )  # fmt: skip
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)


def test_huber_goes_on_along_the_tangent_of_the_square():
    errors, none = np.linspace(-4, 4, 81), np.zeros(0)
    wanted = np.where(np.abs(errors) <= 1, errors**2, 2 * np.abs(errors) - 1)
    found = [passes.total_loss(error, none, 1.0) for error in errors[:, None]]
    np.testing.assert_allclose(found, wanted)
    weights = np.linspace(1, 2, 81)
    assert passes.total_loss(errors, weights, 1.0) == pytest.approx(weights @ wanted)


def test_short_numbers_are_summed_in_long_ones():
    # A float32 sum would not get beyond 2**24 in steps of one.
    ones = np.ones(2**20, dtype=np.float32)
    ones[0] = 2**12
    none, nowhere = np.zeros(0), np.zeros(0, dtype=np.int64)
    these = passes.Entries(
        none, nowhere, none, none, none, ones, none, 1.0, np.inf, 1.0, OBSERVED
    )  # fmt: skip
    found = passes.certified_sums(these, none, np.inf, ones, np.zeros_like(ones))
    assert found[3] == 2**24 + len(ones) - 1
