"""What goes into a store comes out of it, from every kind of source and for every order."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import sparse
import xarray
import zarr

from slrt_dask.data import from_array, from_batches, from_coo, open_store
from slrt_dask.data.arrays import array_source, coo_source
from tests.data.helpers import (
    SHAPES,
    columns_of,
    entries,
    ingested,
    shuffled_entries,
    tensor_with_holes,
)


def from_numpy(path, tensor):
    return from_array(path, tensor, partition_entries=100)


def from_mask(path, tensor):
    seen = ~np.isnan(tensor)
    return from_array(path, np.where(seen, tensor, np.inf), seen, partition_entries=100)


def from_integer_mask(path, tensor):
    seen = ~np.isnan(tensor)
    return from_array(path, np.where(seen, tensor, 5.0), seen.astype(int), partition_entries=100)


def from_masked_array(path, tensor):
    masked = np.ma.MaskedArray(np.nan_to_num(tensor, nan=9.0), mask=np.isnan(tensor))
    return from_array(path, masked, partition_entries=100)


def from_dask(path, tensor):
    chunks = tuple(max(1, length // 2 - 1) for length in tensor.shape)
    return from_array(path, da.from_array(tensor, chunks=chunks), partition_entries=100)


def from_dask_and_dask_mask(path, tensor):
    seen = ~np.isnan(tensor)
    filled = da.from_array(np.nan_to_num(tensor), chunks=3)
    return from_array(path, filled, da.from_array(seen, chunks=2), partition_entries=100)


def from_dask_and_numpy_mask(path, tensor):
    filled = da.from_array(np.nan_to_num(tensor), chunks=3)
    return from_array(path, filled, ~np.isnan(tensor), partition_entries=100)


def from_numpy_and_dask_mask(path, tensor):
    mask = da.from_array(~np.isnan(tensor), chunks=3)
    return from_array(path, np.nan_to_num(tensor), mask, partition_entries=100)


def from_zarr(path, tensor):
    array = zarr.create_array(
        path.parent / "source.zarr", data=tensor, chunks=(3,) * (tensor.ndim - 1) + (2,)
    )
    return from_array(path, array, partition_entries=100)


def from_sparse(path, tensor):
    indices, values = entries(tensor)
    return from_coo(path, sparse.COO(indices, values, tensor.shape), partition_entries=100)


def from_coordinates(path, tensor):
    indices, values = shuffled_entries(tensor)
    return from_coo(path, indices, values, tensor.shape, partition_entries=100)


def from_tuple_of_lists(path, tensor):
    indices, values = shuffled_entries(tensor)
    columns = tuple(column.tolist() for column in indices)
    return from_coo(path, columns, values.tolist(), list(tensor.shape), partition_entries=100)


def from_whole_floats(path, tensor):
    indices, values = shuffled_entries(tensor)
    return from_coo(path, indices.astype(float), values, tensor.shape, partition_entries=100)


def from_dask_coordinates(path, tensor):
    indices, values = shuffled_entries(tensor)
    lazy = da.from_array(indices, chunks=(1, 11))
    numbers = da.from_array(values, chunks=17)
    return from_coo(path, lazy, numbers, tensor.shape, partition_entries=100)


def from_dask_columns(path, tensor):
    indices, values = shuffled_entries(tensor)
    columns = [da.from_array(column, chunks=13) for column in indices]
    return from_coo(path, columns, values, tensor.shape, partition_entries=100)


def from_pairs(path, tensor):
    indices, values = shuffled_entries(tensor)
    pairs = ((indices[:, i : i + 7], values[i : i + 7]) for i in range(0, values.size, 7))
    return from_batches(path, pairs, tensor.shape, partition_entries=100)


SOURCES = [
    from_numpy,
    from_mask,
    from_integer_mask,
    from_masked_array,
    from_dask,
    from_dask_and_dask_mask,
    from_dask_and_numpy_mask,
    from_numpy_and_dask_mask,
    from_zarr,
    from_sparse,
    from_coordinates,
    from_tuple_of_lists,
    from_whole_floats,
    from_dask_coordinates,
    from_dask_columns,
    from_pairs,
]


@pytest.mark.parametrize("make", SOURCES)
def test_every_source_gives_back_the_tensor_and_the_same_digest(tmp_path, make):
    tensor = tensor_with_holes((7, 19, 5))
    store = make(tmp_path / "store", tensor)
    np.testing.assert_array_equal(store.to_array(), tensor)
    assert store.digest == from_numpy(tmp_path / "reference", tensor).digest


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [from_dask, from_coordinates])
def test_every_order_round_trips(tmp_path, shape, make):
    tensor = tensor_with_holes(shape)
    store = make(tmp_path / "store", tensor)
    assert store.shape == shape
    assert store.order == len(shape)
    assert store.nnz == np.count_nonzero(~np.isnan(tensor))
    assert store.mean == pytest.approx(np.nanmean(tensor), rel=1e-12)
    np.testing.assert_array_equal(store.to_array(), tensor)
    coo = store.to_coo()
    np.testing.assert_array_equal(coo.todense(), np.nan_to_num(tensor))


def test_a_saved_coo_of_a_store_makes_the_same_store(tmp_path):
    store = from_coordinates(tmp_path / "one", tensor_with_holes((7, 19, 5)))
    again = from_coo(tmp_path / "two", store.to_coo(), partition_entries=100)
    assert again.digest == store.digest


@pytest.mark.parametrize("batch_entries", [1, 7, 64, 10_000])
def test_content_does_not_depend_on_batch_size(tmp_path, batch_entries):
    tensor = tensor_with_holes((4, 9, 5))
    indices, values = shuffled_entries(tensor)
    first = ingested(tmp_path / "a", coo_source(indices, values, tensor.shape))
    second = ingested(
        tmp_path / "b", coo_source(indices, values, tensor.shape), batch_entries=batch_entries
    )
    third = ingested(tmp_path / "c", array_source(tensor), batch_entries=batch_entries)
    assert first.digest == second.digest == third.digest


def test_duplicates_merge_alike_whatever_the_batch_size(tmp_path):
    random = np.random.default_rng(3)
    indices, values = random.integers(0, 4, (3, 300)), random.standard_normal(300)
    for rule in ("mean", "sum", "last"):
        digests = {
            ingested(
                tmp_path / f"{rule}-{size}",
                coo_source(indices, values, (4, 4, 4)),
                batch_entries=size,
                partition_entries=20,
                duplicates=rule,
            ).digest
            for size in (11, 1000)
        }
        assert len(digests) == 1


def test_shape_is_the_smallest_that_fits_when_left_out(tmp_path):
    store = from_coo(tmp_path / "store", [[0, 4], [2, 1]], [1.0, 2.0])
    assert store.shape == (5, 3)


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


def test_xarray_keeps_names_and_labels(tmp_path):
    tensor = tensor_with_holes((3, 4, 5))
    array = xarray.DataArray(
        tensor,
        dims=("day", "band", "site"),
        coords={
            "day": np.array(["2024-01-01", "2024-01-02", "2024-01-05"], dtype="datetime64[ns]"),
            "band": [0.5, 0.6, 0.7, 0.9],
            "site": ["a", "b", "c", "d", "é"],
        },
    )
    for name, source in (("plain", array), ("lazy", array.chunk({"band": 3}))):
        store = from_array(tmp_path / name, source)
        assert store.dimension_names == ("day", "band", "site")
        assert hash(store) == hash(open_store(store.path))
        rebuilt = xarray.DataArray(
            store.to_array(), dims=store.dimension_names, coords=store.coordinates
        )
        xarray.testing.assert_identical(rebuilt, array)
        train, _ = store.split(0.3)
        assert train.dimension_names == store.dimension_names
        assert train.header.coordinates == store.header.coordinates


def test_labels_that_are_neither_numbers_dates_nor_text_are_left_out(tmp_path):
    array = xarray.DataArray(
        tensor_with_holes((3, 4)),
        dims=("x", "y"),
        coords={"x": [0.0, np.nan, 1.0], "y": np.array(["a", None, 2, "b"], dtype=object)},
    )
    store = from_array(tmp_path / "store", array)
    assert store.dimension_names == ("x", "y")
    assert list(store.coordinates) == ["x"]
    np.testing.assert_array_equal(store.coordinates["x"], array.x)


@pytest.mark.parametrize("lazy_array", [False, True])
@pytest.mark.parametrize("kind", ["xarray", "lazy xarray", "zarr"])
def test_masks_of_other_libraries_are_understood(tmp_path, kind, lazy_array):
    tensor = tensor_with_holes((5, 6))
    seen = ~np.isnan(tensor)
    mask = {
        "xarray": lambda: xarray.DataArray(seen),
        "lazy xarray": lambda: xarray.DataArray(seen).chunk(2),
        "zarr": lambda: zarr.create_array(tmp_path / "mask", data=seen, chunks=(2, 2)),
    }[kind]()
    filled = np.nan_to_num(tensor)
    array = da.from_array(filled, chunks=(2, 4)) if lazy_array else filled
    np.testing.assert_array_equal(from_array(tmp_path / "store", array, mask).to_array(), tensor)


def test_indices_beyond_int32_are_kept_in_int64(tmp_path):
    far = 2**33
    store = from_coo(tmp_path / "store", [[0, far, 5], [1, 0, 1]], [1.0, 2.0, 3.0], (far + 1, 2))
    (rows, columns), values = store.read_partition(0)
    assert rows.dtype == np.int64
    assert rows.tolist() == [0, 5, far]
    assert columns.tolist() == [1, 1, 0]
    assert values.tolist() == [1.0, 3.0, 2.0]


def test_a_shape_with_more_cells_than_int64_is_ordered_all_the_same(tmp_path):
    shape = (2**22, 2**21, 2**21)
    random = np.random.default_rng(0)
    indices = np.array([random.integers(0, n, 200) for n in shape])
    indices[0, :100] = 7
    store = from_coo(tmp_path / "store", indices, np.arange(200.0), shape, partition_entries=60)
    columns, _ = columns_of(store)
    assert [tuple(c) for c in columns.T] == sorted(tuple(c) for c in indices.T)


def test_progress_is_told_of_every_stage(tmp_path):
    calls = []
    tensor = tensor_with_holes((7, 19, 5))
    from_array(
        tmp_path / "store", tensor, partition_entries=100, progress=lambda *call: calls.append(call)
    )
    assert list(dict.fromkeys(stage for stage, _, _ in calls)) == [
        "read",
        "sort",
        "arrange",
        "write",
    ]
    assert ("read", tensor.size, tensor.size) in calls
    assert all(total is None or 0 <= done <= total for _, done, total in calls)
