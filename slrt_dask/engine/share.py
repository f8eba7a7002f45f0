"""The blocks that one worker, or this process, holds, and the threads that run over them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.read_cache import drop_kept
from slrt_dask.engine import teamwork
from slrt_dask.engine.assignment import Assignment, load_blocks
from slrt_dask.engine.blas import SingleBlasThread
from slrt_dask.engine.block import Block, NewRoom
from slrt_dask.engine.chains import Chain, divide
from slrt_dask.engine.costs import ROOMS
from slrt_dask.engine.crew import Crew
from slrt_dask.engine.file_block import FileBlock
from slrt_dask.engine.helping import Helping
from slrt_dask.engine.program import HandOver, Overlapping, Program, add_into
from slrt_dask.engine.resting import MemoryBlock, RestingBlock
from slrt_dask.engine.scratch import Room, ScratchDirectory
from slrt_dask.engine.spending import ShareSeconds, peak_bytes
from slrt_dask.engine.support import Change, resupported
from slrt_dask.errors import MemoryBudgetExceeded, StateLost

REMEMBERED_ROUNDS = 1000


class Share:
    """Blocks held in one place; contributes to a program's round as one."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self._scratch, self._made = None, 0
        self._new_room: NewRoom = np.empty
        self._helping: Helping | None = None
        # A plan counts with all the memory that this process may have.
        drop_kept()
        self.seconds, self.peak_before = ShareSeconds(), peak_bytes()
        if assignment.streaming is not None:
            self._scratch = ScratchDirectory(assignment.streaming.directory)
        try:
            self.blocks = self._loaded()
            self._refuse_long_slices()
            self._chains = self._made_chains()
        except BaseException:
            self._remove_scratch()
            raise
        self._single = SingleBlasThread() if assignment.tiles else None
        self._crew = Crew(assignment.threads - 1)
        self._background = ThreadPoolExecutor(2 * assignment.threads, thread_name_prefix="slrt-io")
        self._run, self._ended = -1, True
        self.round_seconds: deque[float] = deque(maxlen=REMEMBERED_ROUNDS)
        """Seconds that each of the last rounds took: kernels, and waiting for files."""
        # A step of an abandoned run may still be running when the next run's first one arrives.
        self._busy = threading.Lock()

    def contribute(self, program: Program, message: Any, hand_over: HandOver | None = None) -> Any:
        """One round on all blocks, summed in a fixed order so that it can be repeated.

        hand_over : is given the part of an overlapping program's sum that all workers are to know;
            what is returned is the rest
        """
        if not self._chains:
            raise StateLost("this share was closed; the fit has to be started again")
        began, waited = time.perf_counter(), self._waited
        helping = self._helping
        dozed = 0.0 if helping is None else -helping.waited
        part = self._contribution(program, message, hand_over)
        dozed += 0.0 if helping is None else helping.waited
        self.seconds.add_round(time.perf_counter() - began - dozed, self._waited - waited)
        self.seconds.add_exchange(dozed)
        return part

    def _contribution(self, program: Program, message: Any, hand_over: HandOver | None) -> Any:
        if isinstance(program, Overlapping):
            if self._scratch is None and program.section(message) is None:
                team = teamwork.OverlappingRound(program, message, self._chains, hand_over)
                self._crew.run(team.take_part, len(self._chains), team.abandon)
                return team.outcome()
            # Blocks in files are not opened twice, nor are sections.
            shared, rest = self._summed(program.fused, program, message)
            if hand_over is None:
                return shared, add_into(rest, program.known_of(shared))
            hand_over(shared)
            return rest
        return self._summed(program.step, program, message)

    def _summed(
        self, step: Callable[[Block, Any, Any], Any], program: Program, message: Any
    ) -> Any:
        """The sum of what all threads make of their blocks."""
        sums = teamwork.Tournament(len(self._chains), program.combine)
        section = program.section(message)

        def take_part(thread: int) -> None:
            def on_block(block: Block, total: Any) -> Any:
                return step(block, message, total)

            sums.arrive(thread, self._chains[thread].run(on_block, self._background, section))

        self._crew.run(take_part, len(self._chains))
        return sums.whole

    @property
    def _waited(self) -> float:
        """Seconds that the threads have waited for files, on average."""
        if self._scratch is None:
            return 0.0
        return sum(chain.waited for chain in self._chains) / len(self._chains)

    def begin(self, run: int, discard: tuple[str, ...] = ()) -> None:
        """Start a run of rounds; an earlier one that may still go on is over with it.

        Rounds change vectors in place, so a run cannot be made again.
        """
        with self._busy:
            if run <= self._run:
                raise StateLost(f"run {run} was asked for after run {self._run}")
            if not self._ended:
                # Other workers may still look at, or write to, what was made for that run.
                for chain in self._chains:
                    chain.buffers.forget()
            self._run, self._ended = run, False
            self.discard(discard)

    def end(self, run: int) -> None:
        """A run is over, for all workers."""
        with self._busy:
            self._ended = run == self._run

    def meet(self, run: int, new_room: NewRoom = np.empty, helping: Helping | None = None) -> None:
        """Know the workers of a run.

        new_room : makes room for what they are to see
        helping : how they take work from each other. It stays for the whole run: they wait for what
            they were told of
        """
        with self._busy:
            self._check(run)
            self._new_room, self._helping = new_room, helping
            self._tell_chains(self._chains)

    def part(self, helping: Helping) -> None:
        """Neighbours do not help each other this way any more."""
        with self._busy:
            # The next run may have begun already.
            if self._helping is helping:
                self._helping = None
                self._tell_chains(self._chains)

    def _check(self, run: int) -> None:
        if run != self._run:
            raise StateLost(f"run {run} was given up for run {self._run}")

    def _tell_chains(self, chains: list[Chain]) -> None:
        for chain in chains[:1]:  # the others' sums are added to the first one's
            chain.buffers.new_room, chain.buffers.helping = self._new_room, self._helping

    def contribute_to(
        self, run: int, program: Program, message: Any, hand_over: HandOver | None = None
    ) -> Any:
        """One round of the run that was begun last."""
        with self._busy:
            self._check(run)
            began = time.perf_counter()
            part = self.contribute(program, message, hand_over)
            self.round_seconds.append(time.perf_counter() - began)
            return part

    def discard(self, names: tuple[str, ...]) -> None:
        for block in self.blocks:
            block.drop(names)

    def change_support(self, change: Change) -> None:
        """Make every block anew on other entries; they have to be numbered again after it.

        Vectors keep their numbers, and are zero where an entry is new.
        """
        with self._busy:
            for number, resting in enumerate(self.blocks):
                contents = resting.contents()
                keep, added = change(contents, resting.found)
                block, extra = resupported(contents, self.assignment.store.slab_mode, keep, added)
                self.blocks[number] = self._resting(block, extra)
                if isinstance(resting, FileBlock):
                    resting.remove()
            self._chains = self._made_chains()

    def partition_columns(self, partition: int, *, extra: bool = False) -> list[NDArray[Any]]:
        """The index columns of one partition's entries, or only those that are not the store's."""
        pieces = []
        for resting in self._blocks_of(partition):
            chosen = resting.extra() if extra else slice(None)
            pieces.append([column[chosen] for column in resting.columns()])
        return [np.concatenate(columns) for columns in zip(*pieces, strict=True)]

    def partition_extra(self, partition: int) -> NDArray[np.bool_]:
        """Which of one partition's entries are not the store's."""
        return np.concatenate([piece.extra() for piece in self._blocks_of(partition)])

    def partition_vector(self, partition: int, name: str) -> NDArray[Any]:
        """A named vector over one whole partition, in the store's order."""
        return np.concatenate([block.vector(name) for block in self._blocks_of(partition)])

    def put_partition_vector(self, partition: int, name: str, values: NDArray[Any]) -> None:
        """Set a named vector over one whole partition, given in the store's order."""
        first = 0
        for block in self._blocks_of(partition):
            block.put(name, values[first : first + block.entries])
            first += block.entries

    @property
    def nbytes(self) -> int:
        """Bytes held in memory now, by numpy's count."""
        chains = sum(chain.nbytes for chain in self._chains)
        return chains + sum(block.nbytes for block in self.blocks)

    def close(self) -> None:
        """Let go of everything, after the round that may still be running."""
        # A crew that is sent away under a round leaves it waiting for ever.
        with self._busy:
            self._crew.close()
            self._background.shutdown(wait=True)
            self.blocks, self._chains = [], []
            self._remove_scratch()
            if self._single is not None:
                self._single.release()

    def _blocks_of(self, partition: int) -> list[RestingBlock]:
        pieces = [block for block in self.blocks if block.partition == partition]
        return sorted(pieces, key=lambda block: block.position)

    def _loaded(self) -> list[RestingBlock]:
        return [self._resting(block, None) for block in load_blocks(self.assignment)]

    def _resting(self, block: Block, extra: NDArray[np.bool_] | None) -> RestingBlock:
        if self._scratch is None:
            return MemoryBlock(block, extra, self.assignment.sections)
        self._made += 1
        directory = self._scratch.path / f"b{self._made:05d}"
        return FileBlock(block, directory, extra, self.assignment.sections)

    def _made_chains(self) -> list[Chain]:
        largest = max((block.entries for block in self.blocks), default=0)
        rooms = 0 if self._scratch is None else ROOMS
        runs = divide(self.blocks, self.assignment.threads)
        chains = [Chain(run, [Room(largest) for _ in range(rooms)]) for run in runs]
        self._tell_chains(chains)
        return chains

    def _refuse_long_slices(self) -> None:
        """A slice is never cut, so one that is too long for its room cannot be streamed."""
        largest = max((block.entries for block in self.blocks), default=0)
        streaming = self.assignment.streaming
        if streaming is not None and largest > 2 * streaming.block_entries:
            raise MemoryBudgetExceeded(
                f"a slice of mode {self.assignment.store.slab_mode} holds {largest:,} observations "
                f"and cannot be cut, but there is room for blocks of {streaming.block_entries:,}; "
                f"raise the memory limit, or store the observations along another mode"
            )

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.close()
