"""Parts of fitted models, read for the tasks of one process and shared between them.

What is kept is bounded, counted, and dropped when the completion it belongs to is. Everything is
known by the model's digest too, since a path may come to hold another model.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask import sums_reads
from slrt_dask.data.header import StoreHeader
from slrt_dask.data.layout import Columns, read_partition
from slrt_dask.data.read_cache import ReadCache
from slrt_dask.dual.sampling import Model
from slrt_dask.errors import StoreCorrupt
from slrt_dask.model_files import ModelHeader, read_model, read_model_header

KEPT_BYTES = 2**27
"""Of models, and again of partitions; some three partitions of the usual size."""
Partition = tuple[Columns, NDArray[Any]]


@dataclass(frozen=True)
class OpenedModel:
    """A model in memory, and what its files say of it."""

    header: ModelHeader
    model: Model

    @property
    def nbytes(self) -> int:
        known = self.model.numbering.known
        arrays = self.model.factors.padded
        numbered = 0 if known is None else known.nbytes
        return sum(array.nbytes for array in arrays) + numbered + self.model.offset.nbytes


def _partition_bytes(partition: Partition) -> int:
    return sum(array.nbytes for array in (*partition[0], partition[1]))


MODELS: ReadCache[tuple[str, str], OpenedModel] = ReadCache(KEPT_BYTES, lambda model: model.nbytes)
PARTITIONS: ReadCache[tuple[str, str, str, int], Partition] = ReadCache(
    KEPT_BYTES, _partition_bytes
)


def opened_model(path: str, digest: str) -> OpenedModel:
    """The model at a path, checked to be the one that is meant."""

    def read() -> OpenedModel:
        header = read_model_header(path)
        if header.digest != digest:
            raise StoreCorrupt(f"{path} now holds another model than the one that was opened.")
        return OpenedModel(header, read_model(path, header))

    return MODELS.get((path, digest), read)


def dual_partition(path: str, digest: str, number: int, name: str = "dual") -> Partition:
    """Indices and dual values of one partition; or those of the name "correction"."""
    header = _entries(path, digest, name)
    read = functools.partial(read_partition, f"{path}/{name}", header, number)
    return PARTITIONS.get((path, digest, name, number), read)


def _entries(path: str, digest: str, name: str) -> StoreHeader:
    header = opened_model(path, digest).header
    found = header.dual if name == "dual" else header.correction
    assert found is not None
    return found


def dual_slices(path: str, digest: str, slices: range, name: str = "dual") -> Partition:
    """Indices and dual values of a run of slices, from all partitions that have some of it."""
    header = _entries(path, digest, name)
    found = []
    for number, part in enumerate(header.partitions):
        if part.first_slice < slices.stop and part.stop_slice > slices.start:
            partition = dual_partition(path, digest, number, name)
            found.append(cut_slices(partition, header.slab_mode, slices))
    if not found:
        empty = np.zeros(0, dtype=header.index_dtype)
        return (empty,) * header.order, np.zeros(0)
    columns = tuple(np.concatenate(parts) for parts in zip(*(c for c, _ in found), strict=True))
    return columns, np.concatenate([values for _, values in found])


def cut_slices(partition: Partition, slab_mode: int, slices: range) -> Partition:
    """The entries of a partition that lie in a run of slices."""
    columns, values = partition
    slab = columns[slab_mode]
    # Bounds of the column's own type: others would have all of it converted. The last slice is
    # included rather than its successor excluded, which that type might not hold.
    low, high = np.array([slices.start, slices.stop - 1], dtype=slab.dtype)
    first = int(np.searchsorted(slab, low, side="left"))
    stop = int(np.searchsorted(slab, high, side="right"))
    return tuple(column[first:stop] for column in columns), values[first:stop]


def forget(path: str, digest: str) -> None:
    """Drop what this process keeps of a model."""
    MODELS.forget(lambda key: key == (path, digest))
    PARTITIONS.forget(lambda key: key[:2] == (path, digest))
    sums_reads.forget(path, digest)


def kept_bytes() -> int:
    """Bytes that this process keeps of all models."""
    return MODELS.nbytes + PARTITIONS.nbytes + sums_reads.PIECES.nbytes
