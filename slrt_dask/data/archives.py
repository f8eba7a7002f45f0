"""Binary files of arrays: `.npz`, `.npy`, `.parquet`, zarr directories, and netCDF.

Members of an archive are unpacked into files without names and mapped, so that a file larger than
memory can be read. Nothing pickled is ever loaded. Labelled arrays (netCDF, and zarr groups with
named dimensions) are read by xarray, which decodes what such files say about their numbers (fill
values, scales, dates) and knows which of their variables are coordinates.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from slrt_dask.data import location
from slrt_dask.data.arrays import array_source, coo_source, numbered
from slrt_dask.data.ingest import Source, of_shape
from slrt_dask.data.libraries import load
from slrt_dask.data.sorting import Batch
from slrt_dask.errors import InvalidInput, MissingDependency, UnsupportedFormat

Shape = tuple[int, ...] | None
Pair = tuple[Any, Any]
"""An array, and its mask or None."""
MASK = "mask"
NETCDF = (".nc", ".nc4", ".cdf", ".netcdf")
MAPPED_BYTES = 2**20
"""Of files from this size on, only what is asked for is read."""
HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[Any, ...]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def npz_source(
    path: str, shape: Shape, key: str | None, scratch: str | None, weights: str | None = None
) -> Source:
    """A saved `sparse.COO`; or arrays `indices` and `values`; or a dense array, with `mask`."""
    arrays = _members(path, scratch)
    if weights is not None and weights not in arrays:
        raise _no_weights(weights, path, list(arrays))
    of_values = None if weights is None else arrays.pop(weights)
    for indices, values in (("coords", "data"), ("indices", "values")):
        if key is None and {indices, values} <= arrays.keys():
            if shape is None and "shape" in arrays:
                shape = tuple(int(length) for length in arrays["shape"])
            return coo_source(arrays[indices], arrays[values], shape, of_values)
    return of_shape(array_source(*_chosen_member(arrays, path, key), of_values), shape)


def npz_arrays(path: str, key: str | None) -> Pair:
    """A dense array of an archive, and its mask if there is one."""
    return _chosen_member(_members(path, None), path, key)


def npy_array(path: str, scratch: str | None = None) -> NDArray[Any]:
    """The array in a `.npy` file; mapped, unless it is small."""
    with location.open_file(path) as file:
        return _copied(file, path, scratch) if location.is_url(path) else _mapped(file, path)


def zarr_arrays(path: str, key: str | None, weights: str | None = None) -> tuple[Any, Any, Any]:
    """A zarr array; or that of a group, its mask if there is one, and its weights if they are."""
    node = _opened_zarr(path)
    names = [name for name, _ in node.arrays()] if isinstance(node, zarr.Group) else []
    if weights is not None and weights not in names:
        raise _no_weights(weights, path, names)
    if not isinstance(node, zarr.Group):
        return node, None, None
    chosen = node[_chosen_name([name for name in names if name not in (MASK, weights)], key, path)]
    of_values = None if weights is None else node[weights]
    return chosen, node[MASK] if MASK in names else None, of_values


def parquet_source(path: str, shape: Shape, weights: str | None = None) -> Source:
    """Index columns in order; the value is the column `value` or `values`, or else the last.

    weights : the column that has them, if there is one
    """
    parquet = load("pyarrow.parquet", extra="parquet")
    arrow = load("pyarrow", extra="parquet")
    try:
        file = parquet.ParquetFile(location.open_file(path) if location.is_url(path) else path)
    except arrow.ArrowInvalid as error:
        raise InvalidInput(f"{path} is not a parquet file ({error}); check it.") from error
    schema = file.schema_arrow
    if weights is not None and weights not in schema.names:
        raise _no_weights(weights, path, schema.names)
    names = [name for name in schema.names if name != weights]
    value = next((name for name in ("value", "values") if name in names), names[-1])
    names = [*(name for name in names if name != value), value]
    modes = len(names) - 1
    names += [] if weights is None else [weights]
    for name in names:
        kind = schema.field(name).type
        if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
            raise InvalidInput(f"column {name!r} of {path} has type {kind}; give numbers.")

    def batches(limit: int) -> Iterator[Batch]:
        with file:
            tables = file.iter_batches(batch_size=limit, columns=names)
            # An absent index becomes NaN here, and is then refused as no whole number.
            found = (
                [table[name].to_numpy(zero_copy_only=False) for name in names] for table in tables
            )
            yield from numbered((np.stack(columns[:modes]), *columns[modes:]) for columns in found)

    return Source(
        batches=batches,
        dtype=np.dtype(schema.field(value).type.to_pandas_dtype()),
        shape=shape,
        total=file.metadata.num_rows,
        dimension_names=tuple(names[:modes]),
    )


# ---- labelled arrays ------------------------------------------------------------------------


def is_labelled(path: str) -> bool:
    """Whether xarray reads it: netCDF, or a zarr group whose arrays name their dimensions."""
    if path.lower().endswith(NETCDF):
        return True
    node = _opened_zarr(path)
    arrays = [array for _, array in node.arrays()] if isinstance(node, zarr.Group) else []
    has_xarray = importlib.util.find_spec("xarray") is not None
    return bool(arrays) and has_xarray and all(map(_has_names, arrays))


def labelled_source(path: str, key: str | None, weights: str | None = None) -> Source:
    """The observed entries of one variable; a variable `mask` of its shape says which they are.

    weights : the variable that has theirs, if there is one
    """
    with contextlib.ExitStack() as stack:
        is_remote_file = location.is_url(path) and path.lower().endswith(NETCDF)
        file = stack.enter_context(location.open_file(path)) if is_remote_file else path
        dataset = stack.enter_context(_dataset(path, file, None))
        array, mask = _with_mask(dataset, key, path, weights)
        of_values = None if weights is None else dataset[weights]
        source = array_source(array, None if mask is None else mask.variable, of_values)
        opened = stack.pop_all()

    def batches(limit: int) -> Iterator[Batch]:
        with opened:
            yield from source.batches(limit)

    return replace(source, batches=batches)


def labelled_array(path: str, key: str | None) -> Any:
    """The same as a lazy DataArray, NaN where nothing was observed."""
    array, mask = _with_mask(_dataset(path, path, "auto"), key, path)
    return array if mask is None else array.where(mask != 0)


def _dataset(path: str, file: Any, chunks: str | None) -> Any:
    xarray = load("xarray", extra="netcdf")
    # A variable of durations stays numbers.
    options: dict[str, Any] = {"decode_timedelta": False, "chunks": chunks}
    if not path.lower().endswith(NETCDF):
        # Whether all metadata is in one place; without being given this, xarray warns.
        metadata = zarr.open_group(path, mode="r").metadata.consolidated_metadata
        options |= {"engine": "zarr", "consolidated": metadata is not None}
        return xarray.open_dataset(file, **options)
    try:
        return xarray.open_dataset(file, **options)
    except (ValueError, ImportError) as error:
        with location.open_file(path) as start:
            is_hdf = start.read(4) == b"\x89HDF"
        if is_hdf and not all(map(importlib.util.find_spec, ("h5netcdf", "h5py"))):
            raise MissingDependency(
                f"{path} is a netCDF 4 file, and no package that reads such files is installed; "
                "install slrt-dask[netcdf]."
            ) from error
        raise InvalidInput(f"{path} is not a netCDF file; check it.") from error
    except (OSError, TypeError, EOFError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}); check the file.") from error


def _with_mask(dataset: Any, key: str | None, path: str, weights: str | None = None) -> Pair:
    """The variable that is meant, and the one that says where it was observed, or None."""
    if weights is not None and weights not in dataset.variables:
        raise _no_weights(weights, path, list(dataset.data_vars))
    if key is None or key not in dataset.variables:
        helpers = {dataset[name].attrs.get("bounds") for name in dataset.variables} | {
            MASK,
            weights,
        }
        names = [
            str(name)
            for name, variable in dataset.data_vars.items()
            if variable.ndim > 1 and variable.dtype.kind in "biuf" and name not in helpers
        ]
        key = _chosen_name(names, key, path)
    chosen = dataset[key]
    mask = dataset[MASK] if MASK in dataset and key != MASK else None
    return chosen, None if mask is None or mask.dims != chosen.dims else mask


def _has_names(array: Any) -> bool:
    names = getattr(array.metadata, "dimension_names", None)
    if names is None:
        names = array.attrs.get("_ARRAY_DIMENSIONS")
    return array.ndim == 0 or (names is not None and None not in names)


# ---- pieces ---------------------------------------------------------------------------------


def _opened_zarr(path: str) -> Any:
    """The zarr array or group at a path."""
    try:
        return zarr.open(path, mode="r")
    except (FileNotFoundError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be opened as zarr ({error}); check it.") from error


def _chosen_name(names: list[str], key: str | None, path: str) -> str:
    """The array that is meant of those in a file: the one named, the only one, or `X`."""
    if key is not None and key in names:
        return key
    if key is None and (len(names) == 1 or "X" in names):
        return "X" if "X" in names else names[0]
    problem = "which array is meant is not clear" if key is None else f"there is no array {key!r}"
    held = f"it holds {', '.join(names)}" if names else "it holds no array of numbers"
    raise InvalidInput(
        f"{problem} in {path}: {held}; name one as key (on the command line --variable NAME)."
    )


def _no_weights(weights: str, path: str, names: Sequence[Any]) -> InvalidInput:
    held = f"it holds {', '.join(map(str, names))}" if names else "it is a single array"
    return InvalidInput(f"there are no weights {weights!r} in {path}: {held}.")


def _members(path: str, scratch: str | None) -> dict[str, NDArray[Any]]:
    """All arrays of an archive by their names, unpacked and mapped."""
    arrays = {}
    try:
        with location.open_file(path) as file, zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if name.endswith(".npy"):
                    with archive.open(name) as member:
                        arrays[name.removesuffix(".npy")] = _copied(
                            member, f"{name} of {path}", scratch
                        )
    except zipfile.BadZipFile as error:
        raise InvalidInput(f"{path} is not an .npz archive ({error}); check the file.") from error
    return arrays


def _chosen_member(arrays: dict[str, NDArray[Any]], path: str, key: str | None) -> Pair:
    if "format" in arrays or "indptr" in arrays:
        raise UnsupportedFormat(
            f"{path} holds arrays {', '.join(arrays)}, a sparse format other than COO; convert it "
            "to sparse.COO first."
        )
    chosen = _chosen_name([name for name in arrays if name != MASK], key, path)
    return arrays[chosen], arrays.get(MASK)


def _copied(stream: IO[bytes], name: str, scratch: str | None) -> NDArray[Any]:
    """The array in a stream, by way of a file that ends with the array or with the process."""
    with tempfile.TemporaryFile(dir=scratch) as file:
        shutil.copyfileobj(stream, file, 2**20)
        file.seek(0)
        return _mapped(file, name)


def _mapped(file: IO[bytes], name: str) -> NDArray[Any]:
    """The array in a local file, which may have no name: `np.load` maps files with names only."""
    if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
        raise InvalidInput(f"{name} does not begin as a .npy file does; check it, and its name.")
    file.seek(0)
    try:
        if os.fstat(file.fileno()).st_size < MAPPED_BYTES:
            small: NDArray[Any] = np.load(file, allow_pickle=False)
            return small
        shape, by_columns, dtype = HEADERS[np.lib.format.read_magic(file)](file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if by_columns else "C")
    except (ValueError, EOFError, KeyError) as error:
        raise InvalidInput(f"{name} holds no array of numbers ({error}).") from error
