"""The store format: what a store says about itself, and how columns become zarr arrays and back.

A root zarr v3 group holds one group per partition, because partitions differ in length, and each
of those holds the columns `indices_0 … indices_{K-1}` and `values`, and `weights` if observations
have some. Metadata is created first, by one process; each partition is then written once, by
anyone; the root's attribute block `slrt` is written last. It is plain JSON: a checksum of every
partition and a digest of all this, so that two stores with one digest hold the same observations
in the same partitions. zarr reads a missing chunk as fill without an error, so readers trust
checksums only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shlex
import warnings
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray
from zarr.core.group import GroupMetadata
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.errors import ContainsArrayError
from zarr.storage import FsspecStore

from slrt_dask.data import location
from slrt_dask.data.location import StorePath
from slrt_dask.errors import InvalidInput, StoreCorrupt, StoreNotFound, UnsupportedFormat

FORMAT_VERSION = 1
BLOCK_NAME = "slrt"
KINDS = ("observations", "dual")
VALUE_TYPES = ("float32", "float64")
LARGEST_INT32 = 2**31 - 1
LARGEST_CHUNK = 4_000_000
Columns = tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class PartitionInfo:
    """One partition: `count` entries whose slab index is in [first_slice, stop_slice).

    `checksum` is the CRC-32 of its decoded columns; 0 until it has been written.
    """

    name: str
    count: int
    first_slice: int
    stop_slice: int
    checksum: int = 0


@dataclass(frozen=True)
class StoreHeader:
    """Everything known of a store without reading its columns.

    `coordinates` and `about` (the name and the attributes of the input) are the JSON forms made in
    `data.coordinates`; `digest` is empty until the store has been finished. `mean_weight` is None
    where observations have no weights; otherwise `mean` is the weighted mean.
    """

    kind: str
    shape: tuple[int, ...]
    nnz: int
    slab_mode: int
    dtype: str
    partitions: tuple[PartitionInfo, ...]
    mean: float = 0.0
    dimension_names: tuple[str, ...] | None = None
    coordinates: dict[str, Any] | None = field(default=None, hash=False)
    about: dict[str, Any] | None = field(default=None, hash=False)
    format_version: int = FORMAT_VERSION
    digest: str = ""
    mean_weight: float | None = None

    @property
    def order(self) -> int:
        return len(self.shape)

    @property
    def weighted(self) -> bool:
        return self.mean_weight is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the arrays of a partition."""
        indices = (f"indices_{mode}" for mode in range(self.order))
        return (*indices, "values", "weights")[: self.order + 1 + self.weighted]

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """Little-endian int32, or int64 where a mode is too long for it."""
        return np.dtype("<i4") if max(self.shape) <= LARGEST_INT32 else np.dtype("<i8")

    @property
    def value_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    def slices_of(self, number: int) -> tuple[int, int]:
        """The slices that belong to a partition, including those without entries."""
        low = 0 if number == 0 else self.partitions[number].first_slice
        if number + 1 == len(self.partitions):
            return low, self.shape[self.slab_mode]
        return low, self.partitions[number + 1].first_slice

    def with_checksums(self, checksums: tuple[int, ...]) -> StoreHeader:
        """The same header with the checksums, one per partition in order, filled in."""
        pairs = zip(self.partitions, checksums, strict=True)
        return replace(self, partitions=tuple(replace(part, checksum=c) for part, c in pairs))

    def to_block(self) -> dict[str, Any]:
        """The JSON block of a finished store."""
        return {**self._body(), "digest": self.digest, "complete": True}

    def sealed(self) -> StoreHeader:
        """The same header with its digest computed."""
        return replace(self, digest=_digest(self._body()))

    def _body(self) -> dict[str, Any]:
        body = asdict(self)
        del body["digest"]
        for later in ("about", "mean_weight"):
            if body[later] is None:  # left out, as in stores from before there was such a field
                del body[later]
        return cast("dict[str, Any]", json.loads(_canonical(body)))


