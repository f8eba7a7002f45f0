"""Dividing observations in two: in which shape they are missing, and what is held out like that.

One pass over the partitions, in bounded memory, finds whether entries are missing here and there,
in whole fibres or in whole slices: from the slices that have observations, and from the fibres that
have some, of which a part is drawn by a hash of their position where there are many.

Whether an observation is held out is decided by a 64-bit hash of its index and the seed, so it does
not depend on how the store was partitioned or in which order it was read. Of slices there may be
few: they are taken in the order of their hashes until they hold what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data import location
from slrt_dask.data.holding_out import (
    AUTO,
    FIBRES,
    SINGLY,
    SLICES,
    Kind,
    KindLike,
    hash_indices,
)
from slrt_dask.data.ingest import IngestOptions, Progress, Source, ingest_together, tell
from slrt_dask.data.layout import StoreHeader, read_partition, read_weighted
from slrt_dask.data.location import StorePath
from slrt_dask.data.sorting import Batch
from slrt_dask.errors import InvalidInput

MOST_FIBRES = 2**16
"""Fibres of a mode that are counted; of more, a drawn part."""
SEED = 7
MOSTLY = 0.5
"""The part of what is missing that has to be missing so for it to be the kind of gap, of all that
would not be missing so by chance; and the part of a fibre or slice that is there if any of it is.
"""
HERE_AND_THERE = "single entries are missing here and there"
FEWEST_FIBRES, FEWEST_SLICES = 100, 20
"""With observations, of which some can be held out; fibres are drawn, and might all be spared."""


class FibreSample:
    """Fibres of one mode that have observations; of more than `most`, a part that is drawn."""

    def __init__(self, mode: int, most: int = MOST_FIBRES) -> None:
        self._mode, self._most = mode, most
        self._limit = 2**64 - 1
        self._keys = np.zeros(0, dtype=np.uint64)

    def see(self, columns: tuple[NDArray[Any], ...]) -> None:
        """Add the entries of one partition, K arrays (m,)."""
        hashed = hash_indices(Kind(FIBRES, self._mode).units(columns), SEED)
        self._keys = np.union1d(self._keys, hashed[hashed <= np.uint64(self._limit)])
        while len(self._keys) > self._most:
            self._limit //= 2
            self._keys = self._keys[self._keys <= np.uint64(self._limit)]

    @property
    def fibres(self) -> float:
        """How many fibres have observations: exactly, or estimated from the drawn ones."""
        return len(self._keys) * 2.0**64 / (self._limit + 1)


@dataclass(frozen=True)
class Pattern:
    """What is there of a tensor.

    filled : K arrays (n_k,), whether a slice has observations
    fibres : how many fibres of each mode have any
    """

    shape: tuple[int, ...]
    nnz: int
    filled: tuple[NDArray[np.bool_], ...]
    fibres: tuple[float, ...]

    @property
    def filled_slices(self) -> tuple[int, ...]:
        """How many slices of each mode have observations."""
        return tuple(int(np.count_nonzero(filled)) for filled in self.filled)

    @property
    def missing(self) -> float:
        return math.prod(map(float, self.shape)) - self.nnz

    def slice_gaps(self, mode: int) -> tuple[float, float]:
        """Which part of what is missing are whole slices; how full the others are."""
        cells = math.prod(map(float, self.shape)) / self.shape[mode]
        empty = self.shape[mode] - self.filled_slices[mode]
        part = empty * cells / self.missing if self.missing else 0.0
        return part, self.nnz / (self.filled_slices[mode] * cells)

    def runs(self, mode: int) -> NDArray[np.int64]:
        """Lengths of the runs of neighbouring slices without observations, in order."""
        edges = np.diff(np.concatenate(([0], ~self.filled[mode], [0])))
        return np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)

    def fibre_gaps(self, mode: int) -> tuple[float, float, float]:
        """The same of fibres, slices that are wholly missing aside.

        The third number is the part that would be missing so by chance alone.
        """
        lengths = self.filled_slices
        cells = math.prod(map(float, lengths))
        missing, length = cells - self.nnz, lengths[mode]
        if missing < 1.0:
            return 0.0, 1.0, 0.0
        part = (cells - length * self.fibres[mode]) / missing
        by_chance = (1.0 - self.nnz / cells) ** (length - 1)
        return part, self.nnz / (self.fibres[mode] * length), by_chance


@dataclass(frozen=True)
class Shape:
    """The kind of gaps that a pattern has, and a clause that says why."""

    kind: Kind
    why: str


def observe(path: str, header: StoreHeader) -> Pattern:
    """The pattern of a store's observations, a partition at a time."""
    filled = tuple(np.zeros(length, dtype=np.bool_) for length in header.shape)
    # A series is its own only fibre.
    samples = [FibreSample(mode) for mode in range(header.order) if header.order > 1]
    for number in range(len(header.partitions)):
        columns, _ = read_partition(path, header, number)
        for mode, column in enumerate(columns):
            filled[mode][column] = True
        for sample in samples:
            sample.see(columns)
    fibres = tuple(sample.fibres for sample in samples) or (1.0,)
    return Pattern(header.shape, header.nnz, filled, fibres)


