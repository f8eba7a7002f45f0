"""The inner solve with Huber's loss: what blocks do in each of its phases.

The dual of the loss C Σ h(w_e − y_e) is that of the squared one with a bound on every entry:

    max_z ⟨z, y⟩ − ‖z‖²/(4C) − Σ_k λ_k/2 ‖U_kᵀ Z_k‖²      subject to  |z_e| ≤ 2Cδ

At its solution z = 2C (y − w), clipped, with w = L z: entries are either solved for or held at one
of their bounds. Which of them are is found by the Newton steps of `newton.py`, for which a held
entry is an idle one. With a large C and a small δ entries change sides all the time, so every step
is followed by a search for the best place on its way: w is linear in x, so that takes a look at the
entries and no product. What is left in the end lies within the bounds, however loosely it was
solved for: certificates depend on that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.bounds import OneRound
from slrt_dask.dual.inner import NO_SUMS, Sums
from slrt_dask.dual.newton import NewtonCourse
from slrt_dask.dual.newton_steps import Stage
from slrt_dask.dual.operator import Factors, Matrix, add_crossing, add_local, crossing_sums
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Finished, Program
from slrt_dask.kernels import huber, vectors

HELD = "held"
"""The vector that says of every entry whether it is held, and at which of its bounds."""
LOOKED_AT = 9
"""Places on the way of a step whose slopes are found in one round."""
FLAT = 0.1
"""A step may end where the slope is at most this part of that at its beginning, upwards."""
SHORTEST = 1e-6
"""Steps are not searched for a better end before this part of them."""


@dataclass(frozen=True)
class RobustStage(Stage):
    """What the blocks are to do next.

    phase : those of a solve with bounds, and: search, along the last step
    low, high : between which parts of the step its end is searched for
    part : of the step that is made
    """

    low: float = 0.0
    high: float = 1.0
    part: float = 1.0

    @property
    def places(self) -> NDArray[np.float64]:
        """Where to look at the slope."""
        return np.linspace(self.low, self.high, LOOKED_AT)


@dataclass(frozen=True)
class RobustSolve(NewtonCourse):
    """Solve for the vector `solution`, to ‖r‖ ≤ tolerance, starting from the vector `start`.

    delta : δ, from where on the loss grows with the size of a misfit only
    max_iterations : of conjugate gradients, over all Newton steps
    """

    factors: Factors
    weights: tuple[float, ...]
    slab_mode: int
    twice_c: float
    delta: float
    solution: str
    start: str | None
    tolerance: float
    max_iterations: int

    label = "solve"
    most_retreats: ClassVar[int] = 0

    # ---- between rounds ---------------------------------------------------------------------

    def first(self) -> RobustStage:
        return RobustStage("begin")

    def advance(self, message: Stage, total: Sums) -> Stage | Finished:
        assert isinstance(message, RobustStage)
        if message.phase == "search":
            return self._searched(message, total[1])
        following = super().advance(replace(message, part=1.0), total)
        if message.phase != "arrive" or isinstance(following, Finished):
            return following
        assert isinstance(following, RobustStage)
        return replace(following, phase="search", low=0.0, high=1.0)

    def _searched(self, message: RobustStage, slopes: NDArray[np.float64]) -> Stage:
        """End the step where the slope is zero, or not at all where it is hardly positive."""
        places = message.places
        if not slopes[-1] > FLAT * abs(slopes[0]):
            return replace(message, phase="classify", sums=None, part=message.high)
        falling = int(np.count_nonzero(slopes[:-1] <= 0.0))
        if falling == 0:  # but for rounding, that cannot be
            return replace(message, phase="classify", sums=None, part=message.high)
        low, high = places[falling - 1], places[falling]
        if falling == 1 and message.low == 0.0 and high > SHORTEST:
            return replace(message, sums=None, high=high)
        rise = slopes[falling] - slopes[falling - 1]
        part = low - slopes[falling - 1] / rise * (high - low)
        return replace(message, phase="classify", sums=None, part=float(part))

    # ---- on a block -------------------------------------------------------------------------

    def step(self, block: Block, message: Stage, total: Sums | None) -> Sums:
        assert isinstance(message, RobustStage)
        if message.phase == "classify":
            return self._classified(block, message, total)
        if message.phase == "search":
            return self._slopes(block, message, total)
        if message.phase in self.begins_with_image:
            return self._image(block, self._moved(block, message), total)
        if message.phase == "iterate":
            return self._swept(block, self._conjugate_step(block, message), total)
        if message.phase == "set off":
            self._remember(block)
        else:
            self._remeasure(block, message)
        for name in ("p", "s"):
            block.fresh(name)[:] = 0.0
        r = block.vector("r")
        np.multiply(r, 1.0 / self.twice_c, out=block.fresh("w"))
        return self._swept(block, vectors.dot(r, r), total)

    def _moved(self, block: Block, message: Stage) -> Vector:
        """The solution, changed as the phase says."""
        if message.phase == "begin":
            x, most = block.fresh(self.solution), self._most(block)
            x[:] = 0.0 if self.start is None else block.vector(self.start)
            np.clip(x, -most, most, out=x)
            # Not from what the last solve left, wherever that was: a resumed run has nothing.
            block.fresh(HELD)[:] = np.where(np.abs(x) == most, np.sign(x), 0.0)
            return x
        x = block.changing(self.solution)
        if message.phase == "release":
            self._remember(block)
            huber.hold(block.vector(HELD), self._most(block), x)
        elif message.phase == "project":
            most = self._most(block)
            np.clip(x, -most, most, out=x)
        else:
            self._conjugate_step(block, message)
        return x

    def _remember(self, block: Block) -> None:
        """Where a step begins: the solution and its image."""
        block.fresh("before")[:] = block.vector(self.solution)
        block.fresh("image")[:] = block.vector("w")

    def _image(self, block: Block, x: Vector, total: Sums | None) -> Sums:
        """The local modes' part of w = L x."""
        w = block.fresh("w")
        w[:] = 0.0
        add_local(block, self.factors, self.factors, self.weights, x, w)
        sums = crossing_sums(block, self.factors, x, None if total is None else total[0])
        return sums, np.zeros(6)

    def _slopes(self, block: Block, message: RobustStage, total: Sums | None) -> Sums:
        found = np.zeros(LOOKED_AT) if total is None else total[1]
        huber.slopes(
            block.values, block.vector("before"), block.vector(self.solution),
            block.vector("image"), self._completed(block, message), self.twice_c,
            self._most(block), message.places, found,
        )  # fmt: skip
        return NO_SUMS, found

    def _classified(self, block: Block, message: RobustStage, total: Sums | None) -> Sums:
        x, w = block.vector(self.solution), self._completed(block, message)
        if message.part < 1.0:
            x, w = block.changing(self.solution), block.changing("w")
            for vector, start in ((x, "before"), (w, "image")):
                vector *= message.part
                vector += (1.0 - message.part) * block.vector(start)
        found = huber.classify(
            block.values, x, w, self.twice_c, self._most(block), block.changing(HELD),
            block.fresh("r"),
        )  # fmt: skip
        scalars = np.array(found, dtype=np.float64)
        return NO_SUMS, scalars if total is None else total[1] + scalars

    def _remeasure(self, block: Block, message: Stage) -> None:
        huber.residual(
            block.vector(HELD), block.values, block.vector(self.solution),
            self._completed(block, message), self.twice_c, block.fresh("r"),
        )  # fmt: skip

    def _conjugate_step(self, block: Block, message: Stage) -> float:
        w = self._completed(block, message)
        return float(
            huber.conjugate_step(
                block.vector(HELD), block.changing(self.solution), block.changing("r"),
                block.changing("p"), block.changing("s"), w, message.alpha, message.beta,
                1.0 / self.twice_c,
            )
        )  # fmt: skip

    def _completed(self, block: Block, message: Stage) -> Vector:
        """The product w, the slab mode's part being added if it is not in it yet."""
        if message.sums is None:
            return block.vector("w")
        w = block.changing("w")
        add_crossing(block, self.factors, self.weights, message.sums, w)
        return w

    def _swept(self, block: Block, rr: float, total: Sums | None) -> Sums:
        """The local modes' part of a product with r; w has the diagonal's."""
        r, w = block.vector("r"), block.changing("w")
        energy = vectors.dot(r, w)
        energy += add_local(block, self.factors, self.factors, self.weights, r, w)
        sums = crossing_sums(block, self.factors, r, None if total is None else total[0])
        scalars = np.array([rr, energy, 0.0, 0.0, 0.0, 0.0])
        return sums, scalars if total is None else total[1] + scalars

    def _most(self, block: Block) -> float:
        return largest_answer(self.twice_c * self.delta, block.values)


