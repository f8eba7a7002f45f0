"""A block on other entries than before: some left out, some added beside those of the store.

Entries are in the order of the slab mode; within a slice those of the store come first, as they are
there, then the others by their indices. So the order, and with it every sum, does not depend on
when an entry was added, or on how a partition is cut into blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import VALUES, Block, MemoryVectors, Vector
from slrt_dask.engine.resting import Contents
from slrt_dask.kernels.blocks import IndexColumns

Mask = NDArray[np.bool_]
Change = Callable[[Contents, IndexColumns | None], tuple[Mask | None, IndexColumns | None]]
"""Which entries of a block to keep and which to add, given what was found for it; None: no others.
What is to be added must not be there already."""


def resupported(
    contents: Contents, slab_mode: int, keep: Mask | None, added: IndexColumns | None
) -> tuple[Block, Mask]:
    """The block on the entries kept and added, and which of those are not the store's."""
    old = contents.block
    kept = np.arange(old.entries) if keep is None else np.flatnonzero(keep)
    fresh = added or tuple(np.zeros(0, dtype=column.dtype) for column in old.columns)
    columns = [
        np.concatenate([column[kept], new.astype(column.dtype)])
        for column, new in zip(old.columns, fresh, strict=True)
    ]
    extra = np.concatenate([contents.extra[kept], np.ones(len(fresh[0]), dtype=np.bool_)])
    places = _in_order(columns, extra, slab_mode)
    vectors = MemoryVectors(_moved(contents.vectors[VALUES], kept, places))
    for name, values in contents.vectors.items():
        if name != VALUES:
            vectors.fresh(name)[:] = _moved(values, kept, places)
    block = Block(
        tuple(np.ascontiguousarray(column[places]) for column in columns),
        vectors,
        old.partition,
        old.position,
        slices=old.slices,
        queries=old.queries,
        query_values=old.query_values,
        coupling=None if old.coupling is None else old.coupling.moved(_numbers(kept, places, old)),
        tiles=old.tiles,
    )
    return block, extra[places]


def _in_order(columns: list[NDArray[Any]], extra: Mask, slab_mode: int) -> NDArray[np.int64]:
    # The store's entries have no keys of their own, so that a stable sort leaves them as they are.
    keys = [np.where(extra, column, 0) for column in reversed(columns)]
    return np.lexsort((*keys, extra, columns[slab_mode]))


def _numbers(kept: NDArray[np.int64], places: NDArray[np.int64], old: Block) -> NDArray[np.int64]:
    """The new number of every entry that was there before; of no use for those left out."""
    new = np.empty(len(places), dtype=np.int64)
    new[places] = np.arange(len(places))
    numbers = np.full(old.entries, -1, dtype=np.int64)
    numbers[kept] = new[: len(kept)]
    return numbers


def _moved(values: Vector, kept: NDArray[np.int64], places: NDArray[np.int64]) -> Vector:
    longer = np.zeros(len(places), dtype=values.dtype)
    longer[: len(kept)] = values[kept]
    moved: Vector = longer[places]
    return moved
