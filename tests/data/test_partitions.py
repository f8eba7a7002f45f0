"""How a store is cut: slabs tile one mode, are balanced, disjoint and sorted."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slrt_dask.data.arrays import box_shape, coo_source
from slrt_dask.data.sorting import Batch, SliceHistogram, cut_slices, lexicographic_order, rebatch
from tests.data.helpers import columns_of, coo_store, ingested, tensor_with_holes

counts_of_slices = st.lists(st.integers(0, 60), min_size=1, max_size=80).filter(any)


@given(counts=counts_of_slices, most=st.integers(1, 200), bins=st.integers(1, 100))
def test_slabs_tile_the_slices_in_as_few_as_the_limit_allows(counts, most, bins):
    histogram = SliceHistogram(len(counts), most_bins=bins)
    positions = np.repeat(np.arange(len(counts)), counts)
    histogram.add(positions[::2])
    histogram.add(positions[1::2])
    slabs = histogram.slabs(most)
    edges = [0, *(slab.stop for slab in slabs)]
    assert [slab.first for slab in slabs] == edges[:-1]
    assert edges[-1] == len(counts)
    assert all(slab.count == sum(counts[slab.first : slab.stop]) > 0 for slab in slabs)
    width = math.ceil(len(counts) / bins)
    together = [sum(counts[i : i + width]) for i in range(0, len(counts), width)]
    # Filling slabs one after another up to the limit never takes fewer; only a single bin of
    # slices may exceed it.
    filled, room = 0, 0
    for count in (count for count in together if count):
        if count > room:
            filled, room = filled + 1, most
        room -= min(count, room)
    assert len(slabs) == filled
    assert all(slab.count <= most or slab.count in together for slab in slabs)


def test_five_million_at_two_million_are_three_even_partitions():
    slabs = cut_slices(np.full(1000, 5000), 2_000_000)
    assert len(slabs) == 3
    assert max(slab.count for slab in slabs) - min(slab.count for slab in slabs) <= 2 * 5000


@given(data=st.data(), shape=st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_order_is_lexicographic_and_stable_with_slab_mode_first(data, shape):
    slab_mode = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, 40))
    indices = [
        np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=count, max_size=count)))
        for n in shape
    ]
    # The second shape has too many cells for one key: both ways must agree.
    for lengths in (shape, [n + 2**40 for n in shape]):
        order, repeated = lexicographic_order(indices, lengths, slab_mode)
        modes = [slab_mode, *(mode for mode in range(len(shape)) if mode != slab_mode)]
        keys = [tuple(int(indices[mode][i]) for mode in modes) for i in range(count)]
        assert order.tolist() == sorted(range(count), key=lambda i: keys[i])
        ordered = [keys[i] for i in order]
        assert repeated.tolist() == [i > 0 and ordered[i] == ordered[i - 1] for i in range(count)]


@given(sizes=st.lists(st.integers(0, 30), max_size=12), limit=st.integers(1, 20))
def test_rebatching_keeps_entries_and_order_within_the_limit(sizes, limit):
    total = sum(sizes)
    numbers = np.arange(total)
    edges = np.cumsum([0, *sizes])
    batches = [
        Batch(np.stack([numbers[a:b]] * 2), numbers[a:b] * 0.5, numbers[a:b])
        for a, b in pairwise(edges)
    ]
    result = list(rebatch(batches, limit))
    assert all(0 < batch.values.size <= limit for batch in result)
    assert [row for batch in result for row in batch.rows] == list(range(total))
    assert [i for batch in result for i in batch.indices[1]] == list(range(total))


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=5),
    limit=st.integers(1, 5000),
)
def test_boxes_are_whole_units_within_the_limit(lengths, limit):
    shape, unit = [n for n, _ in lengths], [u for _, u in lengths]
    box = box_shape(shape, unit, limit)
    smallest = math.prod(min(u, n) for n, u in lengths)
    assert math.prod(box) <= max(limit, smallest)
    assert all(b == n or b % u == 0 for b, n, u in zip(box, shape, unit, strict=True))


@pytest.mark.parametrize("wanted", [1, 2, 3, 7])
def test_any_number_of_partitions_holds_the_same_sorted_set(tmp_path, wanted):
    tensor = tensor_with_holes((200, 4, 3), observed=0.5)
    nnz = np.count_nonzero(~np.isnan(tensor))
    store = coo_store(tmp_path / "store", tensor, partition_entries=math.ceil(nnz / wanted * 1.06))
    assert len(store.partitions) == wanted
    np.testing.assert_array_equal(store.to_array(), tensor)
    assert store.mean == pytest.approx(np.nanmean(tensor), rel=1e-12)
    indices, _ = columns_of(store)
    # In order through all partitions: disjoint slabs, each sorted, no index twice.
    keys = np.ravel_multi_index(tuple(indices), store.shape)
    assert (np.diff(keys) > 0).all()
    for number, part in enumerate(store.partitions):
        positions = store.read_partition(number)[0][store.slab_mode]
        assert part.first_slice <= positions.min()
        assert positions.max() < part.stop_slice


@pytest.mark.parametrize("slab_mode", [None, 0, 1, 2])
def test_slab_mode_can_be_chosen_and_is_the_longest_otherwise(tmp_path, slab_mode):
    tensor = tensor_with_holes((6, 9, 8))
    store = coo_store(tmp_path / "store", tensor, slab_mode=slab_mode, partition_entries=60)
    assert store.slab_mode == (1 if slab_mode is None else slab_mode)
    assert store.partitions[-1].stop_slice == tensor.shape[store.slab_mode]
    np.testing.assert_array_equal(store.to_array(), tensor)


def test_a_shape_with_more_cells_than_int64_is_ordered_all_the_same(tmp_path):
    shape, random = (2**22, 2**21, 2**21), np.random.default_rng(0)
    indices = np.array([random.integers(0, n, 200) for n in shape])
    indices[0, :100] = 7
    source = coo_source(indices, np.arange(200.0), shape)
    columns, _ = columns_of(ingested(tmp_path / "store", source, partition_entries=60))
    assert [tuple(c) for c in columns.T] == sorted(tuple(c) for c in indices.T)
