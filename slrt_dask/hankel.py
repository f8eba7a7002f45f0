"""Hankel structure in the words of the caller: a tensor whose windows have low rank together.

Signals made of a few waves, textures and traffic have it, and with it whole slices that are missing
can be completed: the windows that cross a gap share the waves of those that do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.dual.hankel.embedding import Embedding
from slrt_dask.errors import InvalidConfig, InvalidInput

HANKEL_KEYS = ("tau", "deviation")
STAGES = (1e-1, 1e-2, 1e-3, 1e-4)
"""Of deviation="auto", in units of the weights' mean."""


@dataclass(frozen=True)
class Hankel:
    """The windows of W, one for every offset, have low rank together in every mode.

    tau : offsets in every mode, 1 for a mode without; a window is n_k − τ_k + 1 long. About half of
        a mode's length shows the most structure, and costs the most
    deviation : what it costs the parts of the embedded tensor to miss a Hankel tensor. "auto"
        makes it dearer in stages; a number (in units of the λ's) is used as it is; 0 allows no
        deviation, which with low ranks is a trap: almost nothing but W = 0 satisfies that
    """

    tau: tuple[int, ...]
    deviation: float | str = "auto"

    def __post_init__(self) -> None:
        given = self.tau if isinstance(self.tau, Iterable) else (self.tau,)
        tau = tuple(given)
        for number in tau:
            whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
            if not whole or number < 1:
                raise InvalidInput(
                    f"tau is {self.tau!r}; give a whole number per mode, 1 for a mode that is not "
                    f"to be embedded"
                )
        object.__setattr__(self, "tau", tuple(int(number) for number in tau))
        if self.deviation != "auto":
            number = isinstance(self.deviation, (int, float)) and self.deviation is not True
            if not number or not 0.0 <= float(self.deviation) < math.inf:
                raise InvalidInput(
                    f"deviation is {self.deviation!r}; give 'auto', or a number that is at least 0"
                )
            object.__setattr__(self, "deviation", float(self.deviation))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse offsets that a tensor of this shape does not have."""
        Embedding(tuple(shape), self.tau)

    def stages(self, weights: tuple[float, ...]) -> tuple[float, ...]:
        """The values of δ to go through, the last one being the one that counts."""
        if isinstance(self.deviation, float):
            return (self.deviation,)
        mean = sum(weights) / len(weights)
        return tuple(mean * stage for stage in STAGES)

    def to_dict(self) -> dict[str, Any]:
        return {"tau": list(self.tau), "deviation": self.deviation}


def hankel_of(table: dict[str, Any]) -> Hankel:
    """Hankel structure from a table of a file."""
    unknown = sorted(set(table) - set(HANKEL_KEYS))
    if unknown:
        raise InvalidConfig(
            f"a Hankel constraint has no key {unknown[0]!r}; known keys are tau, deviation"
        )
    return Hankel(**table)
