"""Stores, completions and exports at URLs: in memory, in files, and in an object store.

An object store has no rename and no directories, so what makes half a store unreadable there is
the order of writes alone; every prefix of them is tried.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from contextlib import contextmanager

import dask
import fsspec
import numpy as np
import pyarrow
import pytest
import s3fs
import zarr
from click.testing import CliRunner
from moto.server import ThreadedMotoServer
from pyarrow import parquet
from zarr.storage import FsspecStore

import slrt_dask as slrt
from slrt_dask.cli import main
from slrt_dask.data import from_coo, from_file, open_store
from slrt_dask.data.location import normal_path
from slrt_dask.errors import (
    InvalidInput,
    MissingDependency,
    StoreCorrupt,
    StoreExists,
    StoreNotFound,
)
from tests.data.helpers import coo_store, entries, tensor_with_holes

SHAPE, RANKS = (9, 8, 7), (2, 2, 2)
FIT = {"C": 1.0, "max_iterations": 1, "gap_tolerance": 0.0, "gradient_tolerance": 0.0}
PLACES = np.indices(SHAPE).reshape(3, -1)
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}
# Objects here are small, and need not be asked for their size first.
AT_ONCE = {"max_concurrency": 1}


@pytest.fixture(scope="module")
def bucket():
    """The address of a bucket in an object store that lives as long as these tests."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        patch.setitem(fsspec.config.conf, "s3", AT_ONCE)
        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    forget_sessions()
    server.stop()


def forget_sessions():
    """Let go of all connections to object stores."""
    with warnings.catch_warnings():
        # They belong to event loops of other libraries, which do not close them.
        warnings.simplefilter("ignore", ResourceWarning)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        gc.collect()


def here():
    """Compute in this process.

    Other tests may have left a client, whose workers see neither the memory nor the credentials.
    """
    return dask.config.set(scheduler="threads")


