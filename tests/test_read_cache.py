"""What processes keep of models: read once, bounded, counted, and dropped with the completion."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import dask
import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask import model_reads
from slrt_dask.data.layout import read_partition
from slrt_dask.data.read_cache import ReadCache
from tests.oracles.dense import random_problem


def sized(most_bytes=10):
    """A cache of texts, of a byte a letter."""
    return ReadCache(most_bytes, len)


def test_what_was_used_longest_ago_goes_first():
    cache = sized(10)
    for key in ("a", "b", "a", "c"):
        assert cache.get(key, lambda key=key: key * 4) == key * 4
    assert cache.reads == 3
    assert cache.nbytes == 8
    cache.get("a", lambda: pytest.fail("it was kept"))
    cache.get("b", lambda: "bbbb")
    assert (cache.reads, len(cache)) == (4, 2)


def test_the_newest_stays_however_large_it_is():
    cache = sized(10)
    for key in ("a", "b"):
        cache.get(key, lambda: "x" * 50)
        cache.get(key, lambda: pytest.fail("it was kept"))
        assert len(cache) == 1


def test_a_failed_read_is_tried_again():
    cache = sized()

    def fail():
        raise OSError("not now")

    with pytest.raises(OSError, match="not now"):
        cache.get("a", fail)
    assert (len(cache), cache.nbytes) == (0, 0)
    assert cache.get("a", lambda: "there") == "there"


def test_threads_that_want_the_same_wait_for_one_read():
    cache, begun, go_on = sized(), threading.Event(), threading.Event()

    def read():
        begun.set()
        assert go_on.wait(10)
        return "value"

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(cache.get, "a", read)
        assert begun.wait(10)
        others = [pool.submit(cache.get, "a", read) for _ in range(7)]
        assert cache.get("b", lambda: "other") == "other"  # which does not wait for it
        go_on.set()
        assert {future.result() for future in (first, *others)} == {"value"}
    assert cache.reads == 2


def test_many_threads_leave_it_within_its_bound():
    cache = sized(30)
    random = np.random.default_rng(0)

    def use(key):
        assert cache.get(key, lambda: str(key) * 5) == str(key) * 5
        if key == 7:
            cache.forget(lambda other: other < 4)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, random.integers(0, 10, 3000).tolist()))
    assert cache.nbytes <= 30
    assert len(cache) == cache.nbytes / 5


def test_what_is_forgotten_is_read_again():
    cache = sized(100)
    for key in (1, 2, 3):
        cache.get(key, lambda: "x")
    cache.forget(lambda key: key != 2)
    assert len(cache) == 1
    cache.get(2, lambda: pytest.fail("it was kept"))
    assert cache.get(1, lambda: "new") == "new"


# ---- completions ----------------------------------------------------------------------------


@pytest.fixture
def done(store_of, tmp_path):
    dense = random_problem((12, 6, 5), (3, 2, 1), C=5.0, fraction=0.4, seed=1)
    store = store_of(dense.mask, dense.values, parts=4)
    assert len(store.partitions) >= 4
    with dask.config.set(scheduler="threads"):
        yield slrt.complete(
            store, (3, 2, 1), C=5.0, max_iterations=1, run_directory=tmp_path / "run"
        )


@pytest.fixture
def reads(monkeypatch):
    """The partitions that were read from disk, and nothing kept of them from before."""
    found = []

    def counted(path, header, number):
        found.append(number)
        return read_partition(path, header, number)

    monkeypatch.setattr("slrt_dask.model_reads.read_partition", counted)
    monkeypatch.setattr(model_reads.PARTITIONS, "most_bytes", 0)
    return found


def everywhere(shape):
    return np.indices(shape).reshape(len(shape), -1)


@pytest.mark.parametrize("at_once", [7, 50_000])
@pytest.mark.parametrize("graph_bytes", [20 * 3 * 4, 200 * 3 * 4, 2**23])
def test_a_prediction_reads_each_partition_once(done, reads, at_once, graph_bytes, monkeypatch):
    places = everywhere(done.shape)
    wanted = done.to_dask().compute().reshape(-1)
    model_reads.PARTITIONS.forget(lambda key: True)
    reads.clear()
    monkeypatch.setattr("slrt_dask.queries.QUERIES_AT_ONCE", at_once)
    monkeypatch.setattr("slrt_dask.queries.GRAPH_BYTES", graph_bytes)
    order = np.random.default_rng(0).permutation(places.shape[1])
    np.testing.assert_allclose(done.predict(places[:, order]), wanted[order], rtol=1e-11)
    assert sorted(reads) == list(range(len(done.header.dual.partitions)))


def test_a_prediction_reads_only_the_partitions_it_needs(done, reads):
    part = done.header.dual.partitions[1]
    slab = done.header.slab_mode
    places = everywhere(done.shape)
    inside = (places[slab] >= part.first_slice) & (places[slab] < part.stop_slice)
    done.predict(places[:, inside])
    assert reads == [1]


def test_worker_processes_keep_a_partition_with_many_questions(done, process_client, monkeypatch):
    places = everywhere(done.shape)
    wanted = done.predict(places)
    monkeypatch.setattr("slrt_dask.queries.QUERIES_AT_ONCE", 20)
    monkeypatch.setattr("slrt_dask.queries.GRAPH_BYTES", 30 * 3 * 4)
    with process_client.as_current():
        np.testing.assert_array_equal(done.predict(places), wanted)


def test_a_dropped_completion_takes_what_was_kept_of_it(done, tmp_path):
    gc.collect()  # what earlier tests left is not counted
    before = model_reads.kept_bytes()
    copy = done.save(tmp_path / "copy")
    copy.predict(everywhere(copy.shape))
    assert model_reads.kept_bytes() > before
    del copy
    gc.collect()
    assert model_reads.kept_bytes() == before


def test_chunks_that_are_computed_together_read_each_partition_once(done, reads, monkeypatch):
    monkeypatch.setattr(model_reads.PARTITIONS, "most_bytes", 2**20)
    model_reads.PARTITIONS.forget(lambda key: True)
    done.to_dask((2, 2, 2)).compute()
    assert sorted(reads) == list(range(len(done.header.dual.partitions)))
    kept = sum(part.count for part in done.header.dual.partitions) * (3 * 4 + 8)
    assert model_reads.PARTITIONS.nbytes == kept
