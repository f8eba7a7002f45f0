"""Rows that people often want, as coefficients: totals over a mode, differences along one, twins.

They are made in memory: one or two coefficients for every entry of the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slrt_dask.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Coefficients:
    """The coefficients of some rows, in memory.

    rows : (m,) numbers of rows
    columns : (m,) places in the flattened tensor, or (K, m) indices
    shape : of the tensor, or its number of entries; empty if that is not known
    """

    count: int
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    shape: tuple[int, ...]


def total_rows(values: ArrayLike, mode: int, length: int) -> tuple[Coefficients, NDArray[Any]]:
    """Rows that add up a mode, and what they must come to, for the totals that are known.

    values : totals, an array of the tensor's shape without the mode; NaN where unknown
    """
    totals = np.asarray(values, dtype=np.float64)
    order = totals.ndim + 1
    mode = checked_mode(mode, order)
    known = np.stack(np.nonzero(~np.isnan(totals)))
    count = known.shape[1]
    if not count:
        raise InvalidInput("no total is known; leave the constraint out")
    others = np.repeat(known, length, axis=1)
    along = np.tile(np.arange(length), count)
    columns = np.insert(others, mode, along, axis=0)
    shape = tuple(np.insert(totals.shape, mode, length).tolist())
    rows = np.repeat(np.arange(count), length)
    return Coefficients(count, rows, columns, np.ones(len(rows)), shape), totals[tuple(known)]


def rising_rows(shape: tuple[int, ...], mode: int) -> Coefficients:
    """Every entry less the one before it along a mode."""
    mode = checked_mode(mode, len(shape))
    if shape[mode] < 2:
        raise InvalidInput(f"mode {mode} has length {shape[mode]}; nothing can rise along it")
    before = [slice(None)] * len(shape)
    places = np.indices(shape)
    before[mode] = slice(None, -1)
    lower = places[(slice(None), *before)].reshape(len(shape), -1)
    upper = lower + (np.arange(len(shape)) == mode)[:, None]
    return _differences(upper, lower, shape)


def twin_rows(shape: tuple[int, ...], modes: tuple[int, int]) -> Coefficients:
    """Every entry less the one whose indices of two modes are exchanged, each pair once."""
    first, second = (checked_mode(mode, len(shape)) for mode in modes)
    if first == second or shape[first] != shape[second] or shape[first] < 2:
        raise InvalidInput(
            f"a tensor of shape {shape} cannot be symmetric in the modes {modes}; give two modes "
            f"of equal length"
        )
    places = np.indices(shape).reshape(len(shape), -1)
    one = places[:, places[first] < places[second]]
    other = one.copy()
    other[[first, second]] = one[[second, first]]
    return _differences(one, other, shape)


def checked_mode(mode: Any, order: int) -> int:
    if isinstance(mode, bool) or not isinstance(mode, (int, np.integer)) or not 0 <= mode < order:
        raise InvalidInput(f"mode is {mode!r}; give one of the modes 0 to {order - 1}")
    return int(mode)


def _differences(
    one: NDArray[np.int64], other: NDArray[np.int64], shape: tuple[int, ...]
) -> Coefficients:
    count = one.shape[1]
    return Coefficients(
        count,
        np.tile(np.arange(count), 2),
        np.concatenate([one, other], axis=1),
        np.repeat([1.0, -1.0], count),
        tuple(shape),
    )
