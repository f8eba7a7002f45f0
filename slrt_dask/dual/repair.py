"""The smallest change that makes a tensor satisfy its linear constraint, and its bounds besides.

It changes only entries that are held: `d = Aᵀ t` with `A d` just what the rows miss. Where that
would break a bound the entry is put at its bound and held there, and the others make up for it.
Nothing but its size is needed for a certificate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.bounds import MARKS, BoundVectors
from slrt_dask.dual.inner import NO_SUMS
from slrt_dask.dual.rows import Rows, RowVector, add_multipliers, products_of
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Finished, Program
from slrt_dask.kernels.bounds import BOUNDED, OBSERVED

EXACT = 1e-13
"""Rows are repaired to this part of what they missed."""
MOST_STAGES = 30
MOST_ITERATIONS = 2000


@dataclass(frozen=True)
class Repaired:
    """What a repair came to.

    squares : ‖d‖², the change's
    misfit : ‖w + d − y‖² over the observed entries
    missed : by how much a row is still missed, at most
    """

    squares: float
    misfit: float
    missed: float


@dataclass
class _Search:
    """Conjugate gradients for `A Aᵀ t = v`, the root's own."""

    wanted: RowVector
    solution: RowVector
    residual: RowVector
    direction: RowVector
    squares: float
    iteration: int = 0

    @classmethod
    def of(cls, wanted: RowVector) -> _Search:
        return cls(
            wanted, np.zeros_like(wanted), wanted.copy(), wanted.copy(), float(wanted @ wanted)
        )

    @property
    def done(self) -> bool:
        enough = EXACT**2 * float(self.wanted @ self.wanted)
        return self.squares <= enough or self.iteration >= MOST_ITERATIONS

    def go_on(self, image: RowVector) -> None:
        curvature = float(self.direction @ image)
        if curvature <= 0.0:  # the rest is not in the reach of any change
            self.iteration = MOST_ITERATIONS
            return
        step = self.squares / curvature
        self.solution += step * self.direction
        self.residual -= step * image
        squares = float(self.residual @ self.residual)
        self.direction = self.residual + squares / self.squares * self.direction
        self.squares, self.iteration = squares, self.iteration + 1


@dataclass(frozen=True)
class _Phase:
    """hold : see which bounds the change breaks; search : one product with A Aᵀ."""

    name: str
    told: RowVector
    stage: int = 0
    search: _Search | None = None


@dataclass(frozen=True)
class Repair(Program):
    """Repair the tensor whose entries the blocks have as the vector w."""

    bounds: BoundVectors
    rows: Rows

    label = "repair"

    def first(self) -> _Phase:
        return _Phase("begin", np.zeros(self.rows.count))

    def sent(self, message: _Phase) -> _Phase:
        return replace(message, search=None)

    def step(self, block: Block, message: _Phase, total: Any) -> tuple[RowVector, Any]:
        if message.name == "search":
            change = self._free_change(block, message.told, block.fresh("v"))
            return products_of(block, change, self.rows.count, total and total[0]), NO_SUMS
        if message.name == "begin":
            for name in ("d", "held"):
                block.fresh(name)[:] = 0.0
        d, held, w = block.changing("d"), block.changing("held"), block.vector("w")
        change = self._free_change(block, message.told, block.fresh("v"))
        d[held == 0.0] = change[held == 0.0]
        newly = self._hold(block, d, held, w)
        seen = block.vector(MARKS).astype(np.int64) & OBSERVED > 0
        misfit = float(np.sum((w[seen] + d[seen] - block.values[seen]) ** 2))
        scalars = np.array([newly, float(np.dot(d, d)), misfit])
        # What the rows miss is judged with the held entries where they are and the others back.
        kept = block.fresh("v")
        kept[:] = np.where(held > 0.0, w + d, w)
        products = products_of(block, kept, self.rows.count, total and total[0])
        return products, scalars if total is None else total[1] + scalars

    def advance(self, message: _Phase, total: Any) -> _Phase | Finished:
        products, scalars = total
        if message.name == "search":
            assert message.search is not None
            message.search.go_on(products)
            return self._searched(message)
        newly, squares, misfit = (float(value) for value in scalars)
        if message.search is not None and (newly == 0.0 or message.stage >= MOST_STAGES):
            left = np.abs(message.search.residual).max(initial=0.0)
            missed = float(left) if newly == 0.0 else math.inf
            return Finished(Repaired(squares, misfit, missed))
        search = _Search.of(self.rows.missed(products))
        return self._searched(_Phase("search", search.direction, message.stage + 1, search))

    def _searched(self, message: _Phase) -> _Phase:
        search = message.search
        assert search is not None
        if search.done:
            return replace(message, name="hold", told=search.solution)
        return replace(message, name="search", told=search.direction)

    def _free_change(self, block: Block, multipliers: RowVector, out: Vector) -> Vector:
        """Aᵀ t at the entries that are not held."""
        out[:] = 0.0
        add_multipliers(block, multipliers, out)
        out[block.vector("held") > 0.0] = 0.0
        return out

    def _hold(self, block: Block, d: Vector, held: Vector, w: Vector) -> int:
        """Put entries that miss their bounds there, and hold them; how many were not held yet."""
        places, lower, upper = self.bounds.of(block)
        bounded = block.vector(MARKS).astype(np.int64) & BOUNDED > 0
        inside: NDArray[Any] = np.clip(w + d, lower[places], upper[places])
        newly = bounded & (held == 0.0) & (inside != w + d)
        d[newly] = inside[newly] - w[newly]
        held[newly] = 1.0
        return int(np.count_nonzero(newly))
