"""What workers of one machine let each other do of a solve: the last pieces of second halves.

An offer is memory that neighbours see, with all that a product with the local modes needs of those
pieces: indices, the vector, and room for the product. The owner copies the vector there in every
round. It goes on taking pieces from the front, neighbours that are early take them from the back,
and what they have done is copied to where it belongs. The kernels are the same, and sums are added
in one order, so that who has done what does not change a bit of the outcome.

Neighbours end a round together: a helper is through with a round's offer before its owner can begin
the next round. And it waits for every round's offer, once it was told of one: who offers in one
round has to in all that follow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.layout import Addresses, Layout, Pieces, Table, mode_tables, numbered
from slrt_dask.dual.offer_memory import Described, Ground, Laid, new_ground
from slrt_dask.dual.operator import Factors
from slrt_dask.engine.block import Block, Buffers
from slrt_dask.engine.helping import Content, Helping
from slrt_dask.engine.program import Place
from slrt_dask.kernels import local
from slrt_dask.kernels.turns import GIVEN_UP, new_counters

GROUND = "offer"
NAPS_TO_OPEN, NAPS_TO_FETCH = 5, 1000
"""How often to look, napping, before seeing to something else: 0.5 ms and 0.1 s."""


@dataclass(frozen=True)
class Offer:
    """What this worker offers.

    away : (pieces,) 1 where a neighbour has taken a piece in this round
    lengths, from_x, to_x, from_out, to_out : (pieces,) what is copied for each: numbers, addresses
    """

    laid: Laid
    away: Table
    lengths: Table
    from_x: Table
    to_x: Table
    from_out: Table
    to_out: Table

    def prepare(self) -> None:
        """Before a round, when nobody looks."""
        self.laid.claims[local.FIRST_CLAIM :] = 0
        self.away[:] = 0

    def open(self, opening: int) -> None:
        laid = self.laid
        local.open_offer(laid.claims, opening, self.lengths, self.from_x, self.to_x, laid.x)

    def fetch(self, energies: NDArray[np.float64]) -> bool:
        """Take over what neighbours have done; whether all of it is there."""
        laid = self.laid
        return bool(
            local.fetch_pieces(
                laid.claims, self.away, NAPS_TO_FETCH, self.lengths, self.from_out, self.to_out,
                laid.x, laid.energies, energies,
            )
        )  # fmt: skip


class Received:
    """A neighbour's offer, as the kernels of this process are told of it."""

    def __init__(
        self, content: Content, described: Described, places: Sequence[Place], factors: Factors,
        local_modes: tuple[int, ...],
    ) -> None:  # fmt: skip
        self._at, laid = Addresses(), described.found_in(content)
        self._laid, numbers = laid, laid.x.dtype
        vectors = (self._at(array, numbers) for array in (laid.x, laid.out))
        self._blocks = np.array([(described.entries, self._at(laid.starts, np.int64), *vectors)])
        self._numbering = np.array(
            [
                [
                    numbered(
                        factors.width(mode), place == described.runs, laid.columns[row],
                        laid.columns[fibre], numbers, self._at,
                    )
                    for place, (mode, (row, fibre, _)) in enumerate(
                        zip(local_modes, described.modes, strict=True)
                    )
                ]
            ]
        )  # fmt: skip
        rows = {k: rows for k, (_, _, rows) in zip(local_modes, described.modes, strict=True)}
        # Not the threads' own rooms, which kernels know by addresses.
        self._modes, self._rooms = mode_tables(places, factors, rows, "help", self._at)

    def take(
        self, thread: int, opening: int, weights: NDArray[np.float64], shift: float
    ) -> bool:  # fmt: skip
        """Do what there is to do; whether that is over, and not yet to come."""
        laid = self._laid
        return bool(
            local.help_turns(
                laid.claims, opening, NAPS_TO_OPEN, laid.pieces, self._blocks, self._numbering,
                self._modes, self._rooms[thread], weights, shift, laid.energies,
            )
        )  # fmt: skip


NOTHING_OFFERED = new_counters(1), np.empty(0, np.int64)


def mutual_help(layout: Layout, places: Sequence[Place], factors: Factors) -> MutualHelp | None:
    """How the neighbours of a solve help each other; None if there are none, or no pieces."""
    helping, pieces = places[0].buffers.helping, layout.pieces
    if helping is None or pieces is None:
        return None
    return helping.made(lambda: MutualHelp(helping, layout.blocks, pieces, places, factors))


class MutualHelp:
    """What a worker offers in a solve, and what it does of others' offers."""

    def __init__(
        self, helping: Helping, blocks: Sequence[Block], pieces: Pieces, places: Sequence[Place],
        factors: Factors,
    ) -> None:  # fmt: skip
        self._helping, self._places, self._factors = helping, places, factors
        self._local_modes = blocks[0].index.local_modes
        self._received: list[Received] = []
        self._over = False
        self.own = _offered(helping, blocks, pieces, places[0].buffers)

    @property
    def claims(self) -> tuple[Table, Table]:
        """What `local.local_turns` is told of an offer."""
        return NOTHING_OFFERED if self.own is None else (self.own.laid.claims, self.own.away)

    def help(self, thread: int, opening: int, weights: NDArray[np.float64], shift: float) -> None:
        """Do what neighbours offer in this round, until all of it is done or in hand."""
        if thread == 0:
            for content, described in self._helping.heard():
                self._received.append(
                    Received(content, described, self._places, self._factors, self._local_modes)
                )
        left, began = list(self._received), time.perf_counter()
        while left and not self._over:
            left = [other for other in left if not other.take(thread, opening, weights, shift)]
            now = time.perf_counter()
            if left:
                self._helping.check()
                self._helping.waited += (now - began) / len(self._places)
            began = now

    def fetch(self, energies: NDArray[np.float64]) -> None:
        """Have what neighbours have done of the own offer."""
        while self.own is not None and not self.own.fetch(energies):
            self._helping.check()

    def give_up(self) -> None:
        """Have nobody begin anything of the own offer any more, nor this worker of others'."""
        self._over = True
        if self.own is not None:
            self.own.laid.claims[GIVEN_UP, 0] = 1


def _offered(
    helping: Helping, blocks: Sequence[Block], pieces: Pieces, buffers: Buffers
) -> Offer | None:
    """The last pieces, laid where neighbours see them; None if that is not worth it."""
    ground = buffers.made(GROUND, lambda: new_ground(blocks, pieces.pieces))
    if ground is not None and not ground.is_for(blocks):
        buffers.let_go(GROUND)
        ground = buffers.made(GROUND, lambda: new_ground(blocks, pieces.pieces))
    if ground is None:
        return None
    offer = _on(ground, blocks)
    helping.offer(ground.whereabouts, ground.described)
    return offer


def _on(ground: Ground, blocks: Sequence[Block]) -> Offer:
    """A solve's offer: where its vectors are for every piece."""
    laid, lengths = ground.laid, ground.lengths
    laid.claims[:] = 0
    there = np.cumsum(lengths) - lengths
    here = np.array([blocks[b].index.starts[first] for b, first, _ in ground.chosen])
    size = laid.x.itemsize
    r, w = (
        size * here + [blocks[b].changing(name).ctypes.data for b in ground.chosen[:, 0]]
        for name in ("r", "w")
    )
    x, out = (size * there + vector.ctypes.data for vector in (laid.x, laid.out))
    return Offer(laid, np.zeros(len(lengths), np.int64), lengths, r, x, out, w)
