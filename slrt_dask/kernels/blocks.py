"""How the observations of one block are numbered so that the kernels can run over them.

A block is a run of whole slices of the slab mode. For every mode k each entry has a row (its index
in that mode) and a fibre number. Fibres of the slab mode cross blocks, so their numbers are global
(`FibreNumbering`); fibres of every other mode lie inside one slice and are numbered from zero in
each slice, so that one small buffer serves them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import InvalidInput

IndexColumns = tuple[NDArray[np.integer[Any]], ...]
_LARGEST_KEY = 2**63 - 1


def fibre_keys(
    indices: IndexColumns, shape: tuple[int, ...], left_out: tuple[int, ...]
) -> NDArray[np.int64]:
    """One integer per entry that names its position in all modes but those left out."""
    keys = np.zeros(len(indices[0]), dtype=np.int64)
    for mode, (column, length) in enumerate(zip(indices, shape, strict=True)):
        if mode not in left_out:
            keys *= length
            keys += column
    return keys


def possible_fibres(shape: tuple[int, ...], left_out: tuple[int, ...]) -> int:
    """Number of fibres there are, observed or not; an error if a 64-bit key cannot hold it."""
    count = math.prod(length for mode, length in enumerate(shape) if mode not in left_out)
    if count > _LARGEST_KEY:
        raise InvalidInput(
            f"a tensor of shape {shape} has {count} possible fibres along mode {left_out[0]}, more "
            f"than a 64-bit number can name; split the tensor, or merge modes that belong together"
        )
    return count


@dataclass(frozen=True)
class FibreNumbering:
    """Global numbers of the slab mode's fibres.

    `known` is None when every possible fibre has a number (its key); otherwise it holds the sorted
    keys of the fibres that occur, and a fibre's number is its position there. A fibre that does
    not occur gets the number `count`.
    """

    count: int
    known: NDArray[np.int64] | None = None

    def numbers(self, keys: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
        kind = np.int32 if self.count < 2**31 - 1 else np.int64
        if self.known is None:
            return keys.astype(kind)
        places = np.searchsorted(self.known, keys)
        inside = np.minimum(places, self.count - 1)
        return np.where(self.known[inside] == keys, places, self.count).astype(kind)


@dataclass(frozen=True)
class BlockIndex:
    """Rows and fibre numbers of the entries of some whole slices.

    starts : (slices + 1,) positions at which each slice begins
    rows, fibres : K arrays (entries,)
    buffer_rows : K counts; fibres in the fullest slice (for the slab mode: fibres in all)
    mode_in_runs : the mode in which the entries of every fibre follow each other, if there is one
    """

    shape: tuple[int, ...]
    slab_mode: int
    starts: NDArray[np.int64]
    rows: IndexColumns
    fibres: IndexColumns
    buffer_rows: tuple[int, ...]
    mode_in_runs: int | None = None

    @property
    def entries(self) -> int:
        return len(self.rows[self.slab_mode])

    @property
    def slices(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def local_modes(self) -> tuple[int, ...]:
        """The modes whose fibres do not leave a slice."""
        return tuple(k for k in range(len(self.shape)) if k != self.slab_mode)


def build_block(
    indices: IndexColumns, shape: tuple[int, ...], slab_mode: int, numbering: FibreNumbering
) -> BlockIndex:
    """Number the entries of a run of whole slices; `indices` must be sorted by the slab mode."""
    _, starts = _slice_starts(indices[slab_mode])
    rows = tuple(np.ascontiguousarray(column) for column in indices)
    fibres: list[NDArray[np.integer[Any]]] = []
    buffer_rows: list[int] = []
    for mode in range(len(shape)):
        if mode == slab_mode:
            fibres.append(_crossing_fibres(rows, shape, slab_mode, numbering))
            buffer_rows.append(numbering.count)
        else:
            numbers, count = _slice_fibres(rows, shape, (mode, slab_mode), starts)
            fibres.append(numbers)
            buffer_rows.append(count)
    # In a store's order it is the last one; entries that were added later break its runs.
    last = max(mode for mode in range(len(shape)) if mode != slab_mode)
    return BlockIndex(
        shape, slab_mode, starts, rows, tuple(fibres), tuple(buffer_rows),
        last if _rise_in_slices(fibres[last], starts) else None,
    )  # fmt: skip


@dataclass(frozen=True)
class QueryIndex:
    """Places at which to sample, numbered together with the block they are sampled from.

    starts : (slices + 1,) where each slice that holds queries begins among them
    source_bounds : (2, slices) where the same slices begin and end among the block's entries
    rows, fibres : K arrays (queries,)
    source_fibres : K arrays (entries,), the entries' fibre numbers for this purpose: a query may
        lie in a fibre that holds no entry, so the block's own numbers may not do
    """

    starts: NDArray[np.int64]
    source_bounds: NDArray[np.int64]
    rows: IndexColumns
    fibres: IndexColumns
    source_fibres: IndexColumns
    buffer_rows: tuple[int, ...]


def build_queries(
    block: BlockIndex, indices: IndexColumns, numbering: FibreNumbering
) -> QueryIndex:
    """Number queries that are sorted by the slab mode."""
    slices, starts = _slice_starts(indices[block.slab_mode])
    entry_slices = block.rows[block.slab_mode]
    source_starts, source_stops = (
        np.searchsorted(entry_slices, slices, side=side) for side in ("left", "right")
    )
    rows = tuple(np.ascontiguousarray(column) for column in indices)
    fibres, source_fibres, buffer_rows = [], [], []
    for mode in range(len(block.shape)):
        if mode == block.slab_mode:
            numbers = _crossing_fibres(rows, block.shape, mode, numbering)
            source_numbers, count = block.fibres[mode], numbering.count + 1
        elif len(block.shape) <= 3:
            numbers, count = _slice_fibres(rows, block.shape, (mode, block.slab_mode), starts)
            source_numbers = block.fibres[mode]
        else:
            left_out = (mode, block.slab_mode)
            keys = [fibre_keys(columns, block.shape, left_out) for columns in (block.rows, rows)]
            places = [entry_slices, rows[block.slab_mode]]
            joint, count = _number_within_slices(np.concatenate(keys), np.concatenate(places))
            source_numbers, numbers = joint[: block.entries], joint[block.entries :]
        fibres.append(numbers)
        source_fibres.append(source_numbers)
        buffer_rows.append(count)
    bounds = np.stack([source_starts, source_stops]).astype(np.int64)
    return QueryIndex(starts, bounds, rows, tuple(fibres), tuple(source_fibres), tuple(buffer_rows))


def _slice_starts(
    slab_indices: NDArray[np.integer[Any]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the slices that occur, and the positions at which each begins."""
    changes = np.flatnonzero(np.diff(slab_indices)) + 1
    starts = np.concatenate([[0], changes, [len(slab_indices)]]).astype(np.int64)
    if len(slab_indices) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    return slab_indices[starts[:-1]].astype(np.int64), starts


