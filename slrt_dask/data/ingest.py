"""From a source of batches to a finished store, in memory of about a batch plus a partition.

Four passes: read (check every batch, put it on local disk), sort (each batch by slab index, and
count slices), arrange (gather each slab from all batches, order it, merge duplicates), write.
The store is created only when everything has been checked, and marked complete last of all. A bad
entry is reported by its row, its index as the source wrote it, and its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from slrt_dask.data import coordinates, location
from slrt_dask.data.layout import (
    VALUE_TYPES,
    PartitionInfo,
    StoreHeader,
    create_store,
    finish_store,
    write_partition,
)
from slrt_dask.data.location import StorePath
from slrt_dask.data.sorting import (
    LARGEST_INT64,
    Batch,
    DuplicateRule,
    Scratch,
    ScratchBatch,
    SliceHistogram,
    check_rule,
    gathered,
    lexicographic_order,
    merge,
    rebatch,
)
from slrt_dask.errors import InvalidInput

PARTITION_ENTRIES = 2_000_000
BATCH_ENTRIES = 1_000_000
RUNTIME_BYTES = 250 * 2**20
"""The interpreter with numpy, zarr and dask."""
COPIES = 4
"""Of a batch while it is checked, and of a partition while it is sorted and compressed: columns,
the order, and columns in that order."""
Item = TypeVar("Item")
Progress = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is; None where unknown."""


def tell(progress: Progress | None, stage: str, done: int, total: int | None) -> None:
    """Report progress, if anybody wants it."""
    if progress is not None:
        progress(stage, done, total)


@dataclass(frozen=True)
class Source:
    """Something that yields batches.

    `batches(limit)` yields batches of about `limit` entries; it is called once. `row_word` and
    `index_base` are for messages in the source's own terms ("line 7", indices from 1). `total` is
    the number of rows or cells, for progress. `coordinates` and `about` are as in the header.
    """

    batches: Callable[[int], Iterator[Batch]]
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None
    row_word: str = "row"
    index_base: int = 0
    total: int | None = None
    dimension_names: tuple[str, ...] | None = None
    coordinates: dict[str, Any] | None = None
    about: dict[str, Any] | None = None


@dataclass(frozen=True)
class IngestOptions:
    """How a store is made.

    `slab_mode` None is the longest mode; `dtype` None keeps float32 and makes all else float64.
    """

    slab_mode: int | None = None
    partition_entries: int = PARTITION_ENTRIES
    dtype: DTypeLike | None = None
    dimension_names: Sequence[str] | None = None
    progress: Progress | None = None
    duplicates: DuplicateRule = "error"
    batch_entries: int = BATCH_ENTRIES

    def __post_init__(self) -> None:
        check_rule(self.duplicates)
        for name in ("partition_entries", "batch_entries"):
            entries = getattr(self, name)
            if not isinstance(entries, int) or entries < 1:
                raise InvalidInput(f"{name}={entries!r}; give a whole number of at least 1.")

    def counted(self, stage: str, items: Sequence[Item]) -> Iterator[Item]:
        """The items, with progress reported before each and at the end."""
        for done, item in enumerate(items):
            tell(self.progress, stage, done, len(items))
            yield item
        tell(self.progress, stage, len(items), len(items))


