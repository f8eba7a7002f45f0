"""An opened store is cheap, picklable and lazy; one that is unfinished or altered is refused."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import dask
import numpy as np
import pytest
import zarr

from slrt_dask.data import (
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
from slrt_dask.data.layout import read_weighted
from slrt_dask.errors import (
    InvalidInput,
    StoreCorrupt,
    StoreExists,
    StoreNotFound,
    UnsupportedFormat,
)
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
    made = coo_store(
        tmp_path / "store", tensor_with_holes((9, 8, 7)), slab_mode=0, partition_entries=70
    )
    assert len(made.partitions) >= 3
    return made


def refused(error, named, read):
    with pytest.raises(error, match=named):
        read()


def test_a_pickled_store_reads_the_same(store):
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert hash(again) == hash(store)
    np.testing.assert_array_equal(again.to_array(-1.0), np.nan_to_num(store.to_array(), nan=-1.0))


def test_lazy_columns_are_chunked_by_partition_and_read_together_once(store, monkeypatch):
    reads = []

    def counted(path, header, index):
        reads.append(index)
        return read_weighted(path, header, index)

    indices, values = store.indices(), store.values()
    counts = tuple(part.count for part in store.partitions)
    assert (indices.chunks, values.chunks) == (((3,), counts), (counts,))
    assert (indices.dtype, values.dtype) == (np.int32, np.float64)
    monkeypatch.setattr("slrt_dask.data.store.read_weighted", counted)
    found = dask.compute(*(column.copy() for column in (store.indices(), store.values())))
    assert sorted(reads) == list(range(len(store.partitions)))
    for one, other in zip(found, columns_of(store), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_store_shows_what_it_is(store):
    text, shown = repr(store), store._repr_html_()
    assert "\n" not in text
    assert "9 × 8 × 7" in text
    assert all(f"{store.nnz}" in one for one in (text, shown))


def test_columns_are_int32_compressed_and_values_are_raw(tmp_path, store):
    group = zarr.open_group(tmp_path / "store/p00000", mode="r")
    assert group["indices_0"].dtype == np.int32
    codec = group["indices_0"].compressors[0].to_dict()["configuration"]
    assert (codec["cname"], codec["shuffle"]) == ("lz4", "bitshuffle")
    assert group["values"].compressors == ()
    raw = (tmp_path / "store/p00000/values/c/0").read_bytes()
    np.testing.assert_array_equal(np.frombuffer(raw), store.read_partition(0)[1])


def test_the_digest_of_a_store_is_pinned_so_that_old_stores_open(tmp_path):
    store = from_coo(tmp_path / "store", [[0, 1, 1], [2, 0, 1]], [1.0, -2.0, 0.5], (2, 3))
    assert store.digest.startswith("3748d2c64e54ef07979ef8e6917cf815")


@pytest.mark.parametrize("number", [99, -1])
def test_a_partition_that_is_not_there_is_named(store, number):
    refused(InvalidInput, str(number), lambda: store.read_partition(number))


# ---- the format -----------------------------------------------------------------------------


def written(path, header=HEADER, order=(0, 1), shift=0.0):
    create_store(path, header)
    found = {i: write_partition(path, f"p0000{i}", PARTS[i][0], PARTS[i][1] + shift) for i in order}
    return finish_store(path, header.with_checksums((found[0], found[1])))


def test_a_dual_vector_is_written_and_read_in_the_same_layout(tmp_path):
    sealed = written(tmp_path / "dual")
    assert read_header(tmp_path / "dual") == sealed
    for number, (indices, values) in enumerate(PARTS):
        found, numbers = read_partition(tmp_path / "dual", sealed, number)
        np.testing.assert_array_equal(np.stack(found), np.stack(indices))
        np.testing.assert_array_equal(numbers, values)
    refused(UnsupportedFormat, "'dual'", lambda: open_store(tmp_path / "dual"))
    refused(StoreExists, "dual", lambda: create_store(tmp_path / "dual", HEADER))


def test_the_digest_names_the_content_not_the_place_or_the_order_of_writing(tmp_path):
    first = written(tmp_path / "a").digest
    assert written(tmp_path / "b", order=(1, 0)).digest == first
    assert written(tmp_path / "c", shift=1.0).digest != first


def test_an_unfinished_store_and_a_partition_of_the_wrong_length_are_refused(tmp_path):
    path = tmp_path / "dual"
    create_store(path, HEADER)
    refused(StoreCorrupt, "dual", lambda: read_header(path))
    refused(InvalidInput, "p00001", lambda: write_partition(path, "p00001", *PARTS[0]))


@pytest.mark.parametrize("change", [{"nnz": 6}, {"slab_mode": 2}, {"kind": "x"}, {"dtype": "int8"}])
def test_a_header_that_contradicts_itself_is_refused(tmp_path, change):
    create_store(tmp_path / "dual", HEADER)
    finish_store(tmp_path / "dual", replace(HEADER, **change))
    refused(StoreCorrupt, str(*change.values()), lambda: read_header(tmp_path / "dual"))


# ---- what is torn or altered ----------------------------------------------------------------


def flipped(place):
    def damage(chunk):
        content = bytearray(chunk.read_bytes())
        content[place] ^= 0x10
        chunk.write_bytes(content)

    return damage


DAMAGES = {
    "shortened": lambda chunk: chunk.write_bytes(chunk.read_bytes()[:-5]),
    "first byte": flipped(0),
    "sixth byte": flipped(5),
    "last byte": flipped(-1),
}


@pytest.mark.parametrize("column", ["indices_0", "indices_2", "values"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_chunk_is_found_when_its_partition_is_read(tmp_path, store, column, damage):
    DAMAGES[damage](tmp_path / "store/p00001" / column / "c/0")
    opened = open_store(tmp_path / "store")
    opened.read_partition(0)
    lazy = opened.values()
    for read in (
        lambda: opened.read_partition(1),
        opened.verify,
        lambda: lazy.compute(scheduler="synchronous"),
    ):
        refused(StoreCorrupt, "p00001", read)


@pytest.mark.parametrize("lost", ["p00001", "p00001/indices_2", "p00001/values/zarr.json"])
def test_what_is_lost_is_named(tmp_path, store, lost):
    path = tmp_path / "store" / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    named = lost.removesuffix("/zarr.json")
    refused(StoreCorrupt, named, lambda: open_store(tmp_path / "store"))
    refused(StoreCorrupt, "p00001", store.verify)


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("p00001/values/zarr.json", lambda _: "{", "store"),
        (
            "p00001/values/zarr.json",
            lambda text: text.replace("float64", "float32"),
            "p00001/values",
        ),
        ("p00001/values/zarr.json", lambda text: text.replace('"shape"', '"shap"'), "store"),
        ("zarr.json", lambda text: text[:-100], "store"),
        ("zarr.json", lambda text: text.replace('"complete": true', '"complete": false'), "store"),
        ("zarr.json", lambda text: text.replace('"slrt"', '"other"'), "'slrt'"),
    ],
)
def test_altered_metadata_is_refused(tmp_path, store, file, change, named):
    path = tmp_path / "store" / file
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    refused(StoreCorrupt, named, lambda: open_store(tmp_path / "store"))


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("nnz", 5, StoreCorrupt),
        ("mean", 0.0, StoreCorrupt),
        ("shape", [9, 8, 70], StoreCorrupt),
        ("partitions", [], StoreCorrupt),
        ("format_version", 2, UnsupportedFormat),
    ],
)
def test_an_edited_header_is_refused(tmp_path, store, key, value, error):
    file = tmp_path / "store/zarr.json"
    metadata = json.loads(file.read_text())
    metadata["attributes"]["slrt"][key] = value
    file.write_text(json.dumps(metadata))
    refused(error, "store", lambda: open_store(tmp_path / "store"))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_is_no_store_is_refused(zarr_format, tmp_path):
    zarr.create_array(tmp_path / "cube.zarr", data=np.ones(3), zarr_format=zarr_format)
    refused(StoreNotFound, "ingest .*cube", lambda: open_store(tmp_path / "cube.zarr"))
    refused(StoreNotFound, "absent", lambda: open_store(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    refused(StoreNotFound, "empty", lambda: open_store(tmp_path / "empty"))


KILLED = """
import sys, time
import numpy as np
from slrt_dask.data import from_coo

def hang(stage, done, total):
    if (stage, done) == ("{stage}", 2):
        print("now", flush=True)
        time.sleep(60)

indices = np.array(np.unravel_index(np.arange(1000), (10, 10, 10)))
from_coo(sys.argv[1], indices, np.ones(1000), (10, 10, 10), partition_entries=300, progress=hang)
"""


@pytest.mark.parametrize(("stage", "error"), [("write", StoreCorrupt), ("arrange", StoreNotFound)])
def test_a_killed_ingest_leaves_nothing_that_opens(tmp_path, stage, error):
    command = [sys.executable, "-c", KILLED.format(stage=stage), str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGKILL)
    refused(error, "store", lambda: open_store(tmp_path / "store"))
    assert {path.name for path in tmp_path.iterdir()} <= {"store"}
