"""Bad input is named, with its row, index and value, and leaves nothing behind."""

from __future__ import annotations

import os

import dask.array as da
import numpy as np
import pytest

from slrt_dask.data import from_array, from_batches, from_coo, from_file, open_store
from slrt_dask.data.arrays import coo_source
from slrt_dask.data.ingest import IngestOptions, ingest
from slrt_dask.errors import InvalidInput, StoreExists, StoreNotFound, UnsupportedFormat

INDICES = np.array([[0, 1, 2, 3], [4, 3, 2, 1], [0, 0, 1, 1]])
VALUES = np.array([1.0, 2.5, -3.0, 4.0])
SHAPE = (5, 6, 2)


def changed(array, place, value):
    copy = np.array(array, dtype=np.result_type(array, type(value)))
    copy[place] = value
    return copy


BAD_COORDINATES = {
    "index too large": (
        (changed(INDICES, (1, 2), 6), VALUES, SHAPE),
        [r"row 2", r"index \(2, 6, 1\)", r"value -3\.0", r"position 6 in mode 1", r"\(5, 6, 2\)"],
    ),
    "negative index": (
        (changed(INDICES, (0, 3), -1), VALUES, SHAPE),
        [r"row 3", r"index \(-1, 1, 1\)", r"value 4\.0", r"below 0"],
    ),
    "negative index without a shape": (
        (changed(INDICES, (0, 3), -1), VALUES, None),
        [r"row 3", r"below 0"],
    ),
    "fractional index": (
        (changed(INDICES, (2, 1), 0.5), VALUES, SHAPE),
        [r"row 1", r"index \(1, 3, 0\.5\)", r"value 2\.5", "not a whole number"],
    ),
    "missing index": (
        (changed(INDICES, (2, 1), np.nan), VALUES, SHAPE),
        [r"row 1", "nan", "not a whole number"],
    ),
    "text index": ((INDICES.astype(str), VALUES, SHAPE), ["type <U", "'0'", "whole numbers"]),
    "boolean index": ((INDICES > 1, VALUES, SHAPE), ["type bool", "whole numbers"]),
    "huge unsigned index": (
        (changed(INDICES.astype(np.uint64), (0, 0), np.uint64(2**63)), VALUES, None),
        ["row 0", "9223372036854775808"],
    ),
    "NaN value": (
        (INDICES, changed(VALUES, 2, np.nan), SHAPE),
        [r"row 2", r"index \(2, 2, 1\)", "value nan", "missing entries"],
    ),
    "infinite value": (
        (INDICES, changed(VALUES, 0, -np.inf), SHAPE),
        [r"row 0", r"index \(0, 4, 0\)", "value -inf"],
    ),
    "complex values": ((INDICES, VALUES * 1j, SHAPE), ["complex128", "real numbers"]),
    "text values": ((INDICES, VALUES.astype(str), SHAPE), ["real numbers"]),
    "wrong number of modes": ((INDICES[:2], VALUES, SHAPE), ["2 modes", "has 3"]),
    "lengths differ": ((INDICES, VALUES[:3], SHAPE), [r"\[4\]", r"\(3,\)", "one value per index"]),
    "columns differ": (
        ([INDICES[0], INDICES[1][:2], INDICES[2]], VALUES, SHAPE),
        [r"\[4, 2, 4\]"],
    ),
    "one-dimensional indices": ((INDICES[0], VALUES, SHAPE), [r"shape \(4,\)"]),
    "two-dimensional values": ((INDICES, VALUES[:, None], SHAPE), [r"\(4, 1\)"]),
    "no values": ((INDICES, None, SHAPE), ["values are missing"]),
    "empty mode": ((INDICES, VALUES, (5, 0, 2)), [r"\(5, 0, 2\)", "at least 1"]),
    "no modes": ((INDICES[:0], VALUES, ()), ["no modes", "at least one"]),
    "fractional shape": ((INDICES, VALUES, (5, 6.5, 2)), ["6.5", "whole numbers"]),
    "nothing observed": ((INDICES[:, :0], VALUES[:0], SHAPE), ["no observations"]),
    "duplicate": (
        (np.hstack([INDICES, INDICES[:, 1:2]]), np.append(VALUES, 7.0), SHAPE),
        [r"index \(1, 3, 0\)", "row 1 and row 4", r"2\.5 and 7\.0", "mean"],
    ),
    "dask of unknown length": (
        (INDICES, da.from_array(VALUES, chunks=2)[da.from_array(VALUES, chunks=2) > 0], SHAPE),
        ["compute_chunk_sizes"],
    ),
}


