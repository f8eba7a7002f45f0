"""What the root of a run knows of the tensor: where it was observed, how often it is copied, and
between which bounds it has to be."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.store import open_store
from slrt_dask.dual.hankel.embedded import EmbeddedStore

Tensor = NDArray[np.float64]


@dataclass(frozen=True)
class Box:
    """lower ≤ W ≤ upper at some entries; bounds along a mode of the tensor as it is stored.

    where : "all", "observed", the path of a store, or K tuples of indices
    digest : of that store, so that what was read of another one is not taken for it
    """

    mode: int
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    where: Any = "all"
    digest: str = ""

    def of(self, store: EmbeddedStore, seen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """The bounds of every entry, its modes in the store's order; ±∞ for none."""
        axis, sides = store.mode_order.index(self.mode), []
        inside = self._inside(store, seen)
        for side, none in ((self.lower, -math.inf), (self.upper, math.inf)):
            along = [1] * seen.ndim
            along[axis] = -1
            sides.append(np.where(inside, np.reshape(side, along), none))
        return sides[0], sides[1]

    def _inside(self, store: EmbeddedStore, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if isinstance(self.where, str) and self.where in ("all", "observed"):
            return np.ones_like(seen) if self.where == "all" else seen
        inside = np.zeros_like(seen)
        if not isinstance(self.where, str):
            inside[tuple(np.array(self.where[mode]) for mode in store.mode_order)] = True
            return inside
        places = open_store(self.where)
        for number in range(len(places.partitions)):
            columns = places.read_partition(number)[0]
            inside[tuple(columns[mode] for mode in store.mode_order)] = True
        return inside


@dataclass(frozen=True, eq=False)
class Observed:
    """Dense tensors: y, zero where nothing was observed; where it was; the copies D; the bounds.

    lower, upper : ±∞ where there is none, None where there is none at all
    """

    values: Tensor
    seen: NDArray[np.bool_]
    copies: Tensor
    lower: Tensor | None = None
    upper: Tensor | None = None

    def within(self, tensor: Tensor) -> Tensor:
        """The tensor where it was observed, else zero."""
        return np.where(self.seen, tensor, 0.0)


@functools.lru_cache(maxsize=2)
def observed(store: EmbeddedStore, offset: float, box: Box | None = None) -> Observed:
    """Read once in a process; a store is known by its digest."""
    values, seen = store.dense(offset)
    copies = store.embedding.copies()
    if box is None:
        return Observed(values, seen, copies)
    lower, upper = box.of(store, seen)
    return Observed(values, seen, copies, lower - offset, upper - offset)
