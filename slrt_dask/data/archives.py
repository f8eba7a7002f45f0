"""Binary files of arrays: `.npz`, `.npy`, zarr directories and `.parquet`.

Members of an archive are unpacked into files without names and mapped, so that a file larger than
memory can be read. Nothing pickled is ever loaded. This changes when the binary formats do.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from slrt_dask.data import location
from slrt_dask.data.arrays import array_source
from slrt_dask.data.batches import Batch, Source, of_shape
from slrt_dask.data.coo import coo_source
from slrt_dask.data.datasets import chosen_name, is_labelled, labelled_zarr_source
from slrt_dask.data.libraries import load
from slrt_dask.errors import InvalidInput, UnsupportedFormat

Shape = tuple[int, ...] | None
Pair = tuple[Any, Any]
"""An array, and its mask or None."""
HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[Any, ...]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def npz_source(path: str, shape: Shape, key: str | None, scratch: str | None) -> Source:
    """A saved `sparse.COO`; or arrays `indices` and `values`; or a dense array, with `mask`."""
    arrays = _members(path, scratch)
    if key is None and {"coords", "data", "shape"} <= arrays.keys():
        return coo_source(arrays["coords"], arrays["data"], _own_shape(arrays, shape))
    if key is None and {"indices", "values"} <= arrays.keys():
        return coo_source(arrays["indices"], arrays["values"], _own_shape(arrays, shape))
    return _dense(*_dense_member(arrays, path, key), shape)


def npz_arrays(path: str, key: str | None) -> Pair:
    """A dense array of an archive, and its mask if there is one."""
    return _dense_member(_members(path, None), path, key)


def npy_source(path: str, shape: Shape, scratch: str | None) -> Source:
    return _dense(npy_array(path, scratch), None, shape)


def npy_array(path: str, scratch: str | None = None) -> NDArray[Any]:
    with location.open_file(path) as file:
        return _copied(file, path, scratch) if location.is_url(path) else _mapped(file, path)


def zarr_source(path: str, shape: Shape, key: str | None) -> Source:
    """A zarr array, or one array of a zarr group, with its coordinates if it has any."""
    if is_labelled(opened_zarr(path)):
        return of_shape(labelled_zarr_source(path, key), shape)
    return _dense(*zarr_arrays(path, key), shape)


def zarr_arrays(path: str, key: str | None) -> Pair:
    """A zarr array, or that of a group and its mask if there is one."""
    node = opened_zarr(path)
    if not isinstance(node, zarr.Group):
        return node, None
    names = [name for name, _ in node.arrays()]
    chosen = node[chosen_name([name for name in names if name != "mask"], key, path)]
    return chosen, node["mask"] if "mask" in names else None


def opened_zarr(path: str) -> Any:
    """The zarr array or group at a path."""
    try:
        return zarr.open(path, mode="r")
    except (FileNotFoundError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be opened as zarr ({error}); check it.") from error


def parquet_source(path: str, shape: Shape) -> Source:
    """Index columns in order; the value is the column `value` or `values`, or else the last."""
    parquet = load("pyarrow.parquet", extra="parquet")
    arrow = load("pyarrow", extra="parquet")
    try:
        file = parquet.ParquetFile(location.open_file(path) if location.is_url(path) else path)
    except arrow.ArrowInvalid as error:
        raise InvalidInput(f"{path} is not a parquet file ({error}); check it.") from error
    schema = file.schema_arrow
    value = next((name for name in ("value", "values") if name in schema.names), schema.names[-1])
    indices = [name for name in schema.names if name != value]
    for name in schema.names:
        kind = schema.field(name).type
        if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
            raise InvalidInput(f"column {name!r} of {path} has type {kind}; give numbers.")
    return Source(
        batches=lambda limit: _parquet_batches(file, indices, value, limit),
        dtype=np.dtype(schema.field(value).type.to_pandas_dtype()),
        shape=shape,
        total=file.metadata.num_rows,
        dimension_names=tuple(indices),
    )


def _parquet_batches(file: Any, indices: list[str], value: str, limit: int) -> Iterator[Batch]:
    start = 0
    with file:
        for table in file.iter_batches(batch_size=limit, columns=[*indices, value]):
            # An absent index becomes NaN here, and is then refused as no whole number.
            columns = [table.column(name).to_numpy(zero_copy_only=False) for name in indices]
            values = table.column(value).to_numpy(zero_copy_only=False)
            rows = np.arange(start, start + values.shape[0], dtype=np.int64)
            start += values.shape[0]
            yield Batch(np.stack(columns), values, rows)


def _dense(array: Any, mask: Any, shape: Shape) -> Source:
    return of_shape(array_source(array, mask), shape)


def _members(path: str, scratch: str | None) -> dict[str, NDArray[Any]]:
    """All arrays of an archive by their names, unpacked and mapped."""
    try:
        with location.open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            names = [name.removesuffix(".npy") for name in members]
            return {name: _unpacked(archive, name, scratch) for name in names}
    except zipfile.BadZipFile as error:
        raise InvalidInput(f"{path} is not an .npz archive ({error}); check the file.") from error


def _dense_member(arrays: dict[str, NDArray[Any]], path: str, key: str | None) -> Pair:
    if "format" in arrays or "indptr" in arrays:
        raise UnsupportedFormat(
            f"{path} holds arrays {', '.join(arrays)}, a sparse format other than COO; convert it "
            "to sparse.COO first."
        )
    chosen = chosen_name([name for name in arrays if name != "mask"], key, path)
    return arrays[chosen], arrays.get("mask")


def _own_shape(arrays: dict[str, NDArray[Any]], shape: Shape) -> Shape:
    if shape is not None or "shape" not in arrays:
        return shape
    return tuple(int(length) for length in arrays["shape"])


def _unpacked(archive: zipfile.ZipFile, name: str, scratch: str | None) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        return _copied(member, f"{name}.npy", scratch)


def _copied(stream: IO[bytes], name: str, scratch: str | None) -> NDArray[Any]:
    """The array in a stream, by way of a file that ends with the array or with the process."""
    with tempfile.TemporaryFile(dir=scratch) as file:
        shutil.copyfileobj(stream, file, 2**20)
        file.seek(0)
        return _mapped(file, name)


def _mapped(file: IO[bytes], name: str) -> NDArray[Any]:
    """The array in a local file: mapped, so that it need not fit in memory, unless it is small."""
    begins = file.read(len(np.lib.format.MAGIC_PREFIX))
    if begins != np.lib.format.MAGIC_PREFIX:
        raise InvalidInput(f"{name} does not begin as a .npy file does; check it, and its name.")
    file.seek(0)
    try:
        if os.fstat(file.fileno()).st_size < 2**20:
            small: NDArray[Any] = np.load(file, allow_pickle=False)
            return small
        shape, by_columns, dtype = HEADERS[np.lib.format.read_magic(file)](file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        return np.memmap(file, dtype, "r", file.tell(), shape, "F" if by_columns else "C")
    except (ValueError, EOFError, KeyError) as error:
        raise InvalidInput(f"{name} holds no array of numbers ({error}).") from error
