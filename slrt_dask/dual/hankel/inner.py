"""The inner solve of a Hankel problem: conjugate gradients on S with H*(S) = 0 where unobserved.

    P [ H 1_Ω H*/(2C) + Σ_k λ_k ×_{2k} U_kU_kᵀ + δ ] P S = H(Y),   P S = S − H(D⁻¹ (1 − 1_Ω) H*(S))

One sum of the tensor's size an iteration: with r in the subspace, `H*` of the model's part of a
product, q = H*(L r), is all that has to be added up. What the product lacks then is H of a tensor,
`1_Ω h/(2C) − D⁻¹ (1 − 1_Ω) q` with h = H*(r), and h follows by a recurrence of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.hankel.observed import Observed, Tensor, observed
from slrt_dask.dual.hankel.operator import (
    Matrices,
    add_model,
    chunk_of,
    offsets_of,
    overlap_added,
)
from slrt_dask.dual.inner import InnerOutcome
from slrt_dask.engine.block import VALUES, Block, Vector
from slrt_dask.engine.embedded import EmbeddedStore
from slrt_dask.engine.program import Finished, Program
from slrt_dask.errors import NumericalBreakdown
from slrt_dask.kernels import vectors

NOTHING = np.zeros(0)


@dataclass(frozen=True)
class Setting:
    """What a Hankel problem consists of at a point.

    deviation : δ;  offset : what was subtracted from the observations
    """

    store: EmbeddedStore
    factors: Matrices
    weights: tuple[float, ...]
    twice_c: float
    deviation: float
    offset: float = 0.0

    @property
    def observed(self) -> Observed:
        return observed(self.store, self.offset)


@dataclass(frozen=True)
class HankelRound:
    """What the blocks are to do next.

    phase : begin | residual | iterate | finish | resume | measure
    told : the tensor whose H completes the last product
    sums, images : H* of the residual and of the direction's image, which stay with the root
    """

    phase: str
    told: Tensor | None = None
    alpha: float = 0.0
    beta: float = 0.0
    iteration: int = 0
    sweeps: int = 0
    squared_residual: float = math.inf
    sums: Tensor | None = None
    images: Tensor | None = None


Total = tuple[Any, Any, NDArray[np.float64]]
"""H*(L r), H*(r) where it is not known yet, and scalars."""


@dataclass(frozen=True)
class HankelSolve(Program):
    """Solve for the vector `solution`, to ‖r‖ ≤ tolerance, starting from the vector `start`.

    right_hand_side : name of b, which is in the subspace; H(Y) if None
    """

    setting: Setting
    solution: str
    start: str | None
    right_hand_side: str | None
    tolerance: float
    max_iterations: int

    label = "solve"

    def first(self) -> HankelRound:
        return HankelRound("begin")

    def sent(self, message: HankelRound) -> HankelRound:
        return replace(message, sums=None, images=None)

    # ---- on a block -------------------------------------------------------------------------

    def step(self, block: Block, message: HankelRound, total: Total | None) -> Total:
        if message.phase == "begin":
            return self._begin(block, total)
        if message.phase == "residual":
            w, r = self._completed(block, message), block.fresh("r")
            np.subtract(block.vector(self.right_hand_side or VALUES), w, out=r)
            return self._swept(block, r, total, whole=True)
        if message.phase in ("iterate", "finish"):
            vectors.conjugate_step(
                block.changing(self.solution), block.changing("r"), block.changing("p"),
                block.changing("s"), self._completed(block, message), message.alpha, message.beta,
                self.setting.deviation,
            )  # fmt: skip
        if message.phase in ("iterate", "resume"):
            whole = message.phase == "resume"
            return self._swept(block, block.vector("r"), total, whole=whole)
        bx, rx, xx, rr = vectors.solution_products(
            block.vector(self.solution), block.vector("r"),
            block.vector(self.right_hand_side or VALUES),
        )  # fmt: skip
        return _added(total, NOTHING, NOTHING, np.array([rr, bx, rx, xx]))

    def _begin(self, block: Block, total: Total | None) -> Total:
        for name in ("p", "s"):
            block.fresh(name)[:] = 0.0
        x = block.fresh(self.solution)
        if self.start is None:
            x[:] = 0.0
            r = block.fresh("r")
            r[:] = block.vector(self.right_hand_side or VALUES)
            return self._swept(block, r, total, whole=True)
        x[:] = block.vector(self.start)
        return self._swept(block, x, total, whole=True)

    def _completed(self, block: Block, message: HankelRound) -> Vector:
        """The last product, with the part that is H of a tensor."""
        assert message.told is not None
        embedding, w = self.setting.store.embedding, block.changing("w")
        embedding.embed(message.told, offsets_of(block), chunk_of(block, embedding, w))
        return w

    def _swept(self, block: Block, r: Vector, total: Total | None, *, whole: bool = False) -> Total:
        """w = δr + L r, and H* of the latter; of r itself too if it is wanted."""
        setting, embedding = self.setting, self.setting.store.embedding
        image = block.fresh("image")
        image[:] = 0.0
        energy = add_model(
            setting.factors, setting.factors, setting.weights,
            chunk_of(block, embedding, r), chunk_of(block, embedding, image),
        )  # fmt: skip
        w = block.fresh("w")
        np.multiply(r, setting.deviation, out=w)
        w += image
        held = (None, None) if total is None else total[:2]
        sums = overlap_added(block, embedding, image, held[0])
        own = overlap_added(block, embedding, r, held[1]) if whole else NOTHING
        scalars = np.array([vectors.dot(r, r), energy, 0.0, 0.0])
        return sums, own, scalars if total is None else total[2] + scalars

    # ---- between rounds ---------------------------------------------------------------------

    def advance(self, message: HankelRound, total: Total) -> HankelRound | Finished:
        sums, own, scalars = total
        rr = float(scalars[0])
        if not math.isfinite(rr):
            raise NumericalBreakdown(
                "the inner solve met a value that is not a number; look for huge values in the "
                "data, or a C so large that its products overflow"
            )
        if message.phase == "begin" and self.start is not None:
            told = self._told(sums, self.setting.observed.within(own))
            return HankelRound("residual", told, sweeps=1)
        small = rr <= self.tolerance**2
        if message.phase == "finish" and not small and message.iteration < self.max_iterations:
            return replace(message, phase="resume", told=None)
        if message.phase in ("finish", "measure"):
            rr, bx, rx, xx = (float(value) for value in scalars)
            return Finished(InnerOutcome(message.iteration, message.sweeps, small, bx, rx, xx, rr))
        swept = replace(message, sweeps=message.sweeps + 1)
        if message.phase != "iterate":
            swept = replace(swept, sums=self.setting.observed.within(own))
        if rr == 0.0 or (small and message.iteration == 0) or self.max_iterations == 0:
            return replace(swept, phase="measure", told=None)
        return self._next_iteration(swept, sums, rr, float(scalars[1]))

    def _told(self, sums: Tensor, own: Tensor) -> Tensor:
        """The tensor whose H completes and projects a product, given H*(L r) and H*(r)."""
        return own / self.setting.twice_c - self.setting.observed.beyond(sums)

    def _next_iteration(
        self, message: HankelRound, sums: Tensor, rr: float, energy: float
    ) -> HankelRound:
        setting, seen = self.setting, self.setting.observed
        own = message.sums
        assert own is not None
        curvature = energy + setting.deviation * rr + float(np.vdot(own, own)) / setting.twice_c
        beta = rr / message.squared_residual if message.iteration else 0.0
        denominator = curvature - (beta * rr / message.alpha if message.iteration else 0.0)
        if denominator <= 0.0:
            beta, denominator = 0.0, curvature
        alpha = rr / denominator if denominator > 0.0 else 0.0
        image = seen.within(sums + setting.deviation * own + seen.copies * own / setting.twice_c)
        images = image if message.images is None else image + beta * message.images
        shrinking = min(1.0, rr / message.squared_residual) if message.iteration else 1.0
        last = rr * shrinking <= self.tolerance**2 or message.iteration + 1 >= self.max_iterations
        return HankelRound(
            "finish" if last else "iterate", self._told(sums, own), alpha, beta,
            message.iteration + 1, message.sweeps, rr, own - alpha * images, images,
        )  # fmt: skip


def _added(total: Total | None, sums: Any, own: Any, scalars: NDArray[np.float64]) -> Total:
    return sums, own, scalars if total is None else total[2] + scalars
