"""Observations given as a dense array with holes: numpy, masked, dask, zarr or xarray.

The array is visited in boxes of bounded size, and of each box only the observed entries are kept;
a box of a dask array is searched where it was computed. This changes when another kind of array,
or another way of saying "missing", is to be understood.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from slrt_dask.data import coordinates
from slrt_dask.data.batches import Batch, Source
from slrt_dask.data.ingest import PARTITION_ENTRIES, IngestOptions, ingest
from slrt_dask.data.libraries import is_dask_array, is_data_array, load
from slrt_dask.data.location import StorePath
from slrt_dask.data.mapped import scheduler_for
from slrt_dask.data.progress import Progress
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.errors import InvalidInput

Region = tuple[slice, ...]
# Dask blocks computed together hold about this many batches' worth of cells.
BATCHES_TOGETHER = 4


def from_array(
    path: StorePath,
    array: Any,
    mask: Any = None,
    *,
    slab_mode: int | None = None,
    partition_entries: int = PARTITION_ENTRIES,
    dtype: DTypeLike | None = None,
    dimension_names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ObservationStore:
    """Store the observed entries of a dense array.

    array : numpy (also masked or memory-mapped), dask, zarr or xarray.DataArray, of any order
        from 2. NaN is missing; an infinite value is an error.
    mask : array of the same shape, True where observed; None means everything but NaN.
    slab_mode : the mode along which partitions are cut; the longest if None
    partition_entries : how many observations a partition has, about; a worker holds whole ones
    dtype : float32 or float64; None keeps float32 and makes all else float64
    dimension_names : names of the modes, where the array brings none
    progress : called with (stage, done, total) as work proceeds, such as `LiveProgress()`
    """
    options = IngestOptions(
        slab_mode=slab_mode,
        partition_entries=partition_entries,
        dtype=dtype,
        dimension_names=dimension_names,
        progress=progress,
    )
    ingest(path, array_source(array, mask), options)
    return open_store(path)


def array_source(array: Any, mask: Any = None) -> Source:
    """The observed entries of an array, box by box."""
    given, array = array, _plain(array)
    mask = None if mask is None else _plain(mask)
    check_mask(array, mask)
    return Source(
        batches=lambda limit: (
            _dask_batches(array, mask, limit)
            if is_dask_array(array)
            else _batches(array, mask, limit)
        ),
        dtype=np.dtype(array.dtype),
        shape=tuple(int(length) for length in array.shape),
        total=math.prod(array.shape),
        dimension_names=_names(given),
        coordinates=coordinates.encode(given.coords) if is_data_array(given) else None,
        about=coordinates.encode_about(given.name, given.attrs) if is_data_array(given) else None,
    )


def observed_entries(
    block: NDArray[Any], mask: NDArray[Any] | None, start: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Indices (K, m) in the whole array, and values (m,), of the observed cells of one block."""
    observed = np.ones(block.shape, dtype=np.bool_) if mask is None else np.asarray(mask) != 0
    if isinstance(block, np.ma.MaskedArray):
        observed &= ~np.ma.getmaskarray(block)
        block = block.data
    if block.dtype.kind == "f":
        observed &= ~np.isnan(block)
    indices = np.array(np.nonzero(observed), dtype=np.int64)
    indices += np.array(start, dtype=np.int64)[:, None]
    return indices, block[observed]


