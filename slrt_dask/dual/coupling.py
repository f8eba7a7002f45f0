"""The coefficients of a linear constraint, brought to the entries that they belong to.

A constraint's rows come from stores of order K + 1, whose first index is the row's number and whose
values are the coefficients. Every share reads those of its own slices; entries that a row couples
are held from then on, observed or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.rows import Coupling, Rows, RowVector
from slrt_dask.dual.working_set import resupported
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import OneRound
from slrt_dask.engine.share import Share
from slrt_dask.errors import InvalidInput
from slrt_dask.kernels.blocks import fibre_keys


@dataclass(frozen=True)
class RowStore:
    """Rows of one constraint.

    first : the number of its first row among those of all constraints
    """

    store: ObservationStore
    first: int

    def in_slices(self, mode: int, slices: tuple[int, int]) -> tuple[NDArray[Any], ...]:
        """Of the coefficients in some slices of the tensor's mode: places (K, m), rows, values."""
        along = self.store.slab_mode == mode + 1
        parts = []
        for number, part in enumerate(self.store.partitions):
            if along and (part.stop_slice <= slices[0] or part.first_slice >= slices[1]):
                continue
            columns, values = self.store.read_partition(number)
            inside = (columns[mode + 1] >= slices[0]) & (columns[mode + 1] < slices[1])
            indices = np.stack([column[inside] for column in columns]).astype(np.int64)
            parts.append((indices[1:], indices[0] + self.first, values[inside].astype(np.float64)))
        if not parts:
            order = self.store.order - 1
            return np.zeros((order, 0), dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        return tuple(np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True))


@dataclass(frozen=True)
class LinearRows:
    """lower ≤ A W ≤ upper, as it was asked for.

    stores : A, its rows from several stores one after another
    offset : what was subtracted from every entry of the tensor
    """

    stores: tuple[RowStore, ...]
    lower: RowVector
    upper: RowVector
    offset: float = 0.0

    def scaled(self, sums: RowVector, squares: RowVector, penalty: float) -> Rows:
        """The rows divided by their lengths, given the sums of coefficients and their squares."""
        lower, upper = self.lower - self.offset * sums, self.upper - self.offset * sums
        impossible = (squares == 0.0) & ((lower > 0.0) | (upper < 0.0))
        if impossible.any():
            row = int(np.argmax(impossible))
            raise InvalidInput(
                f"row {row} of the linear constraint has no coefficients but asks for "
                f"{self.lower[row]:g} ≤ 0 ≤ {self.upper[row]:g}; no tensor satisfies that"
            )
        lengths = np.sqrt(np.where(squares > 0.0, squares, 1.0))
        return Rows(lower / lengths, upper / lengths, np.zeros(len(sums)), lengths, penalty)


def couple(share: Share, stores: tuple[RowStore, ...]) -> int:
    """Have the coupled entries among a share's, with their coefficients.

    Returns how many entries beyond the store's there are then.
    """
    store, mode = share.assignment.store, share.assignment.store.slab_mode

    def change(block: Block) -> Block:
        pieces = [rows.in_slices(mode, block.slices) for rows in stores]
        places = np.concatenate([piece[0] for piece in pieces], axis=1)
        keys = fibre_keys(tuple(places), store.shape, ())
        numbers, values = (np.concatenate([piece[k] for piece in pieces]) for k in (1, 2))
        _, once = np.unique(keys, return_index=True)
        there = fibre_keys(block.columns, store.shape, ())
        block = resupported(block, mode, None, tuple(places[:, once[~np.isin(keys[once], there)]]))
        held = fibre_keys(block.columns, store.shape, ())
        return replace(block, coupling=_coupling(held, keys, numbers, values))

    return share.change_support(change)


def scale_rows(share: Share, factors: RowVector, sizes: RowVector) -> float:
    """Multiply every row by a factor; returns the largest Σ_i |a_ie| sizes_i of an entry.

    sizes : Σ_e |a_ie| of the rows once multiplied; what is returned is a bound of ‖A‖² then
    """
    most = 0.0
    for block in share.opened():
        held = block.coupling
        if held is not None and len(held.rows):
            scaled = held.coefficients * factors[held.rows]
            block.coupling = replace(held, coefficients=scaled)
            met = np.bincount(held.positions, np.abs(scaled) * sizes[held.rows])
            most = max(most, float(met.max()))
    return most


@dataclass(frozen=True)
class RowTotals(OneRound):
    """Of every row the sums of its coefficients, of their squares, and of their sizes."""

    count: int

    def step(self, block: Block, total: Any) -> tuple[RowVector, RowVector, RowVector]:
        sums, squares, sizes = total or tuple(np.zeros(self.count) for _ in range(3))
        held = block.coupling
        if held is not None:
            np.add.at(sums, held.rows, held.coefficients)
            np.add.at(squares, held.rows, held.coefficients**2)
            np.add.at(sizes, held.rows, np.abs(held.coefficients))
        return sums, squares, sizes


def _coupling(
    held: NDArray[np.int64],
    keys: NDArray[np.int64],
    rows: NDArray[np.int64],
    values: NDArray[np.float64],
) -> Coupling:
    order = np.argsort(held)
    positions = order[np.searchsorted(held, keys, sorter=order)]
    # Neighbouring entries one after another: products then read the vectors in order.
    by_position = np.argsort(positions, kind="stable")
    return Coupling(
        positions[by_position].astype(np.int32), rows[by_position].astype(np.int32),
        values[by_position],
    )  # fmt: skip
