"""The entry model: which box every entry's dual number has, and its term on the diagonal.

The inner problem of every kind (without structure) maximises over dual numbers x = z + s of entries

    Σ_e [ ⟨z, y⟩ − z²/(4C w) + ⟨s, b⟩ − μ/2 (s − centre)² ] − ½ ⟨x, L x⟩

with z for the misfit of observed entries and s for bounds on the completed tensor there. Kinds
differ in the boxes only: plain, none; Huber's loss, |z| ≤ 2Cwδ; bounds, s ≥ 0 at a lower one and
s ≤ 0 at an upper one. The multipliers s have a proximal term, which makes the problem about as well
conditioned as it is without them; its centre moves to s between steps (the method of multipliers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import WEIGHTS, Block, Vector
from slrt_dask.kernels import entries as passes

MARKS = "marks"
"""The vector that says of every entry what it is: OBSERVED, BOUNDED, COUPLED, added up."""
EVERY = passes.OBSERVED + passes.BOUNDED + passes.COUPLED
NONE, NOWHERE = np.zeros(0), np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class BoundVectors:
    """lower ≤ W ≤ upper, the bounds being those of an entry's index in one mode; ±∞ for none.

    penalty : μ
    """

    mode: int
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    penalty: float

    @property
    def margin(self) -> float:
        """How far `middle` is from every bound, at least."""
        narrowest = float(np.min(self.upper - self.lower))
        return 0.5 * narrowest if np.isfinite(narrowest) else 1.0

    @property
    def middle(self) -> NDArray[np.float64]:
        """Numbers inside the bounds, at least `margin` from both, near zero where there is room."""
        return np.clip(
            np.zeros_like(self.lower), self.lower + self.margin, self.upper - self.margin
        )

    @property
    def one_sided(self) -> bool:
        """Whether a shift of all entries in one direction can mend every violation."""
        return bool(np.isneginf(self.lower).all() or np.isposinf(self.upper).all())


@dataclass(frozen=True)
class EntryModel:
    """What entries are and how they answer.

    cost_weight : C
    delta : δ of Huber's loss; infinite for the squared misfit
    bounds : bounds on entries; None if there are none
    centre : name of the multipliers' centre, where there are bounds
    weighted : whether observations have weights, in the vector WEIGHTS
    """

    cost_weight: float
    delta: float = math.inf
    bounds: BoundVectors | None = None
    centre: str = ""
    weighted: bool = False

    @property
    def boxed(self) -> bool:
        """Whether dual numbers have boxes at all."""
        return self.bounds is not None or math.isfinite(self.delta)

    @property
    def shift(self) -> float:
        """1 / (2C), what observations of weight 1 have on the operator's diagonal."""
        return 0.5 / self.cost_weight

    @property
    def most(self) -> float:
        """2Cδ, the largest |z| of an observation of weight 1."""
        return 2.0 * self.cost_weight * self.delta

    @property
    def stiffest(self) -> float:
        """The largest number on the diagonal, where observations have weight 1."""
        return max(self.shift, 0.0 if self.bounds is None else self.bounds.penalty)

    def of(self, block: Block, kinds: int = EVERY) -> passes.Entries:
        """A block's entries as the passes read them.

        kinds : the marks that count; without OBSERVED or BOUNDED, entries are not so
        """
        values, weights = block.values, self.weights(block)
        if self.bounds is None:
            return passes.Entries(
                NONE, NOWHERE, NONE, NONE, NONE, values, weights, 2.0 * self.cost_weight,
                _rounded_down(self.most, values), 1.0, kinds,
            )  # fmt: skip
        return passes.Entries(
            block.vector(MARKS), block.columns[self.bounds.mode], self.bounds.lower,
            self.bounds.upper, block.vector(self.centre), values, weights,
            2.0 * self.cost_weight, _rounded_down(self.most, values), self.bounds.penalty, kinds,
        )  # fmt: skip

    def weights(self, block: Block) -> Vector:
        """Of the observations, (entries,); empty if all are 1."""
        return block.vector(WEIGHTS) if self.weighted else NONE


def _rounded_down(most: float, like: Vector) -> float:
    """The largest number of a vector's precision that is not above a limit."""
    held = like.dtype.type(most)
    return float(held if float(held) <= most else np.nextafter(held, like.dtype.type(0)))