def shape_of_gaps(pattern: Pattern, foreseen: tuple[bool, ...] | None = None) -> Shape:
    """What of a tensor is missing together.

    foreseen : for every mode, whether a slice without any observation can be predicted; that
        takes a structure in the mode, low rank alone knows nothing of it. None if none can
    """
    order = len(pattern.shape)
    if order == 1:
        return Shape(SINGLY, _of_a_series(pattern))
    slices = [(*pattern.slice_gaps(mode), mode) for mode in range(order)]
    part, full, mode = max(slices)
    if foreseen is not None and any(foreseen):
        part, full, mode = max(gap for gap in slices if foreseen[gap[2]])
        enough = pattern.filled_slices[mode] >= FEWEST_SLICES
        if enough and _is_kind(part, full, 0.0):
            why = f"{part:.0%} of what is missing are whole slices of mode {mode}"
            return Shape(Kind(SLICES, mode), why)
    unforeseen = ""
    empty = sum(pattern.shape) - sum(pattern.filled_slices)
    if empty and (foreseen is None or not all(foreseen)):
        which = f"{empty:,} slice{'s' * (empty != 1)}"
        unforeseen = f"; {which} without observations cannot be predicted by low rank"
    if order > 2:  # fibres of a matrix are slices
        fibres = [(*pattern.fibre_gaps(mode), mode) for mode in range(order)]
        part, full, chance, mode = max(fibres)
        if _is_kind(part, full, chance) and pattern.fibres[mode] >= FEWEST_FIBRES:
            why = f"{part:.0%} of what is missing are whole fibres of mode {mode}"
            return Shape(Kind(FIBRES, mode), why + unforeseen)
    return Shape(SINGLY, HERE_AND_THERE + unforeseen)


def _of_a_series(pattern: Pattern) -> str:
    """Why single samples are held out of a series, of which nothing larger can be."""
    runs, missing = pattern.runs(0), pattern.missing
    by_chance = missing * pattern.nnz / pattern.shape[0]
    if len(runs) > MOSTLY * by_chance or missing == 0:
        return HERE_AND_THERE
    which = "a run of samples is" if len(runs) == 1 else f"{len(runs):,} runs of samples are"
    return (
        f"nothing larger can be held out of a series, although {which} missing, up to "
        f"{runs.max():,} in a row; a run that you hold out yourself, as validation, judges better"
    )


def _is_kind(part: float, full: float, by_chance: float) -> bool:
    return 1.0 - part <= MOSTLY * (1.0 - by_chance) and full >= MOSTLY


# ---- the division ----------------------------------------------------------------------------


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
        held: NDArray[np.bool_]
        if self.slices is None:
            held = self.kind.uniform(columns, self.seed) < self.test
        else:
            held = self.slices[self.kind.units(columns)[0]]
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
    train = location.normal_path(train_path if train_path is not None else f"{path}-train")
    other = location.normal_path(test_path if test_path is not None else f"{path}-test")
    if train == other:
        raise InvalidInput(f"both parts would be written to {train}; give two paths.")
    location.refuse_existing(train, other)
    division = _divided(path, header, Division(found, test, seed), progress)

    def part(*, held_out: bool) -> Source:
        def read(limit: int) -> Iterator[Batch]:
            for number in range(len(header.partitions)):
                columns, values, weights = read_weighted(path, header, number)
                chosen = division.holds_out(columns) == held_out
                batch = Batch(np.stack(columns), values, weights=weights).taken(chosen)
                yield replace(batch, visited=values.shape[0])

        return Source(
            read,
            header.value_dtype,
            header.shape,
            total=header.nnz,
            dimension_names=header.dimension_names,
            coordinates=header.coordinates,
            about=header.about,
        )

    largest = max(part.count for part in header.partitions)
    options = IngestOptions(header.slab_mode, largest, progress=progress)
    ingest_together([(train, part(held_out=False)), (other, part(held_out=True))], options)
    return train, other


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
        # Slices without observations are passed over; the last one may hold more than is wanted.
        filled = np.flatnonzero(counts)
        order = filled[np.argsort(SINGLY.uniform((filled,), division.seed), kind="stable")]
        before = np.cumsum(counts[order]) - counts[order]
        chosen = np.zeros(len(counts), dtype=np.bool_)
        chosen[order[before < division.test * counts.sum()]] = True
        division, held = replace(division, slices=chosen), int(counts[chosen].sum())
    if held in (0, header.nnz):
        part = "test" if held == 0 else "train"
        raise InvalidInput(
            f"with test={division.test} and seed={division.seed} the {part} part of {header.nnz} "
            f"observations would be empty when {division.kind} are held out; choose another "
            "fraction, seed or kind."
        )
    return division
