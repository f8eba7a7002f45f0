"""Writing a fitted model from where its parts are: dual entries and the slab mode's fibre sums.

With them goes what is needed to count the observations behind a prediction: how many there are in
each fibre of the slab mode, and which entries are none. None of it goes through the driver. Every
share writes the dual entries of its own partitions, and the one task that ends the reduction of the
fibre sums writes those.
"""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from slrt_dask.data.layout import write_partition
from slrt_dask.dual.entries import MARKS
from slrt_dask.dual.operator import Operator
from slrt_dask.dual.working_set import partition_columns, restore_extra
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.engine.share import Share
from slrt_dask.errors import StoreCorrupt
from slrt_dask.kernels.entries import OBSERVED

SUMS_ARRAY = "fibre_sums"
KEYS_ARRAY = "fibre_keys"
COUNTS_ARRAY = "fibre_counts"
EXTRA_ARRAY, SLICES_ARRAY = "extra_", "slice_counts_"
"""Followed by a partition's number, and by a mode."""
CHUNK_BYTES = 2**24


def partition_extra(share: Share, partition: int) -> NDArray[np.bool_]:
    """Which of one partition's entries are not the store's."""
    return np.concatenate([block.extra[piece] for block, piece in share.pieces(partition)])


def partition_vector(share: Share, partition: int, name: str) -> NDArray[Any]:
    """A named vector over one whole partition, in the store's order."""
    pieces = share.pieces(partition)
    return np.concatenate([block.vector(name)[piece] for block, piece in pieces])


def put_partition_vector(share: Share, partition: int, name: str, values: NDArray[Any]) -> None:
    """Set a named vector over one whole partition, given in the store's order."""
    first = 0
    for block, piece in share.pieces(partition):
        count = piece.stop - piece.start
        block.fresh(name)[piece] = values[first : first + count]
        first += count


def write_dual_partitions(share: Share, path: str, vector: str) -> dict[int, int]:
    """Write a share's part of a dual vector into a created store; checksums by partition."""
    checksums = {}
    for number in share.assignment.partitions:
        columns = partition_columns(share, number)
        name = share.assignment.store.partitions[number].name
        checksums[number] = write_partition(
            path, name, columns, partition_vector(share, number, vector)
        )
    return checksums


def write_extra(share: Share, group: str) -> dict[str, int]:
    """Write which entries of a share's partitions are no observations; checksums by name."""
    checksums = {}
    for number in share.assignment.partitions:
        bits = np.packbits(partition_extra(share, number))
        name = f"{EXTRA_ARRAY}{number:05d}"
        checksums[name] = write_array(group, name, bits)
    return checksums


def slice_counts(share: Share) -> tuple[NDArray[np.int64], ...]:
    """How many of a share's observations have each index, K arrays (n_k,)."""
    counts = tuple(np.zeros(length, dtype=np.int64) for length in share.assignment.store.shape)
    for number in share.assignment.partitions:
        seen = ~partition_extra(share, number)
        for count, column in zip(counts, partition_columns(share, number), strict=True):
            count += np.bincount(column[seen], minlength=len(count))
    return counts


def write_dual_files(share: Share, directory: str, vectors: tuple[str, ...]) -> dict[int, int]:
    """Write a share's part of some vectors for a checkpoint; checksums by partition.

    Of entries that are not the store's, their places are written first.
    """
    checksums = {}
    for number in share.assignment.partitions:
        columns = partition_columns(share, number, extra=True)
        extra = np.zeros((share.assignment.store.order, 0), dtype=np.int64)
        if columns:  # chunks of an embedded tensor have none
            extra = np.stack(columns).astype(np.int64)
        pieces = [np.array([extra.shape[1]]), extra]
        pieces += [partition_vector(share, number, name) for name in vectors]
        checksum = 0
        with open(_dual_file(share, directory, number), "wb") as file:
            for piece in pieces:
                content = np.ascontiguousarray(piece).data
                file.write(content)
                checksum = zlib.crc32(content, checksum)
            file.flush()
            os.fsync(file.fileno())
        checksums[number] = checksum
    return checksums


def read_places(share: Share, directory: str, checksums: dict[int, int]) -> bool:
    """Have the entries that a checkpoint has beyond the store's; whether there are any."""
    extra = {
        number: _read_dual_file(share, directory, number, checksums)[0]
        for number in share.assignment.partitions
    }
    if not any(places.size for places in extra.values()):
        return False
    restore_extra(share, extra)
    return True


def read_dual_files(
    share: Share, directory: str, vectors: tuple[str, ...], checksums: dict[int, int]
) -> None:
    """Put a share's part of a checkpoint's vectors back under names."""
    for number in share.assignment.partitions:
        _, values = _read_dual_file(share, directory, number, checksums)
        for name, vector in zip(vectors, np.split(values, len(vectors)), strict=True):
            put_partition_vector(share, number, name, vector)


