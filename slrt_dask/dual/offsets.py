"""What is subtracted from observations before a fit, and added to its answers again.

    offset[i] = mean + Σ_k effects_k[i_k]

A scalar offset has no effects; with them every index of every mode has a number of its own. This
changes with what may be subtracted; how effects are estimated is in `mode_effects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Offset:
    """A number for every entry of a tensor.

    effects : K arrays (n_k,), added to the mean by the entry's indices; none for a scalar offset
    """

    mean: float = 0.0
    effects: tuple[NDArray[np.float64], ...] = ()

    def at(self, places: Sequence[NDArray[Any]] | NDArray[Any]) -> float | NDArray[np.float64]:
        """The offset at places, K rows of indices (m,): one number if it is scalar, else (m,)."""
        if not self.effects:
            return self.mean
        total = np.full(len(places[0]), self.mean)
        for row, effect in zip(places, self.effects, strict=True):
            total += effect[row]
        return total

    def on_box(self, ranges: tuple[range, ...]) -> NDArray[np.float64]:
        """The offset on a box of indices, as an array that may be changed."""
        result = np.full(tuple(len(box) for box in ranges), self.mean)
        for mode, effect in enumerate(self.effects):
            along = [-1 if k == mode else 1 for k in range(len(ranges))]
            result += effect[ranges[mode].start : ranges[mode].stop].reshape(along)
        return result

    @property
    def nbytes(self) -> int:
        return sum(effect.nbytes for effect in self.effects)
