"""Bad input is named, with its row, index and value, and leaves nothing behind."""

from __future__ import annotations

import os

import dask.array as da
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import sparse

from slrt_dask.data import from_array, from_batches, from_coo, from_file, open_store
from slrt_dask.data.arrays import coo_source
from slrt_dask.errors import InvalidInput, StoreExists, StoreNotFound, UnsupportedFormat
from tests.data.helpers import ingested

INDICES = np.array([[0, 1, 2, 3], [4, 3, 2, 1], [0, 0, 1, 1]])
VALUES = np.array([1.0, 2.5, -3.0, 4.0])
SHAPE = (5, 6, 2)


def changed(array, place, value):
    copy = np.array(array, dtype=np.result_type(array, type(value)))
    copy[place] = value
    return copy


@pytest.fixture
def refused(tmp_path):
    """A call that is refused: the error names all that is given, and nothing is left."""

    def call(make, *given, named=(), error=InvalidInput, **options):
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(error) as caught:
            make(tmp_path / "store", *given, **options)
        for text in (named,) if isinstance(named, str) else named:
            assert text in str(caught.value)
        assert sorted(os.listdir(tmp_path)) == before
        with pytest.raises(StoreNotFound):
            open_store(tmp_path / "store")

    return call


BAD_COORDINATES = {
    "index too large": (
        (changed(INDICES, (1, 2), 6), VALUES, SHAPE),
        ["row 2", "index (2, 6, 1)", "value -3.0", "position 6 in mode 1", "(5, 6, 2)"],
    ),
    "negative index": (
        (changed(INDICES, (0, 3), -1), VALUES, SHAPE),
        ["row 3", "index (-1, 1, 1)", "value 4.0"],
    ),
    "negative without a shape": ((changed(INDICES, (0, 3), -1), VALUES, None), "row 3"),
    "fractional index": (
        (changed(INDICES, (2, 1), 0.5), VALUES, SHAPE),
        ["row 1", "index (1, 3, 0.5)", "value 2.5"],
    ),
    "missing index": ((changed(INDICES, (2, 1), np.nan), VALUES, SHAPE), ["row 1", "nan"]),
    "text index": ((INDICES.astype(str), VALUES, SHAPE), "'0'"),
    "boolean index": ((INDICES > 1, VALUES, SHAPE), "bool"),
    "huge unsigned index": (
        (changed(INDICES.astype(np.uint64), (0, 0), np.uint64(2**63)), VALUES, None),
        ["row 0", "9223372036854775808"],
    ),
    "NaN value": (
        (INDICES, changed(VALUES, 2, np.nan), SHAPE),
        ["row 2", "index (2, 2, 1)", "value nan"],
    ),
    "infinite value": (
        (INDICES, changed(VALUES, 0, -np.inf), SHAPE),
        ["row 0", "index (0, 4, 0)", "value -inf"],
    ),
    "complex values": ((INDICES, VALUES * 1j, SHAPE), "complex128"),
    "text values": ((INDICES, VALUES.astype(str), SHAPE), "'1.0'"),
    "wrong number of modes": ((INDICES[:2], VALUES, SHAPE), ["2", "3"]),
    "lengths differ": ((INDICES, VALUES[:3], SHAPE), ["[4]", "(3,)"]),
    "columns differ": (([INDICES[0], INDICES[1][:2], INDICES[2]], VALUES, SHAPE), "[4, 2, 4]"),
    "one-dimensional indices": ((INDICES[0], VALUES, SHAPE), "(4,)"),
    "two-dimensional values": ((INDICES, VALUES[:, None], SHAPE), "(4, 1)"),
    "no values": ((INDICES, None, SHAPE), "values"),
    "values twice": ((sparse.COO(INDICES, VALUES, SHAPE), VALUES), "values"),
    "empty mode": ((INDICES, VALUES, (5, 0, 2)), "(5, 0, 2)"),
    "no modes": ((INDICES[:0], VALUES, ()), "no modes"),
    "no modes and no shape": ((INDICES[:0], VALUES), "(0, 4)"),
    "fractional shape": ((INDICES, VALUES, (5, 6.5, 2)), "6.5"),
    "nothing observed": ((INDICES[:, :0], VALUES[:0], SHAPE), "no observations"),
    "duplicate": (
        (np.hstack([INDICES, INDICES[:, 1:2]]), np.append(VALUES, 7.0), SHAPE),
        ["index (1, 3, 0)", "row 1 and row 4", "2.5 and 7.0"],
    ),
    "dask of unknown length": (
        (INDICES, da.from_array(VALUES, chunks=2)[da.from_array(VALUES, chunks=2) > 0], SHAPE),
        "compute_chunk_sizes",
    ),
}


