"""The inner solve of a Hankel problem: a system of the tensor's size, not of the embedding's.

The dual tensor of given factors is S = M⁻¹ H(W), M = δ + Σ_k λ_k ×_{2k} U_kU_kᵀ, and

    (2C 1_Ω + H* M⁻¹ H) W = 2C Y

says that H*(S) vanishes off the observations and is 2C (Y − W) on them. M is inverted window by
window (`model.py`). So vectors have the size of W, S is made when it is looked at, and one sum of
that size crosses between blocks in an iteration.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from slrt_dask.dual.hankel.embedded import EmbeddedStore
from slrt_dask.dual.hankel.embedding import cut_windows, overlap_add
from slrt_dask.dual.hankel.model import Matrices, WindowModel
from slrt_dask.dual.hankel.observed import Box, Observed, Tensor, observed
from slrt_dask.dual.hankel.solving import Course, Solution, System
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Finished, StateMachine
from slrt_dask.errors import NumericalBreakdown

GATHER, SWEEP, KEEP = "gather", "sweep", "keep"
SMALLEST_DEVIATION = 1e-9
"""Of the sum of the weights: what takes the place of δ = 0, for M has to be invertible."""


@dataclass(frozen=True)
class Setting:
    """What a Hankel problem consists of at a point; modes are in the store's order.

    deviation : δ;  offset : what was subtracted from the observations
    box : bounds on W
    relaxed : whether S is kept to the copies of observations, so that elsewhere the parts need not
        make a Hankel tensor
    """

    store: EmbeddedStore
    factors: Matrices
    weights: tuple[float, ...]
    twice_c: float
    deviation: float
    offset: float = 0.0
    box: Box | None = None
    relaxed: bool = False

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
        free = seen.seen if self.relaxed else None
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

    def solved(self, block: Block, offsets: range, windows: Any) -> Any:
        """M⁻¹ of windows, on the support that S has."""
        if not self.relaxed:
            return self.model.solved(windows, block.buffers.array)
        embedding = self.store.embedding
        inside = np.empty(windows.shape, dtype=np.bool_)
        cut_windows(embedding, self.observed.seen, offsets, inside)
        return self.model.solved_within(windows, inside, block.buffers.array)

    def duals(self, block: Block, tensors: tuple[Tensor, ...]) -> Any:
        """Offsets and S = M⁻¹ H(W) − H(V) there, batch by batch, for a block and tensors (W, V).

        V may be left out. What is given is gone with the next batch.
        """
        for offsets in self.model.batches(range(*block.slices)):
            windows = self.windows(block, offsets, tensors[0], "windows")
            solved = self.solved(block, offsets, windows)
            if len(tensors) > 1:
                solved -= self.windows(block, offsets, tensors[1], "windows")
            yield offsets, solved


@dataclass(frozen=True)
class Told:
    """What the blocks are told: tensors that they need. What `course` says stays with the root."""

    phase: str
    tensors: tuple[Tensor, ...] = ()
    course: Any = None


@dataclass(frozen=True)
class OnTensors(StateMachine):
    """A program whose first round puts vectors together, so that the root has them as tensors."""

    setting: Setting

    @property
    @abstractmethod
    def gathered(self) -> tuple[str, ...]:
        """The names of the vectors."""

    @property
    def kept_name(self) -> str:
        """Under which name blocks keep their pieces of a tensor, for programs that leave one."""
        return ""

    def first(self) -> Told:
        return Told(GATHER)

    def sent(self, message: Told) -> Told:
        return replace(message, course=None)

    def step(self, block: Block, message: Told, total: Any) -> Any:
        store = self.setting.store
        if message.phase == GATHER:
            tensors = total or tuple(np.zeros(store.embedding.shape) for _ in self.gathered)
            for name, tensor in zip(self.gathered, tensors, strict=True):
                tensor.reshape(-1)[store.piece(block)] = block.vector(name)
            return tensors
        if message.phase == KEEP:
            block.fresh(self.kept_name)[:] = message.tensors[0].reshape(-1)[store.piece(block)]
            return ()
        return self.swept(block, message.tensors, total)

    @abstractmethod
    def swept(self, block: Block, tensors: tuple[Tensor, ...], total: Any) -> Any:
        """Add what the windows of a block contribute, given the tensors that were told."""


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
    """

    solution: str
    start: str | None
    tolerance: float
    max_iterations: int
    right_hand_side: str | None = None
    at: str | None = None

    @property
    def gathered(self) -> tuple[str, ...]:
        return tuple(name for name in (self.start, self.right_hand_side, self.at) if name)

    @property
    def kept_name(self) -> str:
        return self.solution

    def swept(self, block: Block, tensors: tuple[Tensor, ...], total: Any) -> tuple[Tensor]:
        embedding = self.setting.store.embedding
        sums = np.zeros(embedding.shape) if total is None else total[0]
        for offsets, windows in self.setting.duals(block, tensors):
            overlap_add(embedding, windows, offsets, sums)
        return (sums,)

    def advance(self, message: Told, total: Any) -> Told | Finished:
        if message.phase == KEEP:
            return Finished(message.course)
        if message.phase == GATHER:
            given = dict(zip(self.gathered, total, strict=True))
            system = self.setting.system(
                given.get(self.right_hand_side or ""), given.get(self.at or "")
            )
            size = math.sqrt(system.size)
            course = system.solver(
                given.get(self.start or ""), self.tolerance * size, self.max_iterations
            )
            return self._asked(course, size, None)
        course, size = message.course
        return self._asked(course, size, total[0])

    def _asked(self, course: Course, size: float, answer: Tensor | None) -> Told:
        try:
            wanted = next(course) if answer is None else course.send(answer)
        except StopIteration as end:
            return Told(KEEP, (end.value.x,), self._outcome(end.value, size))
        return Told(SWEEP, (wanted,), (course, size))

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