def largest_answer(most: float, like: Vector) -> float:
    """The largest number of a vector's precision that is not above 2Cδ."""
    held = like.dtype.type(most)
    return float(held if float(held) <= most else np.nextafter(held, like.dtype.type(0)))


@dataclass(frozen=True)
class RobustSize(OneRound):
    """Σ h(y) over all blocks: what the loss is without any model."""

    delta: float

    label = "norm"

    def step(self, block: Block, message: None, total: Any) -> tuple[float]:
        return (huber.total_loss(block.values, self.delta) + (total[0] if total else 0.0),)


@dataclass(frozen=True)
class Limited(OneRound):
    """Leave the observed values under `target`, none of them larger than δ."""

    delta: float
    target: str

    label = "limit"

    def step(self, block: Block, message: None, total: Any) -> tuple[int]:
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

    label = "measure"

    def first(self) -> None:
        return None

    def step(
        self, block: Block, message: Matrix | None, total: Any
    ) -> tuple[Matrix] | tuple[NDArray[np.float64], float]:
        x = block.vector(self.dual)
        if message is None:
            w = block.fresh("w")
            w[:] = 0.0
            add_local(block, self.factors, self.factors, self.weights, x, w)
            return (crossing_sums(block, self.factors, x, None if total is None else total[0]),)
        w = block.changing("w")
        add_crossing(block, self.factors, self.weights, message, w)
        *sums, largest = huber.certified_sums(block.values, x, w, self.delta)
        part = np.array(sums), float(largest)
        return part if total is None else self.combine(total, part)

    def combine(self, left: Any, right: Any) -> Any:
        """Sums are added up; the largest number is the largest of both."""
        if len(left) == 1:
            return super().combine(left, right)
        return left[0] + right[0], max(left[1], right[1])

    def advance(self, message: Matrix | None, total: Any) -> Matrix | Finished:
        if message is None:
            sums: Matrix = total[0]
            return sums
        loss, z_dot_z, overlap = map(float, total[0])
        return Finished(RobustProducts(loss, z_dot_z, overlap, total[1]))
