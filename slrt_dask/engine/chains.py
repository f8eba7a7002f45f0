"""One thread's way through its blocks: step after step, adding to one sum.

Where blocks rest in files, the next one is read and the last one written while the present one is
computed: three rooms go round, so memory is bounded by three blocks a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from slrt_dask.engine.block import Block, Buffers
from slrt_dask.engine.resting import RestingBlock
from slrt_dask.engine.scratch import FileVectors, Room

Step = Callable[[Block, Any], Any]
Result = TypeVar("Result")
SMALLEST_PIECE = 20_000
"""Entries below which slices are not handed out by themselves: calls would cost too much."""


@dataclass
class Chain:
    """Blocks that one thread visits in order, and the room it has for that.

    rooms : empty where blocks stay in memory
    waited : seconds that the thread has spent waiting for files
    """

    blocks: Sequence[RestingBlock]
    rooms: Sequence[Room]
    buffers: Buffers = field(default_factory=Buffers)
    waited: float = 0.0

    def run(self, step: Step, background: Executor, section: int | None = None) -> Any:
        """The sum of step(block, sum so far) over the blocks, or over one section of each."""
        if self.rooms:
            return self._streamed(step, background, section)
        return self.over(step) if section is None else self._over_section(step, section)

    def over(self, step: Step) -> Any:
        """The same where blocks are in memory."""
        total = None
        for block in self.opened():
            total = step(block, total)
        return total

    def _over_section(self, step: Step, section: int) -> Any:
        total = None
        for resting in self.blocks:
            block = resting.open(None, self.buffers, frozenset(), section)
            total = step(block, total)
            resting.close(block)
        return total

    def opened(self) -> Iterator[Block]:
        """The blocks, where they are in memory."""
        return (resting.open(None, self.buffers, frozenset()) for resting in self.blocks)

    def _streamed(self, step: Step, background: Executor, section: int | None) -> Any:
        total, names = None, frozenset[str]()
        writing: list[Future[None] | None] = [None] * len(self.rooms)
        reading = self._read(0, names, writing, background, section)
        try:
            for number, resting in enumerate(self.blocks):
                block = self._waiting_for(reading.result)
                if number + 1 < len(self.blocks):
                    # The next block will want what this round's blocks have wanted so far.
                    reading = self._read(number + 1, names, writing, background, section)
                total = step(block, total)
                assert isinstance(block.vectors, FileVectors)
                names = block.vectors.wanted
                self.waited += block.vectors.waited
                writing[number % len(self.rooms)] = background.submit(resting.close, block)
        finally:
            # No thread may still be at work on the files when a round is over, or has failed.
            pending = [future for future in (reading, *writing) if future is not None]
            self._waiting_for(partial(drain, pending))
        for future in pending:
            future.result()
        return total

    def _read(
        self,
        number: int,
        names: frozenset[str],
        writing: list[Future[None] | None],
        background: Executor,
        section: int | None,
    ) -> Future[Block]:
        place = number % len(self.rooms)
        before = writing[place]
        if before is not None:
            self._waiting_for(before.result)
        opening = self.blocks[number].open
        return background.submit(opening, self.rooms[place], self.buffers, names, section)

    def _waiting_for(self, done: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        try:
            return done()
        finally:
            self.waited += time.perf_counter() - began

    @property
    def entries(self) -> int:
        return sum(resting.entries for resting in self.blocks)

    @cached_property
    def pieces(self) -> list[Block]:
        """Blocks in memory in parts that threads can take from each other, finer towards the end.

        They are parts of the blocks as these are numbered when this is first asked for.
        """
        pieces, remaining = [], self.entries
        for block in self.opened():
            starts, first = block.index.starts, 0
            while first < len(starts) - 1:
                wanted = max(SMALLEST_PIECE, remaining // 2)
                if starts[-1] - starts[first] < wanted + SMALLEST_PIECE // 2:
                    wanted = block.entries  # or there would be a crumb
                stop = int(np.searchsorted(starts, starts[first] + wanted, side="left"))
                stop = min(stop, len(starts) - 1)
                pieces.append(block.piece(first, stop))
                remaining -= int(starts[stop] - starts[first])
                first = stop
        return pieces

    @property
    def nbytes(self) -> int:
        return self.buffers.nbytes + sum(room.nbytes for room in self.rooms)


def drain(futures: Sequence[Future[Any]]) -> None:
    """Wait until all are done, come what may; an interrupt meanwhile is raised only then."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            wait(futures)
        except KeyboardInterrupt as error:
            interrupt = error
        else:
            break
    if interrupt is not None:
        raise interrupt


def divide(blocks: Sequence[RestingBlock], threads: int) -> list[list[RestingBlock]]:
    """Cut the blocks, in order, into at most `threads` runs of about equally many entries."""
    total = sum(block.entries for block in blocks)
    runs: list[list[RestingBlock]] = [[] for _ in range(threads)]
    passed = 0
    for block in blocks:
        middle = passed + block.entries / 2
        runs[min(threads - 1, int(threads * middle / max(total, 1)))].append(block)
        passed += block.entries
    return [run for run in runs if run]
