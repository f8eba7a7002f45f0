"""From a source of batches to a finished store, in memory of about a batch plus a partition.

Four passes: read (check every batch, put it on local disk), sort (each batch by slab index, and
count slices), arrange (gather each slab from all batches, order it, settle duplicates), write.
The store is created only when everything has been checked, and marked complete last of all. This
changes when the passes do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from slrt_dask.data import coordinates, location
from slrt_dask.data.batches import (
    Batch,
    Source,
    check_batch,
    check_shape,
    checked,
    describe,
    rebatch,
)
from slrt_dask.data.disk import full_disk_told
from slrt_dask.data.duplicates import DuplicateRule, check_rule, merge
from slrt_dask.data.header import VALUE_TYPES, PartitionInfo, StoreHeader, float_name
from slrt_dask.data.layout import create_store, finish_store, partition_name, write_partition
from slrt_dask.data.location import StorePath
from slrt_dask.data.progress import Progress, tell
from slrt_dask.data.scratch import Scratch, ScratchBatch, gathered, taken
from slrt_dask.data.slabs import Slab, SliceHistogram, choose_slab_mode, lexicographic_order
from slrt_dask.errors import InvalidInput

PARTITION_ENTRIES = 2_000_000
BATCH_ENTRIES = 1_000_000


@dataclass(frozen=True)
class IngestOptions:
    """How a store is made.

    `slab_mode` None is the longest mode; `dtype` None keeps float32 and makes all else float64.
    `progress(stage, done, total)` is called as work proceeds; total None means unknown.
    """

    duplicates: DuplicateRule = "error"
    slab_mode: int | None = None
    partition_entries: int = PARTITION_ENTRIES
    dtype: DTypeLike | None = None
    dimension_names: Sequence[str] | None = None
    progress: Progress | None = None
    batch_entries: int = BATCH_ENTRIES

    def __post_init__(self) -> None:
        check_rule(self.duplicates)
        for name in ("partition_entries", "batch_entries"):
            entries = getattr(self, name)
            if not isinstance(entries, int) or entries < 1:
                raise InvalidInput(f"{name}={entries!r}; give a whole number of at least 1.")

    def report(self, stage: str, done: int, total: int | None) -> None:
        tell(self.progress, stage, done, total)


def ingest(path: StorePath, source: Source, options: IngestOptions) -> None:
    """Make a store at a new path from everything the source yields.

    After an error nothing is left at the path, nor beside it.
    """
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
    """Write all of a store but the mark that it is complete; returns the header to finish it."""
    dtype = _value_dtype(source, options)
    remedy = "free some, or choose another place: entries are sorted beside the store"
    with full_disk_told(place, remedy), Scratch(location.scratch_parent(place)) as scratch:
        batches, shape = _read(source, dtype, scratch, options)
        names = _dimension_names(options.dimension_names or source.dimension_names, shape)
        slab_mode = _slab_mode(options.slab_mode, shape)
        batches, slabs = _sort(batches, shape, slab_mode, scratch, options)
        parts = _arrange(batches, slabs, shape, slab_mode, scratch, source, options)
        header = StoreHeader(
            kind="observations",
            shape=shape,
            nnz=sum(batch.count for batch, _ in parts),
            slab_mode=slab_mode,
            dtype=dtype.name,
            partitions=_partitions(slabs, parts),
            mean=math.fsum(total for _, total in parts) / sum(batch.count for batch, _ in parts),
            dimension_names=names,
            coordinates=_coordinates(source, names),
            about=source.about,
        )
        return _write(place, header, [batch for batch, _ in parts], options)


def _read(
    source: Source, dtype: np.dtype[Any], scratch: Scratch, options: IngestOptions
) -> tuple[list[ScratchBatch], tuple[int, ...]]:
    """Check every batch and keep it as raw columns; the shape is the one given, or the least."""
    shape = None if source.shape is None else check_shape(source.shape)
    kept: list[ScratchBatch] = []
    largest: list[int] = []
    arriving = _arriving(source, None if shape is None else len(shape), options)
    for batch in rebatch(arriving, options.batch_entries):
        good = checked(batch, source, shape, dtype)
        kept.append(scratch.write(good))
        most = [int(column.max()) for column in good.indices]
        largest = [max(pair) for pair in zip(largest, most, strict=True)] if largest else most
    if not kept:
        raise InvalidInput(
            "there are no observations to store: every entry is missing, or the source is empty."
        )
    return kept, shape or check_shape([position + 1 for position in largest])


def _arriving(source: Source, order: int | None, options: IngestOptions) -> Iterator[Batch]:
    """The source's batches, each of the same order, while progress is told of them."""
    done = 0
    options.report("read", 0, source.total)
    for batch in source.batches(options.batch_entries):
        order = check_batch(batch, order)
        yield batch
        done += batch.values.shape[0] if batch.visited is None else batch.visited
        options.report("read", done, source.total)


def _sort(
    batches: list[ScratchBatch],
    shape: tuple[int, ...],
    slab_mode: int,
    scratch: Scratch,
    options: IngestOptions,
) -> tuple[list[ScratchBatch], tuple[Slab, ...]]:
    """Each batch stably sorted by slab index, and the slabs that balance their total."""
    scratch.begin_pass()
    histogram = SliceHistogram(shape[slab_mode])
    ordered: list[ScratchBatch] = []
    for number, kept in enumerate(batches):
        options.report("sort", number, len(batches))
        batch = kept.read()
        positions = batch.indices[slab_mode]
        histogram.add(positions)
        order = np.argsort(positions, kind="stable")
        ordered.append(scratch.write(taken(batch, order)))
    options.report("sort", len(batches), len(batches))
    return ordered, histogram.slabs(options.partition_entries)


