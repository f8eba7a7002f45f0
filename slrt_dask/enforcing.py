"""Constraints that hold exactly in what is written: chunks of a completed tensor, put right.

An answer misses its constraints by a little, which its certificate tells. Bounds are mended by
clipping. Rows of a linear constraint are mended by the changes that the fit found for it; where
there are bounds besides, the tensor may first have to be drawn towards their middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask import model_reads
from slrt_dask.combining import constraints_of
from slrt_dask.constraints import Bounds
from slrt_dask.errors import InvalidInput
from slrt_dask.model_files import ModelHeader
from slrt_dask.posing import bound_vectors, places_of

Ranges = tuple[range, ...]


@dataclass(frozen=True)
class Enforced:
    """What chunks have to satisfy.

    drawn, middle : how far to go towards which tensor, given by one number for every index of a
        mode, before the changes for a linear constraint are added
    """

    shape: tuple[int, ...]
    slab_mode: int
    bounds: Bounds | None
    linear: bool
    drawn: float
    middle: tuple[int, NDArray[np.float64]]

    @classmethod
    def of(cls, header: ModelHeader) -> Enforced:
        """The constraints of a fit; an error if there are none, or if they cannot be satisfied."""
        constraints = constraints_of(header.constraint)
        if not constraints:
            raise InvalidInput("there is nothing to enforce: the fit had no constraint")
        if constraints.linear and header.correction is None:
            raise InvalidInput(
                "the linear constraint cannot be enforced: the fit found no tensor near its answer "
                "that satisfies it; look whether it contradicts itself or the bounds"
            )
        vectors = bound_vectors(constraints.bounds, header.shape, header.offset, header.cost_weight)
        return cls(
            header.shape,
            header.slab_mode,
            constraints.bounds,
            bool(constraints.linear),
            header.drawn,
            (vectors.mode, vectors.middle + header.offset),
        )

    def on_chunk(
        self,
        chunk: NDArray[np.float64],
        ranges: Ranges,
        path: str,
        digest: str,
        dual_columns: tuple[NDArray[Any], ...],
    ) -> None:
        """Change a chunk, given where in the tensor it is, and of which model."""
        if self.linear:
            self._satisfy_rows(chunk, ranges, path, digest)
        # With rows the dual has entries that were not observed, and they have seen to the others.
        if self.bounds is not None and not (self.linear and self.bounds.where == "observed"):
            self._clip(self.bounds, chunk, ranges, dual_columns)

    def _satisfy_rows(
        self, chunk: NDArray[np.float64], ranges: Ranges, path: str, digest: str
    ) -> None:
        if self.drawn:
            mode, middle = self.middle
            along = [-1 if k == mode else 1 for k in range(len(self.shape))]
            chunk *= 1.0 - self.drawn
            chunk += self.drawn * middle[ranges[mode].start : ranges[mode].stop].reshape(along)
        slices = ranges[self.slab_mode]
        columns, changes = model_reads.dual_slices(path, digest, slices, "correction")
        places = np.stack(columns)
        inside = _within(places, ranges)
        chunk[_shifted(places[:, inside], ranges)] += changes[inside]

    def _clip(
        self,
        bounds: Bounds,
        chunk: NDArray[np.float64],
        ranges: Ranges,
        dual_columns: tuple[NDArray[Any], ...],
    ) -> None:
        """Have bounds hold in a chunk, wherever in it they are meant to."""
        mode, lower, upper = bounds.vectors(self.shape)
        box, along = ranges[mode], [-1 if k == mode else 1 for k in range(len(self.shape))]
        low, high = (side[box.start : box.stop].reshape(along) for side in (lower, upper))
        if bounds.everywhere:
            np.clip(chunk, low, high, out=chunk)
            return
        slices = (ranges[self.slab_mode].start, ranges[self.slab_mode].stop)
        places = places_of(bounds)
        # Of a fit that is bounded where it was observed, the dual entries are just those.
        meant = np.stack(dual_columns)
        if places is not None:
            meant = places.in_slices(self.slab_mode, slices)
        inside = _within(meant, ranges)
        numbers, chosen = meant[mode][inside], _shifted(meant[:, inside], ranges)
        chunk[chosen] = np.clip(chunk[chosen], lower[numbers], upper[numbers])


def _within(places: NDArray[Any], ranges: tuple[range, ...]) -> NDArray[np.bool_]:
    """Which of some places (K, m) lie in a box."""
    inside = np.ones(places.shape[1], dtype=np.bool_)
    for row, piece in zip(places, ranges, strict=True):
        inside &= (row >= piece.start) & (row < piece.stop)
    return inside


def _shifted(places: NDArray[Any], ranges: tuple[range, ...]) -> tuple[NDArray[Any], ...]:
    """Places as indices of a box."""
    return tuple(row - piece.start for row, piece in zip(places, ranges, strict=True))
