"""The operator of the inner problem, and its products on one block in terms of the kernels.

    L X = Σ_t λ_t (X ×_k P_t P_tᵀ)_Ω,     k = k(t) the mode of term t

The latent sum runs over terms; there is one for every mode. Modes other than the slab mode are
local to a block. The slab mode's fibre sums have to be added up over all blocks before they can be
sampled, so its terms' share of a product comes in two halves (`crossing_sums`, `add_crossing`) with
a reduction between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.block import Block, Vector
from slrt_dask.kernels import sweeps, vectors
from slrt_dask.kernels.simd import lanes_for, pad_columns

Matrix = NDArray[np.float64]
Sums = tuple[Matrix, ...]
"""Fibre sums (fibres, width) of the slab mode, one matrix for every term of that mode."""


@dataclass(frozen=True)
class Term:
    """One part of the latent sum: of low rank along a mode, with weight λ."""

    mode: int
    weight: float


def terms_of(weights: tuple[float, ...]) -> tuple[Term, ...]:
    """One term for every mode."""
    return tuple(Term(mode, weight) for mode, weight in enumerate(weights))


@dataclass(frozen=True)
class Factors:
    """Factors as the kernels read them, one for every term.

    padded : matrices (n_k, even width ≥ r_t), zero in the columns beyond r_t
    ranks : the r_t
    """

    padded: tuple[Matrix, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, matrices: tuple[NDArray[Any], ...]) -> Factors:
        return cls(
            tuple(pad_columns(matrix) for matrix in matrices),
            tuple(matrix.shape[1] for matrix in matrices),
        )

    def joined(self, other: Factors) -> Factors:
        """Both side by side: matrices (n_k, sum of the widths)."""
        pairs = zip(self.padded, other.padded, strict=True)
        both = tuple(np.hstack(pair) for pair in pairs)
        return Factors(both, tuple(matrix.shape[1] for matrix in both))

    def unpad(self, totals: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        """Drop the padding's columns from matrices (n_k, width)."""
        return tuple(
            np.ascontiguousarray(total[:, :rank])
            for total, rank in zip(totals, self.ranks, strict=True)
        )


@dataclass(frozen=True)
class Operator:
    """Σ_t λ_t ×_k S_t G_tᵀ; the two factors are the same, P_t, except in derivatives.

    scatter : S_t, if they are not G_t
    """

    terms: tuple[Term, ...]
    gather: Factors
    slab_mode: int
    scatter: Factors | None = None

    @classmethod
    def of(
        cls, terms: tuple[Term, ...], matrices: tuple[NDArray[Any], ...], slab_mode: int
    ) -> Operator:
        return cls(terms, Factors.of(matrices), slab_mode)

    def derivative(self, direction: Factors) -> Operator:
        """The derivative as the factors move in a direction: Σ_t λ_t ×_k (V Pᵀ + P Vᵀ)."""
        gather, scatter = self.gather.joined(direction), direction.joined(self.gather)
        return replace(self, gather=gather, scatter=scatter)

    @property
    def local(self) -> tuple[int, ...]:
        """The numbers of the terms whose fibres do not leave a slice."""
        return tuple(t for t, term in enumerate(self.terms) if term.mode != self.slab_mode)

    @property
    def crossing(self) -> tuple[int, ...]:
        """The numbers of the terms of the slab mode."""
        return tuple(t for t, term in enumerate(self.terms) if term.mode == self.slab_mode)

    @property
    def norm(self) -> float:
        """A bound of the largest eigenvalue: Σ_t λ_t ‖P_t‖²."""
        pairs = zip(self.terms, self.gather.padded, strict=True)
        return float(sum(term.weight * np.linalg.norm(P, 2) ** 2 for term, P in pairs))

    def energy(self, sums: Sums) -> float:
        """The crossing terms' part of ⟨X, L X⟩, given their fibre sums."""
        found = 0.0
        for t, matrix in zip(self.crossing, sums, strict=True):
            flat = matrix.reshape(-1)
            found += self.terms[t].weight * float(vectors.dot(flat, flat))
        return found

    # ---- on a block -----------------------------------------------------------------------------

    def _scattered(self, t: int) -> Matrix:
        return (self.scatter or self.gather).padded[t]

    def add_local(self, block: Block, x: Vector, out: Vector, shift: float | None = None) -> float:
        """out += the local terms' part of L x; ⟨x, the addition⟩.

        shift : if given, out is shift · x before, whatever it was
        """
        index, energy, fresh = block.index, 0.0, shift is not None
        for t in self.local:
            mode, gather = self.terms[t].mode, self.gather.padded[t]
            width = gather.shape[1]
            apply = sweeps.apply_runs if mode == index.mode_in_runs else sweeps.apply_slices
            energy += apply(
                index.starts, index.rows[mode], index.fibres[mode], x, gather,
                self._scattered(t), lanes_for(width), block.buffer(mode, width),
                self.terms[t].weight, out, fresh, shift or 0.0,
            )  # fmt: skip
            fresh = False
        if fresh:
            np.multiply(x, shift or 0.0, out=out)
        return energy

    def crossing_sums(
        self, block: Block, x: Vector, total: Sums | None = None, in_use: Sums = ()
    ) -> Sums:
        """The crossing terms' fibre sums with this block's part added to them.

        in_use : sums whose memory cannot be used for new ones
        """
        index, mode = block.index, self.slab_mode
        sums = self.room(block, in_use) if total is None else total
        for t, matrix in zip(self.crossing, sums, strict=True):
            sweeps.fibre_sums(
                index.rows[mode], index.fibres[mode], x, self.gather.padded[t],
                lanes_for(matrix.shape[1]), matrix,
            )  # fmt: skip
        return sums

    def add_crossing(self, block: Block, sums: Sums, out: Vector) -> None:
        """out += the crossing terms' part of L x, given their complete fibre sums."""
        index, mode = block.index, self.slab_mode
        for t, matrix in zip(self.crossing, sums, strict=True):
            sweeps.sample(
                index.rows[mode], index.fibres[mode], matrix, self._scattered(t),
                lanes_for(matrix.shape[1]), self.terms[t].weight, out,
            )  # fmt: skip

    def room(self, block: Block, in_use: Sums = ()) -> Sums:
        """Zeros for fibre sums.

        In memory of the thread that was used two rounds before: nobody reads what it held any
        more, and new memory would cost as much as the sums themselves, in every round.
        """
        fibres = block.index.buffer_rows[self.slab_mode]
        found = []
        for number, t in enumerate(self.crossing):
            other = in_use[number] if in_use else None
            shape = fibres, self.gather.padded[t].shape[1]
            found.append(block.buffers.sums(shape, other, number))
        return tuple(found)
