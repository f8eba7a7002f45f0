"""Passes over vectors do in one what numpy does in several."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slrt_dask.kernels import additive, vectors, windows
from slrt_dask.kernels.coupling import add_adjoint, add_products
from tests.kernels.helpers import TOLERANCE, close


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def dtype(request):
    return request.param


@pytest.fixture
def drawn(dtype):
    """Five vectors of one length, in the working precision."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(101).astype(dtype) for _ in range(5)]


def exact(held):
    """The same vectors in float64."""
    return [vector.astype(np.float64) for vector in held]


def test_inner_products_are_summed_in_double_precision(drawn):
    x, r, b = exact(drawn[:3])
    close(vectors.dot(*drawn[:2]), x @ r)
    close(vectors.solution_products(*drawn[:3]), (b @ x, r @ x, x @ x, r @ r))
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
    old_x, old_r, old_p, old_s, old_w = exact(drawn)
    new_p, new_s = old_r + 0.8 * old_p, old_w + 0.8 * old_s
    new_r = old_r - 0.3 * new_s
    assert rr == pytest.approx(new_r @ new_r, rel=10 * TOLERANCE[dtype])
    wanted = (old_x + 0.3 * new_p, new_r, new_p, new_s, old_w)
    for found, value in zip((x, r, p, s, w), wanted, strict=True):
        close(found, value, dtype)


def test_a_nan_reaches_every_product_that_sees_it_and_no_entries_give_zero(drawn):
    drawn[0][5] = np.nan
    assert np.isnan(vectors.dot(drawn[0], drawn[1]))
    products = vectors.solution_products(*drawn[:3])
    assert np.isnan(products[:3]).all()
    assert np.isfinite(products[3])
    empty = drawn[0][:0]
    assert vectors.dot(empty, empty) == vectors.difference(empty, empty, empty) == 0.0
    assert vectors.solution_products(empty, empty, empty) == (0.0,) * 4


@pytest.mark.parametrize("in_place", [False, True])
def test_a_start_copies_one_vector_and_clears_others(in_place, drawn):
    source, target, *others = drawn
    target = source if in_place else target
    others[0][3] = np.nan  # what a vector was before does not matter
    kept = source.copy()
    squared = vectors.start(source, target, tuple(others))
    assert squared == pytest.approx(vectors.dot(kept, kept), rel=1e-13)
    np.testing.assert_array_equal(source, kept)
    np.testing.assert_array_equal(target, kept)
    assert not np.any(others)


def test_a_difference_comes_with_its_square(drawn):
    left, right, out = drawn[:3]
    squared = vectors.difference(left, right, out)
    np.testing.assert_array_equal(out, left - right)
    close(squared, np.sum(out.astype(np.float64) ** 2))


PASSES = {
    "dot": (2, vectors.dot),
    "start": (5, lambda source, target, *cleared: vectors.start(source, target, cleared)),
    "difference": (3, vectors.difference),
    "conjugate_step": (5, lambda *held: vectors.conjugate_step(*held, 0.3, 0.7)),
    "solution_products": (3, vectors.solution_products),
    "scale": (3, vectors.scale),
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


# ---- rows of linear constraints, offsets per mode, windows --------------------------------------


@pytest.mark.parametrize("count", [0, 1, 40, 161])
def test_products_with_the_rows_of_a_constraint_are_those_of_the_dense_matrix(count, dtype):
    rows, entries, rng = 7, 23, np.random.default_rng(count)
    places = rng.choice(rows * entries, count, replace=False)
    row, position = (part.astype(np.int32) for part in np.unravel_index(places, (rows, entries)))
    triplets = position, row, rng.standard_normal(count)
    A = np.zeros((rows, entries))
    A[row, position] = triplets[2]
    w, there = (rng.standard_normal(entries).astype(dtype) for _ in range(2))
    multipliers, before = rng.standard_normal(rows), rng.standard_normal(rows)
    products, out = before.copy(), there.copy()
    add_products(*triplets, w, products)
    close(products, before + A @ w)
    add_adjoint(*triplets, multipliers, -0.7, out)
    close(out, there - 0.7 * A.T @ multipliers, dtype)
    multipliers[A.any(axis=1) == 0] = np.nan  # of rows that have no entries here
    add_adjoint(*triplets, multipliers, 1.0, out)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("shape", [(6, 5), (5, 4, 3), (3, 4, 2, 3)])
def test_offsets_of_every_mode_are_added_up_and_residuals_summed(shape, dtype):
    rng = np.random.default_rng(0)
    columns = tuple(rng.integers(0, n, 50) for n in shape)
    y = rng.standard_normal(50).astype(dtype)
    starts = 1 + np.concatenate([[0], np.cumsum(shape)[:-1]])
    unknowns = rng.standard_normal(1 + sum(shape))
    design = np.zeros((50, len(unknowns)))
    design[:, 0] = 1.0
    for start, column in zip(starts, columns, strict=True):
        design[np.arange(50), start + column] = 1.0
    for scale, limit in ((1.0, np.inf), (0.0, np.inf), (1.0, 0.5)):
        sums = np.ones(len(unknowns))
        residual = np.clip(scale * y - design @ unknowns, -limit, limit)
        squares = additive.residual_sums(columns, starts, unknowns, y, scale, limit, sums)
        close(sums, 1.0 + design.T @ residual, factor=10)
        close(squares, residual @ residual, factor=10)
    values = y.copy()
    additive.subtract(columns, starts, unknowns, values)
    close(values, y - design @ unknowns, dtype)


def test_windows_are_cut_and_added_where_they_overlap():
    rng = np.random.default_rng(0)
    flat, firsts, rows = rng.standard_normal(40), np.array([0, 3, 7, 20]), np.array([0, 5, 10])
    lines = np.empty((4, 3, 6))
    windows.cut(flat, firsts, rows, lines)
    places = firsts[:, None, None] + rows[:, None] + np.arange(6)
    np.testing.assert_array_equal(lines, flat[places])
    added = flat.copy()
    windows.add(lines, firsts, rows, added)
    wanted = flat.copy()
    np.add.at(wanted, places, lines)
    close(added, wanted)
