"""What the root of a run knows of the tensor: where it was observed, and how often it is copied."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.embedded import EmbeddedStore

Tensor = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Observed:
    """Dense tensors: y, zero where nothing was observed; where it was; and the copies D."""

    values: Tensor
    seen: NDArray[np.bool_]
    copies: Tensor

    @property
    def embedded_norm(self) -> float:
        """‖H(y)‖."""
        return float(np.sqrt(np.sum(self.copies * self.values**2)))

    def within(self, tensor: Tensor) -> Tensor:
        """The tensor where it was observed, else zero."""
        return np.where(self.seen, tensor, 0.0)

    def beyond(self, sums: Tensor) -> Tensor:
        """D⁻¹ H*(S) off the observations: H of it is what a projection takes out of S."""
        return np.where(self.seen, 0.0, sums / self.copies)


@functools.lru_cache(maxsize=2)
def observed(store: EmbeddedStore, offset: float) -> Observed:
    """Read once in a process; a store is known by its digest."""
    return Observed(*store.dense(offset), store.embedding.copies())
