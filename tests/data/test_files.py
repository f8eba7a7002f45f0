"""Files of every supported type make the store that their content should make."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import sparse
import zarr

from slrt_dask.data import from_array, from_file
from slrt_dask.errors import InvalidInput, MissingDependency, UnsupportedFormat
from tests.data.helpers import SHAPES, shuffled_entries, tensor_with_holes


def lines_of(tensor, base, separator):
    indices, values = shuffled_entries(tensor)
    return [
        separator.join([*(str(i + base) for i in index), repr(float(value))])
        for index, value in zip(indices.T, values, strict=True)
    ]


def write_tns(path, tensor):
    path = path.with_suffix(".tns")
    lines = lines_of(tensor, 1, " ")
    lines[3:3] = ["# a comment", "", "   "]
    path.write_text("# written for a test\n" + "\n".join(lines) + "\n")
    return path


def write_tns_gz(path, tensor):
    path = path.with_suffix(".tns.gz")
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines_of(tensor, 1, "\t")))
    return path


def write_csv(path, tensor):
    path = path.with_suffix(".csv")
    path.write_text("\n".join(lines_of(tensor, 0, ",")))
    return path


def write_csv_with_header(path, tensor):
    path = path.with_suffix(".csv")
    header = ",".join([*(f'"mode {k}"' for k in range(tensor.ndim)), "value"])
    path.write_text("\ufeff" + "\n".join([header, *lines_of(tensor, 0, ", ")]), encoding="utf-8")
    return path


def write_parquet(path, tensor):
    path = path.with_suffix(".parquet")
    indices, values = shuffled_entries(tensor)
    columns = {f"mode {k}": column.astype(np.int32) for k, column in enumerate(indices)}
    pyarrow.parquet.write_table(pyarrow.table({**columns, "measured": values}), path)
    return path


def write_parquet_value_first(path, tensor):
    path = path.with_suffix(".parquet")
    indices, values = shuffled_entries(tensor)
    columns = {f"mode {k}": column for k, column in enumerate(indices)}
    pyarrow.parquet.write_table(
        pyarrow.table({"value": values, **columns}), path, row_group_size=31
    )
    return path


def write_sparse_npz(path, tensor):
    path = path.with_suffix(".npz")
    indices, values = shuffled_entries(tensor)
    sparse.save_npz(path, sparse.COO(indices, values, tensor.shape))
    return path


def write_coordinate_npz(path, tensor):
    path = path.with_suffix(".npz")
    indices, values = shuffled_entries(tensor)
    np.savez(path, indices=indices, values=values, shape=tensor.shape)
    return path


def write_dense_npz(path, tensor):
    path = path.with_suffix(".npz")
    np.savez_compressed(path, anything=tensor)
    return path


def write_dense_npz_with_mask(path, tensor):
    path = path.with_suffix(".npz")
    np.savez(path, X=np.nan_to_num(tensor), mask=~np.isnan(tensor))
    return path


def write_npy(path, tensor):
    path = path.with_suffix(".npy")
    np.save(path, np.asfortranarray(tensor))
    return path


def write_zarr(path, tensor):
    zarr.create_array(path, data=tensor, chunks=(3,) * tensor.ndim)
    return path


def write_zarr_group(path, tensor):
    group = zarr.create_group(path)
    group.create_array("cube", data=np.nan_to_num(tensor))
    group.create_array("mask", data=~np.isnan(tensor))
    return path


WRITERS = [
    write_tns,
    write_tns_gz,
    write_csv,
    write_csv_with_header,
    write_parquet,
    write_parquet_value_first,
    write_sparse_npz,
    write_coordinate_npz,
    write_dense_npz,
    write_dense_npz_with_mask,
    write_npy,
    write_zarr,
    write_zarr_group,
]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_every_file_type_makes_the_same_store(tmp_path, write, shape):
    tensor = tensor_with_holes(shape)
    names = [f"mode {k}" for k in range(len(shape))]
    source = write(tmp_path / "source", tensor)
    store = from_file(
        tmp_path / "store", source, shape=shape, dimension_names=names, partition_entries=150
    )
    expected = from_array(tmp_path / "e", tensor, dimension_names=names, partition_entries=150)
    np.testing.assert_array_equal(store.to_array(), tensor)
    assert store.digest == expected.digest


@pytest.mark.parametrize("write", [write_csv_with_header, write_parquet])
def test_column_names_become_dimension_names(tmp_path, write):
    source = write(tmp_path / "source", tensor_with_holes((5, 6, 7)))
    assert from_file(tmp_path / "store", source).dimension_names == ("mode 0", "mode 1", "mode 2")


def test_shape_is_inferred_from_a_text_file(tmp_path):
    (tmp_path / "x.tns").write_text("1 1 5 1.0\n2 3 1 -2.0\n")
    store = from_file(tmp_path / "store", tmp_path / "x.tns")
    assert store.shape == (2, 3, 5)
    assert store.to_array()[1, 2, 0] == -2.0


def test_a_csv_may_have_another_delimiter(tmp_path):
    (tmp_path / "x.csv").write_text("0;1;2.5\n1;0;-1\n")
    store = from_file(tmp_path / "store", tmp_path / "x.csv", delimiter=";")
    np.testing.assert_array_equal(store.to_array(), [[np.nan, 2.5], [-1.0, np.nan]])


def test_duplicate_rules_reach_files(tmp_path):
    (tmp_path / "x.csv").write_text("0,1,2.5\n1,0,-1\n0,1,3.5\n")
    store = from_file(tmp_path / "store", tmp_path / "x.csv", duplicates="mean")
    assert store.to_array()[0, 1] == 3.0


def test_a_key_chooses_among_arrays(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones((2, 3)), b=np.zeros((3, 2)))
    with pytest.raises(InvalidInput, match="holds a, b; name one as key"):
        from_file(tmp_path / "store", tmp_path / "x.npz")
    with pytest.raises(InvalidInput, match=r"no array 'c'.*a, b"):
        from_file(tmp_path / "store", tmp_path / "x.npz", key="c")
    assert from_file(tmp_path / "store", tmp_path / "x.npz", key="b").shape == (3, 2)


def test_a_dense_file_must_have_the_shape_it_is_said_to_have(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    with pytest.raises(InvalidInput, match=r"\(2, 3\).*\(3, 2\)"):
        from_file(tmp_path / "store", tmp_path / "x.npy", shape=(3, 2))


def test_large_members_are_mapped_not_loaded(tmp_path):
    tensor = tensor_with_holes((80, 90, 30))
    np.savez(tmp_path / "x.npz", X=tensor)
    store = from_file(tmp_path / "store", tmp_path / "x.npz")
    np.testing.assert_array_equal(store.to_array(), tensor)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_pickled_objects_are_never_loaded(tmp_path, suffix):
    source = tmp_path / f"x.{suffix}"
    objects = np.array([[{"a": 1}, None]], dtype=object)
    if suffix == "npz":
        np.savez(source, X=objects)
    else:
        np.save(source, objects)
    with pytest.raises(InvalidInput, match=r"no array of numbers"):
        from_file(tmp_path / "store", source)


def test_other_sparse_formats_are_refused_by_name(tmp_path):
    sparse.save_npz(tmp_path / "x.npz", sparse.GCXS(np.eye(4)))
    with pytest.raises(UnsupportedFormat, match=r"sparse\.COO"):
        from_file(tmp_path / "store", tmp_path / "x.npz")


def test_a_missing_value_or_index_in_parquet_is_named(tmp_path):
    table = pyarrow.table({"i": [0, 1, 2], "j": [0, None, 1], "value": [1.0, 2.0, 3.0]})
    pyarrow.parquet.write_table(table, tmp_path / "i.parquet")
    with pytest.raises(InvalidInput, match=r"row 1.*not a whole number"):
        from_file(tmp_path / "store", tmp_path / "i.parquet")
    table = pyarrow.table({"i": [0, 1, 2], "j": [0, 0, 1], "value": [1.0, None, 3.0]})
    pyarrow.parquet.write_table(table, tmp_path / "v.parquet")
    with pytest.raises(InvalidInput, match=r"row 1, index \(1, 0\), value nan"):
        from_file(tmp_path / "store", tmp_path / "v.parquet")


def test_text_columns_in_parquet_are_named(tmp_path):
    table = pyarrow.table({"user": ["a", "b"], "item": [0, 1], "value": [1.0, 2.0]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InvalidInput, match=r"'user'.*string"):
        from_file(tmp_path / "store", tmp_path / "x.parquet")


def test_parquet_without_its_library_names_the_extra(tmp_path, monkeypatch):
    source = write_parquet(tmp_path / "source", tensor_with_holes((3, 4)))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependency, match=r"slrt-dask\[parquet\]"):
        from_file(tmp_path / "store", source)
