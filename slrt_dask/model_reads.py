"""Parts of fitted models, read for the tasks of one process and shared between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.layout import Columns, StoreHeader, read_partition
from slrt_dask.dual.hankel.answers import TENSOR_ARRAY
from slrt_dask.dual.sampling import Model
from slrt_dask.dual.writing import use_array
from slrt_dask.errors import StoreCorrupt
from slrt_dask.model_files import ModelHeader, read_model, read_model_header
from slrt_dask.sums_reads import KEPT

QUERIES_AT_ONCE = 1_000_000
"""Of a tensor that is kept as it is."""
Partition = tuple[Columns, NDArray[Any]]


@dataclass(frozen=True)
class OpenedModel:
    """A model in memory, and what its files say of it."""

    header: ModelHeader
    model: Model

    @property
    def nbytes(self) -> int:
        known = self.model.numbering.known
        arrays = self.model.operator.gather.padded
        numbered = 0 if known is None else known.nbytes
        return sum(array.nbytes for array in arrays) + numbered + self.model.offset.nbytes


def opened_model(path: str, digest: str) -> OpenedModel:
    """The model at a path, checked to be the one that is meant."""

    def read() -> OpenedModel:
        header = read_model_header(path)
        if header.digest != digest:
            raise StoreCorrupt(f"{path} now holds another model than the one that was opened.")
        return OpenedModel(header, read_model(path, header))

    return KEPT.get((path, digest, "model"), read)


def forget(path: str, digest: str) -> None:
    """Drop what this process keeps of a model."""
    KEPT.forget((path, digest))


# ---- dual entries ------------------------------------------------------------------------------


def dual_partition(path: str, digest: str, number: int, name: str = "dual") -> Partition:
    """Indices and dual values of one partition; or those of the name "correction"."""
    read = partial(read_partition, f"{path}/{name}", _entries(path, digest, name), number)
    return KEPT.get((path, digest, name, number), read)


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


# ---- a tensor that is kept as it is, chunk by chunk ----------------------------------------------


def dense_values(path: str, places: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Values (m,) at places (K, m), read in the order of the first mode."""
    order, values = np.argsort(places[0], kind="stable"), np.empty(places.shape[1])

    def read(these: NDArray[np.intp]) -> NDArray[np.float64]:
        wanted = tuple(places[:, these])
        found: NDArray[np.float64] = use_array(_tensor(path), lambda array: array.vindex[wanted])
        return found

    for first in range(0, len(order), QUERIES_AT_ONCE):
        these = order[first : first + QUERIES_AT_ONCE]
        values[these] = read(these)
    return values


def read_tensor(
    *, path: str, held: object, block_info: dict[Any, Any] | None = None
) -> NDArray[np.float64]:
    """One block of a dask array of the tensor."""
    assert block_info is not None
    box = tuple(slice(first, stop) for first, stop in block_info[None]["array-location"])
    chunk: NDArray[np.float64] = use_array(_tensor(path), lambda array: array[box])
    return chunk


def _tensor(path: str) -> str:
    return f"{path}/model/{TENSOR_ARRAY}"
