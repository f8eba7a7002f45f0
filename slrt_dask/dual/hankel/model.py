"""The model's operator on windows, and its inverse. Modes come short ones first.

    M = δ + Σ_k λ_k ×_{2k} U_kU_kᵀ

acts on every window by itself. Its terms commute, so M is diagonal in the eigenvectors of all the
U_kU_kᵀ together: 1 / (δ + Σ_k λ_k θ_k) is its inverse there. Only r_k eigenvalues of a mode are not
zero. The rest of the mode needs no vectors: what is outside of the r_k is what is left of a window.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.hankel.embedding import BATCH_ENTRIES, Embedding, Tensor

Matrices = tuple[NDArray[np.float64], ...]
Room = Callable[[Hashable, tuple[int, ...], Any], NDArray[Any]]
"""Gives memory for an array of a shape and a type: the same for the same key, else other memory.

Fresh memory costs more than what is done with it here.
"""


"""Of solves that are restricted to some entries, which have to be as good as exact."""


@dataclass(frozen=True)
class ModeBasis:
    """Eigenvectors of λ_k U_kU_kᵀ, (length, number), and their eigenvalues.

    whole : whether they span the mode, those of eigenvalue zero included
    """

    vectors: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]

    @property
    def whole(self) -> bool:
        return bool(self.vectors.shape[0] == self.vectors.shape[1])

    @classmethod
    def of(cls, factor: NDArray[np.float64], weight: float) -> ModeBasis:
        length, rank = factor.shape
        # Half of a mode and more costs less as a whole: nothing is left of a window then.
        whole = 2 * rank >= length
        vectors, values, _ = np.linalg.svd(factor, full_matrices=whole)
        eigenvalues = np.zeros(vectors.shape[1])
        eigenvalues[: len(values)] = weight * values**2
        return cls(np.ascontiguousarray(vectors), eigenvalues)


@dataclass(frozen=True)
class WindowModel:
    """M at a point.

    deviation : δ, above 0
    """

    embedding: Embedding
    factors: Matrices
    weights: tuple[float, ...]
    deviation: float

    @cached_property
    def bases(self) -> tuple[ModeBasis, ...]:
        pairs = zip(self.factors, self.weights, strict=True)
        return tuple(ModeBasis.of(factor, weight) for factor, weight in pairs)

    @cached_property
    def _tables(self) -> dict[tuple[bool, ...], NDArray[np.float64]]:
        """What is to be added for the eigenvectors of some modes, beside all that is added anyway.

        For modes A the sum over their subsets of (−1)^(|A| − |B|) times the inverse in B.
        """
        free = [not basis.whole for basis in self.bases]
        tables: dict[tuple[bool, ...], NDArray[np.float64]] = {}
        for chosen in itertools.product((False, True), repeat=len(free)):
            if not all(inside or can for inside, can in zip(chosen, free, strict=True)):
                continue
            choices = [
                (False, True) if inside and can else (inside,)
                for inside, can in zip(chosen, free, strict=True)
            ]
            terms = [
                (-1.0) ** (sum(chosen) - sum(subset)) * self._inverse(subset)
                for subset in itertools.product(*choices)
            ]
            tables[chosen] = functools.reduce(np.add, np.broadcast_arrays(*terms))
        return tables

    def _inverse(self, chosen: tuple[bool, ...]) -> NDArray[np.float64]:
        """1 / (δ + Σ λ_k θ_k), θ being zero in the modes that are not chosen."""
        total = np.full((1,) * len(chosen), self.deviation)
        for axis, (inside, basis) in enumerate(zip(chosen, self.bases, strict=True)):
            if inside:
                shape = [1] * len(chosen)
                shape[axis] = -1
                total = total + basis.eigenvalues.reshape(shape)
        return 1.0 / total

    @cached_property
    def mean_inverse(self) -> float:
        """The mean of M⁻¹'s diagonal."""
        total = 0.0
        for chosen, table in self._tables.items():
            outside = math.prod(
                1 if inside else basis.vectors.shape[0]
                for inside, basis in zip(chosen, self.bases, strict=True)
            )
            total += outside * float(table.sum())
        return total / math.prod(self.embedding.window)

    def solved(self, windows: Tensor, room: Room) -> Tensor:
        """M⁻¹ of windows (offsets, window), in memory of the room."""
        return self._solved(windows, (), room)

    def _solved(self, windows: Tensor, chosen: tuple[bool, ...], room: Room) -> Tensor:
        mode = len(chosen)
        if mode == len(self.bases):
            out = room((chosen, "scaled"), windows.shape, windows.dtype)
            return np.multiply(windows, self._tables[chosen], out=out, casting="same_kind")
        basis = self.bases[mode]
        inside = contracted(windows, mode, basis.vectors, room, (chosen, "in"))
        inside = self._solved(inside, (*chosen, True), room)
        out = contracted(inside, mode, basis.vectors.T, room, (chosen, "out"))
        if not basis.whole:
            out += self._solved(windows, (*chosen, False), room)
        return out

    def applied(self, windows: Tensor, room: Room) -> Tensor:
        """(M − δ) of windows: Σ_k λ_k windows ×_{2k} U_kU_kᵀ."""
        out = room("applied", windows.shape, windows.dtype)
        out[...] = 0.0
        for mode, (factor, weight) in enumerate(zip(self.factors, self.weights, strict=True)):
            sums = contracted(windows, mode, factor, room, ("moving", mode))
            out += contracted(sums, mode, weight * factor.T, room, "back")
        return out

    def moved(self, windows: Tensor, direction: Matrices, room: Room) -> Tensor:
        """Ṁ of windows, as the factors move: Σ_k λ_k windows ×_{2k} (U̇_kU_kᵀ + U_kU̇_kᵀ)."""
        out = room("moved", windows.shape, windows.dtype)
        out[...] = 0.0
        parts = zip(self.factors, direction, self.weights, strict=True)
        for mode, (factor, change, weight) in enumerate(parts):
            for inwards, outwards in ((factor, change), (change, factor)):
                sums = contracted(windows, mode, inwards, room, ("moving", mode))
                out += contracted(sums, mode, weight * outwards.T, room, "back")
        return out

    def batches(self, offsets: range) -> Iterator[range]:
        """Runs of offsets of about BATCH_ENTRIES."""
        step = max(1, BATCH_ENTRIES // math.prod(self.embedding.window))
        for first in range(offsets.start, offsets.stop, step):
            yield range(first, min(first + step, offsets.stop))


def contracted(
    windows: Tensor, mode: int, matrix: NDArray[np.float64], room: Room, key: Hashable
) -> Tensor:
    """Windows ×_mode matrixᵀ, the matrix being (length of the mode, new length)."""
    shape, factor = windows.shape, matrix.astype(windows.dtype, copy=False)
    length, width, right = shape[mode + 1], matrix.shape[1], math.prod(shape[mode + 2 :])
    out = room(key, (*shape[: mode + 1], width, *shape[mode + 2 :]), windows.dtype)
    if right == 1:
        np.matmul(windows.reshape(-1, length), factor, out=out.reshape(-1, width))
    else:
        lines = windows.reshape(-1, length, right)
        np.matmul(factor.T, lines, out=out.reshape(-1, width, right))
    return out


def add_row_sums(
    left: Tensor, right: Tensor, matrices: Matrices, totals: Matrices, room: Room
) -> None:
    """totals_k += left_{2k} (right_{2k}ᵀ F_k)."""
    for mode, (matrix, total) in enumerate(zip(matrices, totals, strict=True)):
        sums = contracted(right, mode, matrix, room, ("rows", mode))
        length, width = matrix.shape
        rest = math.prod(left.shape[mode + 2 :])
        if rest == 1:
            total += left.reshape(-1, length).T @ sums.reshape(-1, width)
        else:
            turned = sums.reshape(-1, width, rest).transpose(0, 2, 1)
            total += np.matmul(left.reshape(-1, length, rest), turned).sum(axis=0)