def _rise_in_slices(numbers: NDArray[np.integer[Any]], starts: NDArray[np.int64]) -> bool:
    """Whether numbers never fall within a slice."""
    falls = np.flatnonzero(numbers[1:] < numbers[:-1]) + 1
    return bool(np.isin(falls, starts).all())


def _crossing_fibres(
    rows: IndexColumns, shape: tuple[int, ...], slab_mode: int, numbering: FibreNumbering
) -> NDArray[np.integer[Any]]:
    if len(shape) == 2 and numbering.known is None:
        return rows[1 - slab_mode]
    return numbering.numbers(fibre_keys(rows, shape, (slab_mode,)))


def _slice_fibres(
    rows: IndexColumns,
    shape: tuple[int, ...],
    left_out: tuple[int, int],
    starts: NDArray[np.int64],
) -> tuple[NDArray[np.integer[Any]], int]:
    """Fibre numbers inside each slice, and how many rows a buffer for them needs."""
    remaining = [mode for mode in range(len(shape)) if mode not in left_out]
    if not remaining:
        return np.zeros(len(rows[0]), dtype=np.int32), 1
    if len(remaining) == 1:
        # The index in the one remaining mode is the number: no array of its own is needed.
        return rows[remaining[0]], shape[remaining[0]]
    possible_fibres(shape, left_out)
    places = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return _number_within_slices(fibre_keys(rows, shape, left_out), places)


def _number_within_slices(
    keys: NDArray[np.int64], places: NDArray[np.int64]
) -> tuple[NDArray[np.int32], int]:
    """Number the distinct keys of each slice from zero; return numbers and the largest count."""
    if len(keys) == 0:
        return np.zeros(0, dtype=np.int32), 1
    order = np.lexsort((keys, places))
    sorted_keys, sorted_places = keys[order], places[order]
    new_slice = np.diff(sorted_places, prepend=sorted_places[0] - 1) != 0
    new_fibre = new_slice | (np.diff(sorted_keys, prepend=sorted_keys[0]) != 0)
    running = np.cumsum(new_fibre) - 1
    # A slice's own numbers start where its first entry's running number stands.
    offsets = running[new_slice][np.cumsum(new_slice) - 1]
    numbers = np.empty(len(keys), dtype=np.int32)
    numbers[order] = running - offsets
    return numbers, int(numbers.max()) + 1
