"""The store format on disk: how columns become zarr arrays and come back.

A root zarr v3 group holds one group per partition, because partitions differ in length, and each
of those holds the columns `indices_0 … indices_{K-1}` and `values`. Metadata is created first, by
one process; each partition is then written once, by anyone; the root's attribute block is written
last. zarr reads a missing chunk as fill without an error, so readers trust checksums only.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import warnings
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray
from zarr.core.group import GroupMetadata
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.errors import ContainsArrayError
from zarr.storage import FsspecStore

from slrt_dask.data import location
from slrt_dask.data.header import (
    BLOCK_NAME,
    FORMAT_VERSION,
    PartitionInfo,
    StoreHeader,
    parse_block,
)
from slrt_dask.data.location import StorePath
from slrt_dask.errors import InvalidInput, StoreCorrupt, StoreNotFound

__all__ = [
    "PartitionInfo",
    "StoreHeader",
    "create_store",
    "finish_store",
    "partition_name",
    "read_header",
    "read_partition",
    "write_partition",
]

LARGEST_CHUNK = 4_000_000
Columns = tuple[NDArray[Any], ...]


def partition_name(number: int) -> str:
    return f"p{number:05d}"


def create_store(path: StorePath, header: StoreHeader) -> None:
    """Claim a new path and create every group and array in it, without any data.

    The header's checksums, mean and digest are not used: they are known only after writing.
    """
    place = location.normal_path(path)
    location.claim(place)
    try:
        unfinished = {"format_version": FORMAT_VERSION, "kind": header.kind, "complete": False}
        root = zarr.create_group(place, attributes={BLOCK_NAME: unfinished})
        for part in header.partitions:
            _create_partition(root, header, part)
    except BaseException:
        location.remove(place)
        raise


def write_partition(
    path: StorePath, name: str, indices: Sequence[ArrayLike], values: ArrayLike
) -> int:
    """Write one partition of a created store and return its checksum.

    indices : K arrays (count,);  values : array (count,).
    Any process may do this, one writer per partition.
    """
    place = location.normal_path(path)
    group = zarr.open_group(place, mode="r+", path=name, zarr_format=3)
    names = column_names(len(indices))
    checksum = 0
    for column, data in zip(names, (*indices, values), strict=True):
        target = _array_in(group, column)
        stored = np.ascontiguousarray(data, dtype=target.dtype)
        if stored.shape != target.shape:
            raise InvalidInput(
                f"partition {name} of {place} was created for {target.shape[0]} entries, but "
                f"{column} has shape {stored.shape}; create the store with the right counts."
            )
        checksum = zlib.crc32(_raw(stored), checksum)
        if stored.size:
            target[:] = stored
    return checksum


def finish_store(path: StorePath, header: StoreHeader) -> StoreHeader:
    """Write the attribute block, in one write, and return the header with its digest.

    `header` carries the checksums that `write_partition` returned.
    """
    sealed = header.sealed()
    root = zarr.open_group(location.normal_path(path), mode="r+", zarr_format=3)
    root.attrs.put({BLOCK_NAME: sealed.to_block()})
    return sealed


def read_header(path: StorePath) -> StoreHeader:
    """The header of a finished store, after checking that every array it names is there."""
    place = location.normal_path(path)
    root = open_root(place)
    header = parse_block(root.attrs.asdict().get(BLOCK_NAME), place)
    _check_arrays(root, header, place)
    return header


def read_partition(
    path: StorePath, header: StoreHeader, index: int, verify: bool = True
) -> tuple[Columns, NDArray[Any]]:
    """The columns of one partition: K index arrays (count,) and the values (count,)."""
    place = location.normal_path(path)
    if not 0 <= index < len(header.partitions):
        raise InvalidInput(
            f"partition {index} was asked for; {place} has partitions 0 to "
            f"{len(header.partitions) - 1}."
        )
    part = header.partitions[index]
    columns = _read_columns(place, header, part)
    if verify:
        _check_columns(place, part, columns)
    return columns[:-1], columns[-1]


def column_names(order: int) -> tuple[str, ...]:
    return (*(f"indices_{mode}" for mode in range(order)), "values")


def _create_partition(root: zarr.Group, header: StoreHeader, part: PartitionInfo) -> None:
    """Create a partition's group and arrays all at once: one by one takes four times as long."""
    places = _column_metadata(part.count, header.index_dtype, squeezed=True)
    values = _column_metadata(part.count, header.value_dtype, squeezed=False)
    nodes: dict[str, GroupMetadata | ArrayV3Metadata] = {part.name: GroupMetadata()}
    for column in column_names(header.order):
        nodes[f"{part.name}/{column}"] = values if column == "values" else places
    deque(root.create_hierarchy(cast(Any, nodes)), maxlen=0)


