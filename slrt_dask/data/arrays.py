"""Observations given as arrays: dense ones with holes, index columns with values, or batches.

numpy, masked, dask, zarr, xarray and sparse.COO arrays are understood. A dense array is visited in
boxes of bounded size, and of each box only the observed entries are kept; a block of a dask array
is searched where it was computed.
"""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from slrt_dask.data import coordinates
from slrt_dask.data.ingest import PARTITION_ENTRIES, IngestOptions, Progress, Source, ingest
from slrt_dask.data.libraries import is_dask_array, is_data_array, is_sparse_coo, load
from slrt_dask.data.location import StorePath
from slrt_dask.data.sorting import Batch, DuplicateRule
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.errors import InvalidInput

# Dask blocks computed together hold about this many batches' worth of cells.
BATCHES_TOGETHER = 4
HERE = "slrt-here"
"""In the names of dask arrays of what only this process has: a file without a name, or none."""


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
    mask : array of the same shape, True where observed; None means everything except NaN.
    slab_mode : the mode along which partitions are cut; the longest if None
    partition_entries : how many observations a partition has, about; a worker holds whole ones
    dtype : float32 or float64; None keeps float32 and makes all else float64
    dimension_names : names of the modes, where the array brings none
    progress : called with (stage, done, total) as work proceeds, such as `LiveProgress()`
    """
    options = IngestOptions(slab_mode, partition_entries, dtype, dimension_names, progress)
    ingest(path, array_source(array, mask), options)
    return open_store(path)


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
        slab_mode, partition_entries, dtype, dimension_names, progress, duplicates
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
        slab_mode, partition_entries, dtype, dimension_names, progress, duplicates
    )
    pairs = ((np.asarray(indices), np.asarray(values)) for indices, values in batches)
    lengths = None if shape is None else tuple(shape)
    source = Source(lambda limit: numbered(pairs), np.dtype(np.float64), lengths)
    ingest(path, source, options)
    return open_store(path)


def numbered(pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> Iterator[Batch]:
    """Pairs of indices (K, m) and values (m,) as batches whose rows are counted from 0."""
    start = 0
    for indices, values in pairs:
        yield Batch(indices, values, np.arange(start, start + values.size, dtype=np.int64))
        start += values.size


# ---- index columns and values ---------------------------------------------------------------


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
    is_array = hasattr(indices, "shape") and hasattr(indices, "dtype")
    columns = (indices,) if is_array else tuple(_sliceable(column) for column in indices)
    values = _sliceable(values)
    _check_columns(columns, values, 2 if is_array else 1)
    lazy = is_dask_array(values) or any(is_dask_array(column) for column in columns)
    pairs = _dask_pairs if lazy else _pairs
    return Source(
        batches=lambda limit: numbered(pairs(columns, values, limit)),
        dtype=np.dtype(values.dtype),
        shape=None if shape is None else tuple(shape),
        total=int(values.shape[0]),
    )


def _check_columns(columns: tuple[Any, ...], values: Any, dimensions: int) -> None:
    shapes = [tuple(column.shape) for column in columns]
    if not columns or any(len(shape) != dimensions for shape in shapes):
        raise InvalidInput(
            f"indices have shape {', '.join(map(str, shapes))}; give an array (modes, entries), or "
            "one array (entries,) per mode."
        )
    counts = {*(shape[-1] for shape in shapes), *values.shape}
    if any(np.isnan(count) for count in counts):
        raise InvalidInput(
            "a dask array has chunks of unknown size; call its compute_chunk_sizes() first."
        )
    if len(values.shape) != 1 or len(counts) != 1:
        raise InvalidInput(
            f"indices have {[shape[-1] for shape in shapes]} entries and values have "
            f"shape {values.shape}; give one value per index."
        )


def _pairs(columns: tuple[Any, ...], values: Any, limit: int) -> Iterator[tuple[Any, Any]]:
    for start in range(0, values.shape[0], limit):
        part = slice(start, start + limit)
        pieces = [np.atleast_2d(np.asarray(column[..., part])) for column in columns]
        yield np.concatenate(pieces) if len(pieces) > 1 else pieces[0], np.asarray(values[part])


def _dask_pairs(columns: tuple[Any, ...], values: Any, limit: int) -> Iterator[tuple[Any, Any]]:
    """A few chunks at a time, and always whole ones: a sliced chunk is computed twice."""
    dask, da = load("dask"), load("dask.array")
    lazy = [da.asarray(column) for column in columns]
    stacked = lazy[0] if lazy[0].ndim == 2 else da.stack(lazy)
    sizes = (values if is_dask_array(values) else stacked).chunks[-1]
    stacked = stacked.rechunk((stacked.shape[0], sizes))
    numbers = da.asarray(values).rechunk((sizes,))
    for first, stop in _together(sizes, limit, fewest=1):
        yield dask.compute(stacked.blocks[0, first:stop], numbers.blocks[first:stop])


def _together(sizes: Sequence[int], limit: int, fewest: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive chunks of about `limit` together, at least `fewest` of them."""
    first, count = 0, 0
    for number, size in enumerate(sizes):
        if number - first >= fewest and count + size > limit:
            yield first, number
            first, count = number, 0
        count += size
    yield first, len(sizes)


