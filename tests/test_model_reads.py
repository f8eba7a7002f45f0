"""Models are read piece by piece, each piece once, checked, bounded, and dropped when unused."""

from __future__ import annotations

import gc
import json
import math
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import slrt_dask as slrt
from slrt_dask import completed_chunks, model_reads, sums_reads
from slrt_dask.data.read_cache import ReadCache
from slrt_dask.dual import writing
from slrt_dask.dual.writing import SUMS_ARRAY, read_array
from slrt_dask.errors import StoreCorrupt
from slrt_dask.sums_reads import FibreSums
from tests.oracles.dense import random_problem

ROWS = 3
"""Of a piece of fibre sums."""


class Counting(ReadCache):
    """A cache that counts what is read into it, by key."""

    def __init__(self, most_bytes=0):
        super().__init__(lambda: most_bytes)
        self.reads = Counter()

    def get(self, key, read):
        def counted():
            self.reads[key] += 1
            return read()

        return super().get(key, counted)


# ---- the cache ------------------------------------------------------------------------------


def letters(count):
    return np.zeros(count, dtype=np.uint8)


def test_what_was_used_longest_ago_goes_first_and_the_newest_stays_however_large():
    cache = Counting(10)
    for key in ("a", "b", "a", "c", "a"):
        cache.get((key,), lambda: letters(4))
    assert cache.nbytes == 8
    cache.get(("b",), lambda: letters(4))
    assert dict(cache.reads) == {("a",): 1, ("b",): 2, ("c",): 1}
    for _ in range(2):
        cache.get(("large",), lambda: letters(50))
    assert (cache.reads["large",], cache.nbytes) == (1, 50)


def test_what_failed_or_was_forgotten_is_read_again():
    cache = Counting(100)

    def fail():
        raise OSError("not now")

    with pytest.raises(OSError, match="not now"):
        cache.get(("a", 1), fail)
    assert cache.nbytes == 0
    for key in (("a", 1), ("a", 2), ("b", 1)):
        cache.get(key, lambda: letters(1))
    cache.forget(("a",))
    assert cache.nbytes == 1
    for key in (("a", 1), ("b", 1)):
        cache.get(key, lambda: letters(1))
    assert (cache.reads["a", 1], cache.reads["b", 1]) == (3, 1)


def test_threads_that_want_the_same_wait_for_one_read():
    cache, begun, go_on = Counting(100), threading.Event(), threading.Event()

    def read():
        begun.set()
        assert go_on.wait(10)
        return letters(3)

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(cache.get, ("a",), read)
        assert begun.wait(10)
        others = [pool.submit(cache.get, ("a",), read) for _ in range(7)]
        assert len(cache.get(("b",), lambda: letters(1))) == 1  # which does not wait for it
        go_on.set()
        assert len({id(future.result()) for future in (first, *others)}) == 1
    assert cache.reads["a",] == 1


def test_many_threads_leave_a_cache_within_its_bound():
    cache = Counting(30)

    def use(key):
        assert len(cache.get((key,), lambda: letters(5 + key))) == 5 + key
        if key == 7:
            cache.forget((3,))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, np.random.default_rng(0).integers(0, 10, 3000).tolist()))
    assert 0 < cache.nbytes <= 30


# ---- fibre sums -----------------------------------------------------------------------------