@pytest.fixture
def memory():
    """The root of fsspec's file system in memory, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    with here():
        yield "memory:/"
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "bucket"])
def root(request, tmp_path):
    """An address below which nothing is yet."""
    with here():
        yield f"{request.getfixturevalue(request.param)}/{tmp_path.name}"


@pytest.fixture
def shared(bucket, tmp_path, process_client):
    """An address that other processes see too, and a client whose workers have what they need.

    What begins with file:// is no other case: workers are given the path.
    """
    address = f"{bucket}/{tmp_path.name}"
    credentials = {name: os.environ[name] for name in [*KEYS, "AWS_ENDPOINT_URL"]}

    # Not os.environ.update itself: workers would be sent a copy of the environment to update.
    def learn():
        os.environ.update(credentials)
        fsspec.config.conf["s3"] = AT_ONCE

    def forget():
        fsspec.config.conf.pop("s3")
        for name in credentials:
            os.environ.pop(name)

    process_client.run(learn)
    yield address, process_client
    process_client.run(forget)


@pytest.fixture(scope="module")
def tensor():
    return tensor_with_holes(SHAPE, observed=0.6)


def stored(path, tensor):
    """A store of several partitions, but few: every object costs the object store some time."""
    store = coo_store(path, tensor, partition_entries=180)
    assert len(store.partitions) == 2
    return store


@pytest.fixture(scope="module")
def local(tensor, tmp_path_factory):
    """The same on the local disk: the store, its parts and the completion of one of them."""
    directory = tmp_path_factory.mktemp("local")
    store = stored(directory / "store", tensor)
    train, test = store.split(0.2)
    done = slrt.complete(train, RANKS, validation=test, **FIT)
    return store, train, test, done


def test_everything_that_is_done_to_a_path_is_done_to_a_url(root, tensor, local):
    store, train, test, expected = local
    made = stored(f"{root}/store", tensor)
    assert made.digest == store.digest
    parts = open_store(f"{root}/store").split(0.2)
    assert [part.digest for part in parts] == [train.digest, test.digest]
    done = slrt.complete(parts[0], RANKS, validation=parts[1], **FIT)
    assert done.certificate == expected.certificate
    saved = done.save(f"{root}/completion")
    for one in (saved, slrt.load_completion(f"{root}/completion")):
        np.testing.assert_array_equal(one.predict(PLACES), expected.predict(PLACES))
        assert one.records == done.records
    assert slrt.evaluate(saved, parts[1]) == slrt.evaluate(expected, test)
    saved.to_zarr(f"{root}/dense", chunks=(5, 8, 7))
    whole = zarr.open_array(f"{root}/dense")[...]
    np.testing.assert_array_equal(whole, expected.to_dask((5, 8, 7)))


def test_nothing_at_a_url_is_written_over_and_an_error_leaves_nothing(root, tensor, local):
    def interrupt(stage, done, total):
        if (stage, done) == ("write", 1):
            raise KeyboardInterrupt

    *_, done = local
    with pytest.raises(KeyboardInterrupt):
        coo_store(f"{root}/store", tensor, partition_entries=180, progress=interrupt)
    filesystem, inner = fsspec.url_to_fs(root)
    assert not filesystem.exists(f"{inner}/store")
    for name, write in {
        "store": lambda path: coo_store(path, tensor),
        "saved": done.save,
        "dense": done.to_zarr,
    }.items():
        write(f"{root}/{name}")
        with pytest.raises(StoreExists, match=f"{root}/{name}"):
            write(f"{root}/{name}")
    coo_store(f"{root}/store-test", tensor)
    with pytest.raises(StoreExists, match=f"{root}/store-test"):
        open_store(f"{root}/store").split(0.2)
    assert open_store(f"{root}/store").nnz == np.count_nonzero(~np.isnan(tensor))


def test_the_address_of_a_file_is_its_path(tensor, tmp_path):
    store = coo_store(f"file://{tmp_path}/store/", tensor)
    assert store.path == str(tmp_path / "store")
    np.testing.assert_array_equal(open_store(f"file://{tmp_path}/store").to_array(), tensor)


def test_workers_read_from_and_write_to_urls(shared, tensor, local, tmp_path):
    root, client = shared
    _, _, _, expected = local
    train, test = stored(f"{root}/store", tensor).split(0.2)
    done = slrt.complete(
        train, RANKS, validation=test, client=client, run_directory=tmp_path / "run", **FIT
    )
    assert done.certificate.primal == pytest.approx(expected.certificate.primal, rel=1e-10)
    saved = done.save(f"{root}/saved")
    with client.as_current():
        found = saved.predict(PLACES)
        saved.to_zarr(f"{root}/dense", chunks=(5, 8, 7))
        errors = slrt.evaluate(saved, test)
    with dask.config.set(scheduler="threads"):
        np.testing.assert_array_equal(found, saved.predict(PLACES))
        whole = zarr.open_array(f"{root}/dense")[...]
        np.testing.assert_array_equal(whole, saved.to_dask((5, 8, 7)))
        assert errors == slrt.evaluate(saved, test)


def test_the_command_line_takes_urls(memory, tensor, tmp_path):
    address, run = f"{memory}/{tmp_path.name}", str(tmp_path / "run")
    table, found = str(tmp_path / "cube.csv"), str(tmp_path / "found.npy")
    write_table(table, tensor)
    for command in (
        ["ingest", table, f"{address}/cube"],
        ["split", f"{address}/cube", "--test", "0.2"],
        ["plan", f"{address}/cube-train", "--ranks", "2,2,2"],
        ["fit", f"{address}/cube-train", "--ranks", "2,2,2", "--C", "1", "--max-iterations", "1",
         "--validation", f"{address}/cube-test", "--run", run],
        ["evaluate", run, f"{address}/cube-test"],
        ["export", run, f"{address}/filled"],
        ["predict", run, table, "-o", found],
    ):  # fmt: skip
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, (command, result.output)
    whole = zarr.open_array(f"{address}/filled")[...]
    np.testing.assert_allclose(np.load(found), whole[~np.isnan(tensor)], rtol=1e-12)


def write_table(path, tensor):
    indices, values = entries(tensor)
    np.savetxt(path, np.vstack([indices, values]).T, delimiter=",", fmt=["%d"] * 3 + ["%.17g"])


def test_files_at_urls_are_ingested(root, tensor, local, tmp_path):
    indices, values = entries(tensor)
    write_table(tmp_path / "x.csv", tensor)
    np.save(tmp_path / "x.npy", tensor)
    np.savez_compressed(tmp_path / "x.npz", X=tensor)
    table = pyarrow.table({**{f"i{k}": row for k, row in enumerate(indices)}, "value": values})
    parquet.write_table(table, tmp_path / "x.parquet")
    filesystem, inner = fsspec.url_to_fs(f"{root}/source")
    filesystem.makedirs(inner, exist_ok=True)
    for name in ("x.csv", "x.npy", "x.npz", "x.parquet"):
        filesystem.put_file(str(tmp_path / name), f"{inner}/{name}")
        made = from_file(tmp_path / f"{name}-store", f"{root}/source/{name}", shape=SHAPE)
        np.testing.assert_array_equal(made.to_array(), tensor)
    zarr.create_array(normal_path(f"{root}/source/dense"), data=tensor)
    made = from_file(tmp_path / "zarr-store", f"{root}/source/dense")
    np.testing.assert_array_equal(made.to_array(), tensor)
    with pytest.raises(InvalidInput, match=r"no file .*absent\.csv"):
        from_file(tmp_path / "other", f"{root}/source/absent.csv")


# ---- completeness ---------------------------------------------------------------------------


@contextmanager
def recorded_writes():
    """Every object that zarr writes to a URL meanwhile, in order; nothing may be removed."""
    writes = []
    set_object = FsspecStore.set

    async def recorded(store, key, value, *arguments):
        writes.append((f"{store.path.strip('/')}/{key}", value.to_bytes()))
        await set_object(store, key, value, *arguments)

    async def refused(store, *_):
        raise AssertionError("an object was removed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FsspecStore, "set", recorded)
        patch.setattr(FsspecStore, "delete", refused)
        yield writes


def objects_below(name):
    return {
        path.strip("/"): bytes(file.getbuffer())
        for path, file in fsspec.filesystem("memory").store.items()
        if path.strip("/").startswith(f"{name}/")
    }


def place_objects(objects):
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    for path, content in objects.items():
        filesystem.pipe_file(f"/{path}", content)


def read_export(path):
    return zarr.open(path, mode="r")[...]


@pytest.mark.parametrize("kind", ["store", "completion", "export"])
def test_what_was_cut_off_after_any_write_is_refused(memory, tensor, local, kind):
    *_, done = local
    write, read, error = {
        "store": (
            lambda path: stored(path, tensor),
            lambda path: open_store(path).verify(),
            (StoreCorrupt, StoreNotFound),
        ),
        "completion": (
            done.save,
            lambda path: slrt.load_completion(path).predict(PLACES),
            (StoreCorrupt, StoreNotFound),
        ),
        "export": (
            lambda path: done.to_zarr(path, chunks=(5, 5, 5)),
            read_export,
            FileNotFoundError,
        ),
    }[kind]
    with recorded_writes() as writes:
        write("memory://cut")
    whole = objects_below("cut")
    assert dict(writes) == whole
    for count in range(len(writes)):
        place_objects(dict(writes[:count]))
        with pytest.raises(error, match="cut"):
            read("memory://cut")
        if count == len(writes) // 2 and kind == "store":
            with pytest.raises(StoreExists, match="memory://cut"):
                coo_store("memory://cut", tensor)
    place_objects(whole)
    read("memory://cut")


def test_a_split_that_was_cut_off_after_any_write_leaves_neither_part(memory, tensor):
    store = coo_store("memory://cut", tensor, partition_entries=200)
    with recorded_writes() as writes:
        store.split(0.3)
    # The two that mark the parts complete are the last ones.
    for count in range(len(writes) - 1):
        place_objects(dict(writes[:count]))
        for part in ("cut-train", "cut-test"):
            with pytest.raises((StoreCorrupt, StoreNotFound), match=part):
                open_store(f"memory://{part}")
    place_objects(dict(writes))
    assert open_store("memory://cut-train").nnz + open_store("memory://cut-test").nnz == store.nnz


def test_a_store_that_lost_any_object_is_refused_by_name(memory, tensor):
    coo_store("memory://torn", tensor, partition_entries=150)
    whole = objects_below("torn")
    for lost in whole:
        place_objects({path: content for path, content in whole.items() if path != lost})
        named = lost.split("/")[1] if lost.count("/") > 1 else "torn"
        with pytest.raises((StoreCorrupt, StoreNotFound), match=named):
            open_store("memory://torn").verify()


def test_a_store_that_changed_since_it_was_listed_is_listed_again(bucket, tensor, tmp_path):
    address = f"{bucket}/{tmp_path.name}"
    stored(f"{address}/store", tensor)
    open_store(f"{address}/store")
    other = s3fs.S3FileSystem(default_cache_type="none")  # another one, as in another process
    lost = f"{address}/store/p00001/indices_0/zarr.json"
    content = other.cat_file(lost)
    other.rm_file(lost)
    with pytest.raises(StoreCorrupt, match="p00001/indices_0"):
        open_store(f"{address}/store")
    other.pipe_file(lost, content)
    open_store(f"{address}/store").verify()
    other.rm(f"{address}/store", recursive=True)
    with pytest.raises(StoreNotFound, match="no store at"):
        open_store(f"{address}/store")
    coo_store(f"{address}/store", tensor)


# ---- addresses that lead nowhere ------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_named(bucket, tensor):
    with pytest.raises(StoreNotFound, match="no store at s3://nowhere/store"):
        open_store("s3://nowhere/store")
    with pytest.raises(FileNotFoundError, match="bucket"):
        coo_store("s3://nowhere/store", tensor)


def test_an_object_store_that_does_not_answer_is_named(bucket, monkeypatch):
    forget_sessions()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    with pytest.raises(StoreNotFound, match="s3://bucket/x cannot be reached"):
        open_store("s3://bucket/x")
    forget_sessions()


@pytest.mark.parametrize(
    ("address", "error"), [("nonsense://x", InvalidInput), ("gs://x", MissingDependency)]
)
def test_an_address_of_an_unknown_kind_is_named(address, error, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for call in (lambda: from_coo(address, [[0], [0]], [1.0]), lambda: open_store(address)):
        with pytest.raises(error, match=address):
            call()


def test_a_run_directory_that_is_a_url_is_refused(memory, tensor):
    store = coo_store("memory://store", tensor)
    with pytest.raises(InvalidInput, match=r"run directory memory://run is a URL; give a local"):
        slrt.complete(store, RANKS, C=1.0, run_directory="memory://run")