# ---- dense arrays ---------------------------------------------------------------------------


def array_source(array: Any, mask: Any = None) -> Source:
    """The observed entries of an array, box by box."""
    given, array = array, _plain(array)
    mask = None if mask is None else _plain(mask)
    check_mask(array, mask)
    batches = _dask_batches if is_dask_array(array) else _batches
    names = getattr(getattr(given, "metadata", None), "dimension_names", None) or ()  # zarr's
    source = Source(
        batches=lambda limit: batches(array, mask, limit),
        dtype=np.dtype(array.dtype),
        shape=tuple(int(length) for length in array.shape),
        total=math.prod(array.shape),
        dimension_names=tuple(names) if names and len({*names} - {None}) == len(names) else None,
    )
    if not is_data_array(given):
        return source
    return replace(
        source,
        dimension_names=tuple(str(name) for name in given.dims),
        coordinates=coordinates.encode(given.coords),
        about=coordinates.encode_about(given.name, given.attrs),
    )


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


def observed_entries(
    block: Any, mask: Any, start: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Indices (K, m) in the whole array, and values (m,), of the observed cells of one block."""
    if not isinstance(block, np.ma.MaskedArray):
        block = np.asarray(block)
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
    box = box_shape(array.shape, _unit(array), limit)
    edges = [range(0, length, step) for length, step in zip(array.shape, box, strict=True)]
    for start in itertools.product(*edges):
        region = tuple(slice(first, first + step) for first, step in zip(start, box, strict=True))
        block = array[region]
        seen = None if mask is None else mask[region]
        indices, values = observed_entries(block, seen, start)
        yield Batch(indices, values, visited=math.prod(block.shape))


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
    # At least two, so that two cores have work.
    for first, stop in _together(sizes, BATCHES_TOGETHER * limit, fewest=2):
        found = dask.compute(*tasks[first:stop], scheduler=scheduler)
        for (indices, values), size in zip(found, sizes[first:stop], strict=True):
            yield Batch(indices, values, visited=size)


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
    return _sliceable(array)


def _sliceable(values: Any) -> Any:
    return values if hasattr(values, "shape") and hasattr(values, "dtype") else np.asarray(values)


# ---- arrays in files ------------------------------------------------------------------------


class InFile:
    """An array that can be sliced, and neither copied nor pickled whole.

    dask copies whatever has a method `copy`, and so would read all of a mapped file into memory;
    numpy pickles a mapped file as all that it holds, which would then travel with every task.

    path : of a `.npy` file that other processes open again; without one, the array itself travels
    """

    def __init__(self, array: Any, path: str | None = None) -> None:
        self._array, self._path = array, path
        if array is not None:
            self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)
            self.ndim = len(self.shape)

    def __getitem__(self, region: Any) -> NDArray[Any]:
        # Opened when a block is needed: a scheduler need not see the file.
        if self._array is None and self._path is not None:
            try:
                self._array = np.load(self._path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise InvalidInput(
                    f"{self._path} cannot be read where a block of it is needed ({error}); put it "
                    "where all workers see it, or make a store of it with from_file."
                ) from error
        return np.array(self._array[region])

    def __reduce__(self) -> tuple[Any, ...]:
        return InFile, (self._array if self._path is None else None, self._path)


def lazy_array(array: Any, chunks: Any, path: str | None = None) -> Any:
    """A dask array of blocks of these sizes, each read from the array when it is computed."""
    # A name is made of what an array holds, if none is given: all of it would be read.
    is_here = isinstance(array, np.ndarray) and path is None
    name = f"{HERE}-{uuid.uuid4().hex}" if is_here else False
    return load("dask.array").from_array(InFile(array, path), chunks=chunks, name=name)


def scheduler_for(array: Any) -> str | None:
    """Threads for a dask array all of whose sources only this process has; else dask's choice.

    A cluster would have to be sent the whole of them.
    """
    graph = array.__dask_graph__()
    sources = [name for name, needed in graph.dependencies.items() if not needed]
    return "threads" if all(HERE in str(name) for name in sources) else None
