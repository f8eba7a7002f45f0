"""Names, coordinates and attributes of the input come back with the completed tensor."""

from __future__ import annotations

import json
import logging

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr

import slrt_dask as slrt
from slrt_dask.data import coordinates, from_array, from_file, location, open_store
from slrt_dask.data.coordinates import LONGEST, MOST_LABELS
from tests.data.helpers import tensor_with_holes

SHAPE = (4, 5, 6)


@pytest.fixture
def array():
    """An array with every kind of coordinate that is kept."""
    days = np.array(["2024-01-01", "2024-01-02", "2024-01-05", "NaT"], dtype="datetime64[ns]")
    rows = np.arange(20.0).reshape(4, 5)
    return xarray.DataArray(
        tensor_with_holes(SHAPE),
        dims=("day", "site", "band"),
        coords={
            "day": ("day", days),
            "site": ("site", ["a", "b", "c", "d", "é"], {"source": "list"}),
            "band": ("band", np.linspace(0.4, 2.5, 6, dtype=np.float32), {"units": "µm"}),
            "good": ("band", np.array([True, True, False, True, False, True])),
            "height": (("day", "site"), rows, {"units": "m"}),
            "platform": "somewhere",
            "version": 3,
        },
        name="reflectance",
        attrs={"units": "1", "limits": np.array([0.0, 1.0]), "fill": np.float32(0.5), "odd": {1}},
    )


def completed(store):
    return slrt.complete(store, (1, 1, 1), C=1.0, max_iterations=0)


def with_values(array, values, done):
    """The array as it should come back: with attributes that JSON can hold, and the certificate."""
    expected = array.copy(data=values)
    expected.attrs = {"units": "1", "limits": [0.0, 1.0], "fill": 0.5, **done.header.described()}
    return expected


@pytest.mark.parametrize("lazy", [False, True])
def test_everything_but_the_numbers_survives_from_input_to_to_xarray(tmp_path, array, lazy):
    store = from_array(tmp_path / "store", array.chunk({"site": 2}) if lazy else array)
    train, _ = open_store(store.path).split(0.2)
    done = completed(train)
    for one in (done, done.save(tmp_path / "saved"), slrt.load_completion(tmp_path / "saved")):
        found = one.to_xarray()
        xarray.testing.assert_identical(found.compute(), with_values(array, found.values, one))
        assert found.chunks is not None  # it is lazy
    assert set(store.coordinates) == {"day", "site", "band"}


def test_an_array_without_a_name_is_called_completion(tmp_path):
    store = from_array(tmp_path / "store", xarray.DataArray(tensor_with_holes(SHAPE)))
    done = completed(store)
    found = done.to_xarray()
    assert (found.name, found.dims, dict(found.coords), found.attrs) == (
        "completion", ("dim_0", "dim_1", "dim_2"), {}, done.header.described(),
    )  # fmt: skip
    assert found.attrs["slrt_relative_gap"] == done.certificate.relative_gap


def test_plain_arrays_have_no_description(tmp_path):
    store = from_array(tmp_path / "store", tensor_with_holes(SHAPE))
    assert (store.dimension_names, store.coordinates, store.header.about) == (None, None, None)
    assert "about" not in store.header.to_block()
    assert completed(store).to_xarray().dims == ("dim_0", "dim_1", "dim_2")


def test_coordinates_follow_when_dimensions_are_named_anew(tmp_path, array):
    store = from_array(tmp_path / "store", array, dimension_names=("t", "x", "band"))
    found = completed(store).to_xarray()
    assert found.dims == ("t", "x", "band")
    np.testing.assert_array_equal(found["t"].values, array["day"].values)
    assert found["height"].dims == ("t", "x")
    assert found["band"].attrs == {"units": "µm"}


@pytest.mark.parametrize(
    "labels",
    [
        np.array([{}, {}, {}, {}], dtype=object),
        np.array(["a", None, 2, "b"], dtype=object),
        np.array([1j, 2j, 3j, 4j]),
    ],
    ids=["objects", "mixed", "complex"],
)
def test_a_coordinate_that_cannot_be_kept_is_left_out_with_a_word(tmp_path, labels, caplog):
    coords = {"x": labels, "y": [0.0, np.nan, 1.0, 2.0, 3.0]}
    array = xarray.DataArray(tensor_with_holes(SHAPE), dims=("x", "y", "z"), coords=coords)
    with caplog.at_level(logging.WARNING, "slrt_dask"):
        store = from_array(tmp_path / "store", array)
    assert "'x'" in caplog.text
    assert list(store.coordinates) == ["y"]
    np.testing.assert_array_equal(store.coordinates["y"], coords["y"])


