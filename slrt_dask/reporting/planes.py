"""Which entries of a tensor a page can show: a few slices, or a series, in cells of a picture.

A picture has so many cells that it stays small, however large the tensor is: a cell then stands for
several entries, of which those that were observed are averaged, and the middle one is predicted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import InvalidInput

MOST_CELLS = 192
"""Of a picture, along each side."""
MOST_SAMPLES = 1200
"""Of a series."""
SHOWN_SLICES = 3
LARGE_ENOUGH = 0.1
"""Slices whose area is less than this part of the largest one's are not looked at."""


@dataclass(frozen=True)
class Axis:
    """A mode as a picture shows it: cells of `step` entries each."""

    mode: int
    length: int
    step: int

    @classmethod
    def of(cls, mode: int, length: int, most: int) -> Axis:
        return cls(mode, length, -(-length // most))

    @property
    def cells(self) -> int:
        return -(-self.length // self.step)

    @property
    def middles(self) -> NDArray[np.int64]:
        """(cells,) the index in the middle of every cell."""
        firsts = self.step * np.arange(self.cells)
        stops = np.minimum(firsts + self.step, self.length)
        return np.asarray((firsts + stops - 1) // 2, dtype=np.int64)


@dataclass(frozen=True)
class Plane:
    """A slice, a whole matrix, or a series: one or two axes, and fixed indices of other modes."""

    axes: tuple[Axis, ...]
    fixed: tuple[tuple[int, int], ...]
    """(mode, index) of every other mode."""

    @property
    def cells(self) -> tuple[int, ...]:
        return tuple(axis.cells for axis in self.axes)

    def places(self) -> NDArray[np.int64]:
        """(K, cells) the entries in the middles, row by row."""
        grid = np.meshgrid(*(axis.middles for axis in self.axes), indexing="ij")
        rows = {axis.mode: part.ravel() for axis, part in zip(self.axes, grid, strict=True)}
        count = grid[0].size
        rows |= {mode: np.full(count, index) for mode, index in self.fixed}
        return np.stack([rows[mode] for mode in sorted(rows)])


def planes_of(shape: tuple[int, ...], modes: tuple[int, int] | None = None) -> tuple[Plane, ...]:
    """What to show of a tensor: its series, its matrix, or some slices about its middle.

    modes : the two modes that slices show; those of the most similar lengths if None
    """
    if len(shape) == 1:
        _refuse(modes, shape)
        return (Plane((Axis.of(0, shape[0], MOST_SAMPLES),), ()),)
    chosen = _similar(shape) if modes is None else _checked(modes, shape)
    axes = tuple(Axis.of(mode, shape[mode], MOST_CELLS) for mode in chosen)
    others = [mode for mode in range(len(shape)) if mode not in chosen]
    if not others:
        return (Plane(axes, ()),)
    along = max(others, key=lambda mode: shape[mode])
    return tuple(
        Plane(
            axes,
            tuple((mode, index if mode == along else shape[mode] // 2) for mode in others),
        )
        for index in _spread(shape[along])
    )


def _similar(shape: tuple[int, ...]) -> tuple[int, int]:
    """Two modes of similar lengths: a picture is mostly about as wide as it is high."""
    pairs = list(itertools.combinations(range(len(shape)), 2))
    largest = max(shape[one] * shape[other] for one, other in pairs)
    large = [
        (one, other) for one, other in pairs if shape[one] * shape[other] >= LARGE_ENOUGH * largest
    ]

    def likeness(pair: tuple[int, int]) -> float:
        lengths = sorted(shape[mode] for mode in pair)
        return lengths[0] / lengths[1]

    return max(large, key=likeness)


def _spread(length: int) -> list[int]:
    if length <= SHOWN_SLICES:
        return list(range(length))
    return [length * part // (SHOWN_SLICES + 1) for part in range(1, SHOWN_SLICES + 1)]


def _checked(modes: tuple[int, int], shape: tuple[int, ...]) -> tuple[int, int]:
    order = len(shape)
    if len(modes) != 2 or modes[0] == modes[1] or not all(0 <= mode < order for mode in modes):
        raise InvalidInput(f"modes is {modes}; give two different ones from 0 to {order - 1}")
    return modes[0], modes[1]


def _refuse(modes: tuple[int, int] | None, shape: tuple[int, ...]) -> None:
    if modes is not None:
        raise InvalidInput(
            f"modes is {modes}, but a series of {shape[0]} samples has no slices; leave it out"
        )
