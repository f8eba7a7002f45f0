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
    weights: Any = None,
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
    weights : how much every observation counts, an array that broadcasts to the same shape: 3 is
        as good as three observations of weight 1 whose mean is the value. Those of missing
        entries do not matter; the others are positive and finite.
    slab_mode : the mode along which partitions are cut; the longest if None
    partition_entries : how many observations a partition has, about; a worker holds whole ones
    dtype : float32 or float64; None keeps float32 and makes all else float64
    dimension_names : names of the modes, where the array brings none
    progress : called with (stage, done, total) as work proceeds, such as `LiveProgress()`
    """
    options = IngestOptions(slab_mode, partition_entries, dtype, dimension_names, progress)
    ingest(path, array_source(array, mask, weights), options)
    return open_store(path)


def from_coo(
    path: StorePath,
    indices: Any,
    values: Any = None,
    shape: Sequence[int] | None = None,
    *,
    weights: Any = None,
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
    weights : array (m,) of positive numbers, as in `from_array`; or in the form of a sparse.COO.
    duplicates : what to do with an index that comes twice: "error", "mean", "sum" or "last". With
        weights, the weighted mean has their sum, "last" keeps its own, and "sum" is refused.
    All else is as in `from_array`.
    """
    options = IngestOptions(
        slab_mode, partition_entries, dtype, dimension_names, progress, duplicates
    )
    ingest(path, coo_source(indices, values, shape, weights), options)
    return open_store(path)


