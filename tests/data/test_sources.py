"""What goes into a store comes out of it, from every kind of array and file, for every order."""

from __future__ import annotations

import gzip
import sys

import dask.array as da
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import sparse
import xarray
import zarr

import slrt_dask as slrt
from slrt_dask.data import archives, from_array, from_batches, from_coo, from_file
from slrt_dask.data.arrays import array_source, coo_source
from slrt_dask.errors import InvalidInput, MissingDependency
from tests.data.helpers import SHAPES, entries, ingested, shuffled_entries, tensor_with_holes


def seen(tensor):
    return ~np.isnan(tensor)


def filled(tensor):
    return np.nan_to_num(tensor, nan=9.0)


def chunked(array, size=3):
    return da.from_array(array, chunks=size)


def written_zarr(path, array):
    return zarr.create_array(path.parent / "source.zarr", data=array, chunks=(3,) * array.ndim)


DENSE = {
    "numpy": lambda path, x: (x,),
    "a mask": lambda path, x: (np.where(seen(x), x, np.inf), seen(x)),
    "an integer mask": lambda path, x: (filled(x), seen(x).astype(int)),
    "a masked array": lambda path, x: (np.ma.MaskedArray(filled(x), mask=np.isnan(x)),),
    "dask": lambda path, x: (chunked(x, tuple(max(1, n // 2 - 1) for n in x.shape)),),
    "dask and a dask mask": lambda path, x: (chunked(filled(x)), chunked(seen(x), 2)),
    "dask and a mask": lambda path, x: (chunked(filled(x)), seen(x)),
    "numpy and a dask mask": lambda path, x: (filled(x), chunked(seen(x))),
    "numpy and a zarr mask": lambda path, x: (filled(x), written_zarr(path, seen(x))),
    "dask and an xarray mask": lambda path, x: (chunked(filled(x)), xarray.DataArray(seen(x))),
    "zarr": lambda path, x: (written_zarr(path, x),),
}
COORDINATES = {
    "an array": lambda i, v, shape: (i, v, shape),
    "sparse": lambda i, v, shape: (sparse.COO(i, v, shape),),
    "lists": lambda i, v, shape: (tuple(c.tolist() for c in i), v.tolist(), list(shape)),
    "whole floats": lambda i, v, shape: (i.astype(float), v, shape),
    "dask": lambda i, v, shape: (chunked(i, (1, 11)), chunked(v, 17), shape),
    "dask columns": lambda i, v, shape: ([chunked(c, 13) for c in i], v, shape),
}


KINDS = [*DENSE, *COORDINATES, "batches"]
ORDERS = [(kind, shape) for kind in ("dask", "an array") for shape in SHAPES if len(shape) != 3]


@pytest.mark.parametrize(
    ("kind", "shape"), [*((kind, (7, 19, 5)) for kind in KINDS), *ORDERS], ids=str
)
def test_every_source_gives_back_the_tensor_and_the_same_digest(tmp_path, kind, shape):
    tensor, path, options = tensor_with_holes(shape), tmp_path / "store", {"partition_entries": 100}
    indices, values = shuffled_entries(tensor)
    if kind in DENSE:
        store = from_array(path, *DENSE[kind](path, tensor), **options)
    elif kind in COORDINATES:
        store = from_coo(path, *COORDINATES[kind](indices, values, shape), **options)
    else:
        pairs = ((indices[:, i : i + 7], values[i : i + 7]) for i in range(0, values.size, 7))
        store = from_batches(path, pairs, shape, **options)
    np.testing.assert_array_equal(store.to_array(), tensor)
    np.testing.assert_array_equal(store.to_coo().todense(), np.nan_to_num(tensor))
    assert store.digest == from_array(tmp_path / "reference", tensor, **options).digest
    assert (store.shape, store.order) == (shape, len(shape))
    assert store.nnz == np.count_nonzero(seen(tensor))
    assert store.mean == pytest.approx(np.nanmean(tensor), rel=1e-12)


@pytest.mark.parametrize("batch_entries", [1, 7, 64])
def test_content_does_not_depend_on_batch_size(tmp_path, batch_entries):
    tensor = tensor_with_holes((4, 9, 5))
    first = ingested(tmp_path / "a", array_source(tensor))
    for name, source in (
        ("b", coo_source(*shuffled_entries(tensor), tensor.shape)),
        ("c", array_source(tensor)),
    ):
        assert ingested(tmp_path / name, source, batch_entries=batch_entries).digest == first.digest


@pytest.mark.parametrize("rule", ["mean", "sum", "last"])
@pytest.mark.parametrize("batch_entries", [11, 1000])
def test_duplicates_become_one_entry_whatever_the_batch_size(tmp_path, rule, batch_entries):
    random = np.random.default_rng(3)
    indices, values = random.integers(0, 4, (3, 300)), random.standard_normal(300)
    source = coo_source(indices, values, (4, 4, 4))
    options = {"partition_entries": 20, "batch_entries": batch_entries, "duplicates": rule}
    expected = np.full((4, 4, 4), np.nan)
    for index in set(map(tuple, indices.T.tolist())):
        of_index = values[(index == indices.T).all(axis=1)]
        expected[index] = {"mean": np.mean, "sum": np.sum, "last": lambda v: v[-1]}[rule](of_index)
    found = ingested(tmp_path / "store", source, **options).to_array()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_float32_stays_float32_unless_asked_otherwise(tmp_path):
    tensor = tensor_with_holes((7, 6)).astype(np.float32)
    single = from_array(tmp_path / "single", tensor)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single.to_array(), tensor)
    assert from_array(tmp_path / "double", tensor, dtype="float64").dtype == np.float64


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float16])
def test_numbers_of_any_type_are_observed_everywhere(tmp_path, dtype):
    array = (np.arange(30).reshape(5, 6) % 2).astype(dtype)
    store = from_array(tmp_path / "store", array)
    assert store.nnz == 30
    np.testing.assert_array_equal(store.to_array(), array.astype(float))


def test_shape_is_the_smallest_that_fits_and_long_modes_have_int64_indices(tmp_path):
    far = 2**33
    store = from_coo(tmp_path / "store", [[0, far, 5], [1, 0, 1]], [1.0, 2.0, 3.0])
    (rows, columns), values = store.read_partition(0)
    assert store.shape == (far + 1, 2)
    assert rows.dtype == np.int64
    assert np.array([rows, columns, values]).tolist() == [[0, 5, far], [1, 1, 0], [1, 3, 2]]


def test_progress_is_reported_for_every_stage(tmp_path):
    calls, tensor = [], tensor_with_holes((7, 19, 5))
    from_array(tmp_path / "store", tensor, progress=lambda *call: calls.append(call))
    stages = list(dict.fromkeys(stage for stage, _, _ in calls))
    assert stages == ["read", "sort", "arrange", "write"]
    assert ("read", tensor.size, tensor.size) in calls
    assert all(total is None or 0 <= done <= total for _, done, total in calls)


# ---- files ----------------------------------------------------------------------------------


def lines_of(tensor, base, separator):
    indices, values = shuffled_entries(tensor)
    return [
        separator.join([*(str(i + base) for i in index), repr(float(value))])
        for index, value in zip(indices.T, values, strict=True)
    ]


def write_tns(path, tensor):
    lines = lines_of(tensor, 1, " ")
    path.write_text("\n".join(["# a comment", *lines[:3], "", "   ", *lines[3:]]))


def write_tns_gz(path, tensor):
    path.write_bytes(gzip.compress("\n".join(lines_of(tensor, 1, "\t")).encode()))


def write_csv_with_header(path, tensor):
    header = ",".join([*(f'"mode {k}"' for k in range(tensor.ndim)), "value"])
    path.write_text("\ufeff" + "\n".join([header, *lines_of(tensor, 0, ", ")]), encoding="utf-8")


def write_parquet(path, tensor, value="measured", **options):
    indices, values = shuffled_entries(tensor)
    columns = {f"mode {k}": column.astype(np.int32) for k, column in enumerate(indices)}
    columns = {value: values, **columns} if value == "value" else {**columns, value: values}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)


