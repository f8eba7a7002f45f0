"""An iteration's part that crosses slabs: the same whether it is made in one go or in strips."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from slrt_dask.kernels.rows import lanes_for, pad_columns
from slrt_dask.kernels.turns import DONE, GIVEN_UP, new_counters

from slrt_dask.kernels import crossing, sweeps, vectors
from tests.kernels.helpers import random_tensor, whole_fibres


class Step:
    """The vectors of an iteration, what a step makes of them, and a copy of them to try it on."""

    def __init__(self, order, dtype, leaves, seed=7):
        self.leaves = leaves  # x and p to the next step
        tensor, self.generator = random_tensor(order, fraction=0.9), np.random.default_rng(seed)
        self.factor = pad_columns(self.generator.standard_normal((tensor.dense.shape[0], 4)))
        fibres, self.count = whole_fibres(tensor, 0)
        self.fibres = fibres.astype(np.int64)  # as where a short number cannot count them
        self.starts, self.rows = tensor.index.starts, tensor.indices[0]
        self.sums = self.generator.standard_normal((self.count, 4))
        size = len(self.rows)
        self.drawn = [self.generator.standard_normal(size).astype(dtype) for _ in range(5)]
        self.vectors = [vector.copy() for vector in self.drawn]

    def wanted(self, new_sums):
        """⟨r, r⟩ and the vectors, from the kernels that do one thing each; adds to the new sums."""
        apart, lanes = [vector.copy() for vector in self.drawn], lanes_for(4)
        sweeps.sample(self.rows, self.fibres, self.sums, self.factor, lanes, 0.7, apart[4])
        rr = vectors.conjugate_steps(*apart, 0.3, 0.8, 0.2, 0.6)
        sweeps.fibre_sums(self.rows, self.fibres, apart[1], self.factor, lanes, new_sums)
        if self.leaves:
            apart[0], apart[2] = self.drawn[0], self.drawn[2]
        return rr, apart[:4]

    def make(self, firsts, stops, new_sums):
        x, r, p, s, w = self.vectors
        return crossing.crossing_step(
            firsts, stops, self.rows, self.fibres, self.sums, self.factor, lanes_for(4), 0.7,
            r, s, w, 0.3, 0.8, new_sums, not self.leaves, x, p, 0.2, 0.6,
        )  # fmt: skip

    def take_turns(self, counters, borders, new_sums, squares, blocks, fresh=True):
        """The turns that a thread gets; blocks : first slices of every block, and the last stop."""
        x, r, p, s, w = self.vectors
        table, held = [], []
        for first, stop in itertools.pairwise(blocks):
            begin, end = self.starts[[first, stop]]
            starts, entries = self.starts[first : stop + 1] - begin, slice(begin, end)
            bounds = crossing.strip_bounds(starts, self.fibres[entries], borders)
            arrays = [bounds, *(a[entries] for a in (self.rows, self.fibres, r, s, w, x, p))]
            held.append(arrays)
            slices = stop - first
            table.append((end - begin, slices, slices, *(a.ctypes.data for a in arrays)))
        kinds = (self.rows[:0], self.fibres[:0], x[:0])
        return crossing.crossing_turns(
            counters, borders, np.array(table), *kinds, self.sums, self.factor, lanes_for(4), 0.7,
            0.3, 0.8, new_sums, fresh, not self.leaves, 0.2, 0.6, squares,
        )  # fmt: skip


def assert_made(step, rr, found, wanted_sums, dtype):
    close = {"rtol": 1e-12, "atol": 1e-12}
    if dtype == np.float32:
        close = {"rtol": 1e-4, "atol": 1e-5}
    wanted_rr, wanted = step.wanted(wanted_sums)
    np.testing.assert_allclose(rr, wanted_rr, **close)
    np.testing.assert_allclose(found, wanted_sums, **close)
    for one, other in zip(step.vectors[:4], wanted, strict=True):
        np.testing.assert_allclose(one, other, **close)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("sorted_by_fibre", [True, False])
def test_a_crossing_step_is_sampling_then_a_conjugate_step_then_fibre_sums(
    order, sorted_by_fibre, dtype, leaves
):
    step = Step(order, dtype, leaves)
    if not sorted_by_fibre:  # as where entries were added later
        step.fibres = step.generator.permutation(step.count)[step.fibres]
    found = np.ones((step.count, 4))
    wanted = found.copy()
    rr = step.make(step.starts[:-1], step.starts[1:], found)
    assert_made(step, rr, found, wanted, dtype)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("order", "strips"), [(2, 1), (3, 2), (3, 50), (4, 3)])
def test_strips_make_the_whole_step_in_any_order(order, strips, dtype, leaves):
    step = Step(order, dtype, leaves)
    borders = np.unique(np.linspace(0, step.count, strips + 1).astype(np.int64))
    bounds = crossing.strip_bounds(step.starts, step.fibres, borders)
    found = np.full((step.count, 4), np.nan)  # cleared strip by strip
    rr = 0.0
    for number in step.generator.permutation(len(borders) - 1):
        found[borders[number] : borders[number + 1]] = 0.0
        rr += step.make(bounds[number], bounds[number + 1], found)
    assert_made(step, rr, found, np.zeros((step.count, 4)), dtype)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("order", "strips", "blocks", "threads"),
    [(2, 1, (0, 6), 1), (3, 5, (0, 2, 5), 1), (3, 9, (0, 1, 4, 5), 3), (4, 4, (0, 3, 4), 2)],
)
def test_turns_make_the_whole_step_whoever_takes_them(
    order, strips, blocks, threads, dtype, leaves
):
    step = Step(order, dtype, leaves)
    borders = np.unique(np.linspace(0, step.count, strips + 1).astype(np.int64))
    found, counters = np.full((step.count, 4), np.nan), new_counters()
    squares = np.full(len(borders) - 1, np.nan)

    def take(_):
        return step.take_turns(counters, borders, found, squares, blocks)

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(take, range(threads))) == 1  # one of them has done the last turn
    assert not take(None)  # there are no more
    assert counters[DONE, 0] == len(squares)
    assert_made(step, squares.sum(), found, np.zeros((step.count, 4)), dtype)


@pytest.mark.parametrize("strips", [1, 5])
def test_sums_that_are_not_fresh_are_added_to(strips):
    step = Step(3, np.float64, False)
    borders = np.unique(np.linspace(0, step.count, strips + 1).astype(np.int64))
    found, squares = np.ones((step.count, 4)), np.zeros(len(borders) - 1)
    step.take_turns(new_counters(), borders, found, squares, (0, 2, 5), fresh=False)
    assert_made(step, squares.sum(), found, np.ones((step.count, 4)), np.float64)


def test_no_turn_is_taken_of_work_that_was_given_up():
    step, counters = Step(3, np.float64, False), new_counters()
    counters[GIVEN_UP, 0] = 1
    found = np.full((step.count, 4), np.nan)
    borders = np.array([0, step.count])
    assert not step.take_turns(counters, borders, found, np.zeros(1), (0, 5))
    assert np.isnan(found).all()
    assert counters[DONE, 0] == 0


def test_bounds_of_strips_are_where_their_fibres_are():
    starts = np.array([0, 4, 4, 6])
    fibres = np.array([0, 2, 2, 5, 1, 3], dtype=np.int32)
    bounds = crossing.strip_bounds(starts, fibres, np.array([0, 2, 3, 6]))
    np.testing.assert_array_equal(bounds, [[0, 4, 4], [1, 4, 5], [3, 4, 5], [4, 4, 6]])
    for place in (1, 3, 5):
        mixed = fibres.copy()
        mixed[[place - 1, place]] = mixed[[place, place - 1]]
        assert len(crossing.strip_bounds(starts, mixed, np.array([0, 2, 3, 6]))) == 0


def test_strips_cover_every_fibre_once_and_are_neither_too_large_nor_too_small():
    sizes = itertools.product(
        [1, 2, 7, 29_000, 10**6], [2, 10, 64], [1, 1000, 10**7], [1, 145, 10**5], [1, 2, 3, 16]
    )
    for fibres, width, entries, slices, threads in sizes:
        borders = crossing.strip_borders(fibres, width, entries, slices, threads)
        lengths = np.diff(borders)
        assert borders[0] == 0
        assert borders[-1] == fibres
        assert (lengths > 0).all()
        if len(lengths) > 1:  # one strip is always allowed
            in_a_slice = entries * lengths.min() / (fibres * slices)
            assert in_a_slice >= crossing.SHORTEST / 2
            limit = crossing.STRIP_BYTES // (8 * width)
            shortest = crossing.SHORTEST * fibres * slices / entries + 1
            assert lengths.max() <= max(limit, shortest) * 1.5


def test_threads_are_given_smaller_strips_towards_the_end():
    lengths = np.diff(crossing.strip_borders(29_000, 10, 420_500, 145, 2))
    assert len(lengths) >= 2 * 2
    assert (np.diff(lengths[:-1]) <= 0).all()
    assert lengths[-1] <= 29_000 // 2 // crossing.SHARES * 1.5


def test_nothing_has_no_strips():
    assert crossing.strip_borders(0, 2, 0, 0, 2) == (0,)
