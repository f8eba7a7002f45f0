"""Products with the model's operator on a chunk of the embedded tensor: dense matrix products.

Every mode's contraction is local to a chunk, which holds whole windows; only H* crosses chunks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import Block, Vector
from slrt_dask.kernels.windows import Embedding, Tensor, add_folded, unfolded

Matrices = tuple[NDArray[np.float64], ...]
BATCH_ENTRIES = 2**17
"""Entries of a chunk that are contracted at once: what is made of them stays in a cache."""


def chunk_of(block: Block, embedding: Embedding, vector: Vector) -> Tensor:
    """A vector of a block as (offsets, window)."""
    return vector.reshape(-1, *embedding.window)


def offsets_of(block: Block) -> range:
    return range(*block.slices)


def batches(chunk: Tensor) -> list[slice]:
    """Runs of offsets of about BATCH_ENTRIES."""
    step = max(1, BATCH_ENTRIES // math.prod(chunk.shape[1:]))
    return [slice(first, first + step) for first in range(0, chunk.shape[0], step)]


def add_model(
    gather: Matrices, scatter: Matrices, weights: tuple[float, ...], chunk: Tensor, out: Tensor
) -> float:
    """out += Σ_k λ_k S ×_{2k} scatter_k gather_kᵀ; returns Σ_k λ_k ‖gather_kᵀ S_{2k}‖²."""
    energy = 0.0
    for batch in batches(chunk):
        for mode, weight in enumerate(weights):
            sums = gather[mode].T @ unfolded(chunk[batch], mode)
            energy += weight * float(np.vdot(sums, sums))
            add_folded(weight * (scatter[mode] @ sums), mode, out[batch])
    return energy


def add_row_sums(left: Tensor, right: Tensor, matrices: Matrices, totals: Matrices) -> None:
    """totals_k += left_{2k} (right_{2k}ᵀ F_k)."""
    for batch in batches(left):
        for mode, (matrix, total) in enumerate(zip(matrices, totals, strict=True)):
            fibres = unfolded(right[batch], mode).T @ matrix
            total += unfolded(left[batch], mode) @ fibres


def overlap_added(
    block: Block, embedding: Embedding, vector: Vector, total: NDArray[Any] | None
) -> NDArray[np.float64]:
    """H* of a vector, with this block's part added to it."""
    sums = np.zeros(embedding.shape) if total is None else total
    embedding.overlap_add(chunk_of(block, embedding, vector), offsets_of(block), sums)
    return sums