def _canonical(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False, default=int)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(body).encode()).hexdigest()


def corrupt(place: str, problem: str) -> StoreCorrupt:
    return StoreCorrupt(f"{place} {problem}; restore it from a copy, or ingest again.")


def parse_block(block: object, path: str) -> StoreHeader:
    """The header in a root attribute block, or an error that says what is wrong with it."""
    if not isinstance(block, dict):
        raise corrupt(path, f"has no '{BLOCK_NAME}' attributes, so it is no store of this package")
    version = block.get("format_version")
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{path} has format version {version!r}; this release reads version {FORMAT_VERSION}. "
            "Install the release that wrote it, or ingest again."
        )
    if block.get("complete") is not True:
        raise corrupt(path, "is not marked complete: the process that wrote it did not finish")
    body = {key: value for key, value in block.items() if key not in ("digest", "complete")}
    digest = block.get("digest")
    if digest != _digest(body):
        raise corrupt(path, f"was altered: its header does not match its digest {digest!r}")
    try:
        names = body["dimension_names"]
        body |= {
            "shape": tuple(body["shape"]),
            "partitions": tuple(PartitionInfo(**part) for part in body["partitions"]),
            "dimension_names": None if names is None else tuple(names),
        }
        header = StoreHeader(**body, digest=digest)
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(path, f"has a header that cannot be read ({error!r})") from error
    counted = sum(part.count for part in header.partitions)
    is_sensible = header.kind in KINDS and header.dtype in VALUE_TYPES and counted == header.nnz
    if not (is_sensible and 0 <= header.slab_mode < header.order):
        raise corrupt(
            path,
            f"has a header that contradicts itself: kind {header.kind!r}, dtype {header.dtype!r}, "
            f"shape {header.shape}, slab mode {header.slab_mode}, nnz {header.nnz} against "
            f"{counted} entries in its partitions",
        )
    return header


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
            # All at once: one by one takes four times as long.
            nodes: dict[str, Any] = {part.name: GroupMetadata()}
            for column in header.columns:
                nodes[f"{part.name}/{column}"] = _metadata(part.count, header, column)
            deque(root.create_hierarchy(nodes), maxlen=0)
    except BaseException:
        location.remove(place)
        raise


def write_partition(
    path: StorePath,
    name: str,
    indices: Sequence[ArrayLike],
    values: ArrayLike,
    weights: ArrayLike | None = None,
) -> int:
    """Write one partition of a created store and return its checksum.

    indices : K arrays (count,);  values, weights : arrays (count,).
    Any process may do this, one writer per partition.
    """
    place = location.normal_path(path)
    group = zarr.open_group(place, mode="r+", path=name, zarr_format=3)
    checksum = 0
    names = [*(f"indices_{mode}" for mode in range(len(indices))), "values"]
    columns = [*indices, values]
    if weights is not None:
        names, columns = [*names, "weights"], [*columns, weights]
    for column, data in zip(names, columns, strict=True):
        target = cast("zarr.Array[Any]", group[column])
        stored = np.ascontiguousarray(data, dtype=target.dtype)
        if stored.shape != target.shape:
            raise InvalidInput(
                f"partition {name} of {place} was created for {target.shape[0]} entries, but "
                f"{column} has shape {stored.shape}; create the store with the right counts."
            )
        checksum = zlib.crc32(stored.data, checksum)
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
    with warnings.catch_warnings():
        # zarr warns about what it does not recognise; here that becomes an error that names it.
        warnings.simplefilter("ignore")
        try:
            members = dict(root.members(max_depth=1))
        except OSError:
            raise
        except Exception as error:
            raise corrupt(place, f"holds metadata that cannot be read ({error})") from error
    for part in header.partitions:
        for column in header.columns:
            name = f"{part.name}/{column}"
            array = members.get(name)
            if not isinstance(array, zarr.Array):
                lost = f"the array {name}" if part.name in members else f"its partition {part.name}"
                raise corrupt(place, f"has lost {lost}")
            dtype = header.index_dtype if column.startswith("indices") else header.value_dtype
            if array.shape != (part.count,) or array.dtype != dtype:
                found = f"{array.shape} and type {array.dtype}"
                stated = f"where its header says {(part.count,)} and {dtype}"
                raise corrupt(place, f"has an array {name} of shape {found}, {stated}")
    return header