def _arrange(
    batches: list[ScratchBatch],
    slabs: tuple[Slab, ...],
    shape: tuple[int, ...],
    slab_mode: int,
    scratch: Scratch,
    source: Source,
    options: IngestOptions,
) -> list[tuple[ScratchBatch, float]]:
    """Each slab in its final order without duplicates, as a batch, with the sum of its values."""
    scratch.begin_pass()
    edges = np.array([0, *(slab.stop for slab in slabs)], dtype=np.int64)
    offsets = [np.searchsorted(kept.read_mode(slab_mode), edges).tolist() for kept in batches]
    parts: list[tuple[ScratchBatch, float]] = []
    for number in range(len(slabs)):
        options.report("arrange", number, len(slabs))
        batch = gathered(
            (kept, offset[number], offset[number + 1])
            for kept, offset in zip(batches, offsets, strict=True)
        )
        order, repeated = lexicographic_order(tuple(batch.indices), shape, slab_mode)
        final = _settled(taken(batch, order), repeated, source, options.duplicates)
        total = float(np.sum(final.values, dtype=np.float64))
        parts.append((scratch.write(final), total))
    options.report("arrange", len(slabs), len(slabs))
    return parts


def _settled(
    batch: Batch, repeated: np.ndarray[Any, np.dtype[np.bool_]], source: Source, rule: DuplicateRule
) -> Batch:
    """The ordered batch with one entry per index, and without its rows, no longer needed."""
    if not repeated.any():
        return Batch(batch.indices, batch.values)
    if rule == "error":
        second = int(np.argmax(repeated))
        index = batch.indices[:, second].tolist()
        rows = "" if batch.rows is None else _row_pair(batch, second, source.row_word)
        raise InvalidInput(
            f"{describe(source, None, index)} is observed twice{rows}, with values "
            f"{batch.values[second - 1]} and {batch.values[second]}; remove one, or choose "
            'duplicates="mean", "sum" or "last" (on the command line --duplicates mean, and so on).'
        )
    kept, values = merge(batch.values, repeated, rule)
    if not np.isfinite(values).all():
        entry = int(kept[np.argmin(np.isfinite(values))])
        raise InvalidInput(
            f"{describe(source, None, batch.indices[:, entry].tolist())}: the {rule} of its "
            f'values does not fit in {values.dtype}; use float64, or duplicates="last" '
            "(on the command line --duplicates last)."
        )
    return Batch(batch.indices[:, kept], values)


def _row_pair(batch: Batch, second: int, word: str) -> str:
    if batch.rows is None:
        return ""
    return f", in {word} {batch.rows[second - 1]} and {word} {batch.rows[second]}"


def _write(
    place: str, header: StoreHeader, batches: list[ScratchBatch], options: IngestOptions
) -> StoreHeader:
    """Create the store and fill its partitions, or leave nothing; the header has checksums."""
    create_store(place, header)
    try:
        checksums: list[int] = []
        for number, (part, kept) in enumerate(zip(header.partitions, batches, strict=True)):
            options.report("write", number, len(batches))
            batch = kept.read()
            checksums.append(write_partition(place, part.name, tuple(batch.indices), batch.values))
        options.report("write", len(batches), len(batches))
    except BaseException:
        location.remove(place)
        raise
    return header.with_checksums(tuple(checksums))


def _partitions(
    slabs: tuple[Slab, ...], parts: list[tuple[ScratchBatch, float]]
) -> tuple[PartitionInfo, ...]:
    return tuple(
        PartitionInfo(partition_name(number), kept.count, slab.first, slab.stop)
        for number, (slab, (kept, _)) in enumerate(zip(slabs, parts, strict=True))
    )


def _value_dtype(source: Source, options: IngestOptions) -> np.dtype[Any]:
    if options.dtype is None:
        return np.dtype(float_name(source.dtype))
    wanted = np.dtype(options.dtype)
    if wanted.name not in VALUE_TYPES:
        raise InvalidInput(
            f"dtype {wanted} cannot be stored; choose one of {', '.join(VALUE_TYPES)}."
        )
    return wanted


def _slab_mode(wanted: int | None, shape: tuple[int, ...]) -> int:
    if wanted is None:
        return choose_slab_mode(shape)
    if not 0 <= wanted < len(shape):
        raise InvalidInput(
            f"slab_mode={wanted} is not a mode of shape {shape}; choose 0 to {len(shape) - 1}."
        )
    return wanted


def _coordinates(source: Source, names: tuple[str, ...] | None) -> dict[str, Any] | None:
    """The source's coordinates, which must follow when the caller names dimensions anew."""
    if source.dimension_names is None or names is None:
        return source.coordinates
    return coordinates.renamed(source.coordinates, source.dimension_names, names)


def _dimension_names(names: Sequence[str] | None, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or len(names) != len(shape) or len(set(names)) != len(names):
        raise InvalidInput(
            f"dimension_names={names!r} do not fit shape {shape}; give {len(shape)} different "
            "names."
        )
    return tuple(str(name) for name in names)
