"""A fitted model on disk: what a completion is made of, written so that half of one never opens.

<path>/            group; attribute block `slrt` of kind "completion", marked complete last
<path>/dual/       the dual entries, in the layout of a store
<path>/model/      factors_0 … factors_{K-1}, fibre_sums, and fibre_keys where needed
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from slrt_dask.data import coordinates, location
from slrt_dask.data.header import StoreHeader
from slrt_dask.data.layout import (
    create_store,
    finish_store,
    open_root,
    read_header,
    read_partition,
    write_partition,
)
from slrt_dask.dual.certificate import Certificate
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.sampling import Model, with_empty_row
from slrt_dask.dual.writing import KEYS_ARRAY, SUMS_ARRAY, read_array, write_array
from slrt_dask.errors import StoreCorrupt, UnsupportedFormat
from slrt_dask.kernels.blocks import FibreNumbering, possible_fibres
from slrt_dask.kernels.rows import pad_columns
from slrt_dask.optim.records import IterationRecord
from slrt_dask.optim.stopping import StopReason

FORMAT_VERSION = 2
BLOCK_NAME = "slrt"


@dataclass(frozen=True)
class ModelHeader:
    """Everything about a fit but its arrays. `dual` is the header of the dual entries' store."""

    dual: StoreHeader
    cost_weight: float
    lambdas: tuple[float, ...]
    offset: float
    certificate: Certificate
    stop_reason: StopReason
    records: tuple[IterationRecord, ...]
    observations: str
    checksums: dict[str, int]
    constraint: dict[str, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dual.shape

    @property
    def slab_mode(self) -> int:
        return self.dual.slab_mode

    @property
    def digest(self) -> str:
        """A name for the content of the model."""
        return _digest(self.to_block())

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.dual.dimension_names

    @property
    def labels(self) -> dict[str, coordinates.Variable]:
        """Coordinates by name: (dimensions, values, attributes)."""
        return coordinates.decode_all(self.dual.coordinates)

    @property
    def about(self) -> dict[str, Any]:
        """What the input said of itself: `name`, perhaps None, and `attributes`."""
        return self.dual.about or {"name": None, "attributes": {}}

    def to_block(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "kind": "completion",
            "cost_weight": self.cost_weight,
            "lambdas": list(self.lambdas),
            "offset": self.offset,
            "certificate": asdict(self.certificate),
            "stop_reason": self.stop_reason.name,
            "records": [asdict(record) for record in self.records],
            "observations": self.observations,
            "dual_digest": self.dual.digest,
            "checksums": self.checksums,
            "constraint": self.constraint,
        }


def write_model(
    path: str,
    header: ModelHeader,
    factors: tuple[NDArray[np.float64], ...],
    write_dual: Callable[[str], tuple[int, ...]],
    write_sums: Callable[[str], dict[str, int]],
) -> ModelHeader:
    """Write a model to a new path.

    write_dual : fills a created store's partitions, wherever they are, and returns checksums
    write_sums : writes fibre_sums (and fibre_keys) into the group it is given; checksums by name
    """
    location.claim(path)
    try:
        root = zarr.create_group(path, attributes={BLOCK_NAME: {"complete": False}})
        root.create_group("model")
        create_store(f"{path}/dual", header.dual)
        checksums = write_dual(f"{path}/dual")
        dual = finish_store(f"{path}/dual", header.dual.with_checksums(checksums))
        arrays = f"{path}/model"
        sums = write_sums(arrays)
        for mode, factor in enumerate(factors):
            sums[f"factors_{mode}"] = write_array(arrays, f"factors_{mode}", factor)
        written = replace(header, dual=dual, checksums=sums)
        block = written.to_block()
        root.attrs.put({BLOCK_NAME: {**block, "digest": _digest(block), "complete": True}})
    except BaseException:
        location.remove(path)
        raise
    return written


def copy_model(source: str, target: str) -> None:
    """Copy a model to a new path, partition by partition."""
    header = read_model_header(source)

    def copy_dual(path: str) -> tuple[int, ...]:
        checksums = []
        for number, part in enumerate(header.dual.partitions):
            columns, values = read_partition(f"{source}/dual", header.dual, number)
            checksums.append(write_partition(path, part.name, columns, values))
        return tuple(checksums)

    def copy_sums(path: str) -> dict[str, int]:
        model = zarr.open_group(f"{source}/model", mode="r")
        present = [name for name in (SUMS_ARRAY, KEYS_ARRAY) if name in header.checksums]
        copied = {name: write_array(path, name, model[name]) for name in present}
        for name, checksum in copied.items():
            if checksum != header.checksums[name]:
                raise StoreCorrupt(f"{source}/model/{name} was altered after it was written.")
        return copied

    write_model(target, header, read_factors(source, header), copy_dual, copy_sums)


def read_model_header(path: str) -> ModelHeader:
    """The header of a finished model, or an error that says what is wrong with it."""
    block = open_root(path).attrs.asdict().get(BLOCK_NAME)
    if not isinstance(block, dict) or block.get("kind", "completion") != "completion":
        raise UnsupportedFormat(f"{path} is not a completion; check the path.")
    if block.get("complete") is not True:
        raise StoreCorrupt(
            f"{path} is not marked complete: the process that wrote it did not finish. "
            "Remove it and write it again."
        )
    if block.get("format_version") != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{path} has format version {block.get('format_version')!r}; this release reads "
            f"version {FORMAT_VERSION}."
        )
    body = {key: value for key, value in block.items() if key not in ("digest", "complete")}
    dual = read_header(f"{path}/dual")
    if block.get("digest") != _digest(body) or body.get("dual_digest") != dual.digest:
        raise StoreCorrupt(
            f"{path} does not match its digest: it was altered after it was written."
        )
    return _header_of(body, dual)


def read_factors(path: str, header: ModelHeader) -> tuple[NDArray[np.float64], ...]:
    """K factors (n_k, r_k)."""
    names = [f"factors_{mode}" for mode in range(len(header.shape))]
    return tuple(read_array(f"{path}/model", name, header.checksums[name]) for name in names)


def read_model(path: str, header: ModelHeader) -> Model:
    """Everything but the dual entries, ready for sampling."""
    arrays = {
        name: read_array(f"{path}/model", name, header.checksums[name])
        for name in (SUMS_ARRAY, KEYS_ARRAY)
        if name in header.checksums
    }
    keys = arrays.get(KEYS_ARRAY)
    possible = possible_fibres(header.shape, (header.slab_mode,))
    numbering = FibreNumbering(possible if keys is None else len(keys), keys)
    return Model(
        header.shape,
        header.slab_mode,
        Factors.of(read_factors(path, header)),
        header.lambdas,
        with_empty_row(pad_columns(arrays[SUMS_ARRAY])),
        numbering,
        header.offset,
    )


def _header_of(body: dict[str, Any], dual: StoreHeader) -> ModelHeader:
    return ModelHeader(
        dual=dual,
        cost_weight=body["cost_weight"],
        lambdas=tuple(body["lambdas"]),
        offset=body["offset"],
        certificate=Certificate(**body["certificate"]),
        stop_reason=StopReason[body["stop_reason"]],
        records=tuple(
            IterationRecord(**{**row, "ranks": tuple(row["ranks"])}) for row in body["records"]
        ),
        observations=body["observations"],
        checksums=body["checksums"],
        constraint=body["constraint"],
    )


def _digest(block: dict[str, Any]) -> str:
    canonical = json.dumps(block, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
