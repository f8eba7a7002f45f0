"""Products with the inner problem's operator on one block, in terms of the kernels.

The operator is `A = 1/(2C) + Σ_k λ_k ×_k U_k U_kᵀ`, restricted to the observations. The modes other
than the slab mode are local to a block. The slab mode's fibre sums have to be added up over all
blocks before they can be sampled, so its share of a product comes in two halves
(`crossing_sums`, `add_crossing`) with a reduction between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import Block, Vector
from slrt_dask.kernels import sweeps
from slrt_dask.kernels.simd import lanes_for, pad_columns

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Factors:
    """Factors as the kernels read them.

    padded : K matrices (n_k, even width ≥ r_k), zero in the columns beyond r_k
    ranks : the r_k
    """

    padded: tuple[Matrix, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, matrices: tuple[NDArray[Any], ...]) -> Factors:
        return cls(
            tuple(pad_columns(matrix) for matrix in matrices),
            tuple(matrix.shape[1] for matrix in matrices),
        )

    def beside(self, other: Factors) -> Factors:
        """Both side by side: K matrices (n_k, sum of the widths)."""
        pairs = zip(self.padded, other.padded, strict=True)
        joined = tuple(np.hstack(pair) for pair in pairs)
        return Factors(joined, tuple(matrix.shape[1] for matrix in joined))

    def width(self, mode: int) -> int:
        return int(self.padded[mode].shape[1])

    def unpad(self, totals: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        """Drop the padding's columns from K matrices (n_k, width)."""
        return tuple(
            np.ascontiguousarray(total[:, :rank])
            for total, rank in zip(totals, self.ranks, strict=True)
        )


def add_local(
    block: Block,
    gather: Factors,
    scatter: Factors,
    weights: tuple[float, ...],
    x: Vector,
    out: Vector,
    shift: float | None = None,
) -> float:
    """out += Σ_{k local} λ_k X ×_k scatter_k gather_kᵀ at the entries; ⟨x, the addition⟩.

    shift : if given, out is shift · x before, whatever it was
    """
    index, energy, fresh = block.index, 0.0, shift is not None
    for mode in index.local_modes:
        width = gather.width(mode)
        apply = sweeps.apply_runs if mode == index.mode_in_runs else sweeps.apply_slices
        energy += apply(
            index.starts, index.rows[mode], index.fibres[mode], x,
            gather.padded[mode], scatter.padded[mode], lanes_for(width),
            block.buffer(mode, width), weights[mode], out, fresh, shift or 0.0,
        )  # fmt: skip
        fresh = False
    return energy


def crossing_sums(block: Block, factors: Factors, x: Vector, sums: Matrix | None = None) -> Matrix:
    """The slab mode's fibre sums, (fibres, width), with this block's part added to them."""
    index, mode = block.index, block.index.slab_mode
    width = factors.width(mode)
    if sums is None:
        sums = np.zeros((index.buffer_rows[mode], width))
    sweeps.fibre_sums(
        index.rows[mode], index.fibres[mode], x, factors.padded[mode], lanes_for(width), sums
    )
    return sums


def add_crossing(
    block: Block, scatter: Factors, weights: tuple[float, ...], sums: Matrix, out: Vector
) -> None:
    """out += λ_p X ×_p scatter_p gather_pᵀ, given the slab mode's complete fibre sums."""
    index, mode = block.index, block.index.slab_mode
    sweeps.sample(
        index.rows[mode], index.fibres[mode], sums, scatter.padded[mode],
        lanes_for(scatter.width(mode)), weights[mode], out,
    )  # fmt: skip
