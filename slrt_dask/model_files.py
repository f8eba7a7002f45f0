"""A fitted model on disk: what a completion is made of, written so that half of one never opens.

<path>/            group; attribute block `slrt` of kind "completion", marked complete last
<path>/dual/       the dual entries, in the layout of a store
<path>/correction/ what to add at the same entries to satisfy a linear constraint, if there is one
<path>/model/      factors_0 … factors_{K-1}, fibre_sums, and fibre_keys where needed; or tensor,
                   of a Hankel fit, which has no dual entries. What was observed: fibre_counts and
                   slice_counts_0 …; extra_00000 … where some dual entries are no observations.
                   effects_0 … of a fit with an offset per mode
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import NDArray

from slrt_dask.data import coordinates, location
from slrt_dask.data.layout import (
    StoreHeader,
    create_store,
    finish_store,
    open_root,
    read_header,
    read_partition,
    write_partition,
)
from slrt_dask.dual.certificate import Certificate
from slrt_dask.dual.hankel.answers import TENSOR_ARRAY, copy_tensor
from slrt_dask.dual.offsets import Offset
from slrt_dask.dual.operator import Operator, terms_of
from slrt_dask.dual.sampling import Model
from slrt_dask.dual.writing import KEYS_ARRAY, SUMS_ARRAY, read_array, write_array
from slrt_dask.errors import StoreCorrupt, UnsupportedFormat
from slrt_dask.kernels.blocks import FibreNumbering, possible_fibres
from slrt_dask.optim.records import IterationRecord
from slrt_dask.optim.stopping import StopReason
from slrt_dask.sums_reads import FibreSums

FORMAT_VERSION, WITH_EFFECTS = 3, 4
"""The newer one is of models with an offset per mode, which earlier releases would not add."""
BLOCK_NAME = "slrt"
EFFECTS_ARRAY = "effects_"


@dataclass(frozen=True)
class ModelHeader:
    """Everything about a fit but its arrays. `dual` is the header of the dual entries' store.

    offset : the number that is added to every entry, besides the effects of its indices
    constraint : its table, or several;  correction : the header of the corrections' store
    dense : whether the tensor itself is kept, and neither dual entries nor sums
    drawn : how far towards the middle of its bounds the tensor has to go before these are added
    huber : δ of Huber's loss; None for the squared misfit
    """

    dual: StoreHeader
    cost_weight: float
    lambdas: tuple[float, ...]
    offset: float
    certificate: Certificate
    stop_reason: StopReason
    records: tuple[IterationRecord, ...]
    observations: str
    checksums: dict[str, int]
    constraint: Any = None
    correction: StoreHeader | None = None
    drawn: float = 0.0
    dense: bool = False
    huber: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dual.shape

    @property
    def slab_mode(self) -> int:
        return self.dual.slab_mode

    @property
    def has_effects(self) -> bool:
        """Whether there is an offset per index of every mode, beside the one for all."""
        return f"{EFFECTS_ARRAY}0" in self.checksums

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

    def described(self) -> dict[str, Any]:
        """What was fitted and how good it is, as attributes that every file format takes."""
        numbers = asdict(self.certificate)
        return {
            **{f"slrt_{name}": float(value) for name, value in numbers.items()},
            "slrt_C": self.cost_weight,
            "slrt_lambdas": list(self.lambdas),
            "slrt_ranks": list(self.records[-1].ranks) if self.records else [],
            "slrt_stop_reason": self.stop_reason.value,
            **({} if self.huber is None else {"slrt_huber": self.huber}),
        }

    def to_block(self) -> dict[str, Any]:
        return {
            "format_version": WITH_EFFECTS if self.has_effects else FORMAT_VERSION,
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
            "drawn": self.drawn,
            "dense": self.dense,
            "correction_digest": None if self.correction is None else self.correction.digest,
            # earlier models do not have it
            **({} if self.huber is None else {"huber": self.huber}),
        }


def write_model(
    path: str,
    header: ModelHeader,
    factors: tuple[NDArray[np.float64], ...],
    write_dual: Callable[[str], tuple[int, ...]],
    write_sums: Callable[[str], dict[str, int]],
    write_correction: Callable[[str], tuple[int, ...]] | None = None,
) -> ModelHeader:
    """Write a model to a new path.

    write_dual : fills a created store's partitions, wherever they are, and returns checksums
    write_sums : writes fibre_sums (and fibre_keys) into the group it is given; checksums by name
    write_correction : as write_dual, for corrections; None where there are none
    """
    location.claim(path)
    try:
        root = zarr.create_group(path, attributes={BLOCK_NAME: {"complete": False}})
        root.create_group("model")
        dual, correction = _filled(f"{path}/dual", header.dual, write_dual), None
        if write_correction is not None:
            correction = _filled(f"{path}/correction", header.dual, write_correction)
        arrays = f"{path}/model"
        sums = write_sums(arrays)
        for mode, factor in enumerate(factors):
            sums[f"factors_{mode}"] = write_array(arrays, f"factors_{mode}", factor)
        written = replace(header, dual=dual, checksums=sums, correction=correction)
        block = written.to_block()
        root.attrs.put({BLOCK_NAME: {**block, "digest": _digest(block), "complete": True}})
    except BaseException:
        location.remove(path)
        raise
    return written


def _filled(path: str, header: StoreHeader, write: Callable[[str], tuple[int, ...]]) -> StoreHeader:
    create_store(path, header)
    return finish_store(path, header.with_checksums(write(path)))


def copy_model(source: str, target: str) -> None:
    """Copy a model to a new path, partition by partition."""
    header = read_model_header(source)

    def copy_entries(path: str, *, name: str, entries: StoreHeader) -> tuple[int, ...]:
        checksums = []
        for number, part in enumerate(entries.partitions):
            columns, values = read_partition(f"{source}/{name}", entries, number)
            checksums.append(write_partition(path, part.name, columns, values))
        return tuple(checksums)

    def copy_sums(path: str) -> dict[str, int]:
        model = zarr.open_group(f"{source}/model", mode="r")
        if header.dense:
            copy_tensor(cast("zarr.Array[Any]", model[TENSOR_ARRAY]), path)
        present = [name for name in header.checksums if not name.startswith("factors_")]
        copied = {name: write_array(path, name, model[name]) for name in present}
        for name, checksum in copied.items():
            if checksum != header.checksums[name]:
                raise StoreCorrupt(f"{source}/model/{name} was altered after it was written.")
        return copied

    copy_dual = functools.partial(copy_entries, name="dual", entries=header.dual)
    copy_correction = None
    if header.correction is not None:
        copy_correction = functools.partial(
            copy_entries, name="correction", entries=header.correction
        )
    factors = read_factors(source, header)
    write_model(target, header, factors, copy_dual, copy_sums, copy_correction)


def is_unfinished(path: str) -> bool:
    """Whether the process that began to write a model has not ended that, or never will."""
    if not location.exists(f"{path}/zarr.json"):
        return True
    block = open_root(path).attrs.asdict().get(BLOCK_NAME)
    return isinstance(block, dict) and block.get("complete") is False


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
    if block.get("format_version") not in (FORMAT_VERSION, WITH_EFFECTS):
        raise UnsupportedFormat(
            f"{path} has format version {block.get('format_version')!r}; this release reads "
            f"versions {FORMAT_VERSION} and {WITH_EFFECTS}."
        )
    body = {key: value for key, value in block.items() if key not in ("digest", "complete")}
    dual, correction = read_header(f"{path}/dual"), None
    if body.get("correction_digest") is not None:
        correction = read_header(f"{path}/correction")
    digests = dual.digest, None if correction is None else correction.digest
    named = body.get("dual_digest"), body.get("correction_digest")
    if block.get("digest") != _digest(body) or named != digests:
        raise StoreCorrupt(
            f"{path} does not match its digest: it was altered after it was written."
        )
    return replace(_header_of(body, dual), correction=correction)


def read_factors(path: str, header: ModelHeader) -> tuple[NDArray[np.float64], ...]:
    """K factors (n_k, r_k)."""
    names = [f"factors_{mode}" for mode in range(len(header.shape))]
    return tuple(read_array(f"{path}/model", name, header.checksums[name]) for name in names)


def read_model(path: str, header: ModelHeader) -> Model:
    """Everything but the dual entries, ready for sampling; fibre sums are read when needed."""
    keys = None
    if KEYS_ARRAY in header.checksums:
        keys = read_array(f"{path}/model", KEYS_ARRAY, header.checksums[KEYS_ARRAY])
    possible = possible_fibres(header.shape, (header.slab_mode,))
    numbering = FibreNumbering(possible if keys is None else len(keys), keys)
    factors = read_factors(path, header)
    shape = numbering.count, factors[header.slab_mode].shape[1]
    sums = FibreSums(path, header.digest, header.checksums[SUMS_ARRAY], shape)
    return Model(
        header.shape,
        Operator.of(terms_of(header.lambdas), factors, header.slab_mode),
        lambda numbers: (sums.at(numbers),),
        numbering,
        read_offset(path, header),
    )


def read_offset(path: str, header: ModelHeader) -> Offset:
    """What is added to every entry."""
    if not header.has_effects:
        return Offset(header.offset)
    names = [f"{EFFECTS_ARRAY}{mode}" for mode in range(len(header.shape))]
    effects = (read_array(f"{path}/model", name, header.checksums[name]) for name in names)
    return Offset(header.offset, tuple(effects))


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
        drawn=body["drawn"],
        dense=body["dense"],
        huber=body.get("huber"),
    )


def _digest(block: dict[str, Any]) -> str:
    canonical = json.dumps(block, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