def from_batches(
    path: StorePath,
    batches: Iterable[tuple[Any, ...]],
    shape: Sequence[int] | None = None,
    *,
    duplicates: DuplicateRule = "error",
    slab_mode: int | None = None,
    partition_entries: int = PARTITION_ENTRIES,
    dtype: DTypeLike = "float64",
    dimension_names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ObservationStore:
    """Store observations that come as pairs (indices (K, m), values (m,)), one at a time.

    With weights they are triples (indices, values, weights (m,)). Nothing is kept of one once the
    next one is asked for, so the whole may exceed memory.
    `shape` and `duplicates` are as in `from_coo`, all else as in `from_array`.
    """
    options = IngestOptions(
        slab_mode, partition_entries, dtype, dimension_names, progress, duplicates
    )
    arrays = (tuple(map(np.asarray, batch)) for batch in batches)
    lengths = None if shape is None else tuple(shape)
    source = Source(lambda limit: numbered(arrays), np.dtype(np.float64), lengths)
    ingest(path, source, options)
    return open_store(path)


def numbered(batches: Iterable[tuple[NDArray[Any], ...]]) -> Iterator[Batch]:
    """Indices (K, m), values (m,) and perhaps weights (m,), with rows counted from 0."""
    start = 0
    for indices, values, *weights in batches:
        rows = np.arange(start, start + values.size, dtype=np.int64)
        yield Batch(indices, values, rows, weights=weights[0] if weights else None)
        start += values.size


# ---- index columns and values ---------------------------------------------------------------


def coo_source(
    indices: Any, values: Any, shape: Sequence[int] | None, weights: Any = None
) -> Source:
    """The entries of index columns and values, in slices of the batch size."""
    if is_sparse_coo(indices):
        if values is not None or shape is not None:
            raise InvalidInput(
                "a sparse.COO brings its own values and shape; leave those arguments out."
            )
        if weights is not None:
            weights = _of_entries(weights, indices)
        indices, values, shape = indices.coords, indices.data, indices.shape
    if values is None:
        raise InvalidInput("values are missing; give one number per index.")
    is_array = hasattr(indices, "shape") and hasattr(indices, "dtype")
    columns = (indices,) if is_array else tuple(_sliceable(column) for column in indices)
    values = _sliceable(values)
    _check_columns(columns, values, 2 if is_array else 1)
    numbers: tuple[Any, ...] = (values,)
    if weights is not None:
        weights = _sliceable(weights)
        if tuple(weights.shape) != tuple(values.shape):
            raise InvalidInput(
                f"weights have shape {tuple(weights.shape)} and values {tuple(values.shape)}; give "
                "one weight per value."
            )
        numbers = (values, weights)
    lazy = any(is_dask_array(column) for column in (*numbers, *columns))
    parts = _dask_parts if lazy else _parts
    return Source(
        batches=lambda limit: numbered(parts(columns, numbers, limit)),
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


def _of_entries(weights: Any, tensor: Any) -> Any:
    """The weights (m,) of a sparse.COO's stored entries, given as these, or in its shape."""
    if is_sparse_coo(weights):
        if weights.shape != tensor.shape or not np.array_equal(weights.coords, tensor.coords):
            raise InvalidInput("weights are a sparse.COO of other entries; give one per value.")
        return weights.data
    weights = _sliceable(weights)
    if tuple(weights.shape) == tuple(tensor.shape):
        return np.asarray(weights)[tuple(tensor.coords)]
    return weights


def _parts(
    columns: tuple[Any, ...], numbers: tuple[Any, ...], limit: int
) -> Iterator[tuple[Any, ...]]:
    """Slices of the index columns, values and perhaps weights."""
    for start in range(0, numbers[0].shape[0], limit):
        part = slice(start, start + limit)
        pieces = [np.atleast_2d(np.asarray(column[..., part])) for column in columns]
        indices = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        yield indices, *(np.asarray(column[part]) for column in numbers)


def _dask_parts(
    columns: tuple[Any, ...], numbers: tuple[Any, ...], limit: int
) -> Iterator[tuple[Any, ...]]:
    """A few chunks at a time, and always whole ones: a sliced chunk is computed twice."""
    dask, da = load("dask"), load("dask.array")
    lazy = [da.asarray(column) for column in columns]
    stacked = lazy[0] if lazy[0].ndim == 2 else da.stack(lazy)
    sizes = next((n for n in numbers if is_dask_array(n)), stacked).chunks[-1]
    stacked = stacked.rechunk((stacked.shape[0], sizes))
    numbers = tuple(da.asarray(column).rechunk((sizes,)) for column in numbers)
    for first, stop in _together(sizes, limit, fewest=1):
        parts = (column.blocks[first:stop] for column in numbers)
        yield dask.compute(stacked.blocks[0, first:stop], *parts)


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


def array_source(array: Any, mask: Any = None, weights: Any = None) -> Source:
    """The observed entries of an array, box by box."""
    given, array = array, _plain(array)
    mask = None if mask is None else _plain(mask)
    check_mask(array, mask)
    weights = None if weights is None else _broadcastable(weights, given, array.shape)
    batches = _dask_batches if is_dask_array(array) else _batches
    names = getattr(getattr(given, "metadata", None), "dimension_names", None) or ()  # zarr's
    source = Source(
        batches=lambda limit: batches(array, mask, weights, limit),
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


def _broadcastable(weights: Any, given: Any, shape: tuple[int, ...]) -> Any:
    """Weights that can be sliced, if they broadcast to the array's shape; xarray's by name."""
    if is_data_array(weights) and is_data_array(given) and weights.dims != given.dims:
        weights = weights.broadcast_like(given).transpose(*given.dims)
    weights = _plain(weights)
    try:
        fits = np.broadcast_shapes(tuple(weights.shape), tuple(shape)) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise InvalidInput(
            f"the weights have shape {tuple(weights.shape)} and the array {tuple(shape)}; give "
            "weights of the array's shape, or that broadcast to it."
        )
    return weights


def observed_entries(
    block: Any, mask: Any, start: tuple[int, ...], weights: Any = None
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any] | None]:
    """The observed cells of one block: indices (K, m) in the whole array, values and weights."""
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
    if weights is not None:
        if isinstance(weights, np.ma.MaskedArray):
            weights = np.ma.filled(weights.astype(np.float64), np.nan)
        weights = np.broadcast_to(np.asarray(weights), block.shape)[observed]
    return indices, block[observed], weights


def box_shape(shape: Sequence[int], unit: Sequence[int], limit: int) -> tuple[int, ...]:
    """A box of whole units with at most `limit` cells (one unit at least), long in late modes."""
    box = [min(step, length) for step, length in zip(unit, shape, strict=True)]
    for axis in reversed(range(len(box))):
        box[axis] = min(shape[axis], box[axis] * max(1, limit // math.prod(box)))
        if box[axis] < shape[axis]:
            break
    return tuple(box)


def _batches(array: Any, mask: Any, weights: Any, limit: int) -> Iterator[Batch]:
    box = box_shape(array.shape, _unit(array), limit)
    edges = [range(0, length, step) for length, step in zip(array.shape, box, strict=True)]
    for start in itertools.product(*edges):
        region = tuple(slice(first, first + step) for first, step in zip(start, box, strict=True))
        block = array[region]
        seen = None if mask is None else mask[region]
        known = None if weights is None else weights[_own_region(weights.shape, region)]
        indices, values, known = observed_entries(block, seen, start, known)
        yield Batch(indices, values, visited=math.prod(block.shape), weights=known)


def _own_region(shape: tuple[int, ...], region: tuple[slice, ...]) -> tuple[slice, ...]:
    """The part of an array of this shape that is broadcast to a region."""
    own = region[len(region) - len(shape) :]
    return tuple(slice(None) if n == 1 else part for n, part in zip(shape, own, strict=True))


def _dask_batches(array: Any, mask: Any, weights: Any, limit: int) -> Iterator[Batch]:
    dask, da = load("dask"), load("dask.array")
    blocks = array.to_delayed().ravel()
    masks = known = [None] * len(blocks)
    if mask is not None:
        lazy = mask if is_dask_array(mask) else da.from_array(mask, chunks=array.chunks)
        masks = lazy.rechunk(array.chunks).to_delayed().ravel()
    if weights is not None:
        lazy = weights if is_dask_array(weights) else da.from_array(np.asarray(weights))
        known = da.broadcast_to(lazy, array.shape).rechunk(array.chunks).to_delayed().ravel()
    scheduler = scheduler_for(array)
    find = dask.delayed(observed_entries, nout=3)
    sizes = [math.prod(box) for box in itertools.product(*array.chunks)]
    starts = [np.cumsum([0, *lengths[:-1]]).tolist() for lengths in array.chunks]
    tasks = [
        find(block, seen, start, weight)
        for block, seen, start, weight in zip(
            blocks, masks, itertools.product(*starts), known, strict=True
        )
    ]
    # At least two, so that two cores have work.
    for first, stop in _together(sizes, BATCHES_TOGETHER * limit, fewest=2):
        found = dask.compute(*tasks[first:stop], scheduler=scheduler)
        for (indices, values, weight), size in zip(found, sizes[first:stop], strict=True):
            yield Batch(indices, values, visited=size, weights=weight)


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
