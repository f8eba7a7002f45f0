"""What processes keep of models: read once, bounded, counted, and dropped with the completion."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import dask
import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.data.layout import read_partition
from slrt_dask.data.read_cache import ReadCache
from slrt_dask.sums_reads import KEPT
from tests.oracles.dense import random_problem


class Reading:
    """A cache of arrays of some bytes, and the keys that were read."""

    def __init__(self, most_bytes):
        self.cache, self.keys = ReadCache(lambda: most_bytes), []

    def get(self, *key, nbytes=4):
        def read():
            self.keys.append(key)
            return np.zeros(nbytes, dtype=np.uint8)

        return self.cache.get(key, read)


def test_what_was_used_longest_ago_goes_first():
    reading = Reading(10)
    for key in "abaca":
        reading.get(key)
        assert reading.cache.nbytes <= 10
    assert reading.keys == [("a",), ("b",), ("c",)]
    reading.get("b")
    assert reading.keys[3:] == [("b",)]


def test_the_newest_stays_however_large_it_is():
    reading = Reading(10)
    for key in "aabb":
        reading.get(key, nbytes=50)
        assert reading.cache.nbytes == 50
    assert reading.keys == [("a",), ("b",)]


def test_a_failed_read_is_tried_again():
    def fail():
        raise OSError("not now")

    reading = Reading(10)
    with pytest.raises(OSError, match="not now"):
        reading.cache.get(("a",), fail)
    assert reading.cache.nbytes == 0
    assert len(reading.get("a")) == 4


def test_threads_that_want_the_same_wait_for_one_read():
    reading, begun, go_on = Reading(100), threading.Event(), threading.Event()

    def read():
        begun.set()
        assert go_on.wait(10)
        return np.ones(4)

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(reading.cache.get, ("a",), read)
        assert begun.wait(10)
        others = [pool.submit(reading.get, "a") for _ in range(7)]
        assert not reading.get("b").any()  # which does not wait for it
        go_on.set()
        assert all(future.result() is first.result() for future in others)
    assert reading.keys == [("b",)]


def test_many_threads_leave_it_within_its_bound():
    reading = Reading(30)

    def use(key):
        assert len(reading.get(key)) == 4
        if key == 7:
            reading.cache.forget((3,))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, np.random.default_rng(0).integers(0, 10, 2000).tolist()))
    assert 0 < reading.cache.nbytes <= 30


def test_what_is_forgotten_is_read_again():
    reading = Reading(100)
    keys = [("a", 1), ("a", 2), ("b", 1)]
    for key in keys:
        reading.get(*key)
    reading.cache.forget(("a",))
    assert reading.cache.nbytes == 4
    for key in keys:
        reading.get(*key)
    assert reading.keys == keys + keys[:2]


# ---- completions ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(store_of, tmp_path_factory):
    dense = random_problem((12, 6, 5), (3, 2, 1), C=5.0, fraction=0.4, seed=1)
    store = store_of(dense.mask, dense.values, parts=4)
    assert len(store.partitions) >= 4
    run = tmp_path_factory.mktemp("run") / "run"
    return slrt.complete(store, (3, 2, 1), C=5.0, max_iterations=1, run_directory=run)


@pytest.fixture
def reads(done, monkeypatch):
    """The partitions that were read from disk, and nothing kept of them from before."""
    found = []

    def counted(path, header, number):
        found.append(number)
        return read_partition(path, header, number)

    monkeypatch.setattr("slrt_dask.model_reads.read_partition", counted)
    KEPT.forget()
    with dask.config.set(scheduler="threads"):
        yield found


def everywhere(shape):
    return np.indices(shape).reshape(len(shape), -1)


@pytest.mark.parametrize("at_once", [7, 50_000])
@pytest.mark.parametrize("graph_bytes", [20 * 3 * 4, 200 * 3 * 4, 2**23])
def test_a_prediction_reads_each_partition_once(done, reads, at_once, graph_bytes, monkeypatch):
    wanted = done.to_dask().compute().reshape(-1)
    KEPT.forget()
    reads.clear()
    monkeypatch.setattr(KEPT, "most_bytes", lambda: 0)
    monkeypatch.setattr("slrt_dask.queries.QUERIES_AT_ONCE", at_once)
    monkeypatch.setattr("slrt_dask.queries.GRAPH_BYTES", graph_bytes)
    places = everywhere(done.shape)
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


def test_chunks_that_are_computed_together_read_each_partition_once(done, reads):
    done.to_dask((2, 2, 2)).compute()
    assert sorted(reads) == list(range(len(done.header.dual.partitions)))


def test_worker_processes_keep_a_partition_with_many_questions(done, process_client, monkeypatch):
    places = everywhere(done.shape)
    wanted = done.predict(places)
    monkeypatch.setattr("slrt_dask.queries.QUERIES_AT_ONCE", 20)
    monkeypatch.setattr("slrt_dask.queries.GRAPH_BYTES", 30 * 3 * 4)
    with process_client.as_current():
        np.testing.assert_array_equal(done.predict(places), wanted)


def test_a_dropped_completion_takes_what_was_kept_of_it(done, tmp_path):
    gc.collect()  # what earlier tests left is not counted
    before = KEPT.nbytes
    copy = done.save(tmp_path / "copy")
    copy.predict(everywhere(copy.shape))
    assert KEPT.nbytes > before
    del copy
    gc.collect()
    assert KEPT.nbytes == before
