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
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=4)))
    flat = draw(st.lists(st.integers(0, math.prod(shape) - 1), unique=True, max_size=25))
    slab_mode = draw(st.integers(0, len(shape) - 1))
    known = bool(flat) and draw(st.booleans())
    return sparse_tensor(
        shape, places_of(flat, shape), np.ones(len(flat)), slab_mode=slab_mode, known=known
    )


def places_of(flat, shape):
    return np.array(np.unravel_index(np.array(flat, dtype=int), shape)).reshape(len(shape), -1)


def names(places, mode, with_slices):
    """A tuple per place that says in which fibre of a mode it is, and in which slice, if asked.

    with_slices : the slab mode, whose slices numbers are used again in; None if they are not
    """
    kept = [np.asarray(row).tolist() for k, row in enumerate(places) if k != mode]
    slices = [] if with_slices is None else [np.asarray(places[with_slices]).tolist()]
    return list(zip(*slices, *kept, strict=True))


def assert_numbers_name(numbers, slices, named):
    """Equal numbers in a slice just where the names are equal."""
    numbered = list(zip(slices, np.asarray(numbers).tolist(), strict=True))
    pairs = set(zip(numbered, named, strict=True))
    assert len(pairs) == len(set(numbered)) == len(set(named))


def slices_for(places, mode, slab_mode):
    """The slice of every place for a local mode; for the slab mode numbers are used once."""
    rows = np.asarray(places[slab_mode]).tolist()
    return [0] * len(rows) if mode == slab_mode else rows


@settings(max_examples=80, deadline=None)
@given(blocks())
def test_fibre_numbers_are_in_range_and_equal_just_for_the_same_fibre(tensor):
    index, slab = tensor.index, tensor.index.slab_mode
    for mode, (numbers, rows) in enumerate(zip(index.fibres, index.buffer_rows, strict=True)):
        assert len(numbers) == index.entries
        assert ((numbers >= 0) & (numbers < rows)).all()
        named = names(tensor.indices, mode, None if mode == slab else slab)
        assert_numbers_name(numbers, slices_for(tensor.indices, mode, slab), named)
    # Starts cut the entries into whole slices.
    assert (index.starts[0], index.starts[-1]) == (0, index.entries)
    pieces = np.split(np.asarray(index.rows[slab]), index.starts[1:-1])
    assert [len(np.unique(piece)) for piece in pieces if index.entries] == [1] * index.slices
    assert index.slices == len(np.unique(index.rows[slab]))


@settings(max_examples=80, deadline=None)
@given(blocks(), st.data())
def test_queries_share_numbers_with_the_entries_of_their_fibres(tensor, data):
    index, shape, slab = tensor.index, tensor.dense.shape, tensor.index.slab_mode
    flat = data.draw(st.lists(st.integers(0, math.prod(shape) - 1), max_size=20))
    places = places_of(flat, shape)
    places = places[:, np.argsort(places[slab], kind="stable")]
    queries = build_queries(index, tuple(places), tensor.numbering)
    all_places = np.concatenate([np.stack(tensor.indices), places], axis=1)
    for mode in range(len(shape)):
        both = np.concatenate([queries.source_fibres[mode], queries.fibres[mode]])
        assert ((both >= 0) & (both < queries.buffer_rows[mode])).all()
        named = names(all_places, mode, None if mode == slab else slab)
        kept = np.ones(len(both), dtype=bool)
        if mode == slab and tensor.numbering.known is not None:
            # Fibres without entries have one number, the one after the last.
            occurring = set(named[: index.entries])
            kept = np.array([name in occurring for name in named], dtype=bool)
            assert (both[~kept] == tensor.numbering.count).all()
        slices = slices_for(all_places, mode, slab)
        chosen = np.flatnonzero(kept)
        assert_numbers_name(both[chosen], [slices[n] for n in chosen], [named[n] for n in chosen])
    for first, low, high in zip(queries.starts[:-1], *queries.source_bounds, strict=True):
        inside = np.flatnonzero(np.asarray(index.rows[slab]) == places[slab][first])
        np.testing.assert_array_equal(np.arange(low, high), inside)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 2**62), min_size=1, max_size=30), st.data())
def test_known_keys_are_numbered_by_rank_and_absent_ones_by_the_count(keys, data):
    known = np.array(sorted(keys), dtype=np.int64)
    numbering = FibreNumbering(len(known), known)
    np.testing.assert_array_equal(numbering.numbers(known), np.arange(len(known)))
    asked = np.array(data.draw(st.lists(st.integers(0, 2**62), max_size=10)), dtype=np.int64)
    for key, number in zip(asked.tolist(), numbering.numbers(asked).tolist(), strict=True):
        assert number == (known.tolist().index(key) if key in keys else len(known))


@pytest.mark.parametrize("order", ORDERS)
def test_keys_count_in_the_order_of_the_unfolding_as_far_as_64_bits_go(order):
    tensor = random_tensor(order)
    shape = tensor.dense.shape
    for mode in range(order):
        rest = tuple(n for k, n in enumerate(shape) if k != mode)
        columns = [row for k, row in enumerate(tensor.indices) if k != mode]
        wanted = np.ravel_multi_index(columns, rest)
        np.testing.assert_array_equal(fibre_keys(tensor.indices, shape, (mode,)), wanted)
        assert possible_fibres(shape, (mode,)) == math.prod(rest)
        numbers = FibreNumbering(math.prod(rest)).numbers(wanted)
        np.testing.assert_array_equal(numbers, wanted)
    own = {id(column) for column in tensor.index.rows}
    if order < 4:  # fibres are named by columns that are there anyway
        assert sum(id(column) not in own for column in tensor.index.fibres) <= 1
    with pytest.raises(InvalidInput, match="4294967296"):
        possible_fibres((10, 2**32, 2**32), (0,))


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
