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

    def __call__(self, array: NDArray[Any], kind: Any) -> int:
        """kind : of the numbers that a kernel will find there."""
        if array.dtype != kind or not (array.flags.c_contiguous and array.flags.aligned):
            raise TypeError(
                f"kernels want numbers of kind {kind} one after the other, not {array.dtype} with "
                f"strides {array.strides}; this is a bug of slrt-dask"
            )
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

    blocks: Sequence[Block]
    strips: Strips
    pieces: Pieces | None


def layout_of(places: Sequence[Place], factors: Factors, solution: str) -> Layout | None:
    """The layout of a solve that has begun; None if threads cannot share its iterations."""
    blocks = [block for place in places for block in place.opened()]
    strips = strips_of(blocks, len(places), factors, (solution, "p"))
    if strips is None:
        return None
    tiles = any(block.tiles for block in blocks)
    return Layout(blocks, strips, None if tiles else _pieces(blocks, places, factors))


def strips_of(
    blocks: Sequence[Block], threads: int, factors: Factors, moved: tuple[str, str]
) -> Strips | None:
    """The first halves of iterations; None if threads cannot share them.

    moved : names of the vectors x and p; any others if an iteration leaves them
    """
    indices, slab = [block.index for block in blocks], blocks[0].index.slab_mode
    borders = crossing.strip_borders(
        indices[0].buffer_rows[slab], factors.width(slab), sum(index.entries for index in indices),
        sum(index.slices for index in indices), threads,
    )  # fmt: skip
    if len(borders) > 2 and any(block.strips(borders) is None for block in blocks):
        borders = (0, borders[-1])
    if len(borders) - 1 < min(2, threads):
        return None
    kinds = (indices[0].rows[slab].dtype, indices[0].fibres[slab].dtype, blocks[0].values.dtype)
    table, at = [], Addresses()
    for block, index in zip(blocks, indices, strict=True):
        # One strip is everything, in whatever order: slices begin where the one before ends.
        bounds, step = index.starts, 1
        if len(borders) > 2 and (cut := block.strips(borders)) is not None:
            bounds, step = cut, index.slices
        numbered = at(index.rows[slab], kinds[0]), at(index.fibres[slab], kinds[1])
        vectors = (at(block.changing(name), kinds[2]) for name in ("r", "s", "w", *moved))
        lengths = index.entries, index.slices, step
        table.append((*lengths, at(bounds, np.int64), *numbered, *vectors))
    return Strips(
        np.array(borders), np.array(table), tuple(np.empty(0, kind) for kind in kinds), at.held
    )


def _pieces(blocks: Sequence[Block], places: Sequence[Place], factors: Factors) -> Pieces:
    at, local_modes = Addresses(), blocks[0].index.local_modes
    rows = {mode: max(block.index.buffer_rows[mode] for block in blocks) for mode in local_modes}
    table, numbering = [], []
    for block in blocks:
        index, numbers = block.index, block.values.dtype
        vectors = (at(block.changing(name), numbers) for name in ("r", "w"))
        table.append((index.entries, at(index.starts, np.int64), *vectors))
        numbering.append(
            [
                numbered(
                    factors.width(mode), mode == index.mode_in_runs, index.rows[mode],
                    index.fibres[mode], numbers, at,
                )
                for mode in local_modes
            ]
        )  # fmt: skip
    modes, rooms = mode_tables(places, factors, rows, "sums", at)
    cut = _cut([block.index for block in blocks])
    return Pieces(cut, np.array(table), np.array(numbering), modes, rooms, at.held)


def mode_tables(
    places: Sequence[Place], factors: Factors, rows: dict[int, int], name: str, at: Addresses
) -> tuple[Table, Table]:
    """What kernels are told of local modes, and every thread's buffers for their fibre sums.

    rows : of each such mode's buffers;  name : of the buffers
    """
    modes = [
        (at(factors.padded[mode], np.float64), len(factors.padded[mode]), count)
        for mode, count in rows.items()
    ]
    rooms = [
        [
            at(place.buffers.room(mode, name, count, factors.width(mode)), np.float64)
            for mode, count in rows.items()
        ]
        for place in places
    ]
    return np.array(modes), np.array(rooms)


def numbered(
    width: int, in_runs: bool, rows: NDArray[Any], fibres: NDArray[Any], numbers: Any, at: Addresses
) -> tuple[int, int, int]:
    """Addresses of a local mode's kernel for a block, of its rows and of its fibres."""
    kernel = local.mode_kernel(width, in_runs, rows.dtype, fibres.dtype, numbers)
    return kernel.address, at(rows, rows.dtype), at(fibres, fibres.dtype)


def _cut(indices: Sequence[BlockIndex]) -> Table:
    """(pieces, 3): block, first slice and the one after the last, of about `PIECE_ENTRIES`."""
    pieces = []
    for number, index in enumerate(indices):
        wanted = np.arange(0, index.entries, PIECE_ENTRIES)
        borders = np.unique(np.append(np.searchsorted(index.starts, wanted), index.slices))
        numbers = np.full(len(borders) - 1, number)
        pieces.append(np.stack([numbers, borders[:-1], borders[1:]], axis=1))
    return np.concatenate(pieces)
