"""A store that is unfinished, torn or altered is refused, and the error says what is wrong."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import zarr

from slrt_dask.data import from_coo, open_store
from slrt_dask.errors import StoreCorrupt, StoreNotFound, UnsupportedFormat
from tests.data.helpers import coo_store, tensor_with_holes


@pytest.fixture
def store(tmp_path):
    made = coo_store(
        tmp_path / "store", tensor_with_holes((9, 8, 7)), slab_mode=0, partition_entries=90
    )
    assert len(made.partitions) >= 3
    return made


def edit_block(path, change):
    file = path / "zarr.json"
    metadata = json.loads(file.read_text())
    change(metadata["attributes"])
    file.write_text(json.dumps(metadata))


def refused(path, error, pattern):
    with pytest.raises(error, match=pattern):
        open_store(path)


@pytest.mark.parametrize("column", ["indices_0", "indices_2", "values"])
def test_a_lost_chunk_is_found_when_its_partition_is_read(tmp_path, store, column):
    (tmp_path / "store/p00001" / column / "c/0").unlink()
    opened = open_store(tmp_path / "store")
    opened.read_partition(0)
    with pytest.raises(StoreCorrupt, match=r"partition p00001 of .*a chunk was lost or altered"):
        opened.read_partition(1)
    with pytest.raises(StoreCorrupt, match="p00001"):
        opened.verify()
    with pytest.raises(StoreCorrupt, match="p00001"):
        opened.values().compute(scheduler="synchronous")


def test_a_lost_chunk_of_zeros_is_found_too(tmp_path):
    store = from_coo(tmp_path / "store", [[0, 0, 0], [0, 0, 0], [0, 1, 2]], np.zeros(3), (1, 1, 3))
    for column in ("indices_0", "values"):
        chunk = tmp_path / "store/p00000" / column / "c/0"
        content = chunk.read_bytes()
        chunk.unlink()
        with pytest.raises(StoreCorrupt, match="p00000"):
            store.verify()
        chunk.write_bytes(content)
    store.verify()


@pytest.mark.parametrize("column", ["indices_1", "values"])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_flipped_byte_is_found(tmp_path, store, column, place):
    chunk = tmp_path / "store/p00002" / column / "c/0"
    content = bytearray(chunk.read_bytes())
    content[place] ^= 0x10
    chunk.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="partition p00002"):
        store.verify()


@pytest.mark.parametrize("column", ["indices_1", "values"])
def test_a_shortened_chunk_is_found(tmp_path, store, column):
    chunk = tmp_path / "store/p00002" / column / "c/0"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with pytest.raises(StoreCorrupt, match="partition p00002"):
        store.verify()


def test_a_lost_group_is_named(tmp_path, store):
    shutil.rmtree(tmp_path / "store/p00001")
    refused(tmp_path / "store", StoreCorrupt, "lost its partition p00001")
    with pytest.raises(StoreCorrupt, match="lost its partition p00001"):
        store.read_partition(1)


def test_a_lost_array_is_named(tmp_path, store):
    shutil.rmtree(tmp_path / "store/p00001/indices_2")
    refused(tmp_path / "store", StoreCorrupt, "lost the array p00001/indices_2")
    with pytest.raises(StoreCorrupt, match="p00001"):
        store.read_partition(1)


def test_lost_metadata_is_named(tmp_path, store):
    (tmp_path / "store/p00001/values/zarr.json").unlink()
    refused(tmp_path / "store", StoreCorrupt, "p00001/values")


def test_unreadable_metadata_is_refused(tmp_path, store):
    (tmp_path / "store/p00001/values/zarr.json").write_text("{")
    refused(tmp_path / "store", StoreCorrupt, "metadata that cannot be read")


@pytest.mark.parametrize("key", ["shape", "data_type"])
def test_an_array_of_another_form_is_named(tmp_path, store, key):
    file = tmp_path / "store/p00001/values/zarr.json"
    metadata = json.loads(file.read_text())
    metadata[key] = {"shape": [3], "data_type": "float32"}[key]
    file.write_text(json.dumps(metadata))
    refused(tmp_path / "store", StoreCorrupt, "p00001/values of shape")


def test_truncated_attributes_are_refused(tmp_path, store):
    file = tmp_path / "store/zarr.json"
    file.write_text(file.read_text()[:-100])
    refused(tmp_path / "store", StoreCorrupt, "cannot be read as a zarr group")


def test_a_store_not_marked_complete_is_refused(tmp_path, store):
    edit_block(tmp_path / "store", lambda attributes: attributes["slrt"].pop("complete"))
    refused(tmp_path / "store", StoreCorrupt, "not marked complete")


@pytest.mark.parametrize(
    ("key", "value"),
    [("nnz", 5), ("mean", 0.0), ("shape", [9, 8, 70]), ("slab_mode", 1), ("partitions", [])],
)
def test_an_edited_header_is_refused(tmp_path, store, key, value):
    edit_block(tmp_path / "store", lambda attributes: attributes["slrt"].update({key: value}))
    refused(tmp_path / "store", StoreCorrupt, "does not match its digest")


def test_an_edited_checksum_is_refused(tmp_path, store):
    def change(attributes):
        attributes["slrt"]["partitions"][0]["checksum"] += 1

    edit_block(tmp_path / "store", change)
    refused(tmp_path / "store", StoreCorrupt, "does not match its digest")


def test_a_later_format_is_refused_as_such(tmp_path, store):
    edit_block(tmp_path / "store", lambda attributes: attributes["slrt"].update(format_version=2))
    refused(tmp_path / "store", UnsupportedFormat, r"format version 2; .*reads version 1")


def test_a_zarr_group_of_something_else_is_refused(tmp_path):
    zarr.create_group(tmp_path / "group", attributes={"other": 1})
    refused(tmp_path / "group", StoreCorrupt, "without a 'slrt' attribute block")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zarr_array_is_refused_with_what_makes_a_store_of_it(zarr_format, tmp_path):
    zarr.create_array(tmp_path / "cube.zarr", data=np.ones(3), zarr_format=zarr_format)
    refused(tmp_path / "cube.zarr", StoreNotFound, "an array, not a store; slrt-dask ingest .*cube")


def test_nothing_and_an_empty_directory_are_no_stores(tmp_path):
    refused(tmp_path / "absent", StoreNotFound, "there is no store at .*absent")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", StoreNotFound, "holds no zarr group")


KILLED = """
import sys, time
import numpy as np
from slrt_dask.data import from_coo

def hang(stage, done, total):
    if (stage, done) == ("{stage}", {done}):
        print("now", flush=True)
        time.sleep(60)

indices = np.array(np.unravel_index(np.arange(1000), (10, 10, 10)))
from_coo(sys.argv[1], indices, np.ones(1000), (10, 10, 10), partition_entries=300, progress=hang)
"""


@pytest.mark.parametrize(
    ("stage", "done", "error"), [("write", 2, StoreCorrupt), ("arrange", 2, StoreNotFound)]
)
def test_a_killed_ingest_leaves_nothing_that_opens(tmp_path, stage, done, error):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(stage=stage, done=done), str(tmp_path / "store")],
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGKILL)
    with pytest.raises(error):
        open_store(tmp_path / "store")
