"""The fused passes over vectors do what numpy does in several."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slrt_dask.kernels import bounds, vectors

TOLERANCE = {np.float64: 1e-13, np.float32: 1e-5}


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def dtype(request):
    return request.param


@pytest.fixture
def drawn(dtype):
    """Five vectors of one length, in the working precision."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(101).astype(dtype) for _ in range(5)]


def test_dot_is_the_inner_product_in_double_precision(drawn):
    left, right = drawn[:2]
    wanted = left.astype(np.float64) @ right.astype(np.float64)
    assert vectors.dot(left, right) == pytest.approx(wanted, rel=1e-13)


def test_dot_of_short_numbers_is_summed_in_long_ones():
    ones = np.ones(2**24 + 3, dtype=np.float32)  # a float32 sum would stop at 2**24
    assert vectors.dot(ones, ones) == len(ones)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_squares_of_short_numbers_neither_vanish_nor_overflow(size):
    few = np.full(10, size, dtype=np.float32)
    wanted = pytest.approx(10 * size**2, rel=1e-6, abs=0.0)
    assert vectors.dot(few, few) == wanted
    assert vectors.solution_products(few, few, few) == (wanted,) * 4


def test_conjugate_step_is_its_four_recurrences(drawn, dtype):
    x, r, p, s, w = (vector.copy() for vector in drawn)
    rr = vectors.conjugate_step(x, r, p, s, w, 0.3, 0.8)
    old_x, old_r, old_p, old_s, old_w = (vector.astype(np.float64) for vector in drawn)
    new_p, new_s = old_r + 0.8 * old_p, old_w + 0.8 * old_s
    new_r = old_r - 0.3 * new_s
    assert rr == pytest.approx(new_r @ new_r, rel=10 * TOLERANCE[dtype])
    wanted = (old_x + 0.3 * new_p, new_r, new_p, new_s, old_w)
    for found, value in zip((x, r, p, s, w), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_two_steps_of_which_the_first_leaves_x_and_p_are_two_steps(drawn, dtype):
    x, r, p, s, w = (vector.copy() for vector in drawn)
    other = np.random.default_rng(1).standard_normal(len(x)).astype(dtype)
    vectors.conjugate_step(x.copy(), r, p.copy(), s, w, 0.3, 0.8)  # moves only r and s
    rr = vectors.conjugate_steps(x, r, p, s, other, 0.7, 0.4, 0.3, 0.8)
    wanted = [vector.astype(np.float64) for vector in drawn]
    vectors.conjugate_step(*wanted, 0.3, 0.8)
    wanted[4] = other.astype(np.float64)
    wanted_rr = vectors.conjugate_step(*wanted, 0.7, 0.4)
    assert rr == pytest.approx(wanted_rr, rel=10 * TOLERANCE[dtype])
    close = {"rtol": 10 * TOLERANCE[dtype], "atol": 10 * TOLERANCE[dtype]}
    for found, value in zip((x, r, p, s), wanted, strict=False):
        np.testing.assert_allclose(found, value, **close)


def test_products_of_a_pass_are_inner_products(drawn):
    x, r, b = (vector.astype(np.float64) for vector in drawn[:3])
    found = vectors.solution_products(*drawn[:3])
    np.testing.assert_allclose(found, (b @ x, r @ x, x @ x, r @ r), rtol=1e-12)


def test_a_nan_reaches_every_product_that_sees_it(drawn):
    drawn[0][5] = np.nan
    assert np.isnan(vectors.dot(drawn[0], drawn[1]))
    products = vectors.solution_products(*drawn[:3])
    assert np.isnan(products[:3]).all()
    assert np.isfinite(products[3])


def test_empty_vectors_have_zero_products(dtype):
    empty = np.zeros(0, dtype=dtype)
    assert vectors.dot(empty, empty) == 0.0
    assert vectors.solution_products(empty, empty, empty) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("cleared", [2, 3])
def test_a_start_copies_one_vector_and_clears_others(drawn, cleared):
    source, target, *others = drawn
    others[0][3] = np.nan  # what a vector was before does not matter
    kept = source.copy()
    squared = vectors.start(source, target, tuple(others[:cleared]))
    assert squared == pytest.approx(vectors.dot(kept, kept), rel=1e-13)
    np.testing.assert_array_equal(source, kept)
    np.testing.assert_array_equal(target, kept)
    assert not np.any(others[:cleared])


def test_a_start_may_be_where_it_goes(drawn):
    kept = drawn[0].copy()
    vectors.start(drawn[0], drawn[0], tuple(drawn[1:3]))
    np.testing.assert_array_equal(drawn[0], kept)


def test_a_difference_comes_with_its_square(drawn, dtype):
    left, right, out = drawn[:3]
    squared = vectors.difference(left, right, out)
    np.testing.assert_array_equal(out, left - right)
    assert squared == pytest.approx(np.sum((left - right).astype(np.float64) ** 2), rel=1e-13)
    assert vectors.difference(left[:0], right[:0], out[:0]) == 0.0


PASSES = {
    "dot": (2, vectors.dot),
    "start": (5, lambda source, target, *cleared: vectors.start(source, target, cleared)),
    "difference": (3, vectors.difference),
    "residual_step": (3, lambda *held: vectors.residual_step(*held, 0.3, 0.7)),
    "conjugate_step": (5, lambda *held: vectors.conjugate_step(*held, 0.3, 0.7)),
    "conjugate_steps": (5, lambda *held: vectors.conjugate_steps(*held, 0.3, 0.7, 0.2, 0.1)),
    "solution_products": (3, vectors.solution_products),
    "scale_by_resistance": (
        2,
        lambda r, w: bounds.scale_by_resistance(np.ones(r.size, np.int8), r, 2.0, 0.1, w),
    ),
    "bounded conjugate_step": (
        5,
        lambda *held: bounds.conjugate_step(
            np.ones(held[0].size, np.int8), *held, 0.3, 0.7, 2.0, 0.1
        ),
    ),
}


@pytest.mark.parametrize(("count", "make_pass"), PASSES.values(), ids=PASSES)
def test_no_sum_depends_on_where_vectors_lie(count, make_pass, dtype):
    """Nor on how close they are: short ones happen to be neighbours in memory."""
    rng = np.random.default_rng(0)
    memory = np.zeros(1000, dtype)
    for length in range(1, 21):
        drawn = [rng.standard_normal(length).astype(dtype) for _ in range(count)]
        outcomes = set()
        for gap, first in itertools.product((0, 2, 8, 100), (0, 3)):
            for order in (range(count), range(count)[::-1]):
                held = [memory[first + place * (length + gap) :][:length] for place in order]
                for room, values in zip(held, drawn, strict=True):
                    room[:] = values
                outcomes.add(repr(make_pass(*held)))
        assert len(outcomes) == 1, length
