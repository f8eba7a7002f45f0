"""What an ingest needs in memory, said before it starts."""

from __future__ import annotations

from slrt_dask.data.ingest import BATCH_ENTRIES, PARTITION_ENTRIES

RUNTIME_BYTES = 250 * 2**20
"""The interpreter with numpy, zarr and dask."""
COPIES = 4
"""Of a batch while it is checked, and of a partition while it is sorted and compressed: columns,
the order, and columns in that order."""


def ingest_bytes(
    order: int,
    *,
    partition_entries: int = PARTITION_ENTRIES,
    batch_entries: int = BATCH_ENTRIES,
) -> int:
    """Bytes that an ingest of a tensor of this order has in memory at most.

    The source's own memory comes on top: a chunk of a dask array, a row group of a file.
    """
    entry_bytes = 8 * (order + 1)
    # Slabs are whole slices, so that a partition may have more entries than it should.
    return RUNTIME_BYTES + COPIES * entry_bytes * (batch_entries + 3 * partition_entries // 2)