def check_nothing_left(directory, expected=()):
    assert sorted(os.listdir(directory)) == sorted(expected)
    with pytest.raises(StoreNotFound):
        open_store(directory / "store")


def check_message(caught, patterns):
    for pattern in patterns:
        caught.match(pattern)


@pytest.mark.parametrize("name", BAD_COORDINATES)
def test_bad_coordinates_are_named_and_leave_nothing(tmp_path, name):
    (indices, values, shape), patterns = BAD_COORDINATES[name]
    with pytest.raises(InvalidInput) as caught:
        from_coo(tmp_path / "store", indices, values, shape)
    check_message(caught, patterns)
    check_nothing_left(tmp_path)


def test_values_given_with_a_sparse_array_are_too_many(tmp_path):
    import sparse

    with pytest.raises(InvalidInput, match="its own values"):
        from_coo(tmp_path / "store", sparse.COO(INDICES, VALUES, SHAPE), VALUES)
    check_nothing_left(tmp_path)


def test_a_bad_row_is_counted_through_all_batches(tmp_path):
    indices = np.array(np.unravel_index(np.arange(1000), (10, 10, 10)))
    values = np.ones(1000)
    values[777] = np.inf
    with pytest.raises(InvalidInput, match=r"row 777, index \(7, 7, 7\)"):
        ingest(
            tmp_path / "store",
            coo_source(indices, values, (10, 10, 10)),
            IngestOptions(batch_entries=64),
        )
    lazy = da.from_array(values, chunks=30)
    with pytest.raises(InvalidInput, match=r"row 777, index \(7, 7, 7\)"):
        from_coo(tmp_path / "store", indices, lazy, (10, 10, 10))
    check_nothing_left(tmp_path)


def test_duplicates_far_apart_are_named_with_both_rows(tmp_path):
    indices = np.array(np.unravel_index(np.arange(1000), (10, 10, 10)))
    indices[:, 900] = indices[:, 20]
    with pytest.raises(InvalidInput, match=r"\(0, 2, 0\).* in row 20 and row 900"):
        ingest(
            tmp_path / "store",
            coo_source(indices, np.ones(1000), None),
            IngestOptions(batch_entries=64, partition_entries=100),
        )
    check_nothing_left(tmp_path)


@pytest.mark.parametrize(("rule", "merged"), [("mean", 3.0), ("sum", 9.0), ("last", 5.0)])
def test_duplicate_rules(tmp_path, rule, merged):
    indices = np.hstack([INDICES[:, :2], INDICES[:, :1], INDICES[:, 2:], INDICES[:, :1]])
    values = np.array([1.0, 2.5, 3.0, -3.0, 4.0, 5.0])
    store = from_coo(tmp_path / "store", indices, values, SHAPE, duplicates=rule)
    assert store.nnz == 4
    dense = store.to_array()
    assert dense[0, 4, 0] == merged
    assert dense[1, 3, 0] == 2.5
    assert store.mean == pytest.approx(np.nanmean(dense), rel=1e-12)


def test_a_sum_that_overflows_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"index \(1, 1\).*sum.*does not fit in float64"):
        from_coo(tmp_path / "s", [[1, 1], [1, 1]], [1e308, 1e308], (2, 2), duplicates="sum")
    check_nothing_left(tmp_path)


