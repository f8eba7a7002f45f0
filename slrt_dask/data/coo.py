"""Observations given as index columns and values, in memory, lazily as dask, or batch by batch.

This changes when coordinate data comes in another shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from slrt_dask.data.batches import Batch, Source
from slrt_dask.data.duplicates import DuplicateRule
from slrt_dask.data.ingest import PARTITION_ENTRIES, IngestOptions, ingest
from slrt_dask.data.libraries import is_dask_array, is_sparse_coo, load
from slrt_dask.data.location import StorePath
from slrt_dask.data.progress import Progress
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.errors import InvalidInput


def from_coo(
    path: StorePath,
    indices: Any,
    values: Any = None,
    shape: Sequence[int] | None = None,
    *,
    duplicates: DuplicateRule = "error",
    slab_mode: int | None = None,
    partition_entries: int = PARTITION_ENTRIES,
    dtype: DTypeLike | None = None,
    dimension_names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ObservationStore:
    """Store observations given by their coordinates.

    indices : array (K, m), or K arrays (m,), numpy or dask, counting from 0; or a `sparse.COO`,
        whose stored entries are the observations, and then values and shape are left out.
    values : array (m,).
    shape : K lengths; the smallest that holds all indices if left out.
    duplicates : what to do with an index that comes twice: "error", "mean", "sum" or "last".
    All else is as in `from_array`.
    """
    options = IngestOptions(
        duplicates=duplicates,
        slab_mode=slab_mode,
        partition_entries=partition_entries,
        dtype=dtype,
        dimension_names=dimension_names,
        progress=progress,
    )
    ingest(path, coo_source(indices, values, shape), options)
    return open_store(path)


def from_batches(
    path: StorePath,
    batches: Iterable[tuple[Any, Any]],
    shape: Sequence[int] | None = None,
    *,
    duplicates: DuplicateRule = "error",
    slab_mode: int | None = None,
    partition_entries: int = PARTITION_ENTRIES,
    dtype: DTypeLike = "float64",
    dimension_names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ObservationStore:
    """Store observations that come as (indices (K, m), values (m,)) pairs, one at a time.

    Nothing is kept of a pair once the next one is asked for, so the whole may exceed memory.
    `shape` and `duplicates` are as in `from_coo`, all else as in `from_array`.
    """
    options = IngestOptions(
        duplicates=duplicates,
        slab_mode=slab_mode,
        partition_entries=partition_entries,
        dtype=dtype,
        dimension_names=dimension_names,
        progress=progress,
    )
    ingest(path, _pair_source(batches, shape), options)
    return open_store(path)


def coo_source(indices: Any, values: Any, shape: Sequence[int] | None) -> Source:
    """The entries of index columns and values, in slices of the batch size."""
    if is_sparse_coo(indices):
        if values is not None or shape is not None:
            raise InvalidInput(
                "a sparse.COO brings its own values and shape; leave those arguments out."
            )
        indices, values, shape = indices.coords, indices.data, indices.shape
    if values is None:
        raise InvalidInput("values are missing; give one number per index.")
    columns = _columns(indices)
    values = _sliceable(values)
    _check_together(columns, values)
    lazy = is_dask_array(values) or any(is_dask_array(column) for column in columns)
    return Source(
        batches=lambda limit: (
            _dask_batches(columns, values, limit) if lazy else _batches(columns, values, limit)
        ),
        dtype=np.dtype(values.dtype),
        shape=None if shape is None else tuple(shape),
        total=int(values.shape[0]),
    )


def _columns(indices: Any) -> tuple[Any, ...]:
    """One two-dimensional array, or K one-dimensional ones; nothing is copied or computed."""
    if hasattr(indices, "shape") and hasattr(indices, "dtype"):
        if len(indices.shape) != 2:
            raise InvalidInput(
                f"indices have shape {indices.shape}; give an array (modes, entries), or one "
                "array per mode."
            )
        return (indices,)
    columns = tuple(_sliceable(column) for column in indices)
    if not columns or any(len(column.shape) != 1 for column in columns):
        raise InvalidInput(
            f"indices have shapes {[column.shape for column in columns]}; give one "
            "one-dimensional array per mode."
        )
    return columns


def _check_together(columns: tuple[Any, ...], values: Any) -> None:
    counts = {*(column.shape[-1] for column in columns), *values.shape}
    if any(np.isnan(count) for count in counts):
        raise InvalidInput(
            "a dask array has chunks of unknown size; call its compute_chunk_sizes() first."
        )
    if len(values.shape) != 1 or len(counts) != 1:
        raise InvalidInput(
            f"indices have {[column.shape[-1] for column in columns]} entries and values have "
            f"shape {values.shape}; give one value per index."
        )


def _batches(columns: tuple[Any, ...], values: Any, limit: int) -> Iterator[Batch]:
    for start in range(0, values.shape[0], limit):
        stop = min(start + limit, values.shape[0])
        pieces = [np.atleast_2d(np.asarray(column[..., start:stop])) for column in columns]
        rows = np.arange(start, stop, dtype=np.int64)
        yield Batch(_stacked(pieces), np.asarray(values[start:stop]), rows)


def _dask_batches(columns: tuple[Any, ...], values: Any, limit: int) -> Iterator[Batch]:
    """A few chunks at a time, and always whole ones: a sliced chunk is computed twice."""
    dask, da = load("dask"), load("dask.array")

    lazy = [da.asarray(column) for column in columns]
    stacked = lazy[0] if lazy[0].ndim == 2 else da.stack(lazy)
    lazy_values = da.asarray(values)
    leading = lazy_values if is_dask_array(values) else stacked
    sizes = leading.chunks[-1]
    stacked = stacked.rechunk((stacked.shape[0], sizes))
    lazy_values = lazy_values.rechunk((sizes,))
    start = 0
    for first, stop in _groups(sizes, limit):
        found, numbers = dask.compute(stacked.blocks[0, first:stop], lazy_values.blocks[first:stop])
        rows = np.arange(start, start + numbers.shape[0], dtype=np.int64)
        start += numbers.shape[0]
        yield Batch(np.asarray(found), np.asarray(numbers), rows)


def _groups(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive chunks with about `limit` entries together, at least one chunk."""
    first, count = 0, 0
    for number, size in enumerate(sizes):
        if number > first and count + size > limit:
            yield first, number
            first, count = number, 0
        count += size
    yield first, len(sizes)


def _pair_source(batches: Iterable[tuple[Any, Any]], shape: Sequence[int] | None) -> Source:
    def read(limit: int) -> Iterator[Batch]:
        start = 0
        for indices, values in batches:
            numbers = np.asarray(values)
            rows = np.arange(start, start + numbers.size, dtype=np.int64)
            start += numbers.size
            yield Batch(np.asarray(indices), numbers, rows)

    return Source(
        batches=read,
        dtype=np.dtype(np.float64),
        shape=None if shape is None else tuple(shape),
    )


def _stacked(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=0)


def _sliceable(values: Any) -> Any:
    return values if hasattr(values, "shape") and hasattr(values, "dtype") else np.asarray(values)