def write_coordinate_npz(path, tensor):
    indices, values = shuffled_entries(tensor)
    np.savez(path, indices=indices, values=values, shape=tensor.shape)


def write_sparse_npz(path, tensor):
    sparse.save_npz(path, sparse.COO(*shuffled_entries(tensor), tensor.shape))


def write_zarr_group(path, tensor):
    group = zarr.create_group(path)
    group.create_array("cube", data=filled(tensor))
    group.create_array("mask", data=seen(tensor))


FILES = {
    "a.tns": write_tns,
    "a.tns.gz": write_tns_gz,
    "a.csv": lambda path, x: path.write_text("\n".join(lines_of(x, 0, ","))),
    "header.csv": write_csv_with_header,
    "a.parquet": write_parquet,
    "first.parquet": lambda path, x: write_parquet(path, x, "value", row_group_size=31),
    "coo.npz": write_sparse_npz,
    "coordinates.npz": write_coordinate_npz,
    "dense.npz": lambda path, x: np.savez_compressed(path, anything=x),
    "masked.npz": lambda path, x: np.savez(path, X=filled(x), mask=seen(x)),
    "a.npy": lambda path, x: np.save(path, np.asfortranarray(x)),
    "a.zarr": lambda path, x: zarr.create_array(path, data=x, chunks=(3,) * x.ndim),
    "a group": write_zarr_group,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=len)
