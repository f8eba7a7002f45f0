"""The entries beside the observed ones that a constraint is looked after at, where they are held.

All of this runs once on every share; nothing but counts goes to the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.store import open_store
from slrt_dask.dual.entries import MARKS
from slrt_dask.engine.block import EXTRA, FIBRES, ROWS, Block, MemoryArrays
from slrt_dask.engine.share import Share
from slrt_dask.kernels.blocks import IndexColumns, fibre_keys
from slrt_dask.kernels.entries import BOUNDED

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Places:
    """Where a constraint holds: the entries of a store, or those of an array (K, m)."""

    store: str | None = None
    array: NDArray[np.int64] | None = None

    def in_slices(self, mode: int, slices: tuple[int, int]) -> NDArray[np.int64]:
        """Those in some slices of a mode, (K, m)."""
        if self.array is not None:
            return _cut(self.array, mode, slices)
        opened = open_store(str(self.store))
        found = [
            _cut(np.stack(opened.read_partition(number)[0]).astype(np.int64), mode, slices)
            for number in range(len(opened.partitions))
        ]
        return np.concatenate(found, axis=1)


def resupported(old: Block, slab_mode: int, keep: Mask | None, added: IndexColumns | None) -> Block:
    """The block on the entries kept and added, in the order of the slab mode.

    Within a slice those of the store come first, as they are there, then the others by their
    indices. So the order, and with it every sum, does not depend on when an entry was added.
    """
    assert isinstance(old.arrays, MemoryArrays)
    kept = np.arange(old.entries) if keep is None else np.flatnonzero(keep)
    new = added or tuple(np.zeros(0, dtype=column.dtype) for column in old.columns)
    columns = [
        np.concatenate([column[kept], more.astype(column.dtype)])
        for column, more in zip(old.columns, new, strict=True)
    ]
    extra = np.concatenate([old.extra[kept], np.ones(len(new[0]), dtype=np.bool_)])
    # The store's entries have no keys of their own, so that a stable sort leaves them as they are.
    keys = [np.where(extra, column, 0) for column in reversed(columns)]
    places = np.lexsort((*keys, extra, columns[slab_mode]))

    held = {f"{ROWS}{mode}": column[places] for mode, column in enumerate(columns)}
    held[EXTRA] = extra[places]
    for name, vector in old.arrays.held.items():
        if name != EXTRA and not name.startswith((ROWS, FIBRES)):
            longer = np.zeros(len(places), dtype=vector.dtype)
            longer[: len(kept)] = vector[kept]
            held[name] = longer[places]
    coupling = old.coupling
    if coupling is not None:
        numbers = np.full(old.entries, -1)
        numbers[kept] = np.argsort(places)[: len(kept)]
        positions = numbers[coupling.positions].astype(np.int32)
        coupling = replace(coupling, positions=positions)
    return Block(
        MemoryArrays(held), len(places), old.order, old.slices, old.position,
        queries=old.queries, query_values=old.query_values, query_weights=old.query_weights,
        coupling=coupling,
    )  # fmt: skip


def take_found(share: Share, centre: str, dual: str) -> int:
    """Have what a scan found among a share's entries, and let go of what has no part in anything.

    Returns how many entries beyond the store's there are then.
    """
    mode = share.assignment.store.slab_mode

    def change(block: Block) -> Block:
        idle = (block.vector(centre) == 0.0) & (block.vector(dual) == 0.0)
        return resupported(block, mode, ~(block.extra & idle) | _coupled(block), block.found)

    return share.change_support(change)


def bound_places(share: Share, places: Places) -> int:
    """Have the entries of a set of places among a share's, and mark those that are observed too.

    Returns how many entries beyond the store's there are then.
    """
    store = share.assignment.store

    def change(block: Block) -> Block:
        wanted = np.unique(places.in_slices(store.slab_mode, block.slices), axis=1)
        keys = fibre_keys(tuple(wanted), store.shape, ())
        held = fibre_keys(block.columns, store.shape, ())
        marks = block.changing(MARKS)
        others = marks.astype(np.int64) & ~BOUNDED
        marks[:] = np.where(np.isin(held, keys), others | BOUNDED, others)
        return resupported(block, store.slab_mode, None, tuple(wanted[:, ~np.isin(keys, held)]))

    return share.change_support(change)


def restore_extra(share: Share, extra: dict[int, NDArray[np.int64]]) -> None:
    """Have just these entries beyond the store's: arrays (K, m) by partition."""
    mode, shape = share.assignment.store.slab_mode, share.assignment.store.shape
    places = np.concatenate([extra[number] for number in sorted(extra)], axis=1)

    def change(block: Block) -> Block:
        wanted = _cut(places, mode, block.slices)
        keys = fibre_keys(tuple(wanted), shape, ())
        held = fibre_keys(block.columns, shape, ())
        keep = ~block.extra | np.isin(held, keys) | _coupled(block)
        return resupported(block, mode, keep, tuple(wanted[:, ~np.isin(keys, held)]))

    share.change_support(change)


def partition_columns(
    share: Share, partition: int, *, extra: bool = False
) -> list[NDArray[np.integer[Any]]]:
    """The index columns of one partition's entries, or only those that are not the store's."""
    parts = []
    for block, piece in share.pieces(partition):
        chosen = block.extra[piece] if extra else slice(None)
        parts.append([column[piece][chosen] for column in block.columns])
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def partition_extents(share: Share) -> dict[int, tuple[int, int, int]]:
    """Of every partition of a share: entries, first slice, and one after the last."""
    extents, mode = {}, share.assignment.store.slab_mode
    for number in share.assignment.partitions:
        slab = partition_columns(share, number)[mode]
        extents[number] = len(slab), int(slab[0]), int(slab[-1]) + 1
    return extents


def _coupled(block: Block) -> Mask:
    """Which entries a linear constraint has coefficients for."""
    coupled = np.zeros(block.entries, dtype=np.bool_)
    if block.coupling is not None:
        coupled[block.coupling.positions] = True
    return coupled


def _cut(places: NDArray[np.int64], mode: int, slices: tuple[int, int]) -> NDArray[np.int64]:
    inside = (places[mode] >= slices[0]) & (places[mode] < slices[1])
    return places[:, inside]