@pytest.mark.parametrize("name", BAD_COORDINATES)
def test_bad_coordinates_are_named_and_leave_nothing(refused, name):
    given, named = BAD_COORDINATES[name]
    refused(from_coo, *given, named=named)


@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_a_bad_row_is_counted_through_all_batches(refused, lazy):
    indices = np.array(np.unravel_index(np.arange(1000), (10, 10, 10)))
    values = changed(np.ones(1000), 777, np.inf)
    source = coo_source(indices, da.from_array(values, chunks=30) if lazy else values, (10,) * 3)
    refused(ingested, source, batch_entries=64, named="row 777, index (7, 7, 7)")


def test_what_does_not_fit_in_the_type_of_values_is_refused(refused):
    given = [[1, 1], [1, 1]], [1e308, 1e308], (2, 2)
    refused(from_coo, *given, duplicates="sum", named=["index (1, 1)", "sum", "float64"])
    given = [[0, 1], [0, 1]], [1.0, 1e300], (2, 2)
    refused(from_coo, *given, dtype="float32", named=["row 1, index (1, 1), value 1e+300"])


@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_an_infinite_cell_is_named_by_its_index(refused, lazy):
    array = changed(np.ones((4, 5, 6)), (3, 2, 1), np.inf)
    given = da.from_array(array, chunks=2) if lazy else array
    refused(from_array, given, named="index (3, 2, 1), value inf")


@pytest.mark.parametrize(
    ("array", "mask", "named"),
    [
        (np.full((3, 4), np.nan), None, "no observations"),
        (np.ones((3, 4)), np.zeros((3, 4), bool), "no observations"),
        (np.ones((3, 4)), np.ones((4, 3), bool), ["(4, 3)", "(3, 4)"]),
        (np.ones((3, 4)), np.ones((3, 4)), "float64"),
        (np.array(3.0), None, "no modes"),
        (np.ones((3, 0)), None, "(3, 0)"),
        (np.ones((3, 4), complex), None, "complex128"),
        (np.full((3, 4), "a"), None, "'a'"),
    ],
)
def test_bad_arrays_are_refused(refused, array, mask, named):
    refused(from_array, array, mask, named=named)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("duplicates", "first"),
        ("slab_mode", 3),
        ("slab_mode", -1),
        ("partition_entries", 0),
        ("partition_entries", 1.5),
        ("dtype", "int32"),
        ("dimension_names", ["a", "b"]),
        ("dimension_names", ["a", "b", "b"]),
        ("dimension_names", "abc"),
    ],
)
def test_bad_options_are_refused(refused, option, value):
    refused(from_coo, INDICES, VALUES, SHAPE, **{option: value}, named=[option, str(value)])


def test_batches_of_different_order_are_refused(refused):
    refused(from_batches, [(INDICES, VALUES), (INDICES[:2], VALUES)], named=["2", "3"])


