"""How the threads of a share make one round together, so that none of them waits for another.

A core is slower now and then, and threads are woken late. So the first halves of an overlapping
program's steps are cut into turns, if the program can do that, and threads take one after the
other; what cannot be cut so is done by each thread for its own blocks, and the sums are added two
by two by whoever comes second. Second halves are cut into pieces, of which every thread takes the
next one, first its own, then those of others. What is added to what, and in which order, is fixed
all the same: sums can be repeated to the last bit.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from slrt_dask.engine.block import Block
from slrt_dask.engine.chains import Chain
from slrt_dask.engine.program import HandOver, Overlapping, add_into


class Tournament:
    """Parts of several threads are added two by two, always the same two, whoever comes first.

    whole : the sum, once the last of them has come. A part that is None adds nothing.
    """

    def __init__(self, parts: int, combine: Callable[[Any, Any], Any]) -> None:
        self.whole: Any = None
        self._parts, self._combine = parts, combine
        self._waiting: dict[tuple[int, int], Any] = {}
        self._changing = threading.Lock()

    def arrive(self, place: int, part: Any) -> bool:
        """Bring the part of one place; whether that has completed the sum."""
        level, places = 0, self._parts
        while places > 1:
            pair = place // 2
            if place + 1 < places or place % 2:  # the last of an odd number has no partner
                with self._changing:
                    if (level, pair) not in self._waiting:
                        self._waiting[level, pair] = part
                        return False
                    other = self._waiting.pop((level, pair))
                part = self._sum(other, part) if place % 2 else self._sum(part, other)
            level, place, places = level + 1, pair, (places + 1) // 2
        self.whole = part
        return True

    def _sum(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return self._combine(left, right)


class Pieces:
    """What there is to take for threads that have done their part of the first halves.

    abandoned : there is nothing more to take, whatever was or will be offered
    """

    def __init__(self, threads: int) -> None:
        self._ready: list[deque[tuple[int, Block]]] = [deque() for _ in range(threads)]
        self._to_come, self.abandoned = threads, False
        self._changed = threading.Condition()

    def offer(self, thread: int, pieces: Sequence[Block]) -> None:
        """Pieces of a thread's blocks, which are offered once, by it or for it."""
        with self._changed:
            self._ready[thread].extend(enumerate(pieces))
            self._to_come -= 1
            self._changed.notify_all()

    def abandon(self) -> None:
        """End all waiting, and all taking."""
        with self._changed:
            self.abandoned = True
            self._changed.notify_all()

    def take(self, thread: int) -> tuple[tuple[int, int], Block] | None:
        """The next piece with its number, one's own first; None when there will be no more."""
        owners = (*range(thread, len(self._ready)), *range(thread))
        while not self.abandoned:
            to_come = self._to_come  # asked first, for more may be offered while this one looks
            for owner in owners:
                if self._ready[owner]:
                    try:
                        number, piece = self._ready[owner].popleft()
                    except IndexError:  # two have seen the last piece, and the other one got it
                        continue
                    return (owner, number), piece
            if not to_come:
                return None
            with self._changed:
                while self._to_come == to_come and not self.abandoned:
                    self._changed.wait()
        return None


def _same_sum(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    """The sum of two turns, which have one large part; only the rests are different."""
    return left[0], add_into(left[1], right[1])


def alone(program: Overlapping, message: Any, chain: Chain, hand_over: HandOver | None) -> Any:
    """A round by the only thread there is, as `OverlappingRound` and its outcome."""
    blocks: list[Block] = list(chain.opened())
    parts = []
    for turn in program.turns(message, blocks, 1) or (message,):
        part: Any = None
        for block in blocks:
            part = program.step(block, turn, part)
        parts.append(part)
    shared, rest = reduce(_same_sum, parts)
    if hand_over is None:
        rest = add_into(rest, program.known_of(shared))
    else:
        hand_over(shared)
    for block in blocks:
        rest = program.follow(block, message, rest)
    return (shared, rest) if hand_over is None else rest


class OverlappingRound:
    """One round of an overlapping program on chains of blocks in memory."""

    def __init__(
        self,
        program: Overlapping,
        message: Any,
        chains: Sequence[Chain],
        hand_over: HandOver | None,
    ) -> None:
        self._program, self._message, self._chains = program, message, chains
        self._hand_over = hand_over
        self._blocks = [block for chain in chains for block in chain.opened()]
        self._turns = program.turns(message, self._blocks, len(chains))
        self._next_turn = itertools.count()
        combine = _same_sum if self._turns else program.combine
        self._sums = Tournament(len(self._turns or chains), combine)
        self._pieces = Pieces(len(chains))
        self._whole: Any = None
        self._rests: dict[tuple[int, int], Any] = {}

    def take_part(self, thread: int) -> None:
        """What one thread does: first halves of steps, and then second ones of any block."""
        try:
            if self._turns:
                self._take_turns()
            else:
                self._go_through_own_blocks(thread)
            self._take_pieces(thread)
        except BaseException:
            self.abandon()  # or others would wait for ever
            raise

    def _take_turns(self) -> None:
        turns = self._turns
        while (number := next(self._next_turn)) < len(turns) and not self._pieces.abandoned:
            part = None
            for block in self._blocks:
                part = self._program.step(block, turns[number], part)
            if self._sums.arrive(number, part):
                for owner, chain in enumerate(self._chains):
                    self._pieces.offer(owner, chain.pieces)
                self._complete(*self._sums.whole)

    def _go_through_own_blocks(self, thread: int) -> None:
        program, message, chain = self._program, self._message, self._chains[thread]
        part = chain.over(lambda block, total: program.step(block, message, total))
        self._pieces.offer(thread, chain.pieces)
        if self._sums.arrive(thread, part):
            self._complete(*self._sums.whole)

    def _take_pieces(self, thread: int) -> None:
        while taken := self._pieces.take(thread):
            number, piece = taken
            piece.buffers = self._chains[thread].buffers
            self._rests[number] = self._program.follow(piece, self._message, None)

    def abandon(self) -> None:
        """Let threads end soon that wait for others; there will be no outcome."""
        self._pieces.abandon()

    def _complete(self, shared: Any, rest: Any) -> None:
        if self._hand_over is None:
            rest = add_into(rest, self._program.known_of(shared))
        else:
            self._hand_over(shared)
        self._whole = shared, rest

    def outcome(self) -> Any:
        """The sum when every thread has taken part; only its rest if the large part is away."""
        shared, rest = self._whole
        rest = reduce(add_into, (self._rests[number] for number in sorted(self._rests)), rest)
        return (shared, rest) if self._hand_over is None else rest
