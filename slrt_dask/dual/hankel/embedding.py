"""Hankel embedding of a tensor: windows of it, and their overlap-add.

    H(W)[a_1, b_1, …, a_K, b_K] = W[a_1 + b_1, …, a_K + b_K],     a_k < τ_k,  b_k < n_k − τ_k + 1

For one offset a = (a_1, …, a_K) that is a window of W. Offsets are numbered in C order; chunks of
the embedded tensor are runs of offsets, arrays (offsets, window).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import InvalidInput
from slrt_dask.kernels import windows as kernels

Tensor = NDArray[np.floating[Any]]
BATCH_ENTRIES = 2**17
"""Entries of windows that are worked on at once: what is made of them stays in a cache."""


@dataclass(frozen=True)
class Embedding:
    """How a tensor is embedded.

    shape : of the tensor;  tau : offsets in every mode, 1 for a mode that is not embedded
    """

    shape: tuple[int, ...]
    tau: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tau) != len(self.shape):
            raise InvalidInput(
                f"tau has {len(self.tau)} numbers for a tensor of order {len(self.shape)}; give "
                f"one per mode, 1 for a mode that is not to be embedded"
            )
        for mode, (offsets, length) in enumerate(zip(self.tau, self.shape, strict=True)):
            if not 1 <= offsets <= length:
                raise InvalidInput(
                    f"tau is {offsets} in mode {mode}, which has length {length}; give a number "
                    f"from 1 to {length}"
                )

    @property
    def window(self) -> tuple[int, ...]:
        """The shape of a window."""
        return tuple(n - tau + 1 for n, tau in zip(self.shape, self.tau, strict=True))

    @property
    def offsets(self) -> int:
        """How many windows there are."""
        return math.prod(self.tau)

    def copies(self) -> NDArray[np.float64]:
        """D: in how many windows every entry of the tensor is."""
        counts = np.ones(())
        for length, tau in zip(self.shape, self.tau, strict=True):
            place = np.arange(length)
            along = np.minimum.reduce(
                [place + 1, length - place, np.full(length, tau), np.full(length, length - tau + 1)]
            )
            counts = np.multiply.outer(counts, along.astype(np.float64))
        return counts

    def firsts(self, offsets: range) -> NDArray[np.int64]:
        """Of a run of offsets: where in the flattened tensor their windows begin."""
        return self._places(np.unravel_index(np.arange(offsets.start, offsets.stop), self.tau))

    @functools.cached_property
    def rows(self) -> NDArray[np.int64]:
        """How far into the flattened tensor the rows of a window are, from where it begins.

        A row is what lies in the last mode, and in one piece.
        """
        outer = (*self.window[:-1], 1)
        return self._places(np.unravel_index(np.arange(math.prod(outer)), outer))

    def _places(self, indices: tuple[NDArray[np.intp], ...]) -> NDArray[np.int64]:
        return np.ravel_multi_index(indices, self.shape).astype(np.int64)


def cut_windows(
    embedding: Embedding, tensor: NDArray[Any], offsets: range, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """H(tensor) at some offsets, (offsets, window)."""
    if out is None:
        out = np.empty((len(offsets), *embedding.window))
    lines = out.reshape(len(offsets), len(embedding.rows), -1)
    kernels.cut(tensor.reshape(-1), embedding.firsts(offsets), embedding.rows, lines)
    return out


def overlap_add(embedding: Embedding, windows: Tensor, offsets: range, out: Tensor) -> None:
    """out += H*(windows), out being of the tensor's shape, in one piece."""
    lines = windows.reshape(len(offsets), len(embedding.rows), -1)
    kernels.add(lines, embedding.firsts(offsets), embedding.rows, out.reshape(-1))
