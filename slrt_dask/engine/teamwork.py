"""How the threads of a share make one round together, so that none of them waits for another.

A core is slower now and then, and threads are woken late. So an overlapping program's steps are
cut into turns, if the program can do that, of which threads take one after the other. Else first
halves are done by each thread for its own blocks, and the sums added two by two by whoever comes
second; and second halves are cut into pieces, of which every thread takes the next one, first its
own, then those of others. What is added to what, and in which order, is fixed all the same, so that
sums can be repeated to the last bit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from slrt_dask.engine.block import Block
from slrt_dask.engine.chains import Chain
from slrt_dask.engine.program import HandOver, Overlapping, SharedStep, add_into


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
        self._whole: tuple[Any, Any] | None = None
        self._shared = program.shared(message, chains)
        if self._shared is None:
            self._sums = Tournament(len(chains), program.combine)
        self._pieces: Pieces | None = None
        if self._shared is None or not self._shared.follows:
            self._pieces = Pieces(len(chains))
        self._rests: dict[tuple[int, int], Any] = {}

    def take_part(self, thread: int) -> None:
        """What one thread does: first halves of steps, and then second ones of any block."""
        try:
            if self._shared is None:
                self._go_through_own_blocks(thread)
            else:
                self._take_turns(self._shared, thread)
            if self._pieces is not None:
                self._take_pieces(self._pieces, thread)
        except BaseException:
            self.abandon()  # or others would wait for ever
            raise

    def _take_turns(self, shared: SharedStep, thread: int) -> None:
        if shared.step(thread):
            if self._pieces is not None:
                for owner, chain in enumerate(self._chains):
                    self._pieces.offer(owner, chain.pieces)
            self._complete(*shared.total())
        if self._pieces is None:
            shared.follow(thread)

    def _go_through_own_blocks(self, thread: int) -> None:
        program, message, chain = self._program, self._message, self._chains[thread]
        part = chain.over(lambda block, total: program.step(block, message, total))
        assert self._pieces is not None
        self._pieces.offer(thread, chain.pieces)
        if self._sums.arrive(thread, part):
            self._complete(*self._sums.whole)

    def _take_pieces(self, pieces: Pieces, thread: int) -> None:
        while taken := pieces.take(thread):
            number, piece = taken
            piece.buffers = self._chains[thread].buffers
            self._rests[number] = self._program.follow(piece, self._message, None)

    def abandon(self) -> None:
        """Let threads end soon that wait for others; there will be no outcome."""
        if self._shared is not None:
            self._shared.give_up()
        if self._pieces is not None:
            self._pieces.abandon()

    def _complete(self, shared: Any, rest: Any) -> None:
        if self._hand_over is None:
            rest = add_into(rest, self._program.known_of(shared))
        else:
            self._hand_over(shared)
        self._whole = shared, rest

    def outcome(self) -> Any:
        """The sum when every thread has taken part; only its rest if the large part is away."""
        assert self._whole is not None
        shared, rest = self._whole
        if self._pieces is None:
            assert self._shared is not None
            rest = add_into(rest, self._shared.rest())
        else:
            parts = (self._rests[number] for number in sorted(self._rests))
            rest = reduce(add_into, parts, rest)
        return (shared, rest) if self._hand_over is None else rest
