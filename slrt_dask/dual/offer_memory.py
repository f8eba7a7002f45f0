"""The memory of an offer, which neighbours see: what lies in it, and how others find that there.

See `offers.py` for what is done with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.layout import Table
from slrt_dask.engine.block import Block
from slrt_dask.engine.helping import OFFERED_PART, Content
from slrt_dask.engine.seen_memory import Whereabouts, new_memory
from slrt_dask.kernels import local
from slrt_dask.kernels.blocks import BlockIndex

FEWEST = 4
"""Pieces that an offer must have to be worth a neighbour's look."""
LINE = 64
"""Bytes that arrays in an offer begin at multiples of."""


@dataclass(frozen=True)
class Described:
    """What is in an offer, for those who have only its bytes.

    starts, entries : of all pieces together
    kinds : of the index arrays' numbers
    modes : for every local mode its row's and its fibre's index array, and its buffers' rows
    runs : the local mode whose fibres come in runs, counted among them; -1 if there is none
    numbers : the kind of the vectors' numbers
    """

    pieces: int
    starts: int
    entries: int
    kinds: tuple[str, ...]
    modes: tuple[tuple[int, int, int], ...]
    runs: int
    numbers: str

    def _arrays(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        yield (local.claims_for(self.pieces), 8), np.int64
        yield (self.pieces, 3), np.int64
        yield (self.starts,), np.int64
        yield (self.pieces,), np.float64
        yield (self.entries,), self.numbers
        yield (self.entries,), self.numbers
        for kind in self.kinds:
            yield (self.entries,), kind

    @property
    def nbytes(self) -> int:
        return sum(_rounded(shape, kind) for shape, kind in self._arrays())

    def found_in(self, content: Content) -> Laid:
        """The arrays of an offer with this description."""
        found, first = [], 0
        for shape, kind in self._arrays():
            size = math.prod(shape) * np.dtype(kind).itemsize
            found.append(content[first : first + size].view(kind).reshape(shape))
            first += _rounded(shape, kind)
        claims, pieces, starts, energies, x, out, *columns = found
        return Laid(claims, pieces, starts, energies, x, out, tuple(columns))


def _rounded(shape: tuple[int, ...], kind: Any) -> int:
    size: int = math.prod(shape) * np.dtype(kind).itemsize
    return -(-size // LINE) * LINE


@dataclass(frozen=True)
class Laid:
    """The arrays of an offer; see `local.help_turns`.

    pieces : (pieces, 3) 0, its first slice, and the one after the last
    starts : where in the following each slice begins, and each piece's last one ends
    x, out, columns : (entries,) the vector, room for its product, and indices
    """

    claims: Table
    pieces: Table
    starts: Table
    energies: NDArray[np.float64]
    x: NDArray[Any]
    out: NDArray[Any]
    columns: tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Ground:
    """The memory of an offer, kept from solve to solve, and what of it never changes.

    chosen, lengths : the pieces, and how many entries each has
    indices : of the blocks that they are of
    """

    whereabouts: Whereabouts
    described: Described
    laid: Laid
    chosen: Table
    lengths: Table
    indices: Sequence[BlockIndex]

    def is_for(self, blocks: Sequence[Block]) -> bool:
        return len(self.indices) == len(blocks) and all(
            index is block.index for index, block in zip(self.indices, blocks, strict=True)
        )


def new_ground(blocks: Sequence[Block], pieces: Table) -> Ground | None:
    """Memory for an offer of the last pieces; None if that is not worth it, or cannot be had.

    pieces : (pieces, 3) block, first slice and the one after the last, of all there are
    """
    lengths = _lengths(pieces, blocks)
    wanted = int(lengths.sum()) // OFFERED_PART
    count = int(np.searchsorted(np.cumsum(lengths[::-1]), wanted))
    if count < FEWEST:
        return None
    chosen, lengths = pieces[-count:], lengths[-count:]
    described = _description(chosen, int(lengths.sum()), blocks)
    made = None if described is None else new_memory(described.nbytes)
    if described is None or made is None:
        return None
    laid = described.found_in(made[1])
    _lay(laid, chosen, blocks)
    indices = [block.index for block in blocks]
    return Ground(made[0].whereabouts, described, laid, chosen, lengths, indices)


def _lengths(pieces: Table, blocks: Sequence[Block]) -> Table:
    """Entries of every piece."""
    starts = [block.index.starts for block in blocks]
    return np.array([starts[b][stop] - starts[b][first] for b, first, stop in pieces])


def _description(chosen: Table, entries: int, blocks: Sequence[Block]) -> Described | None:
    """None if the blocks are not alike."""
    found = {_alike(blocks[number]) for number in np.unique(chosen[:, 0])}
    if len(found) > 1:
        return None
    ((kinds, columns, runs, numbers),) = found
    index = blocks[0].index
    rows = [max(b.index.buffer_rows[mode] for b in blocks) for mode in index.local_modes]
    modes = tuple((*pair, count) for pair, count in zip(columns, rows, strict=True))
    starts = int((chosen[:, 2] - chosen[:, 1] + 1).sum())
    return Described(len(chosen), starts, entries, kinds, modes, runs, numbers)


def _alike(block: Block) -> tuple[Any, ...]:
    """What has to be the same of all blocks in an offer."""
    index = block.index
    arrays = _columns(block)
    numbers = {id(array): number for number, array in enumerate(arrays)}
    modes = tuple(
        (numbers[id(index.rows[k])], numbers[id(index.fibres[k])]) for k in index.local_modes
    )
    runs = (
        index.local_modes.index(index.mode_in_runs)
        if index.mode_in_runs in index.local_modes
        else -1
    )
    return tuple(array.dtype.str for array in arrays), modes, runs, block.values.dtype.str


def _columns(block: Block) -> list[NDArray[Any]]:
    """The index arrays of the local modes; one that serves twice is there once."""
    index = block.index
    both = [array for k in index.local_modes for array in (index.rows[k], index.fibres[k])]
    return list({id(array): array for array in both}.values())


def _lay(laid: Laid, chosen: Table, blocks: Sequence[Block]) -> None:
    """Fill an offer with all that stays the same."""
    laid.claims[:] = 0
    entry, start = 0, 0
    for place, (number, first, stop) in enumerate(chosen):
        starts = blocks[number].index.starts[first : stop + 1]
        length = int(starts[-1] - starts[0])
        laid.pieces[place] = 0, start, start + stop - first
        laid.starts[start : start + len(starts)] = starts - starts[0] + entry
        for column, source in zip(laid.columns, _columns(blocks[number]), strict=True):
            column[entry : entry + length] = source[starts[0] : starts[-1]]
        entry, start = entry + length, start + len(starts)
