"""Observations in a file: which reader a file's name asks for.

`from_file` makes a store of what a file holds; `open_array` opens the dense ones as one lazy array,
of which nothing is read whole, with NaN where entries are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from slrt_dask.data import location
from slrt_dask.data.archives import (
    NETCDF,
    is_labelled,
    labelled_array,
    labelled_source,
    npy_array,
    npz_arrays,
    npz_source,
    parquet_source,
    zarr_arrays,
)
from slrt_dask.data.arrays import array_source, check_mask, lazy_array
from slrt_dask.data.ingest import (
    PARTITION_ENTRIES,
    IngestOptions,
    Progress,
    Source,
    check_shape,
    ingest,
    of_shape,
)
from slrt_dask.data.libraries import load
from slrt_dask.data.location import StorePath
from slrt_dask.data.pictures import IMAGES, VIDEOS, image_array, images_in, video_array
from slrt_dask.data.sorting import DuplicateRule
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.data.text import TextFormat, text_source
from slrt_dask.errors import InvalidInput, UnsupportedFormat

ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")
FOLDER = "folder of images"
# A block is looked at in float64, together with a mask and random numbers.
BLOCK_BYTES = "16MiB"


@dataclass(frozen=True)
class FileRequest:
    """A file and what the caller said about it; `scratch` has room for what must be unpacked."""

    path: str
    shape: tuple[int, ...] | None
    key: str | None
    delimiter: str | None
    scratch: str | None
    weights: str | None = None


def from_file(
    path: StorePath,
    source: StorePath,
    *,
    shape: Sequence[int] | None = None,
    key: str | None = None,
    delimiter: str | None = None,
    weights: str | None = None,
    duplicates: DuplicateRule = "error",
    slab_mode: int | None = None,
    partition_entries: int = PARTITION_ENTRIES,
    dtype: DTypeLike | None = None,
    dimension_names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ObservationStore:
    """Store the observations in a file, which may be at a URL.

    source : `.tns` (FROSTT: indices from 1, then the value), `.csv` (indices from 0, then the
        value, with or without a header), either of them also `.gz`; `.parquet`; `.npz` (a saved
        sparse.COO, or arrays indices and values, or a dense array and perhaps its mask); `.npy`;
        `.nc` (netCDF, read by xarray); a `.zarr` directory; or an image, a folder of images or a
        video.
    shape : lengths; the smallest that holds all indices if the file does not say.
    key : which array of an `.npz`, zarr group or netCDF file, where there are several.
    delimiter : what separates the columns of a `.csv`, a comma if left out.
    weights : the column of a `.csv` (by its header) or `.parquet`, or the array of an `.npz`, zarr
        group or netCDF file, that has the observations' weights.
    All else is as in `from_coo` and `from_array`.
    """
    options = IngestOptions(
        slab_mode, partition_entries, dtype, dimension_names, progress, duplicates
    )
    given = os.fspath(source)
    # A local one is called what the caller called it.
    file = location.normal_path(given) if location.is_url(given) else given
    kind = _kind_of(file, key)
    if delimiter is not None and not kind.startswith(".csv"):
        raise InvalidInput(f"delimiter={delimiter!r} has no meaning for {kind}; leave it out.")
    if weights is not None and not kind.startswith((".csv", ".parquet", *WITH_KEY)):
        raise InvalidInput(
            f"weights={weights!r} names nothing in {kind}; make the store with from_coo or "
            "from_array, which take weights as an array."
        )
    if not location.exists(file):
        raise InvalidInput(f"there is no file {file}; check its name.")
    place = location.normal_path(path)
    location.refuse_existing(place)
    lengths = None if shape is None else check_shape(shape)
    scratch = location.scratch_parent(place)
    request = FileRequest(file, lengths, key, delimiter, scratch, weights)
    ingest(place, READERS[kind](request), options)
    return open_store(place)


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
    kind = _kind_of(path, key)
    if kind in DENSE:
        return DENSE[kind](path)
    if kind not in WITH_KEY:
        raise UnsupportedFormat(
            f"{path} has a file type {kind!r} of observations one by one; dense arrays are in "
            f"{', '.join((*WITH_KEY, *DENSE))}."
        )
    if kind == ".npz":
        return _lazy(*npz_arrays(path, key))
    return labelled_array(path, key) if is_labelled(path) else _lazy(*zarr_arrays(path, key)[:2])


def _lazy(array: Any, mask: Any, path: str | None = None) -> Any:
    """A dask array of blocks of bounded size, NaN where the mask is not True."""
    check_mask(array, mask)
    blocks = load("dask.array.core").normalize_chunks(
        "auto",
        array.shape,
        BLOCK_BYTES,
        np.dtype(np.float64),
        previous_chunks=getattr(array, "chunks", None),
    )
    values = lazy_array(array, blocks, path)
    if mask is None:
        return values
    return load("dask.array").where(lazy_array(mask, values.chunks) != 0, values, np.nan)


def _npy(path: str) -> Any:
    return _lazy(npy_array(path), None, os.path.abspath(path))


def _text(request: FileRequest, delimiter: str | None, index_base: int) -> Source:
    form = TextFormat(delimiter, index_base, may_have_header=delimiter is not None)
    return text_source(request.path, form, request.shape, request.weights)


def _zarr(request: FileRequest) -> Source:
    if is_labelled(request.path):
        return of_shape(labelled_source(request.path, request.key, request.weights), request.shape)
    arrays = zarr_arrays(request.path, request.key, request.weights)
    return of_shape(array_source(*arrays), request.shape)


def _pictures(request: FileRequest) -> Source:
    if location.is_url(request.path):
        raise InvalidInput(f"{request.path} is not a local file; copy pictures first.")
    return of_shape(array_source(open_array(request.path)), request.shape)


READERS: dict[str, Callable[[FileRequest], Source]] = {
    **dict.fromkeys((".tns", ".tns.gz"), lambda file: _text(file, None, 1)),
    **dict.fromkeys((".csv", ".csv.gz"), lambda file: _text(file, file.delimiter or ",", 0)),
    ".parquet": lambda file: parquet_source(file.path, file.shape, file.weights),
    ".npz": lambda file: npz_source(file.path, file.shape, file.key, file.scratch, file.weights),
    ".npy": lambda file: of_shape(array_source(npy_array(file.path, file.scratch)), file.shape),
    **dict.fromkeys((".zarr", *NETCDF), _zarr),
    **dict.fromkeys((*IMAGES, *VIDEOS, FOLDER), _pictures),
}
"""Ends of names, and what makes a source of such a file."""
DENSE: dict[str, Callable[[str], Any]] = {
    ".npy": _npy,
    **dict.fromkeys((*IMAGES, FOLDER), image_array),
    **dict.fromkeys(VIDEOS, video_array),
}
"""Ends of names of files that hold one dense array."""
WITH_KEY = (".npz", ".zarr", *NETCDF)


def _kind_of(path: str, key: str | None) -> str:
    """Which reader it needs; a directory that looks like zarr counts as `.zarr`."""
    name = PurePath(path.lower())
    kind = "".join(name.suffixes[-2:] if name.suffix == ".gz" else name.suffixes[-1:])
    is_directory = not location.is_url(path) and os.path.isdir(path)
    if kind not in READERS or (is_directory and kind != ".zarr"):
        if any(location.exists(f"{path}/{mark}") for mark in ZARR_MARKS):
            kind = ".zarr"
        elif is_directory and images_in(path):
            kind = FOLDER
        elif is_directory:
            raise InvalidInput(
                f"{path} is a directory without a zarr array and without images; give one with "
                "either."
            )
        else:
            raise UnsupportedFormat(
                f"{path} has the unknown file type {kind!r}; known are {', '.join(READERS)}."
            )
    if key is not None and kind not in WITH_KEY:
        raise InvalidInput(f"key={key!r} has no meaning for {kind} files; leave it out.")
    return kind