def box_shape(shape: Sequence[int], unit: Sequence[int], limit: int) -> tuple[int, ...]:
    """A box of whole units with at most `limit` cells (one unit at least), long in late modes."""
    box = [min(step, length) for step, length in zip(unit, shape, strict=True)]
    for axis in reversed(range(len(box))):
        box[axis] = min(shape[axis], box[axis] * max(1, limit // math.prod(box)))
        if box[axis] < shape[axis]:
            break
    return tuple(box)


def _batches(array: Any, mask: Any, limit: int) -> Iterator[Batch]:
    for region in _regions(array.shape, box_shape(array.shape, _unit(array), limit)):
        block = _values(array[region])
        seen = None if mask is None else np.asarray(mask[region])
        start = tuple(part.start for part in region)
        indices, values = observed_entries(block, seen, start)
        yield Batch(indices, values, visited=block.size)


def _dask_batches(array: Any, mask: Any, limit: int) -> Iterator[Batch]:
    dask, da = load("dask"), load("dask.array")

    blocks = array.to_delayed().ravel()
    masks = [None] * len(blocks)
    if mask is not None:
        lazy = mask if is_dask_array(mask) else da.from_array(mask, chunks=array.chunks)
        masks = lazy.rechunk(array.chunks).to_delayed().ravel()
    scheduler = scheduler_for(array)
    find = dask.delayed(observed_entries, nout=2)
    sizes = [math.prod(box) for box in itertools.product(*array.chunks)]
    starts = [np.cumsum([0, *lengths[:-1]]).tolist() for lengths in array.chunks]
    tasks = [
        find(block, seen, start)
        for block, seen, start in zip(blocks, masks, itertools.product(*starts), strict=True)
    ]
    for first, stop in _together(sizes, BATCHES_TOGETHER * limit):
        found = dask.compute(*tasks[first:stop], scheduler=scheduler)
        for (indices, values), size in zip(found, sizes[first:stop], strict=True):
            yield Batch(indices, values, visited=size)


def _together(sizes: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks computed together: at least two, so that two cores have work."""
    first, cells = 0, 0
    for number, size in enumerate(sizes):
        if number - first >= 2 and cells + size > limit:
            yield first, number
            first, cells = number, 0
        cells += size
    yield first, len(sizes)


def _regions(shape: Sequence[int], box: Sequence[int]) -> Iterator[Region]:
    edges = [
        [slice(start, min(start + step, length)) for start in range(0, length, step)]
        for length, step in zip(shape, box, strict=True)
    ]
    yield from itertools.product(*edges)


def _unit(array: Any) -> tuple[int, ...]:
    """What is stored together: reading less of a zarr chunk costs as much as all of it."""
    for name in ("shards", "chunks"):
        unit = getattr(array, name, None)
        if isinstance(unit, tuple) and all(isinstance(step, int) for step in unit):
            return unit
    # Of what xarray has not read yet, as it found it in the file.
    encoding = getattr(array, "encoding", {})
    unit = encoding.get("shards") or encoding.get("chunks") or encoding.get("chunksizes")
    if unit is not None and len(unit) == len(array.shape):
        return tuple(int(step) for step in unit)
    return (1,) * len(array.shape)


def _plain(array: Any) -> Any:
    """The array itself, sliceable; an xarray one gives up its dask array, or stays lazy."""
    if is_data_array(array):
        return array.data if array.chunks is not None else array.variable
    return array if hasattr(array, "shape") and hasattr(array, "dtype") else np.asarray(array)


def _values(block: Any) -> NDArray[Any]:
    # np.asarray would drop the mask of a masked array.
    return block if isinstance(block, np.ma.MaskedArray) else np.asarray(block)


def _names(array: Any) -> tuple[str, ...] | None:
    """Of the dimensions, where an xarray or zarr array names them all differently."""
    if is_data_array(array):
        return tuple(str(name) for name in array.dims)
    names = getattr(getattr(array, "metadata", None), "dimension_names", None) or ()
    return tuple(names) if names and None not in names and len(set(names)) == len(names) else None


def check_mask(array: Any, mask: Any) -> None:
    """Refuse arrays of unknown lengths, and masks of another shape."""
    if len(array.shape) and any(np.isnan(length) for length in array.shape):
        raise InvalidInput(
            f"the array has shape {array.shape}, with lengths not yet known; call its "
            "compute_chunk_sizes() first."
        )
    if mask is None:
        return
    if tuple(mask.shape) != tuple(array.shape):
        raise InvalidInput(
            f"the mask has shape {tuple(mask.shape)} and the array {tuple(array.shape)}; "
            "give a mask of the array's shape, True where observed."
        )
    if np.dtype(mask.dtype).kind not in "bui":
        raise InvalidInput(f"the mask has type {mask.dtype}; give True where observed.")
