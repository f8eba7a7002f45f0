"""The entries beside the observed ones that a constraint is looked after at, where they are held.

All of this runs once on every share; nothing but counts goes to the driver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.store import open_store
from slrt_dask.dual.bounds import MARKS
from slrt_dask.engine.resting import Contents
from slrt_dask.engine.share import Share
from slrt_dask.kernels.blocks import IndexColumns, fibre_keys
from slrt_dask.kernels.bounds import BOUNDED

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


def take_found(share: Share, centre: str, dual: str) -> int:
    """Have what a scan found among a share's entries, and let go of what has no part in anything.

    Returns how many entries beyond the store's there are then.
    """

    def change(contents: Contents, found: IndexColumns | None) -> tuple[Mask, IndexColumns | None]:
        idle = (contents.vectors[centre] == 0.0) & (contents.vectors[dual] == 0.0)
        return ~(contents.extra & idle) | _coupled(contents), found

    share.change_support(change)
    return sum(int(resting.extra().sum()) for resting in share.blocks)


def bound_places(share: Share, places: Places) -> int:
    """Have the entries of a set of places among a share's, and mark those that are observed too.

    Returns how many entries beyond the store's there are then.
    """
    store = share.assignment.store

    def change(contents: Contents, found: IndexColumns | None) -> tuple[None, IndexColumns]:
        block = contents.block
        wanted = np.unique(places.in_slices(store.slab_mode, block.slices), axis=1)
        keys = fibre_keys(tuple(wanted), store.shape, ())
        held = fibre_keys(block.columns, store.shape, ())
        marks = contents.vectors[MARKS]
        others = marks.astype(np.int64) & ~BOUNDED
        marks[:] = np.where(np.isin(held, keys), others | BOUNDED, others)
        return None, tuple(wanted[:, ~np.isin(keys, held)])

    share.change_support(change)
    return sum(int(resting.extra().sum()) for resting in share.blocks)


def restore_extra(share: Share, extra: dict[int, NDArray[np.int64]]) -> None:
    """Have just these entries beyond the store's: arrays (K, m) by partition."""
    mode, shape = share.assignment.store.slab_mode, share.assignment.store.shape

    def change(contents: Contents, found: IndexColumns | None) -> tuple[Mask, IndexColumns]:
        block = contents.block
        wanted = _cut(extra[block.partition], mode, block.slices)
        keys = fibre_keys(tuple(wanted), shape, ())
        held = fibre_keys(block.columns, shape, ())
        keep = ~contents.extra | np.isin(held, keys) | _coupled(contents)
        return keep, tuple(wanted[:, ~np.isin(keys, held)])

    share.change_support(change)


def partition_extents(share: Share) -> dict[int, tuple[int, int, int]]:
    """Of every partition of a share: entries, first slice, and one after the last."""
    extents, mode = {}, share.assignment.store.slab_mode
    for number in share.assignment.partitions:
        slab = share.partition_columns(number)[mode]
        extents[number] = len(slab), int(slab[0]), int(slab[-1]) + 1
    return extents


def _coupled(contents: Contents) -> Mask:
    """Which entries a linear constraint has coefficients for."""
    coupled = np.zeros(contents.block.entries, dtype=np.bool_)
    if contents.block.coupling is not None:
        coupled[contents.block.coupling.positions] = True
    return coupled


def _cut(places: NDArray[np.int64], mode: int, slices: tuple[int, int]) -> NDArray[np.int64]:
    inside = (places[mode] >= slices[0]) & (places[mode] < slices[1])
    return places[:, inside]
