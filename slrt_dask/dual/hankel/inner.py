"""The inner solve of a Hankel problem: a system of the tensor's size, not of the embedding's.

The dual tensor of given factors is S = M⁻¹ H(W), M = δ + Σ_k λ_k ×_{2k} U_kU_kᵀ, and

    (2C 1_Ω + H* M⁻¹ H) W = 2C Y

says that H*(S) vanishes off the observations and is 2C (Y − W) on them. M is inverted window by
window (`model.py`). So vectors have the size of W, S is made when it is looked at, and one sum of
that size crosses between blocks in an iteration.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.hankel.embedding import cut_windows, overlap_add
from slrt_dask.dual.hankel.model import Matrices, WindowModel
from slrt_dask.dual.hankel.observed import Box, Observed, Tensor, observed
from slrt_dask.dual.hankel.solving import Solution, System
from slrt_dask.dual.solve import TimeLimit
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.errors import NumericalBreakdown

SMALLEST_DEVIATION = 1e-9
"""Of the sum of the weights: what takes the place of δ = 0, for M has to be invertible."""


@dataclass(frozen=True)
class Setting:
    """What a Hankel problem consists of at a point; modes are in the store's order.

    deviation : δ;  offset : what was subtracted from the observations
    box : bounds on W
    """

    store: EmbeddedStore
    factors: Matrices
    weights: tuple[float, ...]
    twice_c: float
    deviation: float
    offset: float = 0.0
    box: Box | None = None

    @property
    def observed(self) -> Observed:
        return observed(self.store, self.offset, self.box)

    @cached_property
    def model(self) -> WindowModel:
        deviation = max(self.deviation, SMALLEST_DEVIATION * sum(self.weights))
        return WindowModel(self.store.embedding, self.factors, self.weights, deviation)

    def system(self, right_hand_side: Tensor | None, at: Tensor | None = None) -> System:
        """The system for W, or for its derivative where W is `at`."""
        seen = self.observed
        diagonal = np.where(seen.seen, self.twice_c, 0.0)
        preconditioner = diagonal + seen.copies * self.model.mean_inverse
        free = None
        if right_hand_side is None:
            b = self.twice_c * seen.values
            return System(diagonal, preconditioner, b, free, seen.lower, seen.upper)
        if at is not None and seen.lower is not None and seen.upper is not None:
            free = (at > seen.lower) & (at < seen.upper)
        return System(diagonal, preconditioner, right_hand_side, free)

    def windows(self, block: Block, offsets: range, tensor: Tensor, key: str) -> Any:
        """H of a tensor at some offsets, in the precision of the block and memory of its thread."""
        embedding = self.store.embedding
        shape = (len(offsets), *embedding.window)
        out = block.buffers.array(key, shape, block.values.dtype)
        return cut_windows(embedding, tensor, offsets, out)

    def duals(self, block: Block, tensors: tuple[Tensor, ...]) -> Any:
        """Offsets and S = M⁻¹ H(W) − H(V) there, batch by batch, for a block and tensors (W, V).

        V may be left out. What is given is gone with the next batch.
        """
        for offsets in self.model.batches(range(*block.slices)):
            windows = self.windows(block, offsets, tensors[0], "windows")
            solved = self.model.solved(windows, block.buffers.array)
            if len(tensors) > 1:
                solved -= self.windows(block, offsets, tensors[1], "windows")
            yield offsets, solved


@dataclass(frozen=True)
class OnTensors(Program):
    """A program whose root has tensors of the size of W; blocks keep their pieces of them."""

    setting: Setting

    at_once = 4

    def gathered(self, *names: str) -> Generator[Sweep, Any, tuple[Tensor, ...]]:
        """Tensors put together from vectors of the blocks."""
        found: tuple[Tensor, ...] = yield Sweep(OnTensors._gather, (names,))
        return found

    def kept(self, name: str, tensor: Tensor) -> Generator[Sweep, Any, None]:
        """Have the blocks keep their pieces of a tensor under a name."""
        yield Sweep(OnTensors._keep, (name, tensor))

    def _gather(self, block: Block, total: Any, names: tuple[str, ...]) -> tuple[Tensor, ...]:
        store = self.setting.store
        tensors = total or tuple(np.zeros(store.embedding.shape) for _ in names)
        for name, tensor in zip(names, tensors, strict=True):
            tensor.reshape(-1)[store.piece(block)] = block.vector(name)
        return tensors

    def _keep(self, block: Block, total: Any, name: str, tensor: Tensor) -> int:
        block.fresh(name)[:] = tensor.reshape(-1)[self.setting.store.piece(block)]
        return 0


@dataclass(frozen=True)
class HankelOutcome:
    """How a solve ended.

    cost : C ‖W_Ω − Y‖² + ½⟨W, H*M⁻¹H W⟩, which is g but for ½ rᵀA⁻¹r
    residual : relative to the right-hand side
    """

    iterations: int
    sweeps: int
    converged: bool
    cost: float
    residual: float


@dataclass(frozen=True)
class HankelSolve(OnTensors):
    """Solve for the vector `solution`, to a relative residual, starting from the vector `start`.

    right_hand_side : name of b, for the derivative of W where it is the vector `at`; 2C Y if None
    seconds : after which it ends with what it has
    """

    solution: str
    start: str | None
    tolerance: float
    max_iterations: int
    right_hand_side: str | None = None
    at: str | None = None
    seconds: float = math.inf

    def rounds(self) -> Rounds:
        names = tuple(name for name in (self.start, self.right_hand_side, self.at) if name)
        found = dict(zip(names, (yield from self.gathered(*names)), strict=True))
        start, b, at = (
            found.get(name or "") for name in (self.start, self.right_hand_side, self.at)
        )
        system = self.setting.system(b, at)
        size = math.sqrt(system.size)
        limit = TimeLimit(self.seconds)
        course = system.solver(start, self.tolerance * size, self.max_iterations, limit)
        image = None
        while True:
            try:
                wanted = next(course) if image is None else course.send(image)
            except StopIteration as end:
                solution: Solution = end.value
                break
            (image,) = yield Sweep(HankelSolve._product, (wanted,))
        yield from self.kept(self.solution, solution.x)
        return self._outcome(solution, size)

    def _product(self, block: Block, total: Any, tensor: Tensor) -> tuple[Tensor]:
        """H* M⁻¹ H of a tensor."""
        embedding = self.setting.store.embedding
        sums = np.zeros(embedding.shape) if total is None else total[0]
        for offsets, windows in self.setting.duals(block, (tensor,)):
            overlap_add(embedding, windows, offsets, sums)
        return (sums,)

    def _outcome(self, solution: Solution, size: float) -> HankelOutcome:
        seen, x = self.setting.observed, solution.x
        if not math.isfinite(solution.error):
            raise NumericalBreakdown(
                "the inner solve met a value that is not a number; look for huge values in the "
                "data, or a C so large that its products overflow"
            )
        missing = seen.within(seen.values - x)
        cost = 0.5 * self.setting.twice_c * float(np.vdot(missing, missing))
        # H*M⁻¹H x = 2C (Y − x)_Ω − r: written so, nothing cancels where the fit is good.
        cost += 0.5 * float(np.vdot(x, self.setting.twice_c * missing - solution.residual))
        return HankelOutcome(
            solution.iterations, solution.sweeps, solution.converged, cost,
            solution.error / size if size > 0.0 else 0.0,
        )  # fmt: skip
