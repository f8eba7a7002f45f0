"""Row sums of a dual tensor S = M⁻¹ H(W), the right-hand side of its derivative, and bounds' parts.

S is made batch by batch, and gone when its sums are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.dual.hankel.embedding import overlap_add
from slrt_dask.dual.hankel.inner import OnTensors
from slrt_dask.dual.hankel.model import Matrices, add_row_sums
from slrt_dask.dual.hankel.observed import Tensor
from slrt_dask.engine.block import VALUES, Block
from slrt_dask.engine.program import Rounds, Sweep


@dataclass(frozen=True)
class HankelRowSums(OnTensors):
    """K matrices S_{2k} (S_{2k}ᵀ F_k) for S = M⁻¹ H(W) − H(V), or for H(Y) if W is None."""

    vector: str | None
    less: str | None
    matrices: Matrices

    def rounds(self) -> Rounds:
        names = tuple(name for name in (self.vector or VALUES, self.less) if name)
        tensors = yield from self.gathered(*names)
        return (yield Sweep(HankelRowSums._sums, (tensors,)))

    def _sums(self, block: Block, total: Any, tensors: tuple[Tensor, ...]) -> Matrices:
        totals: Matrices = total or _zeros(self.matrices)
        for windows in self._windows(block, tensors):
            add_row_sums(windows, windows, self.matrices, totals, block.buffers.array)
        return totals

    def _windows(self, block: Block, tensors: tuple[Tensor, ...]) -> Any:
        if self.vector is not None:
            for _, windows in self.setting.duals(block, tensors):
                yield windows
            return
        for offsets in self.setting.model.batches(range(*block.slices)):
            yield self.setting.windows(block, offsets, tensors[0], "windows")


@dataclass(frozen=True)
class HankelRightHandSide(OnTensors):
    """H* M⁻¹ Ṁ S, left under `target`: what makes W move as the factors do."""

    vector: str
    target: str
    direction: Matrices

    def rounds(self) -> Rounds:
        tensors = yield from self.gathered(self.vector)
        (found,) = yield Sweep(HankelRightHandSide._sums, (tensors,))
        yield from self.kept(self.target, found)

    def _sums(self, block: Block, total: Any, tensors: tuple[Tensor, ...]) -> tuple[Tensor]:
        embedding, model = self.setting.store.embedding, self.setting.model
        sums = np.zeros(embedding.shape) if total is None else total[0]
        for offsets, dual in self.setting.duals(block, tensors):
            moved = model.moved(dual, self.direction, block.buffers.array)
            overlap_add(embedding, model.solved(moved, block.buffers.array), offsets, sums)
        return (sums,)


@dataclass(frozen=True)
class HankelDerivativeRowSums(OnTensors):
    """The derivative of the row sums as the factors move along a direction, and W along another.

    Ṡ = M⁻¹ (H(Ẇ) − Ṁ S).
    """

    vector: str
    vector_dot: str
    direction: Matrices

    def rounds(self) -> Rounds:
        tensors = yield from self.gathered(self.vector, self.vector_dot)
        return (yield Sweep(HankelDerivativeRowSums._sums, (tensors,)))

    def _sums(self, block: Block, total: Any, tensors: tuple[Tensor, ...]) -> Matrices:
        setting, factors = self.setting, self.setting.factors
        totals: Matrices = total or _zeros(factors)
        room = block.buffers.array
        for offsets, solved in setting.duals(block, tensors[:1]):
            dual = room("dual", solved.shape, solved.dtype)
            dual[...] = solved  # whose memory the next solve takes
            change = setting.windows(block, offsets, tensors[1], "windows")
            change -= setting.model.moved(dual, self.direction, room)
            moved = setting.model.solved(change, room)
            add_row_sums(dual, dual, self.direction, totals, room)
            add_row_sums(dual, moved, factors, totals, room)
            add_row_sums(moved, dual, factors, totals, room)
        return totals


def _zeros(matrices: Matrices) -> Matrices:
    return tuple(np.zeros(matrix.shape) for matrix in matrices)
