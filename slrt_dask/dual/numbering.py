"""Numbering of a loaded problem's fibres, which comes before any product with the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.engine.base import Engine
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import Program, Rounds, Sweep
from slrt_dask.kernels.blocks import FibreNumbering, build_block, fibre_keys, possible_fibres

GENEROUS_FIBRES = 2**16
"""Up to this many possible fibres are all numbered, however few occur."""


def number_fibres(engine: Engine) -> None:
    """Number the fibres of an engine's blocks, and again whenever their entries have changed."""
    store = engine.store
    engine.run(NumberFibres(store.shape, store.slab_mode, store.nnz))


def numbers_every_fibre(shape: tuple[int, ...], slab_mode: int, entries: int) -> bool:
    """Whether each possible fibre of the slab mode gets a number, or only those that occur."""
    return possible_fibres(shape, (slab_mode,)) <= max(2 * entries, GENEROUS_FIBRES)


@dataclass(frozen=True)
class NumberFibres(Program):
    """Give every block its index; the outcome is the number of fibres of the slab mode.

    These are shared between blocks, so their numbers have to agree everywhere. Where the possible
    fibres are not many more than the observations, a fibre's key is its number; otherwise the keys
    that occur are joined first.
    """

    shape: tuple[int, ...]
    slab_mode: int
    entries: int

    def rounds(self) -> Rounds:
        if numbers_every_fibre(self.shape, self.slab_mode, self.entries):
            numbering = FibreNumbering(possible_fibres(self.shape, (self.slab_mode,)))
        else:
            keys = yield Sweep(NumberFibres._keys)
            numbering = FibreNumbering(len(keys), keys)
        yield Sweep(NumberFibres._number, (numbering,))
        return numbering.count

    def _keys(self, block: Block, total: Any) -> Any:
        keys = np.unique(fibre_keys(block.columns, self.shape, (self.slab_mode,)))
        return self.combine(total, keys)

    def _number(self, block: Block, total: None, numbering: FibreNumbering) -> None:
        block.number(build_block(block.columns, self.shape, self.slab_mode, numbering), numbering)

    def combine(self, left: Any, right: Any) -> Any:
        return right if left is None else np.union1d(left, right)
