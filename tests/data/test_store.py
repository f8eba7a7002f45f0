"""An opened store: cheap, picklable, lazy where it should be; and the layout other rooms write."""

from __future__ import annotations

import pickle
from dataclasses import replace

import dask
import numpy as np
import pytest
import zarr

from slrt_dask.data import (
    ObservationStore,
    PartitionInfo,
    StoreHeader,
    create_store,
    finish_store,
    from_coo,
    open_store,
    read_header,
    read_partition,
    write_partition,
)
from slrt_dask.errors import InvalidInput, StoreCorrupt, StoreExists, UnsupportedFormat
from tests.data.helpers import columns_of, coo_store, tensor_with_holes

HEADER = StoreHeader(
    kind="dual",
    shape=(4, 3),
    nnz=5,
    slab_mode=0,
    dtype="float64",
    partitions=(PartitionInfo("p00000", 3, 0, 2), PartitionInfo("p00001", 2, 2, 4)),
)
PARTS = (
    ((np.array([0, 0, 1]), np.array([0, 2, 1])), np.array([1.0, -2.0, 0.0])),
    ((np.array([2, 3]), np.array([1, 1])), np.array([0.5, 4.0])),
)


@pytest.fixture
def store(tmp_path):
    return coo_store(tmp_path / "store", tensor_with_holes((9, 8, 7)), partition_entries=70)


def test_a_pickled_store_reads_the_same(store):
    again = pickle.loads(pickle.dumps(store))
    assert isinstance(again, ObservationStore)
    assert again == store
    np.testing.assert_array_equal(again.to_array(), store.to_array())


def test_lazy_columns_are_chunked_by_partition(store):
    indices, values = store.indices(), store.values()
    counts = tuple(part.count for part in store.partitions)
    assert indices.shape == (3, store.nnz)
    assert indices.chunks == ((3,), counts)
    assert values.chunks == (counts,)
    assert (indices.dtype, values.dtype) == (np.int32, np.float64)
    with dask.config.set(scheduler="synchronous"):
        found, numbers = dask.compute(indices, values)
    expected, expected_numbers = columns_of(store)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(numbers, expected_numbers)


def test_indices_and_values_computed_together_read_each_partition_once(store, monkeypatch):
    reads = []

    def counted(path, header, index):
        reads.append(index)
        return read_partition(path, header, index)

    monkeypatch.setattr("slrt_dask.data.store.read_partition", counted)
    dask.compute(store.indices(), store.values(), scheduler="synchronous")
    assert sorted(reads) == list(range(len(store.partitions)))


def test_a_store_says_what_it_is_in_one_line(store):
    text = repr(store)
    assert "\n" not in text
    assert "9 × 8 × 7" in text
    assert f"{store.nnz} observed" in text
    shown = store._repr_html_()
    for length in store.shape:
        assert f">{length}</td>" in shown
    assert f"{store.nnz} (" in shown


def test_to_array_fills_as_asked(store):
    dense = store.to_array(fill=-1.0)
    np.testing.assert_array_equal(dense, np.nan_to_num(store.to_array(), nan=-1.0))


def test_columns_are_int32_compressed_and_values_are_raw(tmp_path, store):
    group = zarr.open_group(tmp_path / "store/p00000", mode="r")
    assert group["indices_0"].dtype == np.int32
    codec = group["indices_0"].compressors[0].to_dict()["configuration"]
    assert (codec["cname"], codec["shuffle"]) == ("lz4", "bitshuffle")
    assert group["values"].compressors == ()
    raw = (tmp_path / "store/p00000/values/c/0").read_bytes()
    np.testing.assert_array_equal(np.frombuffer(raw), store.read_partition(0)[1])


def test_a_partition_that_is_not_there_is_named(store):
    with pytest.raises(InvalidInput, match=r"partition 99 was asked for.*0 to"):
        store.read_partition(99)
    with pytest.raises(InvalidInput, match="partition -1"):
        store.read_partition(-1)


def write_parts(path, order=(0, 1)):
    checksums = {i: write_partition(path, HEADER.partitions[i].name, *PARTS[i]) for i in order}
    return HEADER.with_checksums((checksums[0], checksums[1]))


def test_a_dual_vector_is_written_and_read_in_the_same_layout(tmp_path):
    path = tmp_path / "dual"
    create_store(path, HEADER)
    with pytest.raises(StoreCorrupt, match="not marked complete"):
        read_header(path)
    sealed = finish_store(path, write_parts(path))
    assert read_header(path) == sealed
    for number, (indices, values) in enumerate(PARTS):
        found, numbers = read_partition(path, sealed, number)
        np.testing.assert_array_equal(np.stack(found), np.stack(indices))
        np.testing.assert_array_equal(numbers, values)
    with pytest.raises(UnsupportedFormat, match="kind 'dual'"):
        open_store(path)


def test_the_digest_names_the_content_not_the_place_or_the_order_of_writing(tmp_path):
    digests = []
    for name, order in (("a", (0, 1)), ("b", (1, 0))):
        create_store(tmp_path / name, HEADER)
        digests.append(finish_store(tmp_path / name, write_parts(tmp_path / name, order)).digest)
    assert digests[0] == digests[1]
    create_store(tmp_path / "c", HEADER)
    header = write_parts(tmp_path / "c")
    other = write_partition(tmp_path / "c", "p00001", PARTS[1][0], PARTS[1][1] + 1)
    changed = header.with_checksums((header.partitions[0].checksum, other))
    assert finish_store(tmp_path / "c", changed).digest != digests[0]


def test_a_partition_of_the_wrong_length_is_not_written(tmp_path):
    create_store(tmp_path / "dual", HEADER)
    with pytest.raises(InvalidInput, match=r"p00001.*created for 2 entries"):
        write_partition(tmp_path / "dual", "p00001", *PARTS[0])


def test_creating_over_something_is_refused(tmp_path):
    create_store(tmp_path / "dual", HEADER)
    with pytest.raises(StoreExists):
        create_store(tmp_path / "dual", HEADER)


def test_a_header_that_contradicts_itself_is_refused(tmp_path):
    create_store(tmp_path / "dual", HEADER)
    finish_store(tmp_path / "dual", replace(write_parts(tmp_path / "dual"), nnz=6))
    with pytest.raises(StoreCorrupt, match="nnz 6 against 5"):
        read_header(tmp_path / "dual")


def test_a_store_may_live_at_a_url(tmp_path):
    tensor = tensor_with_holes((5, 6, 7))
    for url in ("memory://somewhere/deep/store", f"file://{tmp_path}/local"):
        store = coo_store(url, tensor, partition_entries=40)
        np.testing.assert_array_equal(open_store(url).to_array(), tensor)
        with pytest.raises(StoreExists):
            coo_store(url, tensor)
        train, test = store.split(0.3)
        assert train.nnz + test.nnz == store.nnz


def test_a_failure_at_a_url_leaves_nothing_there():
    def interrupt(stage, done, total):
        if stage == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coo_store("memory://broken", tensor_with_holes((5, 6)), progress=interrupt)
    coo_store("memory://broken", tensor_with_holes((5, 6)))


def test_missing_parent_directories_are_made(tmp_path):
    store = from_coo(tmp_path / "a/b/store", [[0, 1], [1, 0]], [1.0, 2.0])
    assert store.nnz == 2
