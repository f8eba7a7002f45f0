"""Holding observations out: two stores from one, streamed partition by partition.

Whether an observation is held out is decided by a 64-bit hash of its index and the seed, so it
does not depend on how the store was partitioned or in which order it was read. This changes when
another way of holding out is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data import location
from slrt_dask.data.batches import Batch, Source
from slrt_dask.data.hashing import hash_indices
from slrt_dask.data.header import StoreHeader
from slrt_dask.data.ingest import IngestOptions, ingest_together
from slrt_dask.data.layout import read_partition
from slrt_dask.data.location import StorePath
from slrt_dask.data.progress import Progress, tell
from slrt_dask.errors import InvalidInput


def split_store(
    path: str,
    header: StoreHeader,
    test: float,
    seed: int,
    train_path: StorePath | None = None,
    test_path: StorePath | None = None,
    progress: Progress | None = None,
) -> tuple[str, str]:
    """Write the two parts of a store and return their paths (train, test)."""
    if not 0.0 < test < 1.0:
        raise InvalidInput(f"test={test} is not a fraction; give a number between 0 and 1.")
    places = (
        location.normal_path(train_path if train_path is not None else f"{path}-train"),
        location.normal_path(test_path if test_path is not None else f"{path}-test"),
    )
    if places[0] == places[1]:
        raise InvalidInput(f"both parts would be written to {places[0]}; give two paths.")
    location.refuse_existing(*places)
    _refuse_empty(path, header, test, seed, progress)
    parts = (
        (place, _part_source(path, header, test, seed, held_out=held_out))
        for place, held_out in zip(places, (False, True), strict=True)
    )
    ingest_together(tuple(parts), _options(header, progress))
    return places


def is_held_out(indices: Sequence[NDArray[Any]], test: float, seed: int) -> NDArray[np.bool_]:
    """indices : K arrays (m,). Which of them are in the test part, (m,)."""
    # The top 53 bits are a uniform number in [0, 1) that a float64 holds exactly.
    uniform = (hash_indices(indices, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    held: NDArray[np.bool_] = uniform < test
    return held


def _refuse_empty(
    path: str, header: StoreHeader, test: float, seed: int, progress: Progress | None
) -> None:
    held = 0
    for number in range(len(header.partitions)):
        tell(progress, "count", number, len(header.partitions))
        columns, _ = read_partition(path, header, number)
        held += int(np.count_nonzero(is_held_out(columns, test, seed)))
    tell(progress, "count", len(header.partitions), len(header.partitions))
    if held in (0, header.nnz):
        part = "test" if held == 0 else "train"
        raise InvalidInput(
            f"with test={test} and seed={seed} the {part} part of {header.nnz} observations "
            "would be empty; choose another fraction or seed."
        )


def _part_source(
    path: str, header: StoreHeader, test: float, seed: int, *, held_out: bool
) -> Source:
    def read(limit: int) -> Iterator[Batch]:
        for number in range(len(header.partitions)):
            columns, values = read_partition(path, header, number)
            chosen = is_held_out(columns, test, seed) == held_out
            indices = np.stack([column[chosen] for column in columns])
            yield Batch(indices, values[chosen], visited=values.shape[0])

    return Source(
        batches=read,
        dtype=header.value_dtype,
        shape=header.shape,
        total=header.nnz,
        dimension_names=header.dimension_names,
        coordinates=header.coordinates,
        about=header.about,
    )


def _options(header: StoreHeader, progress: Progress | None) -> IngestOptions:
    largest = max(part.count for part in header.partitions)
    return IngestOptions(slab_mode=header.slab_mode, partition_entries=largest, progress=progress)
