"""Fibre sums of models are read piece by piece, as they are needed, and never altered ones."""

from __future__ import annotations

import math
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import slrt_dask as slrt
from slrt_dask import completed_chunks, sums_reads
from slrt_dask.data.read_cache import ReadCache
from slrt_dask.dual.writing import SUMS_ARRAY
from slrt_dask.errors import StoreCorrupt
from slrt_dask.sums_reads import FibreSums
from tests.oracles.dense import random_problem

COUNT, RANK, ROWS = 20, 3, 3
"""Fibres, columns, and rows of a piece."""
PIECE_BYTES = 8 * RANK * ROWS


@pytest.fixture
def sums():
    return np.random.default_rng(0).standard_normal((COUNT, RANK))


@pytest.fixture
def files(sums, tmp_path):
    """The directory of the files of the sums."""
    zarr.create_group(tmp_path).create_group("model")
    place = tmp_path / "model" / SUMS_ARRAY
    array = zarr.create_array(place, shape=sums.shape, chunks=(ROWS, RANK), dtype=sums.dtype)
    array[:] = sums
    return place


def opened(files, sums, most_bytes=0, shape=(COUNT, RANK)):
    path = str(files.parents[1])
    cache = ReadCache(lambda: most_bytes)
    return FibreSums(path, "digest", zlib.crc32(sums.data), shape, cache), cache


@pytest.mark.parametrize("most_bytes", [0, 2 * PIECE_BYTES, 2**20])
def test_any_rows_are_those_of_the_whole_and_zero_beyond(files, sums, most_bytes):
    read, cache = opened(files, sums, most_bytes)
    padded = np.vstack([sums, np.zeros_like(sums[:1])])
    numbers = np.random.default_rng(1).integers(0, COUNT + 1, 50, dtype=np.int32)
    for wanted in (numbers, numbers[:1], numbers[:0], np.full(3, COUNT), np.arange(COUNT)):
        found = read.at(wanted)
        np.testing.assert_array_equal(found[:, :RANK], padded[wanted])
        assert not found[:, RANK:].any()
    assert cache.nbytes <= max(most_bytes, PIECE_BYTES)


def test_only_pieces_that_are_needed_are_read_once_all_were_checked(files, sums):
    read, _ = opened(files, sums)
    read.at(np.array([0]))
    for piece in range(-(-COUNT // ROWS)):
        if piece != 1:
            (files / "c" / str(piece) / "0").unlink()
    np.testing.assert_array_equal(read.at(np.array([ROWS, COUNT]))[0, :RANK], sums[ROWS])
    with pytest.raises(StoreCorrupt):
        read.at(np.array([0]))


@pytest.mark.parametrize("checked", [False, True], ids=["before the first look", "afterwards"])
def test_a_number_that_is_altered_is_noticed_until_it_is_put_right(files, sums, checked):
    read, cache = opened(files, sums, 2**20)
    if checked:
        read.at(np.array([0]))
        cache.forget()  # to make room for something else
    array = zarr.open_array(files, mode="r+")
    array[COUNT - 1] += 1.0
    with pytest.raises(StoreCorrupt, match=str(files)):
        read.at(np.array([0, COUNT - 1]))
    array[COUNT - 1] = sums[COUNT - 1]
    np.testing.assert_array_equal(read.at(np.arange(COUNT))[:, :RANK], sums)


@pytest.mark.parametrize("shape", [(4, RANK), (COUNT, 1)], ids=str)
def test_an_altered_shape_is_noticed_before_anything_is_read(files, sums, shape):
    with pytest.raises(StoreCorrupt, match=str(files)):
        opened(files, sums, shape=shape)


def test_threads_that_read_together_find_the_same(files, sums):
    read, cache = opened(files, sums, 2**20)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read.at, [np.arange(COUNT)] * 32))
    assert all(np.array_equal(one[:, :RANK], sums) for one in found)
    assert cache.nbytes == sums.nbytes


def test_a_fit_makes_room_for_itself(store_of):
    class Watching:
        def on_record(self, record, state):
            kept.append(sums_reads.KEPT.nbytes)

    kept = []
    dense = random_problem((6, 5, 4), (2, 2, 1), C=1.0, fraction=0.5, seed=0)
    options = {"max_iterations": 0, "C": 1.0, "threads": 1}
    store = store_of(dense.mask, dense.values)
    done = slrt.complete(store, (2, 2, 1), **options)
    done.predict(np.zeros((3, 1), dtype=int))
    assert sums_reads.KEPT.nbytes > 0
    slrt.complete(store, (2, 2, 1), observers=[Watching()], **options)
    assert kept == [0]


@given(
    st.lists(st.integers(1, 5000), min_size=2, max_size=5).map(tuple), st.data(),
    st.integers(1, 64),
)  # fmt: skip
def test_default_chunks_and_their_sums_are_bounded(shape, data, width):
    slab = data.draw(st.integers(0, len(shape) - 1))
    sizes = completed_chunks.chunk_sizes(shape, slab, width)
    assert all(1 <= size <= length for size, length in zip(sizes, shape, strict=True))
    cells = math.prod(sizes)
    assert 8 * cells <= completed_chunks.CHUNK_BYTES
    assert 8 * width * (cells // sizes[slab]) <= completed_chunks.SUMS_BYTES
    if 8 * width * (math.prod(shape) // shape[slab]) <= completed_chunks.SUMS_BYTES:
        assert sizes == completed_chunks.chunk_sizes(shape, slab)


@pytest.mark.parametrize(
    ("shape", "runs"), [((5000, 4000, 1000), 1), ((5000, 1000, 4000), 1), ((1000,) * 4, 8)]
)
def test_the_sums_of_a_chunk_are_few_runs(shape, runs):
    """For sums are read in pieces of neighbours, and local ones are bounded as well."""
    sizes = completed_chunks.chunk_sizes(shape, 0, 10)
    assert math.prod(sizes) * 8 > completed_chunks.CHUNK_BYTES // 2
    # A run is as many neighbours as there are whole modes behind the last one that was cut.
    lengths = [size for size, whole in zip(sizes[1:], shape[1:], strict=True) if size < whole]
    assert math.prod(lengths[:-1]) == runs
    local = max(math.prod(sizes) // sizes[mode] for mode in range(1, len(shape)))
    assert 8 * 10 * local < 2 * completed_chunks.SUMS_BYTES
