"""Files of labelled arrays, read by xarray: netCDF, and zarr groups with named dimensions.

xarray decodes what such files say about their numbers (fill values, scales, dates), and knows
which of their variables are coordinates. Values are read box by box. This changes when labelled
files are to be understood differently.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from slrt_dask.data import location
from slrt_dask.data.arrays import array_source
from slrt_dask.data.batches import Batch, Source
from slrt_dask.data.libraries import load
from slrt_dask.errors import InvalidInput, MissingDependency

MASK = "mask"
NETCDF = (".nc", ".nc4", ".cdf", ".netcdf")


def netcdf_source(path: str, key: str | None) -> Source:
    """One variable of a netCDF file, which may be at a URL."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(location.open_file(path)) if location.is_url(path) else path
        dataset = stack.enter_context(_opened_netcdf(file, path))
        source = dataset_source(dataset, key, path)
        return _closed_after(source, stack.pop_all())


def netcdf_array(path: str, key: str | None) -> Any:
    """One variable of a netCDF file as a lazy DataArray."""
    return _masked(_opened_netcdf(path, path, chunks="auto"), key, path)


def labelled_zarr_source(path: str, key: str | None) -> Source:
    """One variable of a zarr group whose arrays have named dimensions."""
    return dataset_source(_opened_zarr(path), key, path)


def labelled_zarr_array(path: str, key: str | None) -> Any:
    """The same as a lazy DataArray."""
    return _masked(_opened_zarr(path, chunks="auto"), key, path)


def _opened_netcdf(file: Any, path: str, chunks: str | None = None) -> Any:
    xarray = load("xarray", extra="netcdf")
    try:
        # A variable of durations stays numbers.
        return xarray.open_dataset(file, decode_timedelta=False, chunks=chunks)
    except (ValueError, ImportError) as error:
        if _can_read_netcdf4() or not _looks_like_hdf(path):
            raise InvalidInput(f"{path} is not a netCDF file; check it.") from error
        raise MissingDependency(
            f"{path} is a netCDF 4 file, and no package that reads such files is installed; "
            "install slrt-dask[netcdf]."
        ) from error
    except (OSError, TypeError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}); check the file.") from error


def _opened_zarr(path: str, chunks: str | None = None) -> Any:
    return load("xarray").open_dataset(
        path,
        engine="zarr",
        consolidated=_is_consolidated(path),
        decode_timedelta=False,
        chunks=chunks,
    )


def dataset_source(dataset: Any, key: str | None, path: str) -> Source:
    """The observed entries of one variable; a variable `mask` of its shape says which they are."""
    chosen, mask = _with_mask(dataset, key, path)
    return array_source(chosen, None if mask is None else mask.variable)


def _masked(dataset: Any, key: str | None, path: str) -> Any:
    """The same as a DataArray, NaN where nothing was observed."""
    chosen, mask = _with_mask(dataset, key, path)
    return chosen if mask is None else chosen.where(mask != 0)


def _with_mask(dataset: Any, key: str | None, path: str) -> tuple[Any, Any]:
    """The variable that is meant, and the one that says where it was observed, or None."""
    chosen = dataset[_chosen(dataset, key, path)]
    mask = dataset[MASK] if MASK in dataset and chosen.name != MASK else None
    return chosen, None if mask is None or mask.dims != chosen.dims else mask


def is_labelled(node: Any) -> bool:
    """Whether xarray can say more of it than zarr: of a group whose arrays name dimensions."""
    arrays = [array for _, array in node.arrays()] if hasattr(node, "arrays") else []
    return (
        bool(arrays)
        and importlib.util.find_spec("xarray") is not None
        and all(_has_names(array) for array in arrays)
    )


def _has_names(array: Any) -> bool:
    names = getattr(array.metadata, "dimension_names", None)
    if names is None:
        names = array.attrs.get("_ARRAY_DIMENSIONS")
    return array.ndim == 0 or (names is not None and None not in names)


def _chosen(dataset: Any, key: str | None, path: str) -> str:
    """The variable that is meant: the one named, or the only one that can be."""
    if key is not None and key in dataset.variables:
        return key
    helpers = {dataset[name].attrs.get("bounds") for name in dataset.variables} | {MASK}
    names = [
        str(name)
        for name, variable in dataset.data_vars.items()
        if variable.ndim > 1 and variable.dtype.kind in "biuf" and name not in helpers
    ]
    return chosen_name(names, key, path)


def chosen_name(names: list[str], key: str | None, path: str) -> str:
    """The array that is meant of those in a file: the one named, the only one, or `X`."""
    if key is not None and key in names:
        return key
    if key is None and len(names) == 1:
        return names[0]
    if key is None and "X" in names:
        return "X"
    problem = "which array is meant is not clear" if key is None else f"there is no array {key!r}"
    held = f"it holds {', '.join(names)}" if names else "it holds no array of numbers"
    raise InvalidInput(
        f"{problem} in {path}: {held}; name one as key (on the command line --variable NAME)."
    )


def _closed_after(source: Source, opened: contextlib.ExitStack) -> Source:
    """The source, whose file is closed when all of it was read."""

    def batches(limit: int) -> Iterator[Batch]:
        with opened:
            yield from source.batches(limit)

    return replace(source, batches=batches)


def _is_consolidated(path: str) -> bool:
    """Whether xarray finds all metadata in one place, without which it warns if not told."""
    import zarr

    return zarr.open_group(path, mode="r").metadata.consolidated_metadata is not None


def _can_read_netcdf4() -> bool:
    found = {name for name in ("h5netcdf", "h5py", "netCDF4") if importlib.util.find_spec(name)}
    return "netCDF4" in found or {"h5netcdf", "h5py"} <= found


def _looks_like_hdf(path: str) -> bool:
    with location.open_file(path) as file:
        return file.read(4) == b"\x89HDF"
