"""Laws of the fibre numbers: within range, and equal just where the fibre is the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slrt_dask.errors import InvalidInput
from slrt_dask.kernels.blocks import (
    FibreNumbering,
    build_block,
    build_queries,
    fibre_keys,
    possible_fibres,
)
from tests.kernels.helpers import ORDERS, random_tensor, sparse_tensor


@st.composite
def blocks(draw):
    """A sparse tensor of any order with any slab mode, numbered in either way, maybe empty."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=5)))
    size = math.prod(shape)
    flat = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=25))
    places = np.array(np.unravel_index(np.array(flat, dtype=int), shape)).reshape(len(shape), -1)
    slab_mode = draw(st.integers(0, len(shape) - 1))
    known = bool(flat) and draw(st.booleans())
    return sparse_tensor(shape, places, np.ones(len(flat)), slab_mode=slab_mode, known=known)


def names(indices, left_out):
    """A tuple per entry that says where it is in all modes but those left out."""
    kept = [np.asarray(row) for mode, row in enumerate(indices) if mode not in left_out]
    return list(zip(*(row.tolist() for row in kept), strict=True)) if kept else None


def assert_numbers_name(numbers, named):
    """Equal numbers just where the names are equal."""
    pairs = set(zip(np.asarray(numbers).tolist(), named, strict=True))
    assert len(pairs) == len({number for number, _ in pairs}) == len({name for _, name in pairs})


@settings(max_examples=80, deadline=None)
@given(blocks())
def test_fibre_numbers_are_in_range_and_equal_just_for_the_same_fibre(tensor):
    index = tensor.index
    slices = np.asarray(index.rows[index.slab_mode]).tolist()
    for mode, (numbers, rows) in enumerate(zip(index.fibres, index.buffer_rows, strict=True)):
        assert len(numbers) == index.entries
        assert ((numbers >= 0) & (numbers < rows)).all()
        named = names(tensor.indices, (mode,)) or [()] * index.entries
        if mode == index.slab_mode:
            assert_numbers_name(numbers, named)
        else:
            # A number is reused in the next slice, so the slice belongs to it.
            assert_numbers_name_in_slices(numbers, slices, named)


def assert_numbers_name_in_slices(numbers, slices, named):
    for s in set(slices):
        here = [position for position, place in enumerate(slices) if place == s]
        assert_numbers_name([int(numbers[p]) for p in here], [named[p] for p in here])


@settings(max_examples=50, deadline=None)
@given(blocks())
def test_starts_cut_the_entries_into_whole_slices(tensor):
    index = tensor.index
    slab = index.rows[index.slab_mode]
    assert index.starts[0] == 0
    assert index.starts[-1] == index.entries
    pieces = [slab[a:b] for a, b in zip(index.starts[:-1], index.starts[1:], strict=True)]
    assert all(len(np.unique(piece)) == 1 for piece in pieces)
    assert len(pieces) == len(np.unique(slab))


@settings(max_examples=80, deadline=None)
@given(blocks(), st.data())
def test_queries_share_numbers_with_the_entries_of_their_fibres(tensor, data):
    index, shape = tensor.index, tensor.dense.shape
    size = math.prod(shape)
    flat = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), dtype=int)
    places = np.array(np.unravel_index(flat, shape)).reshape(len(shape), -1)
    places = places[:, np.argsort(places[index.slab_mode], kind="stable")]
    queries = build_queries(index, tuple(places), tensor.numbering)
    entry_slices = np.asarray(index.rows[index.slab_mode])
    query_slices = places[index.slab_mode]
    for mode in range(len(shape)):
        rows = queries.buffer_rows[mode]
        both = np.concatenate([queries.source_fibres[mode], queries.fibres[mode]])
        assert ((both >= 0) & (both < rows)).all()
        named = (names(tensor.indices, (mode,)) or [()] * index.entries) + (
            names(places, (mode,)) or [()] * len(query_slices)
        )
        if mode == index.slab_mode:
            occurring = set(named[: index.entries])
            if tensor.numbering.known is not None:
                absent = [name not in occurring for name in named[index.entries :]]
                assert (queries.fibres[mode][absent] == tensor.numbering.count).all()
                kept = [True] * index.entries + [not gone for gone in absent]
                both, named = both[kept], [n for n, keep in zip(named, kept, strict=True) if keep]
            assert_numbers_name(both, named)
        else:
            slices = np.concatenate([entry_slices, query_slices]).tolist()
            assert_numbers_name_in_slices(both, slices, named)
    starts = zip(queries.starts[:-1], *queries.source_bounds, strict=True)
    for first, source_first, source_stop in starts:
        inside = np.flatnonzero(entry_slices == query_slices[first])
        assert source_stop - source_first == len(inside)
        np.testing.assert_array_equal(np.arange(source_first, source_stop), inside)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 2**62), min_size=1, max_size=30), st.data())
