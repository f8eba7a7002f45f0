"""Holding observations out: two stores from one, streamed partition by partition.

Whether an observation is held out is decided by a 64-bit hash of its index and the seed, so it
does not depend on how the store was partitioned or in which order it was read. Of slices there may
be few: they are taken in the order of their hashes until they hold what is wanted. This changes
when another way of holding out is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data import location
from slrt_dask.data.batches import Batch, Source
from slrt_dask.data.header import StoreHeader
from slrt_dask.data.holding_out import AUTO, SINGLY, SLICES, Kind, KindLike
from slrt_dask.data.ingest import IngestOptions, ingest_together
from slrt_dask.data.layout import read_partition
from slrt_dask.data.location import StorePath
from slrt_dask.data.pattern import observe, shape_of_gaps
from slrt_dask.data.progress import Progress, tell
from slrt_dask.errors import InvalidInput


@dataclass(frozen=True)
class Division:
    """Says of every observation whether it is held out.

    slices : which slices of the kind's mode are, (n_k,), where whole slices are
    """

    kind: Kind
    test: float
    seed: int
    slices: NDArray[np.bool_] | None = None

    def holds_out(self, columns: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
        """columns : K index arrays (m,). Which of them are in the test part, (m,)."""
        if self.slices is not None:
            assert self.kind.mode is not None
            chosen: NDArray[np.bool_] = self.slices[columns[self.kind.mode]]
            return chosen
        held: NDArray[np.bool_] = self.kind.uniform(columns, self.seed) < self.test
        return held


def split_store(
    path: str,
    header: StoreHeader,
    test: float,
    seed: int,
    train_path: StorePath | None = None,
    test_path: StorePath | None = None,
    kind: KindLike | Kind = "entries",
    progress: Progress | None = None,
) -> tuple[str, str]:
    """Write the two parts of a store and return their paths (train, test)."""
    if not 0.0 < test < 1.0:
        raise InvalidInput(f"test={test} is not a fraction; give a number between 0 and 1.")
    if kind == AUTO:
        found = shape_of_gaps(observe(path, header), foreseen=(True,) * header.order).kind
    else:
        found = Kind.of(kind, header.order, header.dimension_names)
    places = (
        location.normal_path(train_path if train_path is not None else f"{path}-train"),
        location.normal_path(test_path if test_path is not None else f"{path}-test"),
    )
    if places[0] == places[1]:
        raise InvalidInput(f"both parts would be written to {places[0]}; give two paths.")
    location.refuse_existing(*places)
    division = _divided(path, header, Division(found, test, seed), progress)
    parts = (
        (place, _part_source(path, header, division, held_out=held_out))
        for place, held_out in zip(places, (False, True), strict=True)
    )
    ingest_together(tuple(parts), _options(header, progress))
    return places


def _divided(
    path: str, header: StoreHeader, division: Division, progress: Progress | None
) -> Division:
    """The division, its slices chosen if there are any; refused if it leaves a part empty."""
    mode = division.kind.mode if division.kind.what == SLICES else None
    counts = np.zeros(header.shape[mode or 0], dtype=np.int64)
    held = 0
    for number in range(len(header.partitions)):
        tell(progress, "count", number, len(header.partitions))
        columns, _ = read_partition(path, header, number)
        if mode is None:
            held += int(np.count_nonzero(division.holds_out(columns)))
        else:
            counts += np.bincount(columns[mode], minlength=len(counts))
    tell(progress, "count", len(header.partitions), len(header.partitions))
    if mode is not None:
        chosen = _chosen_slices(counts, division)
        division, held = replace(division, slices=chosen), int(counts[chosen].sum())
    if held in (0, header.nnz):
        part = "test" if held == 0 else "train"
        raise InvalidInput(
            f"with test={division.test} and seed={division.seed} the {part} part of {header.nnz} "
            f"observations would be empty when {division.kind} are held out; choose another "
            "fraction, seed or kind."
        )
    return division


def _chosen_slices(counts: NDArray[np.int64], division: Division) -> NDArray[np.bool_]:
    """Which slices to hold out, (n,), given how many observations each has.

    Slices without any are passed over; the last one that is taken may hold more than is wanted.
    """
    filled = np.flatnonzero(counts)
    drawn = SINGLY.uniform((filled,), division.seed)
    order = filled[np.argsort(drawn, kind="stable")]
    before = np.cumsum(counts[order]) - counts[order]
    chosen = np.zeros(len(counts), dtype=np.bool_)
    chosen[order[before < division.test * counts.sum()]] = True
    return chosen


def _part_source(path: str, header: StoreHeader, division: Division, *, held_out: bool) -> Source:
    def read(limit: int) -> Iterator[Batch]:
        for number in range(len(header.partitions)):
            columns, values = read_partition(path, header, number)
            chosen = division.holds_out(columns) == held_out
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
