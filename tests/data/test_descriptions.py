"""Names, coordinates and attributes of the input come back with the completed tensor."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import zarr

import slrt_dask as slrt
from slrt_dask.data import from_array, open_store
from slrt_dask.data.coordinates import LONGEST
from tests.data.helpers import tensor_with_holes

xarray = pytest.importorskip("xarray")
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


def with_values(array, values):
    """The array as it should come back: with attributes that JSON can hold."""
    expected = array.copy(data=values)
    expected.attrs = {"units": "1", "limits": [0.0, 1.0], "fill": 0.5}
    return expected


@pytest.mark.parametrize("lazy", [False, True])
def test_everything_but_the_numbers_survives_from_input_to_to_xarray(tmp_path, array, lazy):
    store = from_array(tmp_path / "store", array.chunk({"site": 2}) if lazy else array)
    train, _ = open_store(store.path).split(0.2)
    done = completed(train)
    for one in (done, done.save(tmp_path / "saved"), slrt.load_completion(tmp_path / "saved")):
        found = one.to_xarray()
        xarray.testing.assert_identical(found.compute(), with_values(array, found.values))
        assert found.chunks is not None  # it is lazy
    assert set(store.coordinates) == {"day", "site", "band"}


def test_an_array_without_a_name_is_called_completion(tmp_path):
    store = from_array(tmp_path / "store", xarray.DataArray(tensor_with_holes(SHAPE)))
    found = completed(store).to_xarray()
    assert (found.name, found.dims, dict(found.coords), found.attrs) == (
        "completion", ("dim_0", "dim_1", "dim_2"), {}, {},
    )  # fmt: skip


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
        np.array([0.0, np.nan, 1.0, 2.0]),
        np.array([1j, 2j, 3j, 4j]),
    ],
    ids=["objects", "NaN", "complex"],
)
def test_a_coordinate_that_cannot_be_kept_is_left_out_with_a_word(tmp_path, labels, caplog):
    array = xarray.DataArray(
        tensor_with_holes(SHAPE), dims=("x", "y", "z"), coords={"x": labels, "y": np.arange(5)}
    )
    with caplog.at_level(logging.WARNING, "slrt_dask"):
        store = from_array(tmp_path / "store", array)
    assert "the coordinate 'x' is not kept" in caplog.text
    assert list(store.coordinates) == ["y"]


def test_a_long_coordinate_is_left_out_without_being_computed(tmp_path, caplog):
    def compute(block):
        raise AssertionError("it was computed")

    da = pytest.importorskip("dask.array")
    long = da.zeros((2, LONGEST), chunks=LONGEST).map_blocks(compute, dtype=float)
    values = xarray.DataArray(np.ones((2, LONGEST)), dims=("x", "y"))
    with caplog.at_level(logging.WARNING, "slrt_dask"):
        store = from_array(tmp_path / "store", values.assign_coords(far=(("x", "y"), long)))
    assert f"it has {2 * LONGEST} labels" in caplog.text
    assert store.coordinates is None


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


def test_an_export_by_way_of_xarray_is_opened_by_xarray(tmp_path, array):
    # zarr warns of text and dates, whose form in its third version is not settled.
    plain = array.drop_vars(["day", "site", "platform"])
    labelled = completed(from_array(tmp_path / "store", plain)).to_xarray()
    labelled.to_zarr(tmp_path / "labelled", zarr_format=3, consolidated=False)
    opened = xarray.open_zarr(tmp_path / "labelled", consolidated=False)["reflectance"]
    xarray.testing.assert_equal(opened.compute(), labelled.compute())
