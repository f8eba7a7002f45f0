"""One thread's way through its blocks: step after step, adding to one sum.

Where blocks rest in files, the next one is read and the last one written while the present one is
computed: three rooms go round, so memory is bounded by three blocks a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from slrt_dask.engine.block import Block, Buffers
from slrt_dask.engine.resting import RestingBlock
from slrt_dask.engine.scratch import FileVectors, Room

Step = Callable[[Block, Any], Any]
Result = TypeVar("Result")
LATE = 4
"""One block of so many is left for when sums travel."""


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

    def run(self, step: Step, background: Executor) -> Any:
        """The sum of step(block, sum so far) over the blocks."""
        return self._streamed(step, background) if self.rooms else self._over(self.blocks, step)

    def begin(self, step: Step, background: Executor, *, late: Step) -> Any:
        """The same, with a shorter step for the last blocks; the rest of theirs is left to `end`.

        Every block goes through its whole step while it is in cache, but for so many that there is
        something to compute while sums travel. Blocks in files are not opened twice.
        """
        if self.rooms:
            return self._streamed(step, background)
        early = len(self.blocks) - self._late
        return self._over(self.blocks[early:], late, self._over(self.blocks[:early], step))

    def end(self, step: Step, background: Executor) -> Any:
        """The sum over the blocks that `begin` was short with."""
        early = len(self.blocks) - (0 if self.rooms else self._late)
        return self._over(self.blocks[early:], step)

    @property
    def _late(self) -> int:
        return -(-len(self.blocks) // LATE)

    def _over(self, blocks: Sequence[RestingBlock], step: Step, total: Any = None) -> Any:
        for resting in blocks:
            total = step(resting.open(None, self.buffers, frozenset()), total)
        return total

    def _streamed(self, step: Step, background: Executor) -> Any:
        total, names = None, frozenset[str]()
        writing: list[Future[None] | None] = [None] * len(self.rooms)
        reading = self._read(0, names, writing, background)
        try:
            for number, resting in enumerate(self.blocks):
                block = self._waiting_for(reading.result)
                if number + 1 < len(self.blocks):
                    # The next block will want what this round's blocks have wanted so far.
                    reading = self._read(number + 1, names, writing, background)
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
    ) -> Future[Block]:
        place = number % len(self.rooms)
        before = writing[place]
        if before is not None:
            self._waiting_for(before.result)
        return background.submit(self.blocks[number].open, self.rooms[place], self.buffers, names)

    def _waiting_for(self, done: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        try:
            return done()
        finally:
            self.waited += time.perf_counter() - began

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
