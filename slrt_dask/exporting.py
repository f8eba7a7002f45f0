"""The whole completed tensor as a zarr array of its own.

The array's metadata is written last, in one write: until then there is nothing that zarr would
open, whatever happens to the process or to the workers that write the chunks.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import zarr
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath

from slrt_dask.data import location
from slrt_dask.model_files import BLOCK_NAME, ModelHeader


def write_dense(path: str, array: Any, header: ModelHeader) -> zarr.Array[Any]:
    """Write a dask array with regular chunks to a new zarr array, one writer per chunk."""
    location.claim(path)
    try:
        target = _without_metadata(path, array, header)
        array.store(target, lock=False)
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


def _without_metadata(path: str, array: Any, header: ModelHeader) -> zarr.Array[Any]:
    """An array that can be written to, of which nothing is stored yet."""
    pattern = zarr.create_array(
        MemoryStore(),
        shape=array.shape,
        chunks=array.chunksize,
        dtype=array.dtype,
        # A chunk that was lost must not read as plausible numbers.
        fill_value=float("nan"),
        dimension_names=header.names,
    )
    store = FsspecStore.from_url(path) if location.is_url(path) else LocalStore(path)
    return zarr.Array(zarr.AsyncArray(pattern.metadata, StorePath(store)))
