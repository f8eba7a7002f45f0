"""Observations in a file: which reader a file's name asks for.

This changes when another file type is supported; how a type is read is its own module's matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from numpy.typing import DTypeLike

from slrt_dask.data import location
from slrt_dask.data.archives import npy_source, npz_source, parquet_source, zarr_source
from slrt_dask.data.arrays import array_source
from slrt_dask.data.batches import Source, check_shape, of_shape
from slrt_dask.data.datasets import NETCDF, netcdf_source
from slrt_dask.data.dense import ZARR_MARKS, open_array
from slrt_dask.data.duplicates import DuplicateRule
from slrt_dask.data.ingest import PARTITION_ENTRIES, IngestOptions, ingest
from slrt_dask.data.location import StorePath
from slrt_dask.data.pictures import IMAGES, VIDEOS, is_image_folder
from slrt_dask.data.progress import Progress
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.data.text import TextFormat, text_source
from slrt_dask.errors import InvalidInput, UnsupportedFormat


@dataclass(frozen=True)
class FileRequest:
    """A file and what the caller said about it; `scratch` has room for what must be unpacked."""

    path: str
    shape: tuple[int, ...] | None
    key: str | None
    delimiter: str | None
    scratch: str | None


def from_file(
    path: StorePath,
    source: StorePath,
    *,
    shape: Sequence[int] | None = None,
    key: str | None = None,
    delimiter: str | None = None,
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
    All else is as in `from_coo` and `from_array`.
    """
    options = IngestOptions(
        duplicates=duplicates,
        slab_mode=slab_mode,
        partition_entries=partition_entries,
        dtype=dtype,
        dimension_names=dimension_names,
        progress=progress,
    )
    given = os.fspath(source)
    # A local one is called what the caller called it.
    file = location.normal_path(given) if location.is_url(given) else given
    reader = _reader(file, key, delimiter)
    if not location.exists(file):
        raise InvalidInput(f"there is no file {file}; check its name.")
    place = location.normal_path(path)
    location.refuse_existing(place)
    lengths = None if shape is None else check_shape(shape)
    request = FileRequest(file, lengths, key, delimiter, location.scratch_parent(place))
    ingest(place, reader(request), options)
    return open_store(place)


def _tns(request: FileRequest) -> Source:
    return text_source(request.path, TextFormat(None, 1, False), request.shape)


def _csv(request: FileRequest) -> Source:
    delimiter = "," if request.delimiter is None else request.delimiter
    return text_source(request.path, TextFormat(delimiter, 0, True), request.shape)


def _npz(request: FileRequest) -> Source:
    return npz_source(request.path, request.shape, request.key, request.scratch)


def _npy(request: FileRequest) -> Source:
    return npy_source(request.path, request.shape, request.scratch)


def _zarr(request: FileRequest) -> Source:
    return zarr_source(request.path, request.shape, request.key)


def _parquet(request: FileRequest) -> Source:
    return parquet_source(request.path, request.shape)


def _netcdf(request: FileRequest) -> Source:
    return of_shape(netcdf_source(request.path, request.key), request.shape)


def _pictures(request: FileRequest) -> Source:
    if location.is_url(request.path):
        raise InvalidInput(f"{request.path} is not a local file; copy pictures first.")
    return of_shape(array_source(open_array(request.path)), request.shape)


FOLDER = "folder of images"
READERS: dict[str, Callable[[FileRequest], Source]] = {
    ".tns": _tns,
    ".tns.gz": _tns,
    ".csv": _csv,
    ".csv.gz": _csv,
    ".parquet": _parquet,
    ".npz": _npz,
    ".npy": _npy,
    ".zarr": _zarr,
    **dict.fromkeys(NETCDF, _netcdf),
    **dict.fromkeys((*IMAGES, *VIDEOS, FOLDER), _pictures),
}
WITH_KEY = (".npz", ".zarr", *NETCDF)
WITH_DELIMITER = (".csv", ".csv.gz")


def _reader(path: str, key: str | None, delimiter: str | None) -> Callable[[FileRequest], Source]:
    suffix = _suffix(path)
    if suffix not in READERS:
        raise UnsupportedFormat(
            f"{path} has the unknown file type {suffix!r}; known are {', '.join(READERS)}."
        )
    if key is not None and suffix not in WITH_KEY:
        raise InvalidInput(f"key={key!r} has no meaning for {suffix} files; leave it out.")
    if delimiter is not None and suffix not in WITH_DELIMITER:
        raise InvalidInput(f"delimiter={delimiter!r} has no meaning for {suffix}; leave it out.")
    return READERS[suffix]


def _suffix(path: str) -> str:
    """The ending that says the type; a directory that looks like zarr counts as `.zarr`."""
    name = PurePath(path)
    ending = "".join(name.suffixes[-2:] if name.suffix.lower() == ".gz" else name.suffixes[-1:])
    if ending.lower() in READERS:
        return ending.lower()
    if any(location.exists(f"{path}/{mark}") for mark in ZARR_MARKS):
        return ".zarr"
    return FOLDER if not location.is_url(path) and is_image_folder(path) else ending.lower()
