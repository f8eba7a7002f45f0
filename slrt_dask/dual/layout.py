"""Where the vectors and indices of an inner solve are, for kernels that know them by addresses.

There may be any number of blocks and modes, and a kernel that took each as an argument would have
to be compiled for every number of them. A layout is made once for a solve and holds what lies at
its addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.operator import Factors
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Place
from slrt_dask.kernels import crossing, local
from slrt_dask.kernels.blocks import BlockIndex

PIECE_ENTRIES = 8192
"""Of a piece of some slices: vectors and indices of so many stay in a core's own cache."""

Table = NDArray[np.int64]


class Addresses:
    """Tells where arrays are, and holds them."""

    def __init__(self) -> None:
        self.held: list[NDArray[Any]] = []

    def __call__(self, array: NDArray[Any]) -> int:
        assert array.flags.c_contiguous
        assert array.flags.aligned
        self.held.append(array)
        return int(array.ctypes.data)


@dataclass(frozen=True)
class Strips:
    """What `crossing.crossing_turns` is told.

    kinds : arrays of the kinds that the slab mode's rows, its fibres, and vectors have
    """

    borders: Table
    blocks: Table
    kinds: tuple[NDArray[Any], ...]
    held: list[NDArray[Any]]


@dataclass(frozen=True)
class Pieces:
    """What `local.local_turns` is told.

    rooms : (threads, local modes) addresses of every thread's buffers
    """

    pieces: Table
    blocks: Table
    numbering: Table
    modes: Table
    rooms: Table
    held: list[NDArray[Any]]


@dataclass(frozen=True)
class Layout:
    """Both halves of a solve's iterations; no pieces where blocks are multiplied on dense tiles."""

    strips: Strips
    pieces: Pieces | None


def layout_of(places: Sequence[Place], factors: Factors, solution: str) -> Layout | None:
    """The layout of a solve that has begun; None if threads cannot share its iterations."""
    blocks = [block for place in places for block in place.opened()]
    strips = _strips(blocks, len(places), factors, solution)
    if strips is None:
        return None
    tiles = any(block.tiles for block in blocks)
    return Layout(strips, None if tiles else _pieces(blocks, places, factors))


def _strips(
    blocks: Sequence[Block], threads: int, factors: Factors, solution: str
) -> Strips | None:
    indices, slab = [block.index for block in blocks], blocks[0].index.slab_mode
    borders = crossing.strip_borders(
        indices[0].buffer_rows[slab], factors.width(slab), sum(index.entries for index in indices),
        sum(index.slices for index in indices), threads,
    )  # fmt: skip
    if len(borders) - 1 < min(2, threads):
        return None
    table, at = [], Addresses()
    for block, index in zip(blocks, indices, strict=True):
        bounds = block.strips(borders)
        if bounds is None:
            return None
        vectors = (block.changing(name) for name in ("r", "s", "w", solution, "p"))
        arrays = (bounds, index.rows[slab], index.fibres[slab], *vectors)
        table.append((index.entries, index.slices, *(at(array) for array in arrays)))
    kinds = (indices[0].rows[slab].dtype, indices[0].fibres[slab].dtype, blocks[0].values.dtype)
    return Strips(
        np.array(borders), np.array(table), tuple(np.empty(0, kind) for kind in kinds), at.held
    )


def _pieces(blocks: Sequence[Block], places: Sequence[Place], factors: Factors) -> Pieces:
    at, local_modes = Addresses(), blocks[0].index.local_modes
    rows = {mode: max(block.index.buffer_rows[mode] for block in blocks) for mode in local_modes}
    table, numbering = [], []
    for block in blocks:
        index, vectors = block.index, (block.vector("r"), block.changing("w"))
        table.append((index.entries, at(index.starts), *(at(vector) for vector in vectors)))
        kernels = _kernels(index, factors, block.values.dtype)
        numbering.append(
            [
                (kernel, at(index.rows[mode]), at(index.fibres[mode]))
                for kernel, mode in zip(kernels, local_modes, strict=True)
            ]
        )
    modes = [
        (at(factors.padded[mode]), len(factors.padded[mode]), rows[mode]) for mode in local_modes
    ]
    rooms = [
        [
            at(place.buffers.room(mode, "sums", rows[mode], factors.width(mode)))
            for mode in local_modes
        ]
        for place in places
    ]
    return Pieces(
        _cut([block.index for block in blocks]), np.array(table), np.array(numbering),
        np.array(modes), np.array(rooms), at.held,
    )  # fmt: skip


def _kernels(index: BlockIndex, factors: Factors, numbers: Any) -> list[int]:
    """Addresses of the kernels of a block's local modes."""
    return [
        local.mode_kernel(
            factors.width(mode), mode == index.mode_in_runs, index.rows[mode].dtype,
            index.fibres[mode].dtype, numbers,
        ).address
        for mode in index.local_modes
    ]  # fmt: skip


def _cut(indices: Sequence[BlockIndex]) -> Table:
    """(pieces, 3): block, first slice and the one after the last, of about `PIECE_ENTRIES`."""
    pieces = []
    for number, index in enumerate(indices):
        wanted = np.arange(0, index.entries, PIECE_ENTRIES)
        borders = np.unique(np.append(np.searchsorted(index.starts, wanted), index.slices))
        numbers = np.full(len(borders) - 1, number)
        pieces.append(np.stack([numbers, borders[:-1], borders[1:]], axis=1))
    return np.concatenate(pieces)