def _read_dual_file(
    share: Share, directory: str, number: int, checksums: dict[int, int]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Places beyond the store's, (K, m), and the vectors one after another."""
    file, content = _dual_file(share, directory, number), None
    with contextlib.suppress(OSError, ValueError, EOFError):
        content = np.fromfile(file, dtype=np.uint8)
    if content is None or zlib.crc32(content.data) != checksums.get(number):
        raise StoreCorrupt(f"{file} was lost or altered after it was written")
    count, order = int(content[:8].view(np.int64)[0]), share.assignment.store.order
    stop = 8 + 8 * order * count
    places = content[8:stop].view(np.int64).reshape(order, count)
    return places, content[stop:].view(share.assignment.precision)


def _dual_file(share: Share, directory: str, number: int) -> str:
    return f"{directory}/{share.assignment.store.partitions[number].name}.bin"


@dataclass(frozen=True)
class WriteFibreSums(Program):
    """Write T_p = U_pᵀ Z_p, (fibres, r_p), and its fibres' keys if not all are numbered.

    Beside them, how many observations each fibre has, (fibres,). The outcome is a checksum for
    each array written.

    marked : whether the blocks have entries that are no observations, and marks that tell
    """

    vector: str
    operator: Operator
    group: str
    marked: bool

    at_once = 1

    def rounds(self) -> Rounds:
        sums, counts, keys = yield Sweep(WriteFibreSums._sums)
        (t,) = self.operator.crossing
        columns = self.operator.gather.ranks[t]
        arrays = {SUMS_ARRAY: sums[:, :columns], COUNTS_ARRAY: counts}
        if keys is not None:
            arrays[KEYS_ARRAY] = keys
        return {name: write_array(self.group, name, arrays[name]) for name in arrays}

    def _sums(self, block: Block, total: Any) -> Any:
        held = None if total is None else (total[0],)
        (sums,) = self.operator.crossing_sums(block, block.vector(self.vector), held)
        fibres = block.index.fibres[self.operator.slab_mode]
        if self.marked:
            fibres = fibres[(block.vector(MARKS).astype(np.int64) & OBSERVED) > 0]
        counts = np.bincount(fibres, minlength=len(sums)).astype(np.int64)
        return sums, counts if total is None else total[1] + counts, block.numbering.known

    def combine(self, left: Any, right: Any) -> Any:
        # Every block knows the same keys; only the sums are added.
        return left[0] + right[0], left[1] + right[1], left[2]


def write_array(group_path: str, name: str, values: Any) -> int:
    """Write one array of a model into an existing group, some rows at a time.

    values : a numpy or zarr array; returns the checksum of its content
    """
    create_array(group_path, name, values.shape, values.dtype)
    return write_rows(group_path, name, 0, values, 0)


def create_array(group_path: str, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Create one array of a model in an existing group, in chunks of whole rows."""
    row_bytes = np.dtype(dtype).itemsize * max(1, math.prod(shape[1:]))
    rows = max(1, min(shape[0], CHUNK_BYTES // row_bytes))
    # By its whole path: through the group, zarr would look at all groups above and write them too.
    zarr.create_array(
        f"{group_path}/{name}",
        shape=shape,
        chunks=(rows, *shape[1:]),
        dtype=dtype,
        # Digits of sums do not become fewer, but take four times as long to be read.
        compressors=None if np.dtype(dtype).kind == "f" else "auto",
    )


def write_rows(group_path: str, name: str, first: int, values: Any, checksum: int) -> int:
    """Write an array's rows from `first` on; the checksum of all rows up to these.

    values : a numpy or zarr array, read some rows at a time;  checksum : of the rows before them
    """
    array = zarr.open_array(f"{group_path}/{name}", mode="r+")
    rows, last, at = array.chunks[0], first + values.shape[0], first
    while at < last:
        # To the end of a chunk, so that none is written twice but where rows begin or end in it.
        stop = min(last, at - at % rows + rows)
        piece = np.ascontiguousarray(values[at - first : stop - first])
        array[at:stop] = piece
        checksum = zlib.crc32(piece.data, checksum)
        at = stop
    return checksum


def read_array(group_path: str, name: str, checksum: int) -> NDArray[Any]:
    """One array of a model, checked against the checksum of its writing."""
    values = read_rows(group_path, name)
    if zlib.crc32(values.data) != checksum:
        raise StoreCorrupt(f"{group_path}/{name} was altered after it was written.")
    return values


def read_rows(group_path: str, name: str, first: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Some rows of an array of a model, which nobody has checked."""

    def read(array: zarr.Array[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(array[first:stop])

    rows: NDArray[Any] = use_array(f"{group_path}/{name}", read)
    return rows


def rows_at_once(group_path: str, name: str) -> tuple[tuple[int, ...], int]:
    """The shape of an array of a model, and how many of its rows are read best at once."""
    found: tuple[tuple[int, ...], int] = use_array(
        f"{group_path}/{name}", lambda array: (array.shape, array.chunks[0])
    )
    return found


def use_array(place: str, use: Callable[[zarr.Array[Any]], Any]) -> Any:
    """What is made of an array on disk; StoreCorrupt if that cannot be done."""
    found, trouble = None, ""
    try:
        found = use(zarr.open_array(place, mode="r"))
    except Exception as error:  # whatever zarr makes of metadata or chunks that are not its own
        trouble = str(error)
    if found is None:
        # Raised here so that zarr's error is in the text and not in the chain: some of them
        # cannot travel from a worker.
        raise StoreCorrupt(f"{place} was altered or lost ({trouble}).")
    return found
