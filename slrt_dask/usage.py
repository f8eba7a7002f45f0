"""What a run has taken: seconds by cause, and for every place its rounds and memory.

It is kept in <run>/usage.json, written about every ten seconds and at the end. Attempts after
workers were lost, and processes that resumed the run, add up.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from slrt_dask import __version__
from slrt_dask.engine.base import Engine
from slrt_dask.engine.plan import Plan
from slrt_dask.errors import ClusterLost, StateLost
from slrt_dask.optim.records import IterationRecord, MethodState
from slrt_dask.runs import USAGE, replace_file
from slrt_dask.spending import ShareSpending, peak_bytes

FORMAT_VERSION = 2
LIBRARIES = ("numpy", "numba", "scipy", "dask", "distributed", "zarr")
WRITE_SECONDS = 10.0
"""At least so long between two writings, except for the first and the last."""
THIS_PROCESS, DRIVER = "this process", "driver"


@dataclass(frozen=True)
class PlaceUsage:
    """One worker, by its address, or the driver.

    entries : observations there;  streamed : whether its blocks are in files
    planned, limit : bytes; None if there is no limit
    before, peak : the largest resident size of its process, before the fit and until now
    computing, waiting : seconds in rounds, and for files or for the next round
    """

    place: str
    threads: int
    entries: int
    streamed: bool
    planned: int
    limit: int | None
    before: int
    peak: int
    rounds: int = 0
    computing: float = 0.0
    waiting: float = 0.0

    def plus(self, later: PlaceUsage) -> PlaceUsage:
        """The same place later on, perhaps in another process."""
        larger = max(self, later, key=lambda one: one.peak)
        return replace(
            later,
            before=larger.before,
            peak=larger.peak,
            rounds=self.rounds + later.rounds,
            computing=self.computing + later.computing,
            waiting=self.waiting + later.waiting,
        )


@dataclass(frozen=True)
class Usage:
    """What a run has taken.

    seconds : by cause; they add up to the wall time. What workers do at the same time is their
        mean: of the rounds "computing", "files" (waiting for streamed blocks) and "exchange" (the
        rest); besides "visits", "loading", "checkpoints", "result", and "driver" for all else
    starts : how often it was started, resumed, or begun again
    """

    seconds: dict[str, float] = field(default_factory=dict)
    starts: int = 0
    places: tuple[PlaceUsage, ...] = ()

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())

    def plus(self, later: Usage) -> Usage:
        places = {one.place: one for one in self.places}
        for one in later.places:
            places[one.place] = places[one.place].plus(one) if one.place in places else one
        spent = {name: self.seconds.get(name, 0.0) + more for name, more in later.seconds.items()}
        seconds = {**self.seconds, **spent}
        return Usage(seconds, self.starts + later.starts, tuple(places.values()))


class UsageKeeper:
    """Adds up what this process spends on a run, and writes it where the run is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()

    @contextmanager
    def attempt(self, path: Path, engine: Engine, plan: Plan) -> Iterator[UsageKeeper]:
        """One attempt at the run in a directory; observes its iterations."""
        self._path, self._engine, self._plan = path, engine, plan
        self._earlier = read_usage(path) or Usage()
        self._before, self._due = peak_bytes(), self._since
        self._spent: list[ShareSpending] = []
        try:
            yield self
            # The result is written: a worker that is lost now must not have it made again.
            with suppress(StateLost, ClusterLost, OSError):
                self._ask()
        finally:
            self._write()
            self._since = self._clock()

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        if self._clock() >= self._due:
            self._ask()
            self._write()

    def _ask(self) -> None:
        """Learn from the workers what they have spent."""
        self._spent = self._engine.spending()

    def _write(self) -> None:
        """Write what the run has taken until now."""
        self._due = self._clock() + WRITE_SECONDS
        usage = self._earlier.plus(Usage(self._seconds(), 1, tuple(self._places())))
        content = {"format_version": FORMAT_VERSION, **asdict(usage), "versions": versions()}
        replace_file(self._path / USAGE, json.dumps(content, indent=2) + "\n")

    def _seconds(self) -> dict[str, float]:
        seconds = {cause.value: spent for cause, spent in self._engine.stopwatch.seconds.items()}
        rounds, count = seconds.pop("rounds"), max(1, len(self._spent))
        for name in ("computing", "files"):
            seconds[name] = sum(getattr(one, name) for one in self._spent) / count
        seconds["exchange"] = max(0.0, rounds - seconds["computing"] - seconds["files"])
        seconds["driver"] = 0.0
        seconds["driver"] = max(0.0, self._clock() - self._since - sum(seconds.values()))
        return seconds

    def _places(self) -> Iterator[PlaceUsage]:
        planned = {str(worker.place.address or ""): worker for worker in self._plan.workers}
        for spent in self._spent:
            plan = planned[spent.place]
            yield PlaceUsage(
                spent.place or THIS_PROCESS, plan.place.threads, plan.entries,
                plan.block_entries is not None, plan.needed.total, plan.place.memory_limit,
                spent.memory.before, spent.memory.peak, spent.rounds, spent.computing,
                spent.files + spent.exchange,
            )  # fmt: skip
        if "" not in planned:
            needed = self._plan.driver
            yield PlaceUsage(DRIVER, 1, 0, False, needed, None, self._before, peak_bytes())


def read_usage(directory: Path) -> Usage | None:
    """What a run has taken; None if that is not known, as for a run of an earlier release."""
    content = _content(directory)
    try:
        places = tuple(PlaceUsage(**row) for row in content["places"])
        return Usage(content["seconds"], content["starts"], places)
    except (KeyError, TypeError):
        return None


def read_versions(directory: Path) -> dict[str, str]:
    """What software the run was last computed with; empty if that is not known."""
    return dict(_content(directory).get("versions", {}))


@functools.cache
def versions() -> dict[str, str]:
    """What computes here."""
    found = {"slrt-dask": __version__, "Python": platform.python_version()}
    found |= {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {**found, "system": f"{platform.system()} {platform.machine()}"}


def _content(directory: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        content = json.loads((directory / USAGE).read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("format_version") == FORMAT_VERSION:
            return content
    return {}
