"""Observations at rest: the store, everything that makes one, and synthetic data to try it on."""

from __future__ import annotations

from slrt_dask.data.arrays import from_array, from_batches, from_coo
from slrt_dask.data.files import from_file, open_array
from slrt_dask.data.layout import (
    PartitionInfo,
    StoreHeader,
    create_store,
    finish_store,
    read_header,
    read_partition,
    write_partition,
)
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.data.synthetic import low_rank_observations, low_rank_tensor, sample_entries

__all__ = [
    "ObservationStore",
    "PartitionInfo",
    "StoreHeader",
    "create_store",
    "finish_store",
    "from_array",
    "from_batches",
    "from_coo",
    "from_file",
    "low_rank_observations",
    "low_rank_tensor",
    "open_array",
    "open_store",
    "read_header",
    "read_partition",
    "sample_entries",
    "write_partition",
]
