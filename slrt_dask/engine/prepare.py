"""Numbering of a loaded problem's fibres, as a program of its own.

Fibres of the slab mode are shared between blocks, so their numbers have to agree everywhere. Where
the possible fibres are not many more than the observations, a fibre's key is its number and no
agreement is needed; otherwise the keys that occur are merged in a first round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Finished, Program
from slrt_dask.kernels.blocks import (
    FibreNumbering,
    build_block,
    fibre_keys,
    possible_fibres,
)

GENEROUS_FIBRES = 2**16
"""Up to this many possible fibres are all numbered, however few occur."""


def numbers_every_fibre(shape: tuple[int, ...], slab_mode: int, entries: int) -> bool:
    """Whether each possible fibre of the slab mode gets a number, or only those that occur."""
    return possible_fibres(shape, (slab_mode,)) <= max(2 * entries, GENEROUS_FIBRES)


@dataclass(frozen=True)
class NumberFibres(Program):
    """Give every block its index; the outcome is the number of fibres of the slab mode."""

    shape: tuple[int, ...]
    slab_mode: int
    entries: int

    label = "number"

    def first(self) -> FibreNumbering | None:
        if numbers_every_fibre(self.shape, self.slab_mode, self.entries):
            return FibreNumbering(possible_fibres(self.shape, (self.slab_mode,)))
        return None

    def step(self, block: Block, message: FibreNumbering | None, total: Any) -> Any:
        if message is None:
            keys = np.unique(fibre_keys(block.columns, self.shape, (self.slab_mode,)))
            return keys if total is None else np.union1d(total, keys)
        index = build_block(block.columns, self.shape, self.slab_mode, message)
        block.numbered = (index, message)
        return None

    def combine(self, left: Any, right: Any) -> Any:
        return None if left is None else np.union1d(left, right)

    def advance(self, message: FibreNumbering | None, total: Any) -> FibreNumbering | Finished:
        if message is None:
            return FibreNumbering(len(total), total)
        return Finished(message.count)
