"""What a store says about itself: the attribute block `slrt` of its root group.

The block is plain JSON. Its digest is a hash over everything else in it, and it holds a checksum
of every partition, so the digest names the content: two stores with one digest hold the same
observations in the same partitions. This changes when the block's fields change, and then
FORMAT_VERSION changes with it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from slrt_dask.errors import StoreCorrupt, UnsupportedFormat

FORMAT_VERSION = 1
BLOCK_NAME = "slrt"
KINDS = ("observations", "dual")
VALUE_TYPES = ("float32", "float64")
LARGEST_INT32 = 2**31 - 1


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
    `data.coordinates`; `digest` is empty until the store has been finished.
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

    @property
    def order(self) -> int:
        return len(self.shape)

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """Little-endian int32, or int64 where a mode is too long for it."""
        return np.dtype("<i4") if max(self.shape) <= LARGEST_INT32 else np.dtype("<i8")

    @property
    def value_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    def slices_of(self, number: int) -> tuple[int, int]:
        """The slices that belong to a partition, those without entries included."""
        low = 0 if number == 0 else self.partitions[number].first_slice
        if number + 1 == len(self.partitions):
            return low, self.shape[self.slab_mode]
        return low, self.partitions[number + 1].first_slice

    def with_checksums(self, checksums: tuple[int, ...]) -> StoreHeader:
        """The same header with the checksums, one per partition in order, filled in."""
        pairs = zip(self.partitions, checksums, strict=True)
        return replace(self, partitions=tuple(replace(part, checksum=c) for part, c in pairs))

    def sealed(self) -> StoreHeader:
        """The same header with its digest computed."""
        return replace(self, digest=_digest(self._body()))

    def to_block(self) -> dict[str, Any]:
        """The JSON block of a finished store."""
        return {**self._body(), "digest": self.digest, "complete": True}

    def _body(self) -> dict[str, Any]:
        names = self.dimension_names
        # Left out where there is none, as in stores from before there was such a field.
        about = {} if self.about is None else {"about": self.about}
        return {
            **about,
            "format_version": self.format_version,
            "kind": self.kind,
            "shape": [int(length) for length in self.shape],
            "nnz": int(self.nnz),
            "slab_mode": int(self.slab_mode),
            "dtype": self.dtype,
            "partitions": [asdict(part) for part in self.partitions],
            "mean": float(self.mean),
            "dimension_names": None if names is None else list(names),
            "coordinates": self.coordinates,
        }


def parse_block(block: object, path: str) -> StoreHeader:
    """The header in a root attribute block, or an error that says what is wrong with it."""
    if not isinstance(block, dict):
        raise StoreCorrupt(
            f"{path} is a zarr group without a '{BLOCK_NAME}' attribute block, so it is not a "
            "store of this package; ingest the data into a new path."
        )
    version = block.get("format_version")
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{path} has format version {version!r}; this release reads version {FORMAT_VERSION}. "
            "Install the release that wrote it, or ingest again."
        )
    if block.get("complete") is not True:
        raise StoreCorrupt(
            f"{path} is not marked complete: the process that wrote it did not finish. "
            "Remove it and write it again."
        )
    body = {key: value for key, value in block.items() if key not in ("digest", "complete")}
    if block.get("digest") != _digest(body):
        raise StoreCorrupt(
            f"{path} has a header that does not match its digest {block.get('digest')!r}: it was "
            "altered after it was written. Restore it from a copy, or ingest again."
        )
    return _header_of(block, path)


def float_name(dtype: DTypeLike) -> str:
    """The store's value type for numbers of this type: float32 stays, all else is float64."""
    given = np.dtype(dtype)
    return "float32" if given.kind == "f" and given.itemsize <= 4 else "float64"


def _header_of(block: dict[str, Any], path: str) -> StoreHeader:
    try:
        names = block["dimension_names"]
        header = StoreHeader(
            kind=str(block["kind"]),
            shape=tuple(int(length) for length in block["shape"]),
            nnz=int(block["nnz"]),
            slab_mode=int(block["slab_mode"]),
            dtype=str(block["dtype"]),
            partitions=tuple(PartitionInfo(**part) for part in block["partitions"]),
            mean=float(block["mean"]),
            dimension_names=None if names is None else tuple(str(name) for name in names),
            coordinates=cast("dict[str, Any] | None", block["coordinates"]),
            about=cast("dict[str, Any] | None", block.get("about")),
            digest=str(block["digest"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt(
            f"{path} has a header that cannot be read ({error!r}); ingest again."
        ) from error
    _check_header(header, path)
    return header


def _check_header(header: StoreHeader, path: str) -> None:
    counted = sum(part.count for part in header.partitions)
    sensible = (
        header.kind in KINDS
        and header.dtype in VALUE_TYPES
        and header.order >= 1
        and 0 <= header.slab_mode < header.order
        and counted == header.nnz
    )
    if not sensible:
        raise StoreCorrupt(
            f"{path} has a header that contradicts itself: kind {header.kind!r}, dtype "
            f"{header.dtype!r}, shape {header.shape}, slab mode {header.slab_mode}, nnz "
            f"{header.nnz} against {counted} entries in its partitions; ingest again."
        )


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
