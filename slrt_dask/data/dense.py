"""Dense data at a path as one lazy array, whatever its format: what ingest and scripts look at.

Missing entries are NaN. Nothing is read whole, so a source may be larger than memory. This changes
when another dense format is to be opened.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from slrt_dask.data import pictures
from slrt_dask.data.archives import npy_array, npz_arrays, opened_zarr, zarr_arrays
from slrt_dask.data.arrays import check_mask
from slrt_dask.data.datasets import NETCDF, is_labelled, labelled_zarr_array, netcdf_array
from slrt_dask.data.libraries import load
from slrt_dask.data.mapped import lazy_array
from slrt_dask.errors import InvalidInput, UnsupportedFormat

KNOWN = (".npy", ".npz", ".zarr", *NETCDF, *pictures.IMAGES, *pictures.VIDEOS)
ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")
# A block is looked at in float64, with a mask and random numbers beside it.
BLOCK_BYTES = "16MiB"


def open_array(source: str | os.PathLike[str], *, key: str | None = None) -> Any:
    """The dense array at a path: a dask array, or a lazy xarray.DataArray where it has labels.

    source : `.npy`, `.npz`, a zarr directory, `.nc` (netCDF), an image, a folder of images of one
        size, or a video. Pictures are (rows, columns[, colours]); several of them, as files, pages
        or frames, have one more mode, the last.
    key : which array or variable, where there are several; one called `mask` says by True what
        of the chosen one was observed, and the rest becomes NaN.
    """
    path = os.fspath(source)
    if not os.path.exists(path):
        raise InvalidInput(f"there is nothing at {path}; check the path.")
    ending = os.path.splitext(path)[1].lower()
    if key is not None and ending in (*pictures.IMAGES, *pictures.VIDEOS, ".npy"):
        raise InvalidInput(f"key={key!r} has no meaning for {ending} files; leave it out.")
    if os.path.isdir(path):
        return _directory(path, key)
    if ending in pictures.IMAGES:
        return pictures.image_array(path)
    if ending in pictures.VIDEOS:
        return pictures.video_array(path)
    if ending in NETCDF:
        return netcdf_array(path, key)
    if ending == ".npy":
        return _lazy(npy_array(path), None)
    if ending == ".npz":
        return _lazy(*npz_arrays(path, key))
    raise UnsupportedFormat(
        f"{path} has the unknown file type {ending!r}; known are {', '.join(KNOWN)}, and folders "
        "of images."
    )


def _directory(path: str, key: str | None) -> Any:
    if any(os.path.exists(os.path.join(path, mark)) for mark in ZARR_MARKS):
        if is_labelled(opened_zarr(path)):
            return labelled_zarr_array(path, key)
        return _lazy(*zarr_arrays(path, key))
    if pictures.is_image_folder(path) and key is None:
        return pictures.folder_array(path)
    raise InvalidInput(
        f"{path} is a directory without a zarr array and without images; give one with either."
    )


def _lazy(array: Any, mask: Any) -> Any:
    """A dask array of blocks of bounded size, NaN where the mask is not True."""
    check_mask(array, mask)
    values = lazy_array(array, _blocks(array))
    if mask is None:
        return values
    return load("dask.array").where(lazy_array(mask, values.chunks) != 0, values, np.nan)


def _blocks(array: Any) -> Any:
    normalize = load("dask.array.core").normalize_chunks
    previous = getattr(array, "chunks", None)
    return normalize(
        "auto", array.shape, BLOCK_BYTES, np.dtype(np.float64), previous_chunks=previous
    )
