"""What is measured of a problem with Huber's loss: its size, and the products of a certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.operator import Factors, Matrix, add_crossing, add_local, crossing_sums
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import OneRound, Program, Rounds, Sweep
from slrt_dask.kernels import huber


@dataclass(frozen=True)
class RobustSize(OneRound):
    """Σ h(y) over all blocks: what the loss is without any model."""

    delta: float

    def step(self, block: Block, total: Any) -> tuple[float]:
        return (huber.total_loss(block.values, self.delta) + (total[0] if total else 0.0),)


@dataclass(frozen=True)
class Limited(OneRound):
    """Leave the observed values under `target`, none of them larger than δ."""

    delta: float
    target: str

    def step(self, block: Block, total: Any) -> tuple[int]:
        np.clip(block.values, -self.delta, self.delta, out=block.fresh(self.target))
        return (0,)


@dataclass(frozen=True)
class RobustProducts:
    """What a certificate needs of a dual vector: see `kernels.huber.certified_sums`."""

    loss: float
    z_dot_z: float
    overlap: float
    largest: float


@dataclass(frozen=True)
class MeasureRobust(Program):
    """The products of the vector `dual`, and of w = L z, that a certificate is made of."""

    dual: str
    factors: Factors
    weights: tuple[float, ...]
    delta: float

    def rounds(self) -> Rounds:
        (sums,) = yield Sweep(MeasureRobust._product)
        found, largest = yield Sweep(MeasureRobust._measure, (sums,))
        loss, z_dot_z, overlap = map(float, found)
        return RobustProducts(loss, z_dot_z, overlap, largest)

    def _product(self, block: Block, total: Any) -> tuple[Matrix]:
        x, w = block.vector(self.dual), block.fresh("w")
        add_local(block, self.factors, self.factors, self.weights, x, w, shift=0.0)
        return (crossing_sums(block, self.factors, x, total and total[0]),)

    def _measure(self, block: Block, total: Any, sums: Matrix) -> tuple[NDArray[np.float64], float]:
        w = block.changing("w")
        add_crossing(block, self.factors, self.weights, sums, w)
        *found, largest = huber.certified_sums(block.values, block.vector(self.dual), w, self.delta)
        part = np.array(found), float(largest)
        return part if total is None else self.combine(total, part)

    def combine(self, left: Any, right: Any) -> Any:
        """Sums are added up; the largest number is the largest of both."""
        if len(left) == 1:
            return super().combine(left, right)
        return left[0] + right[0], max(left[1], right[1])