def read_partition(
    path: StorePath, header: StoreHeader, index: int, verify: bool = True
) -> tuple[Columns, NDArray[Any]]:
    """The columns of one partition: K index arrays (count,) and the values (count,)."""
    columns, values, _ = read_weighted(path, header, index, verify)
    return columns, values


def read_weighted(
    path: StorePath, header: StoreHeader, index: int, verify: bool = True
) -> tuple[Columns, NDArray[Any], NDArray[Any] | None]:
    """The same with the weights (count,); None where observations have none."""
    place = location.normal_path(path)
    if not 0 <= index < len(header.partitions):
        raise InvalidInput(
            f"partition {index} was asked for; {place} has partitions 0 to "
            f"{len(header.partitions) - 1}."
        )
    part = header.partitions[index]
    columns = _read_columns(place, header, part)
    checksum = 0
    for column in columns if verify else ():
        checksum = zlib.crc32(column.data, checksum)
    if verify and checksum != part.checksum:
        found = f"checksum {checksum}, not the {part.checksum} of its header"
        raise corrupt(
            place, f"has a partition {part.name} with {found}: a chunk was lost or altered"
        )
    order = header.order
    return columns[:order], columns[order], columns[order + 1] if header.weighted else None


def open_root(place: str) -> zarr.Group:
    """The root group at a place; an error of ours if there is none, or none that can be read."""
    try:
        root = zarr.open_group(place, mode="r", zarr_format=3)
    except (FileNotFoundError, ContainsArrayError) as error:
        if _is_array(place):
            remedy = f"make a store of it with from_array, or slrt-dask ingest {shlex.quote(place)}"
            raise StoreNotFound(f"{place} is an array, not a store; {remedy} STORE.") from error
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
        raise corrupt(place, f"cannot be read as a zarr group ({error})") from error
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


def _metadata(count: int, header: StoreHeader, column: str) -> ArrayV3Metadata:
    """What zarr keeps of a column: indices are compressed, values are not."""
    is_index = column.startswith("indices")
    dtype = header.index_dtype if is_index else header.value_dtype
    pieces = max(1, math.ceil(count / LARGEST_CHUNK))
    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if is_index:
        settings = {"typesize": dtype.itemsize, "cname": "lz4", "clevel": 5, "blocksize": 0}
        codecs.append({"name": "blosc", "configuration": {**settings, "shuffle": "bitshuffle"}})
    chunk = {"chunk_shape": (max(1, math.ceil(count / pieces)),)}
    return ArrayV3Metadata.from_dict(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": (count,),
            "data_type": dtype.name,
            "chunk_grid": {"name": "regular", "configuration": chunk},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            # Fill values that are never data: zarr leaves out chunks that hold only fill, and a
            # chunk that was lost should not read as plausible numbers.
            "fill_value": -1 if is_index else "NaN",
            "codecs": codecs,
            "attributes": {},
            "storage_transformers": (),
        }
    )


def _read_columns(place: str, header: StoreHeader, part: PartitionInfo) -> Columns:
    try:
        group = zarr.open_group(place, mode="r", path=part.name, zarr_format=3)
        arrays = [cast("zarr.Array[Any]", group[name]) for name in header.columns]
        return tuple(np.ascontiguousarray(array[:]) for array in arrays)
    except FileNotFoundError:
        problem = f"has lost its partition {part.name}"
    except OSError:
        raise
    except Exception as error:
        problem = f"has a partition {part.name} that cannot be decoded ({error})"
    # Raised here so that zarr's error is in the text and not in the chain: some of them cannot
    # travel from a worker.
    raise corrupt(place, problem)
