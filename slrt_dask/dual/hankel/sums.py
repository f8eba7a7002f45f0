"""Row sums of an embedded dual tensor, right-hand sides, and what a certificate is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.dual.bounds import OneRound
from slrt_dask.dual.hankel.inner import Setting
from slrt_dask.dual.hankel.observed import Tensor
from slrt_dask.dual.hankel.operator import (
    Matrices,
    add_model,
    add_row_sums,
    chunk_of,
    offsets_of,
    overlap_added,
)
from slrt_dask.engine.block import VALUES, Block
from slrt_dask.engine.program import Finished, Program
from slrt_dask.kernels import vectors
from slrt_dask.kernels.windows import Embedding


@dataclass(frozen=True)
class HankelRowSums(OneRound):
    """K matrices S_{2k} (S_{2k}ᵀ F_k); S is the vector named, or H(Y) if None."""

    vector: str | None
    matrices: Matrices
    embedding: Embedding

    label = "rows"

    def step(self, block: Block, message: None, total: Matrices | None) -> Matrices:
        totals = total or _zeros(self.matrices)
        chunk = chunk_of(block, self.embedding, block.vector(self.vector or VALUES))
        add_row_sums(chunk, chunk, self.matrices, totals)
        return totals


@dataclass(frozen=True)
class HankelDerivativeRowSums(OneRound):
    """The derivative of the row sums as S moves along `vector_dot` and the factors along others."""

    vector: str
    vector_dot: str
    factors: Matrices
    direction: Matrices
    embedding: Embedding

    label = "rows"

    def step(self, block: Block, message: None, total: Matrices | None) -> Matrices:
        totals = total or _zeros(self.factors)
        s, moved = (
            chunk_of(block, self.embedding, block.vector(name))
            for name in (self.vector, self.vector_dot)
        )
        add_row_sums(s, s, self.direction, totals)
        add_row_sums(s, moved, self.factors, totals)
        add_row_sums(moved, s, self.factors, totals)
        return totals


@dataclass(frozen=True)
class HankelRightHandSide(Program):
    """−P Σ_k λ_k S ×_{2k} (V_kU_kᵀ + U_kV_kᵀ), left under `target`; ends in its norm."""

    vector: str
    target: str
    setting: Setting
    direction: Matrices

    label = "rhs"

    def first(self) -> None:
        return None

    def step(self, block: Block, message: Tensor | None, total: Any) -> tuple[Any]:
        setting, embedding = self.setting, self.setting.store.embedding
        if message is None:
            out = block.fresh(self.target)
            out[:] = 0.0
            negative = tuple(-weight for weight in setting.weights)
            s, target = (
                chunk_of(block, embedding, part) for part in (block.vector(self.vector), out)
            )
            add_model(setting.factors, self.direction, negative, s, target)
            add_model(self.direction, setting.factors, negative, s, target)
            return (overlap_added(block, embedding, out, total and total[0]),)
        out = block.changing(self.target)
        embedding.embed(message, offsets_of(block), chunk_of(block, embedding, out))
        return (vectors.dot(out, out) + (total[0] if total else 0.0),)

    def advance(self, message: Tensor | None, total: Any) -> Any:
        if message is None:
            return -self.setting.observed.beyond(total[0])
        return Finished(float(total[0]) ** 0.5)


@dataclass(frozen=True)
class HankelProducts:
    """What a certificate needs of S.

    misfit : ‖W_Ω − Y‖²;  deviation : ‖H(W) − Ŵ‖²;  squares : ‖S‖²
    z_dot_z, overlap : ‖H*(S)‖² and ⟨H*(S), Y⟩ on the observations
    embedded : ‖H(W)‖², for W = D⁻¹ H*(Ŵ + δS)
    """

    misfit: float
    deviation: float
    embedded: float
    squares: float
    z_dot_z: float
    overlap: float


@dataclass(frozen=True)
class _Averaged:
    """W, and the scalars that were known with it."""

    tensor: Tensor
    z_dot_z: float
    overlap: float


@dataclass(frozen=True)
class MeasureHankel(Program):
    """The tensor W of a dual vector, and how far its parts are from the embedding of it."""

    dual: str
    setting: Setting

    label = "measure"

    def first(self) -> None:
        return None

    def step(self, block: Block, message: _Averaged | None, total: Any) -> tuple[Any, Any]:
        setting, embedding = self.setting, self.setting.store.embedding
        x = block.vector(self.dual)
        if message is None:
            image = block.fresh("image")
            image[:] = 0.0
            add_model(
                setting.factors, setting.factors, setting.weights,
                chunk_of(block, embedding, x), chunk_of(block, embedding, image),
            )  # fmt: skip
            held = total or (None, None)
            w = block.fresh("w")
            np.multiply(x, setting.deviation, out=w)
            w += image
            return (
                overlap_added(block, embedding, w, held[0]),
                overlap_added(block, embedding, x, held[1]),
            )
        left = block.fresh("w")
        left[:] = 0.0
        embedding.embed(message.tensor, offsets_of(block), chunk_of(block, embedding, left))
        embedded = vectors.dot(left, left)
        left -= block.vector("image")
        part = np.array([vectors.dot(left, left), embedded, vectors.dot(x, x)])
        return (part if total is None else total[0] + part, 0.0)

    def advance(self, message: _Averaged | None, total: Any) -> _Averaged | Finished:
        seen = self.setting.observed
        if message is None:
            z = seen.within(total[1])
            return _Averaged(
                total[0] / seen.copies, float(np.vdot(z, z)), float(np.vdot(z, seen.values))
            )
        misfit = seen.within(message.tensor - seen.values)
        deviation, embedded, squares = (float(value) for value in total[0])
        return Finished(
            HankelProducts(
                float(np.vdot(misfit, misfit)), deviation, embedded, squares, message.z_dot_z,
                message.overlap,
            )
        )  # fmt: skip


def _zeros(matrices: Matrices) -> Matrices:
    return tuple(np.zeros(matrix.shape) for matrix in matrices)