def _column_metadata(count: int, dtype: np.dtype[Any], *, squeezed: bool) -> ArrayV3Metadata:
    """What zarr keeps of a column, which is one array."""
    pieces = max(1, math.ceil(count / LARGEST_CHUNK))
    chunk = max(1, math.ceil(count / pieces))
    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if squeezed:
        settings = {"typesize": dtype.itemsize, "cname": "lz4", "clevel": 5, "blocksize": 0}
        codecs.append({"name": "blosc", "configuration": {**settings, "shuffle": "bitshuffle"}})
    return ArrayV3Metadata.from_dict(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": (count,),
            "data_type": dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": (chunk,)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            # Fill values that are never data: zarr leaves out chunks that hold only fill, and a
            # chunk that was lost should not read as plausible numbers.
            "fill_value": -1 if squeezed else "NaN",
            "codecs": codecs,
            "attributes": {},
            "storage_transformers": (),
        }
    )


def open_root(place: str) -> zarr.Group:
    """The root group at a place; an error of ours if there is none, or none that can be read."""
    try:
        root = zarr.open_group(place, mode="r", zarr_format=3)
    except (FileNotFoundError, ContainsArrayError) as error:
        if _is_array(place):
            raise StoreNotFound(
                f"{place} is an array, not a store; slrt-dask ingest {shlex.quote(place)} STORE, "
                "or from_array, makes a store of it."
            ) from error
        if location.exists(place):
            raise StoreNotFound(
                f"{place} exists but holds no zarr group, so there is no store to open; "
                "check the path, or make a store of a data file with ingest first."
            ) from error
        raise StoreNotFound(f"there is no store at {place}; check the path.") from error
    except OSError:
        raise
    except Exception as error:
        location.exists(place)  # which says so if the place cannot be reached at all
        raise StoreCorrupt(
            f"{place} cannot be read as a zarr group ({error}); restore it from a copy, or "
            "ingest again."
        ) from error
    if location.is_url(place):
        # Listings are remembered while the process lives, and others may have written since.
        cast(FsspecStore, root.store).fs.invalidate_cache()
    return root


def _is_array(place: str) -> bool:
    """Whether a place holds a zarr array itself, of either format."""
    with contextlib.suppress(Exception):  # of zarr and of file systems, which are many
        zarr.open_array(place, mode="r")
        return True
    return False


def _check_arrays(root: zarr.Group, header: StoreHeader, place: str) -> None:
    with warnings.catch_warnings():
        # zarr warns about what it does not recognise; here that becomes an error that names it.
        warnings.simplefilter("ignore")
        try:
            members = dict(root.members(max_depth=1))
        except OSError:
            raise
        except Exception as error:
            raise StoreCorrupt(
                f"{place} holds metadata that cannot be read ({error}); ingest again."
            ) from error
    for part in header.partitions:
        if part.name not in members:
            raise StoreCorrupt(f"{place} has lost its partition {part.name}; ingest again.")
        for column in column_names(header.order):
            _check_array(members.get(f"{part.name}/{column}"), header, part, column, place)


def _check_array(
    array: object, header: StoreHeader, part: PartitionInfo, column: str, place: str
) -> None:
    if not isinstance(array, zarr.Array):
        raise StoreCorrupt(f"{place} has lost the array {part.name}/{column}; ingest again.")
    dtype = header.value_dtype if column == "values" else header.index_dtype
    if array.shape != (part.count,) or array.dtype != dtype:
        raise StoreCorrupt(
            f"{place} has an array {part.name}/{column} of shape {array.shape} and type "
            f"{array.dtype}, where its header says {(part.count,)} and {dtype}; ingest again."
        )


def _read_columns(place: str, header: StoreHeader, part: PartitionInfo) -> Columns:
    try:
        group = zarr.open_group(place, mode="r", path=part.name, zarr_format=3)
        return tuple(
            np.ascontiguousarray(_array_in(group, column)[:])
            for column in column_names(header.order)
        )
    except FileNotFoundError:
        trouble = f"{place} has lost its partition {part.name}"
    except OSError:
        raise
    except Exception as error:
        trouble = f"partition {part.name} of {place} cannot be decoded ({error})"
    # Raised here so that zarr's error is in the text and not in the chain: some of them cannot
    # travel from a worker.
    raise StoreCorrupt(f"{trouble}; restore it from a copy, or ingest again.")


def _check_columns(place: str, part: PartitionInfo, columns: Columns) -> None:
    checksum = 0
    for column in columns:
        checksum = zlib.crc32(_raw(column), checksum)
    if checksum != part.checksum or any(column.shape != (part.count,) for column in columns):
        raise StoreCorrupt(
            f"partition {part.name} of {place} has checksum {checksum}, its header says "
            f"{part.checksum}: a chunk was lost or altered. Restore it from a copy, or ingest "
            "again."
        )


def _array_in(group: zarr.Group, name: str) -> zarr.Array[Any]:
    array = group[name]
    if not isinstance(array, zarr.Array):
        raise StoreCorrupt(f"{group.path}/{name} is not an array; ingest again.")
    return array


def _raw(column: NDArray[Any]) -> memoryview:
    return column.data