def test_every_file_type_makes_the_same_store(tmp_path, name, shape):
    tensor, names = tensor_with_holes(shape), [f"mode {k}" for k in range(len(shape))]
    FILES[name](tmp_path / name, tensor)
    options = {"dimension_names": names, "partition_entries": 150}
    store = from_file(tmp_path / "store", tmp_path / name, shape=shape, **options)
    np.testing.assert_array_equal(store.to_array(), tensor)
    assert store.digest == from_array(tmp_path / "expected", tensor, **options).digest


@pytest.mark.parametrize("name", ["header.csv", "a.parquet"])
def test_column_names_become_dimension_names(tmp_path, name):
    FILES[name](tmp_path / name, tensor_with_holes((5, 6)))
    assert from_file(tmp_path / "store", tmp_path / name).dimension_names == ("mode 0", "mode 1")


def test_a_csv_may_have_another_delimiter_and_duplicates(tmp_path):
    (tmp_path / "x.csv").write_text("0;1;2.5\n1;0;-1\n0;1;3.5\n")
    options = {"delimiter": ";", "duplicates": "mean"}
    store = from_file(tmp_path / "store", tmp_path / "x.csv", **options)
    np.testing.assert_array_equal(store.to_array(), [[np.nan, 3.0], [-1.0, np.nan]])


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_large_arrays_are_read_from_their_files(tmp_path, name):
    tensor = tensor_with_holes((80, 90, 30))
    (np.savez if name == "x.npz" else np.save)(tmp_path / name, tensor)
    store = from_file(tmp_path / "store", tmp_path / name)
    np.testing.assert_array_equal(store.to_array(), tensor)


@pytest.mark.parametrize("name", ["a.npz", "a.nc", "a.zarr"])
def test_a_key_chooses_among_arrays(tmp_path, name):
    arrays = {"one": np.ones((2, 3)), "two": np.zeros((3, 2))}
    if name == "a.npz":
        np.savez(tmp_path / name, **arrays)
    elif name == "a.nc":
        variables = {key: ((f"{key} 0", f"{key} 1"), array) for key, array in arrays.items()}
        xarray.Dataset(variables).to_netcdf(tmp_path / name, engine="scipy")
    else:
        for key, array in arrays.items():
            zarr.open_group(tmp_path / name).create_array(key, data=array)
    for key, named in ((None, "one, two|two, one"), ("three", "'three'")):
        with pytest.raises(InvalidInput, match=named):
            from_file(tmp_path / "store", tmp_path / name, key=key)
    assert from_file(tmp_path / "store", tmp_path / name, key="two").shape == (3, 2)
    with pytest.raises(InvalidInput, match=r"\(2, 3\).*\(3, 2\)"):
        from_file(tmp_path / "other", tmp_path / name, key="one", shape=(3, 2))


