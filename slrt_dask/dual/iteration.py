"""An iteration of the inner solve as threads share it: turns inside kernels, not between calls.

The first half is cut into strips of the slab mode's fibres (`kernels.crossing`), the second one
into pieces of a few slices (`kernels.local`). A thread calls one kernel for each half.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.inner_rounds import Round
from slrt_dask.dual.layout import Layout, Strips
from slrt_dask.dual.offers import NOTHING_OFFERED, MutualHelp
from slrt_dask.dual.operator import Factors, Matrix
from slrt_dask.kernels import crossing, local
from slrt_dask.kernels.rows import lanes_for
from slrt_dask.kernels.turns import GIVEN_UP, new_counters


class CrossingTurns:
    """The first half of an iteration, in turns.

    sums, fresh : where the new fibre sums are added up, and whether they are nothing yet
    squares : for ⟨r, r⟩ of every strip
    """

    def __init__(
        self, strips: Strips, message: Round, factor: Matrix, weight: float, sums: Matrix,
        fresh: bool,
    ) -> None:  # fmt: skip
        self._strips, self._message, self._factor = strips, message, factor
        self._weight, self._sums, self._fresh = weight, sums, fresh
        self.counters, self.squares = new_counters(), np.empty(len(strips.borders) - 1)

    def take(self) -> bool:
        """Take turns until there are none; whether the last was one of them."""
        strips, message = self._strips, self._message
        return bool(
            crossing.crossing_turns(
                self.counters, strips.borders, strips.blocks, *strips.kinds, message.sums,
                self._factor, lanes_for(self._factor.shape[1]), self._weight, message.alpha,
                message.beta, self._sums, self._fresh, message.before is not None,
                *(message.before or (0.0, 0.0)), self.squares,
            )
        )  # fmt: skip

    @property
    def squared_residual(self) -> float:
        """⟨r, r⟩, when all turns are done."""
        return _total(self.squares)


def _total(parts: NDArray[np.float64]) -> float:
    """The sum of a few numbers; numpy's own takes ten times as long when kernels have just run."""
    return float(sum(parts.tolist()))


class SharedIteration:
    """One round of a solve, of the phase "iterate": see `engine.program.SharedStep`.

    factors, weights, shift : of the operator
    sums : room for the new fibre sums
    mutual : how neighbours do some of each other's second halves, if they do
    """

    def __init__(
        self,
        layout: Layout,
        message: Round,
        factors: Factors,
        weights: tuple[float, ...],
        slab_mode: int,
        shift: float,
        sums: Matrix,
        mutual: MutualHelp | None = None,
    ) -> None:
        factor, weight = factors.padded[slab_mode], weights[slab_mode]
        self._first = CrossingTurns(layout.strips, message, factor, weight, sums, True)
        local_weights = [weight for mode, weight in enumerate(weights) if mode != slab_mode]
        self._local_weights, self._shift = np.array(local_weights), shift
        self._sums, self._pieces = sums, layout.pieces
        self._energies = np.empty(0 if layout.pieces is None else len(layout.pieces.pieces))
        self.follows = layout.pieces is not None
        self._mutual, self._round, self._opener = mutual, message.iteration, -1
        if mutual is not None and mutual.own is not None:
            mutual.own.prepare()

    def step(self, thread: int) -> bool:
        last = self._first.take()
        if last:
            self._opener = thread
        return last

    def total(self) -> tuple[Matrix, NDArray[np.float64]]:
        rr = self._first.squared_residual
        return self._sums, np.array([rr, self._shift * rr, 0.0, 0.0])

    def follow(self, thread: int) -> None:
        pieces = self._pieces
        assert pieces is not None
        mutual, weights, shift = self._mutual, self._local_weights, self._shift
        if mutual is not None and mutual.own is not None and thread == self._opener:
            mutual.own.open(self._round)
        local.local_turns(
            self._first.counters, self._first.squares.size, pieces.pieces, pieces.blocks,
            pieces.numbering, pieces.modes, pieces.rooms[thread], weights, shift, self._energies,
            *(NOTHING_OFFERED if mutual is None else mutual.claims),
        )  # fmt: skip
        if mutual is not None:
            mutual.help(thread, self._round, weights, shift)

    def rest(self) -> NDArray[np.float64]:
        if self._mutual is not None:
            self._mutual.fetch(self._energies)
        return np.array([0.0, _total(self._energies), 0.0, 0.0])

    def give_up(self) -> None:
        self._first.counters[GIVEN_UP, 0] = 1
        if self._mutual is not None:
            self._mutual.give_up()
