"""The answer of a Hankel problem, put together and used at the root of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from slrt_dask.data.holding_out import Kind, SquaredErrors
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.hankel.inner import OnTensors
from slrt_dask.dual.hankel.observed import Tensor
from slrt_dask.engine.program import Rounds

TENSOR_ARRAY = "tensor"
CHUNK_ENTRIES = 2**20


@dataclass(frozen=True)
class WithTensor(OnTensors):
    """One round after which the root has W."""

    vector: str

    at_once = 1

    def rounds(self) -> Rounds:
        (tensor,) = yield from self.gathered(self.vector)
        return self.used(self._complete(tensor))

    def _complete(self, tensor: Tensor) -> Tensor:
        """In the units of the data, and with its modes where they belong."""
        setting = self.setting
        tensor = tensor + setting.offset
        if setting.box is not None:  # to the last bit, which the offset may have cost
            tensor = np.clip(tensor, *setting.box.of(setting.store, setting.observed.seen))
        return tensor.transpose(np.argsort(setting.store.mode_order))

    def used(self, tensor: Tensor) -> Any:
        """What becomes of W."""
        return tensor


@dataclass(frozen=True)
class HankelValidationErrors(WithTensor):
    """Squared errors on the observations of another store, by what was held out."""

    validation: ObservationStore
    kind: Kind

    def used(self, tensor: Tensor) -> SquaredErrors:
        errors = SquaredErrors.none()
        for number in range(len(self.validation.partitions)):
            columns, values, weights = self.validation.read_weighted(number)
            wrong = tensor[columns] - values.astype(np.float64)
            errors += SquaredErrors.of(self.kind, columns, wrong, weights)
        return errors


@dataclass(frozen=True)
class WriteTensor(WithTensor):
    """Write W as an array of a group; every chunk carries its checksum."""

    group: str

    def used(self, tensor: Tensor) -> None:
        array = _tensor_array(self.group, tensor.shape)
        array[...] = tensor


def copy_tensor(source: zarr.Array[Any], group: str) -> None:
    """Copy the tensor of a model to another one, some chunks at a time."""
    target, rows = _tensor_array(group, source.shape), source.chunks[0]
    for first in range(0, source.shape[0], rows):
        target[first : first + rows] = source[first : first + rows]


def _tensor_array(group: str, shape: tuple[int, ...]) -> zarr.Array[Any]:
    return zarr.open_group(group, mode="r+").create_array(
        TENSOR_ARRAY,
        shape=shape,
        chunks=chunk_shape(shape),
        dtype="float64",
        # A chunk that was lost must not read as plausible numbers.
        fill_value=float("nan"),
        compressors=(ZstdCodec(), Crc32cCodec()),
    )


def chunk_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks of about CHUNK_ENTRIES, the first modes cut first."""
    sizes = list(shape)
    for mode, length in enumerate(shape):
        others = math.prod(sizes) // sizes[mode]
        sizes[mode] = min(length, max(1, CHUNK_ENTRIES // others))
    return tuple(sizes)