# ---- labelled files -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled():
    return xarray.DataArray(
        tensor_with_holes((6, 5, 4)),
        dims=("time", "lat", "lon"),
        coords={
            "time": np.datetime64("2024-01-01", "ns") + np.arange(6) * np.timedelta64(1, "h"),
            "lat": ("lat", np.linspace(-1.0, 1.0, 5), {"units": "degrees_north"}),
            "area": (("lat", "lon"), np.arange(20.0).reshape(5, 4)),
        },
        name="t2m",
        attrs={"units": "K"},
    )


PACKING = {"dtype": "i2", "scale_factor": 1e-3, "_FillValue": -30000}
LABELLED = {
    "netcdf 4": ("to_netcdf", {"engine": "h5netcdf"}),
    "chunked": ("to_netcdf", {"encoding": {"t2m": {"chunksizes": (2, 5, 4)}}}),
    "packed": ("to_netcdf", {"engine": "scipy", "encoding": {"t2m": PACKING}}),
    "netcdf 3": ("to_netcdf", {"engine": "scipy"}),
    "consolidated": ("to_zarr", {"zarr_format": 2, "consolidated": True}),
    "scattered": ("to_zarr", {"zarr_format": 2, "consolidated": False}),
}


@pytest.mark.parametrize("kind", LABELLED)
def test_a_variable_is_read_with_its_names_coordinates_and_attributes(labelled, tmp_path, kind):
    write, options = LABELLED[kind]
    path = tmp_path / ("file.nc" if write == "to_netcdf" else "file.zarr")
    getattr(labelled.to_dataset().assign(other=2 * labelled, crs=0), write)(path, **options)
    store = from_file(tmp_path / "store", path, key="t2m")
    tolerance = 6e-4 if kind == "packed" else 0.0
    np.testing.assert_allclose(store.to_array(), labelled.values, rtol=0, atol=tolerance)
    done = slrt.complete(store, (1, 1, 1), C=1.0, max_iterations=0)
    found = done.to_xarray()
    expected = labelled.copy(data=found.values).assign_attrs(done.header.described())
    xarray.testing.assert_identical(found.compute(), expected)


@pytest.mark.parametrize("kind", ["netcdf 3", "consolidated"])
def test_a_variable_named_mask_says_what_is_missing(labelled, tmp_path, kind):
    write, options = LABELLED[kind]
    path = tmp_path / ("file.nc" if write == "to_netcdf" else "file.zarr")
    dataset = labelled.fillna(7.0).to_dataset().assign(mask=labelled.notnull().astype("i1"))
    getattr(dataset, write)(path, **options)
    store = from_file(tmp_path / "store", path)
    np.testing.assert_array_equal(store.to_array(), labelled.values)
    with slrt.open_array(path) as opened:
        xarray.testing.assert_identical(opened.load(), labelled)


# ---- libraries that are not there -----------------------------------------------------------


def test_parquet_without_its_library_names_the_extra(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", tensor_with_holes((3, 4)))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependency, match=r"slrt-dask\[parquet\]"):
        from_file(tmp_path / "store", tmp_path / "a.parquet")


def test_netcdf_without_its_library_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "file.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))

    def no_backend(*arguments, **options):
        raise ValueError("found no engine")

    monkeypatch.setattr(xarray, "open_dataset", no_backend)
    monkeypatch.setattr(archives.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"slrt-dask\[netcdf\]"):
        from_file(tmp_path / "store", tmp_path / "file.nc")


def test_an_index_of_every_cell_is_found_in_a_series(tmp_path):
    store = from_coo(tmp_path / "store", entries(np.array([np.nan, 2.0, 3.0]))[0], [2.0, 3.0], (3,))
    np.testing.assert_array_equal(store.to_array(), [np.nan, 2.0, 3.0])