def test_known_keys_are_numbered_by_rank_and_absent_ones_by_the_count(keys, data):
    known = np.array(sorted(keys), dtype=np.int64)
    numbering = FibreNumbering(len(known), known)
    np.testing.assert_array_equal(numbering.numbers(known), np.arange(len(known)))
    asked = np.array(data.draw(st.lists(st.integers(0, 2**62), max_size=10)), dtype=np.int64)
    for key, number in zip(asked.tolist(), numbering.numbers(asked).tolist(), strict=True):
        assert number == (known.tolist().index(key) if key in keys else len(known))


def test_numbers_of_every_fibre_are_their_keys():
    keys = np.array([0, 5, 11], dtype=np.int64)
    assert FibreNumbering(12).numbers(keys).dtype == np.int32
    np.testing.assert_array_equal(FibreNumbering(12).numbers(keys), keys)
    assert FibreNumbering(2**40).numbers(keys).dtype == np.int64


@pytest.mark.parametrize("order", ORDERS)
def test_keys_count_in_the_order_of_the_unfolding(order):
    tensor = random_tensor(order)
    shape = tensor.dense.shape
    for mode in range(order):
        rest = tuple(n for k, n in enumerate(shape) if k != mode)
        columns = [row for k, row in enumerate(tensor.indices) if k != mode]
        wanted = np.ravel_multi_index(columns, rest)
        np.testing.assert_array_equal(fibre_keys(tensor.indices, shape, (mode,)), wanted)
        assert possible_fibres(shape, (mode,)) == math.prod(rest)


def test_more_fibres_than_a_key_can_name_are_refused_with_the_shape():
    shape = (10, 2**32, 2**32)
    with pytest.raises(InvalidInput, match=r"4294967296.*64-bit"):
        possible_fibres(shape, (0,))
    assert possible_fibres(shape, (1,)) == 10 * 2**32


@pytest.mark.parametrize("order", [2, 3])
def test_low_orders_need_no_fibre_columns_of_their_own(order):
    index = random_tensor(order).index
    own = {id(column) for column in index.rows}
    assert sum(id(column) not in own for column in index.fibres) <= 1
    columns = order + 1
    assert index.nbytes <= 4 * columns * index.entries + 4 * index.entries + index.starts.nbytes


def test_buffer_bytes_count_padded_rows_of_every_mode():
    index = random_tensor(4).index
    ranks = (1, 2, 3, 4)
    widths = (2, 2, 4, 4)
    wanted = sum(8 * n * w for n, w in zip(index.buffer_rows, widths, strict=True))
    assert index.buffer_bytes(ranks) == wanted


def test_indices_longer_than_32_bits_keep_their_fibres_apart():
    shape = (2**34, 3, 2**33)
    indices = (
        np.array([1, 1, 2**33, 2**33 + 1]),
        np.array([0, 2, 0, 0]),
        np.array([2**32, 0, 2**32, 2**32]),
    )
    known = np.unique(fibre_keys(indices, shape, (0,)))
    index = build_block(indices, shape, 0, FibreNumbering(len(known), known))
    np.testing.assert_array_equal(index.fibres[0], [0, 1, 0, 0])
    assert index.buffer_rows[0] == 2
    np.testing.assert_array_equal(index.starts, [0, 2, 3, 4])