def test_a_value_too_large_for_float32_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"row 1, index \(1, 1\), value 1e\+300.*float32"):
        from_coo(tmp_path / "store", [[0, 1], [0, 1]], [1.0, 1e300], (2, 2), dtype="float32")
    check_nothing_left(tmp_path)


@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_an_infinite_cell_is_named_by_its_index(tmp_path, lazy):
    array = np.ones((4, 5, 6))
    array[3, 2, 1] = np.inf
    with pytest.raises(InvalidInput, match=r"index \(3, 2, 1\), value inf"):
        from_array(tmp_path / "store", da.from_array(array, chunks=2) if lazy else array)
    check_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("array", "mask", "pattern"),
    [
        (np.full((3, 4), np.nan), None, "no observations"),
        (np.ones((3, 4)), np.zeros((3, 4), bool), "no observations"),
        (np.ones((3, 4)), np.ones((4, 3), bool), r"\(4, 3\).*\(3, 4\)"),
        (np.ones((3, 4)), np.ones((3, 4)), "mask has type float64"),
        (np.array(3.0), None, "no modes"),
        (np.ones((3, 0)), None, "empty mode"),
        (np.ones((3, 4), complex), None, "real numbers"),
        (np.full((3, 4), "a"), None, "real numbers"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, array, mask, pattern):
    with pytest.raises(InvalidInput, match=pattern):
        from_array(tmp_path / "store", array, mask)
    check_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("option", "pattern"),
    [
        ({"duplicates": "first"}, "'first'.*error, mean, sum, last"),
        ({"slab_mode": 3}, "slab_mode=3.*0 to 2"),
        ({"slab_mode": -1}, "slab_mode=-1"),
        ({"partition_entries": 0}, "partition_entries=0"),
        ({"partition_entries": 1.5}, "partition_entries=1.5"),
        ({"dtype": "int32"}, "int32.*float32, float64"),
        ({"dimension_names": ["a", "b"]}, "3 different"),
        ({"dimension_names": ["a", "b", "b"]}, "3 different"),
        ({"dimension_names": "abc"}, "3 different"),
    ],
)
def test_bad_options_are_refused(tmp_path, option, pattern):
    with pytest.raises(InvalidInput, match=pattern):
        from_coo(tmp_path / "store", INDICES, VALUES, SHAPE, **option)
    check_nothing_left(tmp_path)


def test_batches_of_different_order_are_refused(tmp_path):
    pairs = [(INDICES, VALUES), (INDICES[:2], VALUES)]
    with pytest.raises(InvalidInput, match=r"2 modes.*an earlier batch has 3"):
        from_batches(tmp_path / "store", pairs)
    check_nothing_left(tmp_path)


@pytest.mark.parametrize("kind", ["directory", "file", "store"])
def test_an_existing_path_is_refused_and_untouched(tmp_path, kind):
    path = tmp_path / "store"
    if kind == "directory":
        path.mkdir()
    elif kind == "file":
        path.write_text("precious")
    else:
        digest = from_coo(path, INDICES, VALUES, SHAPE).digest
    with pytest.raises(StoreExists, match="already exists"):
        from_coo(path, INDICES, VALUES + 1, SHAPE)
    assert sorted(os.listdir(tmp_path)) == ["store"]
    if kind == "file":
        assert path.read_text() == "precious"
    if kind == "store":
        assert open_store(path).digest == digest


@pytest.mark.parametrize("stage", ["read", "sort", "arrange", "write"])
def test_an_interruption_at_any_stage_leaves_nothing(tmp_path, stage):
    def interrupt(now, done, total):
        if now == stage and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_coo(tmp_path / "store", INDICES, VALUES, SHAPE, progress=interrupt)
    check_nothing_left(tmp_path)


