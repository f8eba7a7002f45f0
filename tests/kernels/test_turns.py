"""Counters that threads share: no number twice, and nobody waits for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import njit

from slrt_dask.kernels.turns import (
    DONE,
    GIVEN_UP,
    TAKEN,
    count_of,
    count_up,
    new_counters,
    vector_at,
    wait_for,
)
from tests.waiting import PATIENCE, begun


@njit(nogil=True)
def take_many(counters, taken):
    for place in range(taken.size):
        taken[place] = count_up(counters, TAKEN)


@njit
def count(counters, row):
    return count_up(counters, row), count_of(counters, row)


@njit
def doubled(address, length, like):
    numbers = vector_at(address, length, like)
    for place in range(numbers.size):
        numbers[place] *= 2
    return numbers.sum()


def test_no_two_threads_are_told_the_same():
    counters, taken = new_counters(), np.zeros((4, 20_000), dtype=np.int64)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: take_many(counters, part), taken))
    np.testing.assert_array_equal(np.sort(taken.ravel()), np.arange(taken.size))
    assert (np.diff(taken, axis=1) > 0).all()


def test_counters_do_not_touch_each_other():
    counters = new_counters(3)
    assert count(counters, 1) == (0, 1)
    assert count(counters, 1) == (1, 2)
    np.testing.assert_array_equal(counters[:, 0], [0, 2, 0])
    assert counters.strides[0] == 64


@pytest.mark.parametrize(("row", "reached"), [(DONE, True), (GIVEN_UP, False)])
def test_whoever_waits_is_told_by_another_thread(row, reached):
    counters, asked = new_counters(), threading.Event()

    def wait():
        asked.set()
        return wait_for(counters, DONE, 1, -1)

    waiting = begun(wait)
    assert asked.wait(PATIENCE)
    count(counters, row)
    assert waiting.result(PATIENCE) is reached


@pytest.mark.parametrize("offers", [0, 1, 5])
def test_waiting_can_have_an_end(offers):
    assert not wait_for(new_counters(), DONE, 1, offers)
    assert wait_for(new_counters(), DONE, 0, offers)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int32, np.int64])
def test_what_lies_at_an_address_is_the_array(kind):
    numbers = np.arange(5, dtype=kind)
    assert doubled(numbers.ctypes.data, 4, numbers[:0]) == 12
    np.testing.assert_array_equal(numbers, [0, 2, 4, 6, 4])
