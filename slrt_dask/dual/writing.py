"""Writing a fitted model from where its parts are: dual entries and the slab mode's fibre sums.

Neither goes through the driver. Every share writes the dual entries of its own partitions, and the
one task that ends the reduction of the fibre sums writes those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from slrt_dask.data.layout import write_partition
from slrt_dask.dual.operator import Factors, Matrix, crossing_sums
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Finished, Program
from slrt_dask.engine.share import Share

SUMS_ARRAY = "fibre_sums"
KEYS_ARRAY = "fibre_keys"


def write_dual_partitions(share: Share, path: str, vector: str) -> dict[int, int]:
    """Write a share's part of a dual vector into a created store; checksums by partition."""
    checksums = {}
    for number in share.assignment.partitions:
        columns, _ = share.assignment.store.read_partition(number)
        name = share.assignment.store.partitions[number].name
        checksums[number] = write_partition(
            path, name, columns, share.partition_vector(number, vector)
        )
    return checksums


@dataclass(frozen=True)
class WriteFibreSums(Program):
    """Write T_p = U_pᵀ Z_p, (fibres, r_p), and the keys of its fibres if not all are numbered."""

    vector: str
    factors: Factors
    slab_mode: int
    group: str

    label = "write-sums"

    def first(self) -> None:
        return None

    def step(self, block: Block, message: None) -> tuple[Matrix, NDArray[np.int64] | None]:
        sums = crossing_sums(block, self.factors, block.vector(self.vector))
        return sums, block.numbering.known

    def combine(self, left: Any, right: Any) -> Any:
        # Every block knows the same keys; only the sums are added.
        return left[0] + right[0], left[1]

    def advance(self, message: None, total: Any) -> Finished:
        sums, keys = total
        write_array(self.group, SUMS_ARRAY, sums[:, : self.factors.ranks[self.slab_mode]])
        if keys is not None:
            write_array(self.group, KEYS_ARRAY, keys)
        return Finished(None)


def write_array(group_path: str, name: str, values: NDArray[Any]) -> None:
    """Write one array of a model into an existing group, in chunks of about 16 MiB."""
    group = zarr.open_group(group_path, mode="r+")
    row_bytes = max(1, values.nbytes // max(1, len(values)))
    rows = max(1, min(len(values), 2**24 // row_bytes))
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=(rows, *values.shape[1:]),
        dtype=values.dtype,
        overwrite=True,
    )
    array[...] = values
