"""Weights of observations in a store: kept as they were given, and refused if they are bad."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import sparse
import xarray
import zarr
from click.testing import CliRunner

import slrt_dask as slrt
from slrt_dask.cli.application import main
from slrt_dask.errors import InvalidInput, StoreCorrupt
from tests.data.helpers import entries, tensor_with_holes

SHAPE = (5, 6, 7)


def weights_of(tensor):
    return np.random.default_rng(3).uniform(0.5, 4.0, tensor.shape)


def dense_weights(store):
    dense = np.full(store.shape, np.nan)
    dense[tuple(store.indices().compute())] = store.weights().compute()
    return dense


def holds(store, tensor, weights):
    np.testing.assert_array_equal(store.to_array(), tensor)
    seen = ~np.isnan(tensor)
    np.testing.assert_array_equal(dense_weights(store), np.where(seen, weights, np.nan))
    assert store.weighted
    assert store.mean == pytest.approx(np.average(tensor[seen], weights=weights[seen]))
    store.verify()


def write_csv(path, columns):
    table = np.column_stack([*columns["indices"], columns["weights"], columns["values"]])
    lines = [",".join(map(repr, row)) for row in table.tolist()]
    path.write_text("\n".join(["i,j,k,sureness,value", *lines]))


def write_parquet(path, columns):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = dict(zip("ijk", columns["indices"], strict=True))
    table = {"sureness": columns["weights"], **names, "value": columns["values"]}
    parquet.write_table(arrow.table(table), path)


def write_npz(path, columns):
    np.savez(
        path, indices=columns["indices"], values=columns["values"], sureness=columns["weights"]
    )


FILES = {"x.csv": write_csv, "x.parquet": write_parquet, "x.npz": write_npz}


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_its_weights(tmp_path, name):
    tensor = tensor_with_holes(SHAPE)
    indices, values = entries(tensor)
    weights = weights_of(tensor)
    columns = {"indices": indices, "values": values, "weights": weights[tuple(indices)]}
    FILES[name](tmp_path / name, columns)
    arguments = ["ingest", str(tmp_path / name), str(tmp_path / "store"), "--weights", "sureness"]
    found = CliRunner().invoke(main, [*arguments, "--shape", "5,6,7"])
    assert found.exit_code == 0, found.output
    holds(slrt.open_store(tmp_path / "store"), tensor, weights)
    with pytest.raises(InvalidInput, match="certainty"):
        slrt.from_file(tmp_path / "other", tmp_path / name, weights="certainty")


def dataset(tensor, weights):
    names = ("time", "place", "depth")
    return {"X": (names, tensor), "sureness": (names[1:], weights)}


@pytest.mark.parametrize("kind", ["labelled.zarr", "plain.zarr", "dense.npz"])
def test_a_file_of_dense_arrays_names_its_weights(tmp_path, kind):
    tensor = tensor_with_holes(SHAPE)
    weights = weights_of(tensor)[0]
    path = tmp_path / kind
    if kind == "labelled.zarr":
        xarray.Dataset(dataset(tensor, weights)).to_zarr(path, zarr_format=3, consolidated=False)
    elif kind == "plain.zarr":
        group = zarr.create_group(path)
        group["X"], group["sureness"] = tensor, weights
    else:
        np.savez(path, X=tensor, sureness=weights)
    store = slrt.from_file(tmp_path / "store", path, weights="sureness")
    holds(store, tensor, np.broadcast_to(weights, SHAPE))


def of_data_array(array, weights):
    names = ("a", "b", "c")
    turned = xarray.DataArray(weights[:, :, 0].T, dims=("b", "a"))
    return xarray.DataArray(array, dims=names), turned, np.broadcast_to(weights[..., :1], SHAPE)


ARRAYS = {
    "the same shape": lambda x, w: (x, w, w),
    "lower order": lambda x, w: (x, w[0], np.broadcast_to(w[0], SHAPE)),
    "length one": lambda x, w: (x, w[:, :1], np.broadcast_to(w[:, :1], SHAPE)),
    "a number": lambda x, w: (x, 2.5, np.full(SHAPE, 2.5)),
    "masked": lambda x, w: (np.ma.masked_invalid(x), np.ma.array(w, mask=np.isnan(x)), w),
    "dask": lambda x, w: (da.from_array(x, chunks=3), da.from_array(w, chunks=4), w),
    "dask and numpy": lambda x, w: (da.from_array(x, chunks=3), w[0], np.broadcast_to(w[0], SHAPE)),
    "xarray, by name": of_data_array,
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_weights_of_an_array_broadcast_to_its_shape(tmp_path, kind):
    tensor = tensor_with_holes(SHAPE)
    array, weights, expected = ARRAYS[kind](tensor, weights_of(tensor))
    store = slrt.from_array(tmp_path / "store", array, weights=weights, partition_entries=20)
    assert len(store.partitions) > 1
    holds(store, tensor, expected)


@pytest.mark.parametrize("shape", [(9, 8), SHAPE, (3, 4, 5, 3)])
def test_coordinates_in_any_form_bring_their_weights(tmp_path, shape):
    tensor = tensor_with_holes(shape)
    indices, values = entries(tensor)
    weights = weights_of(tensor)
    own = weights[tuple(indices)]
    cut = values.size // 3
    tensors = sparse.COO(indices, values, shape), sparse.COO(indices, own, shape)
    pieces = [slice(None, cut), slice(cut, None)]
    stores = [
        slrt.from_coo(tmp_path / "a", indices, values, shape, weights=own, partition_entries=20),
        slrt.from_coo(tmp_path / "b", indices, values, shape, weights=da.from_array(own, chunks=9)),
        slrt.from_coo(tmp_path / "c", tensors[0], weights=tensors[1]),
        slrt.from_coo(tmp_path / "d", tensors[0], weights=weights),
        slrt.from_batches(
            tmp_path / "e", ((indices[:, i], values[i], own[i]) for i in pieces), shape
        ),
    ]
    for store in stores:
        holds(store, tensor, weights)


def test_both_parts_of_a_split_keep_their_weights(tmp_path):
    tensor = tensor_with_holes(SHAPE)
    weights = weights_of(tensor)
    parts = slrt.from_array(tmp_path / "store", tensor, weights=weights).split(0.3)
    for part in parts:
        holds(part, part.to_array(), weights)
    assert sum(part.nnz for part in parts) == np.isfinite(tensor).sum()


def test_a_weighted_mean_has_the_sum_of_the_weights_and_the_last_has_its_own(tmp_path):
    indices = np.array([[0, 1, 0, 0], [2, 1, 2, 2]])
    values, weights = [1.0, 5.0, 2.0, 6.0], [1.0, 2.0, 3.0, 4.0]
    given = {"shape": (2, 3), "weights": weights}
    mean = slrt.from_coo(tmp_path / "mean", indices, values, duplicates="mean", **given)
    last = slrt.from_coo(tmp_path / "last", indices, values, duplicates="last", **given)
    assert (mean.to_array()[0, 2], dense_weights(mean)[0, 2]) == ((1 + 6 + 24) / 8, 8.0)
    assert (last.to_array()[0, 2], dense_weights(last)[0, 2]) == (6.0, 4.0)
    with pytest.raises(InvalidInput, match="sum"):
        slrt.from_coo(tmp_path / "sum", indices, values, duplicates="sum", **given)
    assert not (tmp_path / "sum").exists()


def test_the_format_is_another_one_only_where_there_are_weights(tmp_path):
    tensor = tensor_with_holes(SHAPE)
    plain = slrt.from_array(tmp_path / "plain", tensor)
    ones, twos = (
        slrt.from_array(tmp_path / f"{weight}", tensor, weights=weight) for weight in (1.0, 2.0)
    )
    assert plain.weights() is None
    assert "mean_weight" not in plain.header.to_block()
    assert "weights" not in zarr.open_group(tmp_path / "plain" / "p00000", mode="r")
    assert len({plain.digest, ones.digest, twos.digest}) == 3


def test_an_altered_weight_is_noticed(tmp_path):
    store = slrt.from_array(tmp_path / "store", tensor_with_holes(SHAPE), weights=2.0)
    zarr.open_group(tmp_path / "store" / "p00000", mode="r+")["weights"][0] = 3.0
    with pytest.raises(StoreCorrupt, match="p00000"):
        store.read_partition(0)


@pytest.mark.parametrize("bad", [0.0, -1.5, np.nan, np.inf])
def test_a_bad_weight_is_refused_with_its_row_index_and_value(tmp_path, bad):
    weights = np.ones(4)
    weights[2] = bad
    indices, values = np.array([[0, 1, 2, 3], [3, 2, 1, 0]]), np.arange(4.0)
    with pytest.raises(
        InvalidInput, match=r"row 2, index \(2, 1\), value 2.0: weight " + repr(bad)
    ):
        slrt.from_coo(tmp_path / "store", indices, values, weights=weights)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("weights", "dtype", "named"),
    [
        (np.ones(3), None, r"\(3,\)"),
        (np.ones((4, 1)), None, r"\(4, 1\)"),
        (np.array(list("abcd")), None, "'a'"),
        (np.array([1.0, 1e-60, 1.0, 1.0]), "float32", "1e-60"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(tmp_path, weights, dtype, named):
    indices, values = np.array([[0, 1, 2, 3], [3, 2, 1, 0]]), np.arange(4.0)
    with pytest.raises(InvalidInput, match=named):
        slrt.from_coo(tmp_path / "store", indices, values, weights=weights, dtype=dtype)


def test_weights_of_some_batches_or_of_another_shape_are_refused(tmp_path):
    batch = np.array([[0], [1]]), np.ones(1)
    with pytest.raises(InvalidInput):
        slrt.from_batches(tmp_path / "store", [batch, (*batch, np.ones(1))])
    with pytest.raises(InvalidInput, match=r"\(2, 3\).*\(3, 4\)"):
        slrt.from_array(tmp_path / "store", np.ones((3, 4)), weights=np.ones((2, 3)))
    (tmp_path / "x.tns").write_text("1 1 2.0\n")
    with pytest.raises(InvalidInput, match=r"\.tns"):
        slrt.from_file(tmp_path / "store", tmp_path / "x.tns", weights="w")
