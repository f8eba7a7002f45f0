"""What a run has taken so far: seconds by cause, and memory beside its plan; in <run>/usage.json.

All parts of a run add up: attempts after workers were lost, and processes that resumed it. Of what
a lost worker or a killed process did since the last writing, only the driver's time is known.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from slrt_dask import __version__
from slrt_dask.engine.base import Engine
from slrt_dask.engine.plan import Plan, WorkerPlan
from slrt_dask.engine.spending import Cause, ProcessMemory, ShareSpending
from slrt_dask.errors import ClusterLost, StateLost
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.records import IterationRecord
from slrt_dask.runs import USAGE, replace_file

FORMAT_VERSION = 1
WRITE_SECONDS = 10.0
"""At least so long between two writings, the first and the last aside."""
LIBRARIES = ("numpy", "numba", "scipy", "dask", "distributed", "zarr")


@dataclass(frozen=True)
class Seconds:
    """Wall time by cause; what workers spend at the same time is their mean.

    wall : all of it
    rounds : programs on the workers; of these computing, waiting for files, and exchange
    visits : other work there;  loading, checkpoints, result : reading and writing
    """

    wall: float = 0.0
    rounds: float = 0.0
    computing: float = 0.0
    files: float = 0.0
    exchange: float = 0.0
    visits: float = 0.0
    loading: float = 0.0
    checkpoints: float = 0.0
    result: float = 0.0

    @property
    def starting(self) -> float:
        """Of the rounds what no worker accounts for: submitting them, and hearing of their end."""
        return max(0.0, self.rounds - self.computing - self.files - self.exchange)

    @property
    def driver(self) -> float:
        """What has no other cause: the optimiser, and waiting for workers to come back."""
        named = self.rounds + self.visits + self.loading + self.checkpoints + self.result
        return max(0.0, self.wall - named)

    def plus(self, other: Seconds) -> Seconds:
        return Seconds(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        )


@dataclass(frozen=True)
class PlaceUsage:
    """One worker, or the driver, in one process.

    place : the worker's address; empty where the driver computes itself
    entries : observations there;  streamed : whether its blocks are in files
    planned : bytes;  limit : bytes that it may use, None if there is no limit
    memory : the largest resident size of its process, before the fit and until now
    """

    place: str
    threads: int
    entries: int
    streamed: bool
    planned: int
    limit: int | None
    memory: ProcessMemory
    rounds: int = 0
    computing: float = 0.0
    files: float = 0.0
    exchange: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.place, self.memory.process

    def plus(self, later: PlaceUsage) -> PlaceUsage:
        """The same place later on."""
        memory = replace(later.memory, before=min(self.memory.before, later.memory.before))
        return replace(
            later,
            memory=memory,
            rounds=self.rounds + later.rounds,
            computing=self.computing + later.computing,
            files=self.files + later.files,
            exchange=self.exchange + later.exchange,
        )


@dataclass(frozen=True)
class Usage:
    """What a run has taken.

    starts : how often it was started, resumed, or begun again
    drivers : the processes that had the run in hand, where these were not workers themselves
    """

    seconds: Seconds = Seconds()
    starts: int = 0
    drivers: tuple[PlaceUsage, ...] = ()
    workers: tuple[PlaceUsage, ...] = ()

    def plus(self, later: Usage) -> Usage:
        return Usage(
            self.seconds.plus(later.seconds),
            self.starts + later.starts,
            _joined(self.drivers, later.drivers),
            _joined(self.workers, later.workers),
        )


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
        return Usage(self._seconds(workers), 1, self._driver(), workers)

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


def write_usage(directory: Path, usage: Usage) -> None:
    content = {"format_version": FORMAT_VERSION, **asdict(usage), "versions": versions()}
    replace_file(directory / USAGE, json.dumps(content, indent=2) + "\n")


def read_usage(directory: Path) -> Usage | None:
    """What a run has taken; None if that is not known, as of a run of an earlier release."""
    content = _content(directory)
    if content is None:
        return None
    try:
        return Usage(
            Seconds(**content["seconds"]),
            content["starts"],
            tuple(_place(row) for row in content["drivers"]),
            tuple(_place(row) for row in content["workers"]),
        )
    except (KeyError, TypeError):
        return None


def read_versions(directory: Path) -> dict[str, str] | None:
    """What software the run was last computed with, if that is known."""
    content = _content(directory)
    return None if content is None else dict(content.get("versions", {}))


@functools.cache
def versions() -> dict[str, str]:
    """What computes here."""
    found = {"slrt-dask": __version__, "Python": platform.python_version()}
    found |= {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {**found, "system": f"{platform.system()} {platform.machine()}"}


def _content(directory: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((directory / USAGE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(content, dict) and content.get("format_version") == FORMAT_VERSION
    return content if known else None


def _place(row: dict[str, Any]) -> PlaceUsage:
    return PlaceUsage(**{**row, "memory": ProcessMemory(**row["memory"])})


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


def _joined(
    earlier: tuple[PlaceUsage, ...], later: tuple[PlaceUsage, ...]
) -> tuple[PlaceUsage, ...]:
    together = {one.key: one for one in earlier}
    for one in later:
        together[one.key] = together[one.key].plus(one) if one.key in together else one
    return tuple(together.values())