LABELS = {
    "dates": np.datetime64("2000-01-01", "ns") + np.arange(LONGEST + 1) * np.timedelta64(1, "h"),
    "days": np.arange(LONGEST + 1).astype("datetime64[D]").astype("datetime64[s]"),
    "durations": np.arange(LONGEST + 1).astype("timedelta64[s]"),
    "numbers": np.linspace(0.0, 1.0, LONGEST + 1),
    "single": np.linspace(0.0, 1.0, LONGEST + 1, dtype=np.float32),
    "integers": np.arange(LONGEST + 1, dtype=np.uint16)[::-1],
    "truths": np.arange(LONGEST + 1) % 3 == 0,
    "text": np.array([f"é{number}" for number in range(LONGEST + 1)]),
    "objects": np.array([f"é{number}" for number in range(LONGEST + 1)], dtype=object),
    "bytes": np.array([b"ab", b"", b"c"]),
    "not finite": np.array([0.0, np.nan, np.inf, -np.inf, -0.0]),
    "strange order": np.arange(5, dtype=">i4"),
    "flat": np.arange(6.0).reshape(2, 3) * np.nan,
    "scalar": np.array(np.nan),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_every_kind_and_length_come_back_bit_for_bit(kind):
    values = LABELS[kind]
    dims = ("x", "y")[: values.ndim]
    given = xarray.Variable(dims, values, {"units": "1"})
    kept = coordinates.encode({"label": given})
    # It is kept as JSON.
    found = coordinates.decode_all(json.loads(json.dumps(kept)))["label"]
    assert (found[0], found[2]) == (dims, {"units": "1"})
    assert found[1].shape == values.shape
    if values.dtype.kind in "OU":
        assert found[1].tolist() == values.tolist()
    else:
        native = values.astype(values.dtype.newbyteorder("="))
        assert found[1].dtype == native.dtype
        assert found[1].tobytes() == native.tobytes()


def not_computed(block):
    raise AssertionError("it was computed")


@pytest.mark.parametrize("is_long", [False, True])
def test_a_coordinate_that_is_too_large_is_left_out_with_a_word(caplog, is_long):
    labels = np.random.default_rng(0).random(200_000)
    if is_long:  # it is not even computed
        labels = da.zeros(MOST_LABELS + 1, chunks=-1).map_blocks(not_computed, dtype=float)
    with caplog.at_level(logging.WARNING, "slrt_dask"):
        assert coordinates.encode({"far": xarray.Variable("x", labels)}) is None
    assert "'far'" in caplog.text
    assert str(labels.size) in caplog.text


def test_an_export_has_the_names_and_attributes(tmp_path, array):
    done = completed(from_array(tmp_path / "store", array))
    done.to_zarr(tmp_path / "dense")
    opened = zarr.open(tmp_path / "dense", mode="r")
    assert isinstance(opened, zarr.Array)
    assert opened.metadata.dimension_names == ("day", "site", "band")
    assert opened.attrs["units"] == "1"
    assert opened.attrs["slrt"]["complete"] is True
    # Ingested again, the names are still there.
    assert from_array(tmp_path / "again", opened).dimension_names == ("day", "site", "band")


def test_a_group_with_coordinates_is_opened_by_xarray_and_ingested_again(tmp_path, array):
    done = completed(from_array(tmp_path / "store", array))
    calls = []
    written = done.to_zarr(
        tmp_path / "group.zarr",
        coordinates=True,
        chunks=(2, 5, 6),
        progress=lambda *p: calls.append(p),
    )
    assert written.chunks == (2, 5, 6)
    assert calls == [("write", 0, 2), ("write", 1, 2), ("write", 2, 2)]
    labelled = done.to_xarray()
    with xarray.open_zarr(tmp_path / "group.zarr") as opened:
        found = opened["reflectance"].load()
    assert found.attrs["slrt_primal"] == done.certificate.primal
    xarray.testing.assert_identical(found, labelled.compute())
    again = from_file(tmp_path / "again", tmp_path / "group.zarr")
    assert again.dimension_names == ("day", "site", "band")
    back = completed(again).to_xarray()
    xarray.testing.assert_equal(back.coords.to_dataset(), labelled.coords.to_dataset())


@pytest.mark.parametrize("name", ["day", "a/b", None])
def test_a_name_that_no_variable_can_have_is_changed_in_a_group(tmp_path, array, name):
    done = completed(from_array(tmp_path / "store", array.rename(name)))
    done.to_zarr(tmp_path / "group.zarr", coordinates=True)
    with xarray.open_zarr(tmp_path / "group.zarr") as opened:
        (variable,) = opened.data_vars.values()
        np.testing.assert_array_equal(variable.values, done.to_dask().compute())


def test_a_group_that_is_not_finished_is_not_there(tmp_path, array, monkeypatch):
    done = completed(from_array(tmp_path / "store", array))

    def full(path, content):
        if path.endswith("group.zarr/zarr.json"):
            # All but this was written; zarr does not open that.
            with pytest.raises(FileNotFoundError):
                zarr.open(tmp_path / "group.zarr", mode="r")
            raise OSError("the disk is full")
        write(path, content)

    write = location.write_file
    monkeypatch.setattr(location, "write_file", full)
    with pytest.raises(OSError, match="full"):
        done.to_zarr(tmp_path / "group.zarr", coordinates=True)
    assert not (tmp_path / "group.zarr").exists()