BAD_FILES = {
    "a word in a csv": ("x.csv", "0,0,1.5\n1,one,2.5\n", [r"line 2 of", "'1,one,2.5'"]),
    "a short line": ("x.csv", "0,0,1.5\n\n1,2.5\n", [r"line 3 of", "'1,2.5'", "2 indices"]),
    "a long line": ("x.tns", "# c\n1 1 1.5\n1 2 2.5 7\n", [r"line 3 of", "'1 2 2.5 7'"]),
    "an empty field": ("x.csv", "0,0,1.5\n1,1,\n", [r"line 2 of", "'1,1,'"]),
    "an index of 0 in a tns": (
        "x.tns",
        "1 1 1.5\n0 2 2.5\n",
        [r"line 2, index \(0, 2\) \(counting from 1\), value 2\.5", "below 1"],
    ),
    "a fractional index": ("x.csv", "0,0,1.5\n1,0.5,2.5\n", [r"line 2, index \(1, 0.5\)"]),
    "a NaN value": ("x.csv", "i,j,v\n0,0,1.5\n1,1,nan\n", [r"line 3, index \(1, 1\), value nan"]),
    "a duplicate": (
        "x.tns",
        "1 1 1.5\n# again\n1 1 2.5\n",
        [
            r"index \(1, 1\) \(counting from 1\)",
            "line 1 and line 3",
            'duplicates="mean", "sum" or "last"',
            "--duplicates mean",
        ],
    ),
    "one column": ("x.csv", "1.5\n2.5\n", ["one column", "delimiter"]),
    "a header alone": ("x.csv", "i,j,v\n", ["no observations"]),
    "nothing": ("x.tns", "# only a comment\n\n", ["no observations"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_text_files_are_named_by_line(tmp_path, name):
    file_name, text, patterns = BAD_FILES[name]
    (tmp_path / file_name).write_text(text)
    with pytest.raises(InvalidInput) as caught:
        from_file(tmp_path / "store", tmp_path / file_name)
    check_message(caught, patterns)
    check_nothing_left(tmp_path, [file_name])


@pytest.mark.parametrize("file_name", ["x.csv", "x.tns", "x.csv.gz", "x.npz", "x.npy", "x.parquet"])
def test_a_file_of_rubbish_is_refused(tmp_path, file_name):
    (tmp_path / file_name).write_bytes(b"\xff\xfe\x00\x81rubbish" * 10)
    with pytest.raises(InvalidInput, match="x"):
        from_file(tmp_path / "store", tmp_path / file_name)
    check_nothing_left(tmp_path, [file_name])


def test_a_large_file_of_objects_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.full((400, 400), {}, dtype=object), allow_pickle=True)
    with (tmp_path / "x.npy").open("ab") as file:
        file.truncate(2**21)
    with pytest.raises(InvalidInput, match=r"x\.npy holds no array of numbers .*Python objects"):
        from_file(tmp_path / "store", tmp_path / "x.npy")
    check_nothing_left(tmp_path, ["x.npy"])


def test_a_large_file_that_ends_early_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((600, 600)))
    with (tmp_path / "x.npy").open("ab") as file:
        file.truncate(2**21)
    with pytest.raises(InvalidInput, match=r"x\.npy holds no array of numbers"):
        from_file(tmp_path / "store", tmp_path / "x.npy")


def test_an_unknown_file_type_lists_the_known_ones(tmp_path):
    (tmp_path / "x.xlsx").write_text("")
    with pytest.raises(UnsupportedFormat, match=r"'\.xlsx'.*\.tns.*\.csv.*\.parquet.*\.npz"):
        from_file(tmp_path / "store", tmp_path / "x.xlsx")
    check_nothing_left(tmp_path, ["x.xlsx"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"no file .*absent\.csv"):
        from_file(tmp_path / "store", tmp_path / "absent.csv")


@pytest.mark.parametrize("option", [{"key": "X"}, {"delimiter": ";"}])
def test_options_without_meaning_for_a_file_are_refused(tmp_path, option):
    (tmp_path / "x.tns").write_text("1 1 1.0\n")
    with pytest.raises(InvalidInput, match="has no meaning"):
        from_file(tmp_path / "store", tmp_path / "x.tns", **option)