CASES = {
    "order 2": ((14, 11), (3, 2), {}),
    "order 3": ((12, 6, 5), (3, 2, 1), {}),
    "order 4": ((7, 4, 3, 4), (3, 2, 1, 2), {}),
    "known fibres": ((12, 6, 5), (3, 2, 1), {"fraction": 0.08}),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def done(request, store_of, tmp_path_factory):
    shape, ranks, options = request.param
    fraction = options.get("fraction", 0.3)
    dense = random_problem(shape, ranks, C=5.0, fraction=fraction, seed=1)
    store = store_of(dense.mask, dense.values, parts=4, slab_mode=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "CHUNK_BYTES", ROWS * 8 * ranks[0])
        if fraction < 0.1:
            patch.setattr("slrt_dask.dual.numbering.GENEROUS_FIBRES", 0)
        run = tmp_path_factory.mktemp("run") / "run"
        return slrt.complete(store, ranks, C=5.0, max_iterations=1, run_directory=run)


def whole_sums(done):
    return read_array(f"{done.path}/model", SUMS_ARRAY, done.header.checksums[SUMS_ARRAY])


def sums_of(done, cache, path=None):
    checksum, shape = done.header.checksums[SUMS_ARRAY], whole_sums(done).shape
    return FibreSums(str(path or done.path), done.header.digest, checksum, shape, cache)


@pytest.mark.parametrize("kept", [0, 2**20])
def test_any_rows_are_those_of_the_whole_and_zero_beyond(kept, done):
    whole, cache = whole_sums(done), Counting(kept)
    sums = sums_of(done, cache)
    assert len(whole) > 3 * ROWS
    numbers = np.random.default_rng(0).integers(0, len(whole) + 1, 50, dtype=np.int32)
    numbers[:2] = len(whole), 0
    found, wanted = sums.at(numbers), np.vstack([whole, np.zeros_like(whole[:1])])[numbers]
    np.testing.assert_array_equal(found[:, : whole.shape[1]], wanted)
    assert not found[:, whole.shape[1] :].any()
    assert sums.at(numbers[:0]).shape == (0, found.shape[1])
    # All pieces are read to be checked, and then only those that are needed and were not kept.
    pieces = -(-len(whole) // ROWS)
    assert len(cache.reads) == pieces
    cache.reads.clear()
    sums.at(np.array([ROWS, ROWS + 1, len(whole)]))
    assert sum(cache.reads.values()) == (0 if kept else 1)
    assert cache.nbytes <= max(kept, ROWS * 8 * whole.shape[1])


def test_threads_check_once_and_read_each_piece_once(done):
    whole, cache = whole_sums(done), Counting(2**20)
    sums, together = sums_of(done, cache), threading.Barrier(6)

    def ask():
        together.wait()
        return sums.at(np.arange(len(whole)))

    with ThreadPoolExecutor(6) as pool:
        answers = [asked.result() for asked in [pool.submit(ask) for _ in range(6)]]
    for found in answers:
        np.testing.assert_array_equal(found[:, : whole.shape[1]], whole)
    assert set(cache.reads.values()) == {1}


@pytest.mark.parametrize("checked", [False, True], ids=["before the first look", "afterwards"])
def test_a_number_that_is_altered_is_noticed(checked, done, tmp_path):
    copy = shutil.copytree(done.path, tmp_path / "copy")
    sums = sums_of(done, Counting(), copy)
    if checked:
        sums.at(np.array([ROWS]))  # of another piece, the only one that is kept then
    zarr.open_array(Path(copy, "model", SUMS_ARRAY), mode="r+")[1] += 1.0
    with pytest.raises(StoreCorrupt, match=SUMS_ARRAY):
        sums.at(np.array([1]))


def test_a_check_that_failed_leaves_nothing_that_is_believed(done, tmp_path):
    """What was read in it may have been altered, and put right again before the next one."""
    copy, whole = shutil.copytree(done.path, tmp_path / "copy"), whole_sums(done)
    cache = Counting(2**20)
    sums, place = sums_of(done, cache, copy), copy / "model" / SUMS_ARRAY / "c"
    last = place / str((len(whole) - 1) // ROWS) / "0"
    kept = last.read_bytes()
    last.write_bytes(kept[:5])
    with pytest.raises(StoreCorrupt, match=SUMS_ARRAY):
        sums.at(np.arange(len(whole)))
    assert cache.nbytes == 0
    last.write_bytes(kept)
    np.testing.assert_array_equal(sums.at(np.arange(len(whole)))[:, : whole.shape[1]], whole)


@pytest.mark.parametrize("shape", [(4, None), (None, 1), (None, None, 1)], ids=str)
def test_an_altered_shape_is_noticed_before_anything_is_read(shape, done, tmp_path):
    copy = shutil.copytree(done.path, tmp_path / "copy")
    file = copy / "model" / SUMS_ARRAY / "zarr.json"
    metadata = json.loads(file.read_text())
    known = (*metadata["shape"], None)
    metadata["shape"] = [new or old for new, old in zip(shape, known, strict=False)]
    file.write_text(json.dumps(metadata))
    with pytest.raises(StoreCorrupt, match=SUMS_ARRAY):
        model_reads.opened_model(str(copy), done.header.digest)


# ---- completions ----------------------------------------------------------------------------


def everywhere(shape):
    return np.indices(shape).reshape(len(shape), -1)


@pytest.fixture
def cache(monkeypatch):
    """What is kept of models, none of it from before."""
    cache = Counting(2**20)
    monkeypatch.setattr(model_reads, "KEPT", cache)
    with dask.config.set(scheduler="threads"):
        yield cache


def partitions_read(cache):
    return sorted(key[-1] for key in cache.reads.elements() if "dual" in key)


@pytest.mark.parametrize("at_once", [7, 50_000])
@pytest.mark.parametrize("graph_bytes", [20 * 3 * 4, 2**23])
def test_a_prediction_reads_each_partition_that_it_needs_once(
    done, cache, at_once, graph_bytes, monkeypatch
):
    places, wanted = everywhere(done.shape), done.to_dask().compute().reshape(-1)
    monkeypatch.setattr("slrt_dask.queries.QUERIES_AT_ONCE", at_once)
    monkeypatch.setattr("slrt_dask.queries.GRAPH_BYTES", graph_bytes)
    cache.forget()
    cache.reads.clear()
    cache.most_bytes = lambda: 0
    order = np.random.default_rng(0).permutation(places.shape[1])
    np.testing.assert_allclose(done.predict(places[:, order]), wanted[order], rtol=1e-11)
    assert partitions_read(cache) == list(range(len(done.header.dual.partitions)))
    part = done.header.dual.partitions[1]
    slab = places[done.header.slab_mode]
    cache.reads.clear()
    done.predict(places[:, (slab >= part.first_slice) & (slab < part.stop_slice)])
    assert partitions_read(cache) == [1]


def test_chunks_that_are_computed_together_read_each_partition_once(done, cache):
    found = done.to_dask((2,) * len(done.shape)).compute()
    assert partitions_read(cache) == list(range(len(done.header.dual.partitions)))
    places = everywhere(done.shape)
    np.testing.assert_allclose(done.predict(places), found.reshape(-1), rtol=1e-11, atol=1e-12)


def test_a_dropped_completion_and_a_new_fit_drop_what_was_kept(done, cache, tmp_path, store_of):
    copy = done.save(tmp_path / "copy")
    copy.predict(everywhere(copy.shape))
    assert cache.nbytes > 0
    del copy
    gc.collect()
    assert cache.nbytes == 0
    done.predict(everywhere(done.shape))
    kept = []

    class Watching:
        def on_record(self, record, state):
            kept.append(cache.nbytes)

    mask = np.ones((3, 2), dtype=bool)
    store = store_of(mask, np.arange(6.0).reshape(3, 2))
    slrt.complete(store, (1, 1), max_iterations=0, C=1.0, threads=1, observers=[Watching()])
    assert kept == [0]


def test_there_is_room_for_models_in_every_process():
    assert sums_reads.most_kept() >= sums_reads.KEPT_BYTES


# ---- default chunks -------------------------------------------------------------------------


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
