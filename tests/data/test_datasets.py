"""Labelled files: netCDF, and zarr groups that xarray wrote, keep what they say of themselves."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import slrt_dask as slrt
from slrt_dask.data import archives, from_file
from slrt_dask.errors import InvalidInput, MissingDependency
from tests.data.helpers import tensor_with_holes

xarray = pytest.importorskip("xarray")
SHAPE = (6, 5, 4)


@pytest.fixture(scope="module")
def array():
    return xarray.DataArray(
        tensor_with_holes(SHAPE),
        dims=("time", "lat", "lon"),
        coords={
            "time": np.datetime64("2024-01-01", "ns") + np.arange(6) * np.timedelta64(1, "h"),
            "lat": ("lat", np.linspace(-1.0, 1.0, 5), {"units": "degrees_north"}),
            "area": (("lat", "lon"), np.arange(20.0).reshape(5, 4)),
        },
        name="t2m",
        attrs={"units": "K"},
    )


def written(array, path, kind):
    dataset = array.to_dataset().assign(other=2 * array, crs=0)
    if kind == "netcdf4":
        pytest.importorskip("h5netcdf")
        dataset.to_netcdf(path, engine="h5netcdf", encoding={"t2m": {"chunksizes": (2, 5, 4)}})
    elif kind == "netcdf3":
        dataset.to_netcdf(path, engine="scipy")
    else:
        dataset.to_zarr(path, zarr_format=2, consolidated=kind == "consolidated")
    return path


KINDS = {"netcdf4": ".nc", "netcdf3": ".nc", "consolidated": ".zarr", "scattered": ".zarr"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_variable_is_read_with_its_names_coordinates_and_attributes(array, tmp_path, kind):
    path = written(array, tmp_path / f"file{KINDS[kind]}", kind)
    store = from_file(tmp_path / "store", path, key="t2m")
    np.testing.assert_array_equal(store.to_array(), array.values)
    done = slrt.complete(store, (1, 1, 1), C=1.0, max_iterations=0)
    found = done.to_xarray()
    expected = array.copy(data=found.values).assign_attrs(done.header.described())
    xarray.testing.assert_identical(found.compute(), expected)


def test_packed_numbers_are_unpacked(array, tmp_path):
    path = tmp_path / "packed.nc"
    packing = {"dtype": "i2", "scale_factor": 1e-3, "_FillValue": -30000}
    array.to_dataset().to_netcdf(path, engine="scipy", encoding={"t2m": packing})
    store = from_file(tmp_path / "store", path)
    np.testing.assert_allclose(store.to_array(), array.values, atol=6e-4)


@pytest.mark.parametrize("kind", ["netcdf3", "consolidated"])
def test_a_mask_beside_the_variable_says_what_is_missing(array, tmp_path, kind):
    full = array.fillna(7.0)
    path = tmp_path / f"masked{KINDS[kind]}"
    dataset = full.to_dataset().assign(mask=array.notnull().astype("i1"))
    if kind == "netcdf3":
        dataset.to_netcdf(path, engine="scipy")
    else:
        dataset.to_zarr(path, zarr_format=2, consolidated=True)
    store = from_file(tmp_path / "store", path)
    np.testing.assert_array_equal(store.to_array(), array.values)
    with slrt.open_array(path) as opened:
        xarray.testing.assert_identical(opened.load(), array)


def test_which_variable_is_meant_has_to_be_clear(array, tmp_path):
    path = written(array, tmp_path / "two.nc", "netcdf3")
    with pytest.raises(InvalidInput, match="it holds t2m, other; name one as key"):
        from_file(tmp_path / "store", path)
    with pytest.raises(InvalidInput, match="there is no array 'wind'"):
        from_file(tmp_path / "store", path, key="wind")
    with pytest.raises(InvalidInput, match="leave it out"):
        from_file(tmp_path / "store", path, key="t2m", shape=(1, 2, 3))


def test_the_command_line_names_a_variable(array, tmp_path):
    from click.testing import CliRunner

    from slrt_dask.cli import main

    path = written(array, tmp_path / "two.nc", "netcdf3")
    arguments = ["ingest", str(path), str(tmp_path / "store"), "--variable", "other"]
    said = CliRunner().invoke(main, arguments)
    assert said.exit_code == 0, said.stderr
    assert "6 × 5 × 4" in said.stdout


def test_what_is_no_netcdf_is_refused(tmp_path):
    (tmp_path / "text.nc").write_text("these are words, not numbers")
    with pytest.raises(InvalidInput, match="is not a netCDF file"):
        from_file(tmp_path / "store", tmp_path / "text.nc")


def test_without_a_package_that_reads_it_the_remedy_is_told(tmp_path, monkeypatch):
    (tmp_path / "file.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))

    def no_backend(*arguments, **options):
        raise ValueError("found no engine")

    monkeypatch.setattr(xarray, "open_dataset", no_backend)
    monkeypatch.setattr(archives.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"slrt-dask\[netcdf\]"):
        from_file(tmp_path / "store", tmp_path / "file.nc")


def test_a_group_without_names_is_read_as_before(tmp_path):
    group = zarr.create_group(tmp_path / "group.zarr")
    tensor = tensor_with_holes(SHAPE)
    group.create_array("a", data=tensor)
    store = from_file(tmp_path / "store", tmp_path / "group.zarr")
    np.testing.assert_array_equal(store.to_array(), tensor)
    assert store.dimension_names is None
