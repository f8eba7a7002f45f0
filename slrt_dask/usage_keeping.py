"""Who adds up what a run takes while it goes on, and writes it where the run is (`usage.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from slrt_dask.engine.base import Engine
from slrt_dask.engine.plan import Plan, WorkerPlan
from slrt_dask.errors import ClusterLost, StateLost
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.records import IterationRecord
from slrt_dask.spending import Cause, ProcessMemory, ShareSpending
from slrt_dask.usage import PlaceUsage, Seconds, Usage, read_usage, write_usage

WRITE_SECONDS = 10.0
"""At least so long between two writings, the first and the last aside."""


class UsageKeeper:
    """Adds up what a process spends on a run, and writes it where the run is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._earlier: Usage | None = None
        self._ended = Usage()
        self._write_due = clock()

    @contextmanager
    def attempt(self, path: Path, engine: Engine, plan: Plan) -> Iterator[Attempt]:
        """One attempt at the run in a directory; what it took is written at its end, too."""
        if self._earlier is None:
            self._earlier = read_usage(path) or Usage()
        attempt = Attempt(self, path, engine, plan)
        try:
            yield attempt
            # The result is written: a worker that is lost now must not have it made again.
            with suppress(StateLost, ClusterLost, OSError):
                attempt.ask()
        finally:
            self._ended = self._ended.plus(attempt.usage())
            self.write(path, Usage())

    def is_due(self) -> bool:
        return self._clock() >= self._write_due

    def write(self, path: Path, running: Usage) -> None:
        """Write all: what was before this process, its attempts that ended, and a running one."""
        here = self._ended.plus(running)
        wall = self._clock() - self._began
        here = replace(here, seconds=replace(here.seconds, wall=wall))
        write_usage(path, (self._earlier or Usage()).plus(here))
        self._write_due = self._clock() + WRITE_SECONDS


class Attempt:
    """What one attempt spends; as an observer it sees to the writing now and then."""

    def __init__(self, keeper: UsageKeeper, path: Path, engine: Engine, plan: Plan) -> None:
        self._keeper, self._path, self._engine, self._plan = keeper, path, engine, plan
        self._before = ProcessMemory.of_this().before
        self._spent: list[ShareSpending] = []

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        if self._keeper.is_due():
            self.ask()
            self._keeper.write(self._path, self.usage())

    def ask(self) -> None:
        """Hear from the workers what they have spent."""
        self._spent = self._engine.spending()

    def usage(self) -> Usage:
        """What the driver knows now, and what the workers said last."""
        planned = {str(worker.place.address or ""): worker for worker in self._plan.workers}
        workers = tuple(_worker_usage(spent, planned[spent.place]) for spent in self._spent)
        idle = self._plan.available - len(self._plan.workers)
        return Usage(self._seconds(workers), 1, self._driver(), workers, idle)

    def _seconds(self, workers: tuple[PlaceUsage, ...]) -> Seconds:
        causes = self._engine.stopwatch.seconds
        share = 1.0 / max(1, len(workers))
        return Seconds(
            rounds=causes[Cause.ROUNDS],
            computing=share * sum(worker.computing for worker in workers),
            files=share * sum(worker.files for worker in workers),
            exchange=share * sum(worker.exchange for worker in workers),
            visits=causes[Cause.VISITS],
            loading=causes[Cause.LOADING],
            checkpoints=causes[Cause.CHECKPOINTS],
            result=causes[Cause.RESULT],
        )

    def _driver(self) -> tuple[PlaceUsage, ...]:
        if self._plan.workers[0].place.address is None:
            return ()
        memory = ProcessMemory.of_this(self._before)
        return (PlaceUsage("", 1, 0, False, self._plan.driver, None, memory),)


def _worker_usage(spent: ShareSpending, plan: WorkerPlan) -> PlaceUsage:
    return PlaceUsage(
        spent.place,
        plan.place.threads,
        plan.entries,
        plan.block_entries is not None,
        plan.needed.total,
        plan.place.memory_limit,
        spent.memory,
        spent.rounds,
        spent.computing,
        spent.files,
        spent.exchange,
    )