def ingest_bytes(
    order: int,
    *,
    partition_entries: int = PARTITION_ENTRIES,
    batch_entries: int = BATCH_ENTRIES,
    weighted: bool = False,
) -> int:
    """Bytes that an ingest of a tensor of this order has in memory at most.

    The source's own memory comes on top: a chunk of a dask array, a row group of a file.
    """
    entry_bytes = 8 * (order + 1 + weighted)
    # Slabs are whole slices, so that a partition may have more entries than it should.
    return RUNTIME_BYTES + COPIES * entry_bytes * (batch_entries + 3 * partition_entries // 2)


def ingest(path: StorePath, source: Source, options: IngestOptions) -> None:
    """Make a store at a new path from all that the source yields; an error leaves nothing."""
    ingest_together([(location.normal_path(path), source)], options)


def ingest_together(targets: Sequence[tuple[str, Source]], options: IngestOptions) -> None:
    """Make several stores that belong together: none is complete before all are written."""
    location.refuse_existing(*(place for place, _ in targets))
    written: list[tuple[str, StoreHeader]] = []
    try:
        for place, source in targets:
            written.append((place, _filled(place, source, options)))
        for place, header in written:
            finish_store(place, header)
    except BaseException:
        for place, _ in written:
            location.remove(place)
        raise


def _filled(place: str, source: Source, options: IngestOptions) -> StoreHeader:
    """Write all of a store except the mark that it is complete; returns the header to finish it."""
    dtype = _value_dtype(source, options)
    remedy = "free some, or choose another place: entries are sorted on the disk of the store"
    with (
        location.naming_full_disk(place, remedy),
        Scratch(location.scratch_parent(place)) as scratch,
    ):
        batches, shape = _read(source, dtype, scratch, options)
        names = _dimension_names(options.dimension_names or source.dimension_names, shape)
        labels = source.coordinates
        if source.dimension_names is not None and names is not None:
            labels = coordinates.renamed(labels, source.dimension_names, names)
        mode = options.slab_mode
        if mode is None:
            mode = int(np.argmax(np.array(shape, dtype=np.int64)))
        elif not 0 <= mode < len(shape):
            raise InvalidInput(
                f"slab_mode={mode} is not a mode of shape {shape}; choose 0 to {len(shape) - 1}."
            )
        # Each batch stably sorted by slab index, and the slabs that balance their total.
        scratch.begin_pass()
        histogram, ordered = SliceHistogram(shape[mode]), []
        for kept in options.counted("sort", batches):
            batch = kept.read()
            histogram.add(batch.indices[mode])
            order = np.argsort(batch.indices[mode], kind="stable")
            ordered.append(scratch.write(batch.taken(order)))
        slabs = histogram.slabs(options.partition_entries)
        # Each slab in its final order without duplicates, as a batch.
        scratch.begin_pass()
        edges = np.array([0, *(slab.stop for slab in slabs)], dtype=np.int64)
        offsets = [np.searchsorted(kept.column(mode), edges).tolist() for kept in ordered]
        batches, sums, weight_sums = [], [], []
        for ranges in options.counted("arrange", list(zip(*map(pairwise, offsets), strict=True))):
            batch = gathered((kept, *ends) for kept, ends in zip(ordered, ranges, strict=True))
            order, repeated = lexicographic_order(tuple(batch.indices), shape, mode)
            final = _merged(batch.taken(order), repeated, source, options.duplicates)
            if final.weights is None:
                sums.append(float(np.sum(final.values, dtype=np.float64)))
            else:
                weights = final.weights.astype(np.float64)
                sums.append(float(weights @ final.values))
                weight_sums.append(float(weights.sum()))
            batches.append(scratch.write(final))
        nnz = sum(batch.count for batch in batches)
        header = StoreHeader(
            kind="observations",
            shape=shape,
            nnz=nnz,
            slab_mode=mode,
            dtype=dtype.name,
            partitions=tuple(
                PartitionInfo(f"p{number:05d}", kept.count, slab.first, slab.stop)
                for number, (slab, kept) in enumerate(zip(slabs, batches, strict=True))
            ),
            mean=math.fsum(sums) / (math.fsum(weight_sums) if weight_sums else nnz),
            dimension_names=names,
            coordinates=labels,
            about=source.about,
            mean_weight=math.fsum(weight_sums) / nnz if weight_sums else None,
        )
        create_store(place, header)
        try:
            checksums: list[int] = []
            parts = list(zip(header.partitions, batches, strict=True))
            for part, kept in options.counted("write", parts):
                batch = kept.read()
                checksums.append(
                    write_partition(
                        place, part.name, tuple(batch.indices), batch.values, batch.weights
                    )
                )
        except BaseException:
            location.remove(place)
            raise
        return header.with_checksums(tuple(checksums))


def _read(
    source: Source, dtype: np.dtype[Any], scratch: Scratch, options: IngestOptions
) -> tuple[list[ScratchBatch], tuple[int, ...]]:
    """Check every batch and keep it as raw columns; the shape is the one given, or the smallest."""
    shape = None if source.shape is None else check_shape(source.shape)
    kept: list[ScratchBatch] = []
    largest: NDArray[np.int64] | None = None
    arriving = _arriving(source, None if shape is None else len(shape), options)
    for batch in rebatch(arriving, options.batch_entries):
        good = _checked(batch, source, shape, dtype)
        kept.append(scratch.write(good))
        most = good.indices.max(axis=1)
        largest = most if largest is None else np.maximum(largest, most)
    if largest is None:
        raise InvalidInput(
            "there are no observations to store: every entry is missing, or the source is empty."
        )
    return kept, shape or check_shape((largest + 1).tolist())


def _arriving(source: Source, order: int | None, options: IngestOptions) -> Iterator[Batch]:
    """The source's batches, each of the same order, with progress reported."""
    done, weighted = 0, None
    tell(options.progress, "read", 0, source.total)
    for batch in source.batches(options.batch_entries):
        lengths = batch.indices.shape
        if len(lengths) != 2 or lengths[0] < 1 or lengths[1:] != batch.values.shape:
            raise InvalidInput(
                f"indices have shape {lengths} and values {batch.values.shape}; give "
                "indices of shape (modes, entries) and one value per index, of shape (entries,)."
            )
        if order not in (None, lengths[0]):
            raise InvalidInput(
                f"indices have {lengths[0]} modes, but the shape or an earlier batch has {order}; "
                "give one row of indices per mode."
            )
        order = lengths[0]
        _check_weights(batch, weighted, options.duplicates)
        weighted = batch.weights is not None
        yield batch
        done += batch.values.shape[0] if batch.visited is None else batch.visited
        tell(options.progress, "read", done, source.total)


def _check_weights(batch: Batch, weighted: bool | None, rule: DuplicateRule) -> None:
    """Refuse weights of the wrong length, of some batches only, or of values that are added up.

    weighted : whether the batches before had some; None for the first
    """
    weights = batch.weights
    if weighted is not None and weighted != (weights is not None):
        raise InvalidInput("some batches have weights and others have none; give them with all.")
    if weights is None:
        return
    if weights.shape != batch.values.shape:
        raise InvalidInput(
            f"weights have shape {weights.shape} and values {batch.values.shape}; give one weight "
            "per value."
        )
    if rule == "sum":
        raise InvalidInput(
            'duplicates="sum" has no meaning for weighted observations; choose "mean", which adds '
            'up the weights, or "last".'
        )


def _merged(
    batch: Batch, repeated: NDArray[np.bool_], source: Source, rule: DuplicateRule
) -> Batch:
    """The ordered batch with one entry per index, and without its rows, no longer needed."""
    if not repeated.any():
        return Batch(batch.indices, batch.values, weights=batch.weights)
    if rule == "error":
        second = int(np.argmax(repeated))
        rows = ""
        if batch.rows is not None:
            first, word = batch.rows[second - 1], source.row_word
            rows = f", in {word} {first} and {word} {batch.rows[second]}"
        raise InvalidInput(
            f"{_described(source, batch, second, row=False)} is observed twice{rows}, with values "
            f"{batch.values[second - 1]} and {batch.values[second]}; remove one, or choose "
            'duplicates="mean", "sum" or "last" (on the command line --duplicates mean, and so on).'
        )
    kept, values, weights = merge(batch, repeated, rule)
    if weights is not None and not np.isfinite(weights).all():
        entry = int(kept[np.argmin(np.isfinite(weights))])
        raise InvalidInput(
            f"{_described(source, batch, entry, row=False)}: the sum of its weights does not fit "
            f"in {weights.dtype}; scale all weights down, or use float64."
        )
    if not np.isfinite(values).all():
        entry = int(kept[np.argmin(np.isfinite(values))])
        raise InvalidInput(
            f"{_described(source, batch, entry, row=False)}: the {rule} of its values does not fit "
            f'in {values.dtype}; use float64, or duplicates="last" '
            "(on the command line --duplicates last)."
        )
    return Batch(batch.indices[:, kept], values, weights=weights)


# ---- what may be stored ---------------------------------------------------------------------


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple of Python integers; at least one mode, none empty."""
    lengths = tuple(shape) if np.iterable(shape) else (shape,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in lengths):
        raise InvalidInput(
            f"shape {shape!r} is not a sequence of whole numbers; give one length per mode."
        )
    if not lengths:
        raise InvalidInput("the shape has no modes; give at least one length.")
    if min(lengths) < 1:
        raise InvalidInput(f"shape {lengths} has an empty mode; every length must be at least 1.")
    return tuple(int(length) for length in lengths)


def of_shape(source: Source, shape: tuple[int, ...] | None) -> Source:
    """The source, if it has the shape that was given, or none was."""
    if shape is not None and source.shape != shape:
        raise InvalidInput(
            f"the array has shape {source.shape}, but shape={shape} was given; leave it out."
        )
    return source


def _value_dtype(source: Source, options: IngestOptions) -> np.dtype[Any]:
    wanted = np.dtype(source.dtype if options.dtype is None else options.dtype)
    if options.dtype is None:
        return np.dtype("f4" if wanted.kind == "f" and wanted.itemsize <= 4 else "f8")
    if wanted.name not in VALUE_TYPES:
        raise InvalidInput(
            f"dtype {wanted} cannot be stored; choose one of {', '.join(VALUE_TYPES)}."
        )
    return wanted


def _dimension_names(names: Sequence[str] | None, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or len(names) != len(shape) or len(set(names)) != len(names):
        raise InvalidInput(
            f"dimension_names={names!r} do not fit shape {shape}; give {len(shape)} different "
            "names."
        )
    return tuple(str(name) for name in names)


def _checked(
    batch: Batch, source: Source, shape: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> Batch:
    """The batch with int64 indices and values of the store's type, or InvalidInput."""
    given = batch.indices
    if given.dtype.kind not in "iuf":
        raise InvalidInput(
            f"indices have type {given.dtype}, for example {given.flat[0]!r}; give whole numbers."
        )
    if given.dtype.kind == "f":
        # A comparison with NaN is false, so missing indices are caught here too.
        with np.errstate(invalid="ignore"):
            whole = (np.floor(given) == given) & (np.abs(given) < 2.0**63)
        _refuse(~whole, batch, source, "is not a whole number; give integer positions")
    elif given.dtype == np.uint64:
        _refuse(given > LARGEST_INT64, batch, source, "is beyond any mode length")
    indices = np.ascontiguousarray(given, dtype=np.int64)
    if int(indices.min()) < 0:
        _refuse(indices < 0, batch, source, f"is below {source.index_base}")
    lengths = None if shape is None else np.array(shape, dtype=np.int64)
    if lengths is not None and (indices.max(axis=1) >= lengths).any():
        _refuse(
            indices >= lengths[:, None],
            batch,
            source,
            f"is outside the shape {shape}; give a larger shape or correct the index",
        )
    weights = _checked_weights(batch, source, dtype)
    return Batch(indices, _finite(batch, source, dtype), batch.rows, weights=weights)


def _finite(batch: Batch, source: Source, dtype: np.dtype[Any]) -> NDArray[Any]:
    given = batch.values
    if given.dtype.kind not in "biuf":
        raise InvalidInput(
            f"values have type {given.dtype}, for example {given[:1].tolist()[0]!r}; give real "
            "numbers."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray(given, dtype=dtype)
    if not np.isfinite(values).all():
        missing = "is no finite number; leave missing entries out, and correct infinite ones"
        _refuse(~np.isfinite(given), batch, source, missing)
        _refuse(~np.isfinite(values), batch, source, f"does not fit in {dtype}; use float64")
    return values


def _checked_weights(batch: Batch, source: Source, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    given = batch.weights
    if given is None:
        return None
    if given.dtype.kind not in "biuf":
        raise InvalidInput(
            f"weights have type {given.dtype}, for example {given[:1].tolist()[0]!r}; give real "
            "numbers."
        )
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        weights = np.ascontiguousarray(given, dtype=dtype)
        good, fits = np.isfinite(given) & (given > 0), np.isfinite(weights) & (weights > 0)
    if not fits.all():
        entry = int(np.argmin(good if not good.all() else fits))
        wrong = "is no finite positive number; leave out observations that count for nothing"
        if good.all():
            wrong = f"does not fit in {dtype}; use float64, or scale all weights"
        raise InvalidInput(
            f"{_described(source, batch, entry)}, value {batch.values[entry].item()!r}: weight "
            f"{given[entry].item()!r} {wrong}."
        )
    return weights


def _refuse(bad: NDArray[np.bool_], batch: Batch, source: Source, complaint: str) -> None:
    """Raise for the first entry (in source order) with a bad index (K, m) or value (m,)."""
    entries = bad.any(axis=0) if bad.ndim == 2 else bad
    if not entries.any():
        return
    entry = int(np.argmax(entries))
    if bad.ndim == 2:
        mode = int(np.argmax(bad[:, entry]))
        position = _number(batch.indices[mode, entry].item() + source.index_base)
        complaint = f"position {position} in mode {mode} {complaint}"
    raise InvalidInput(
        f"{_described(source, batch, entry)}, value {batch.values[entry].item()!r}: {complaint}."
    )


def _described(source: Source, batch: Batch, entry: int, *, row: bool = True) -> str:
    """`row 7, index (3, 0, 2)`, with the index as the source writes it."""
    index = batch.indices[:, entry].tolist()
    written = ", ".join(_number(position + source.index_base) for position in index)
    base = f" (counting from {source.index_base})" if source.index_base else ""
    place = "" if batch.rows is None or not row else f"{source.row_word} {batch.rows[entry]}, "
    return f"{place}index ({written}){base}"


def _number(value: int | float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
