"""The whole completed tensor on disk: as a zarr array of its own, or as a group that xarray opens.

Metadata is written last, and that of the whole last of all, in one write: until then there is
nothing that zarr would open, whatever happens to the process or to the workers that write chunks.
"""

from __future__ import annotations

import uuid
import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import zarr
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath

from slrt_dask.counting import computed_one_by_one
from slrt_dask.data import location
from slrt_dask.data.ingest import Progress
from slrt_dask.errors import InvalidInput
from slrt_dask.model_files import BLOCK_NAME, ModelHeader

ROOT = "zarr.json"


def write_dense(
    path: str, array: Any, header: ModelHeader, progress: Progress | None = None
) -> zarr.Array[Any]:
    """Write a dask array with regular chunks to a new zarr array, one writer per chunk."""
    location.claim(path)
    try:
        pattern = zarr.create_array(
            MemoryStore(),
            shape=array.shape,
            chunks=array.chunksize,
            dtype=array.dtype,
            # A chunk that was lost must not read as plausible numbers.
            fill_value=float("nan"),
            dimension_names=header.names,
        )
        target = _without_metadata(path, "", pattern)
        _write_chunks(array, target, path, progress)
        block = {
            "certificate": asdict(header.certificate),
            "stop_reason": header.stop_reason.value,
            "complete": True,
        }
        target.attrs.put({**header.about["attributes"], BLOCK_NAME: block})
    except BaseException:
        location.remove(path)
        raise
    return target


def write_labelled(path: str, array: Any, progress: Progress | None = None) -> zarr.Array[Any]:
    """Write a lazy xarray.DataArray to a new zarr group, with its coordinates.

    Its chunks are written one writer each; all else is made in memory first.
    """
    name = str(array.name).replace("/", "_")
    if name in array.coords or name in array.dims:
        name = f"{name}_completed"
    files = _files_but_chunks(array, name)
    location.claim(path)
    try:
        target = _without_metadata(path, name, zarr.open_array(MemoryStore(files), path=name))
        _write_chunks(array.data, target, path, progress)
        for key in sorted(files, key=lambda key: (key == ROOT, key)):
            location.write_file(f"{path}/{key}", files[key].to_bytes())
    except BaseException:
        location.remove(path)
        raise
    return target


def _files_but_chunks(array: Any, name: str) -> dict[str, Any]:
    """What xarray writes of an array when its own values are left out, by their names."""
    files: dict[str, Any] = {}
    # Text of a fixed length has no settled form in zarr's third version; that of any length does.
    text = {
        key: variable.astype(object)
        for key, variable in array.coords.items()
        if variable.dtype.kind == "U"
    }
    described = array.assign_coords(text).to_dataset(name=name)
    with warnings.catch_warnings():
        # Of bytes and of metadata in one place zarr says that others may not read them.
        warnings.simplefilter("ignore")
        described.to_zarr(
            MemoryStore(files),
            zarr_format=3,
            compute=False,
            consolidated=True,
            encoding={name: {"chunks": array.data.chunksize, "_FillValue": np.nan}},
        )
    return files


def _without_metadata(path: str, name: str, pattern: zarr.Array[Any]) -> zarr.Array[Any]:
    """An array that can be written to, of which nothing is stored yet."""
    store = FsspecStore.from_url(path) if location.is_url(path) else LocalStore(path)
    return zarr.Array(zarr.AsyncArray(pattern.metadata, StorePath(store, name)))


def _write_chunks(
    array: Any, target: zarr.Array[Any], path: str, progress: Progress | None
) -> None:
    written = array.map_blocks(
        _write_chunk,
        target=target,
        name=f"slrt-export-{uuid.uuid4().hex[:12]}",
        dtype=np.bool_,
        chunks=tuple((1,) * len(lengths) for lengths in array.chunks),
        meta=np.zeros((0,) * array.ndim, dtype=np.bool_),
    )
    computed_one_by_one(list(written.to_delayed().ravel()), "write", progress)
    # Without the workers' own say: what they see at a path may be another disk, or another memory.
    missing = target.nchunks - target.nchunks_initialized
    if missing:
        raise InvalidInput(
            f"{missing} of {target.nchunks} chunks are not there after workers have written them, "
            f"so they do not see {path}; export to a place that this process and all "
            "workers see."
        )


def _write_chunk(
    chunk: Any, *, target: zarr.Array[Any], block_info: dict[Any, Any] | None = None
) -> Any:
    assert block_info is not None
    ranges = block_info[0]["array-location"]
    target[tuple(slice(first, stop) for first, stop in ranges)] = chunk
    return np.ones((1,) * chunk.ndim, dtype=np.bool_)