@pytest.mark.parametrize("kind", ["directory", "file", "store"])
def test_an_existing_path_is_refused_and_untouched(tmp_path, kind):
    path = tmp_path / "store"
    if kind == "directory":
        path.mkdir()
    elif kind == "file":
        path.write_text("precious")
    else:
        from_coo(path, INDICES, VALUES, SHAPE)
    before = {file: file.is_file() and file.read_bytes() for file in tmp_path.rglob("*")}
    with pytest.raises(StoreExists, match="store"):
        from_coo(path, INDICES, VALUES + 1, SHAPE)
    assert {file: file.is_file() and file.read_bytes() for file in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("stage", ["read", "sort", "arrange", "write"])
def test_an_interruption_at_any_stage_leaves_nothing(refused, stage):
    def interrupt(now, done, total):
        if now == stage and done:
            raise KeyboardInterrupt

    refused(from_coo, INDICES, VALUES, SHAPE, progress=interrupt, error=KeyboardInterrupt)


# ---- files ----------------------------------------------------------------------------------

BAD_TEXT = {
    "a word": ("x.csv", "0,0,1.5\n1,one,2.5\n", ["line 2 of", "'1,one,2.5'"]),
    "a short line": ("x.csv", "0,0,1.5\n\n1,2.5\n", ["line 3 of", "'1,2.5'", "2 indices"]),
    "a long line": ("x.tns", "# c\n1 1 1.5\n1 2 2.5 7\n", ["line 3 of", "'1 2 2.5 7'"]),
    "an empty field": ("x.csv", "0,0,1.5\n1,1,\n", ["line 2 of", "'1,1,'"]),
    "an index of 0": (
        "x.tns",
        "1 1 1.5\n0 2 2.5\n",
        ["line 2, index (0, 2) (counting from 1), value 2.5", "below 1"],
    ),
    "a fractional index": ("x.csv", "0,0,1.5\n1,0.5,2.5\n", "line 2, index (1, 0.5)"),
    "a NaN value": ("x.csv", "i,j,v\n0,0,1.5\n1,1,nan\n", "line 3, index (1, 1), value nan"),
    "a duplicate": (
        "x.tns",
        "1 1 1.5\n# again\n1 1 2.5\n",
        ["index (1, 1) (counting from 1)", "line 1 and line 3", "--duplicates mean"],
    ),
    "one column": ("x.csv", "1.5\n2.5\n", ["line 1", "'1.5'", "delimiter"]),
    "other columns": ("x.csv", "0,0,1.5\n0;0;1.5\n", ["line 2", "';'", "delimiter"]),
    "decimal commas": ("x.tns", "1 1 1.5\n1 1 2,5\n", ["line 2", "decimal points"]),
    "a header alone": ("x.csv", "i,j,v\n", "no observations"),
    "nothing": ("x.tns", "# only a comment\n\n", "no observations"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_text_files_are_named_by_line(tmp_path, refused, name):
    file, text, named = BAD_TEXT[name]
    (tmp_path / file).write_text(text)
    refused(from_file, tmp_path / file, named=named)


@pytest.mark.parametrize(
    "file", ["x.csv", "x.tns", "x.csv.gz", "x.npz", "x.npy", "x.parquet", "x.nc"]
)
def test_a_file_of_rubbish_is_refused(tmp_path, refused, file):
    (tmp_path / file).write_bytes(b"\xff\xfe\x00\x81rubbish" * 10)
    refused(from_file, tmp_path / file, named=file)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("file", ["x.npy", "x.npz"])
def test_pickled_objects_and_arrays_that_end_early_are_refused(tmp_path, refused, file, is_large):
    objects = np.full((2000, 200) if is_large else (1, 2), {}, dtype=object)
    (np.save if file == "x.npy" else np.savez)(tmp_path / file, objects)
    refused(from_file, tmp_path / file, named=file.removesuffix("npz"))
    np.save(tmp_path / "y.npy", np.zeros((600, 600)))
    os.truncate(tmp_path / "y.npy", 2**21 if is_large else 2**10)
    refused(from_file, tmp_path / "y.npy", named="y.npy")


def test_other_sparse_formats_are_refused_by_name(tmp_path, refused):
    sparse.save_npz(tmp_path / "x.npz", sparse.GCXS(np.eye(4)))
    refused(from_file, tmp_path / "x.npz", named="sparse.COO", error=UnsupportedFormat)


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        ("j", [0, None, 1], "row 1"),
        ("j", ["a", "b", "c"], ["'j'", "string"]),
        ("value", [1.0, None, 3.0], ["row 1, index (1, 1)", "value nan"]),
    ],
)
def test_bad_columns_of_parquet_are_named(tmp_path, refused, column, values, named):
    table = {"i": [0, 1, 2], "j": [0, 1, 1], "value": [1.0, 2.0, 3.0], column: values}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "x.parquet")
    refused(from_file, tmp_path / "x.parquet", named=named)


def test_unknown_and_missing_files_and_options_without_meaning_are_refused(tmp_path, refused):
    (tmp_path / "x.xlsx").write_text("")
    known = ["'.xlsx'", ".tns", ".csv", ".parquet", ".npz"]
    refused(from_file, tmp_path / "x.xlsx", named=known, error=UnsupportedFormat)
    refused(from_file, tmp_path / "absent.csv", named="absent.csv")
    (tmp_path / "folder").mkdir()
    refused(from_file, tmp_path / "folder", named="folder")
    (tmp_path / "x.tns").write_text("1 1 1.0\n")
    for option in ({"key": "X"}, {"delimiter": ";"}):
        refused(from_file, tmp_path / "x.tns", **option, named=str(*option.values()))
