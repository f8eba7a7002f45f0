"""What a run has taken so far: seconds by cause, and memory beside its plan; in <run>/usage.json.

All parts of a run add up: attempts after workers were lost, and processes that resumed it. Of what
a lost worker did since the last writing, only the driver's time is known; of what a killed process
did, only what the history says, of which the file notes how far it is with it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from slrt_dask import __version__
from slrt_dask.history import read_history
from slrt_dask.runs import USAGE, replace_file
from slrt_dask.spending import ProcessMemory

FORMAT_VERSION = 1
LIBRARIES = ("numpy", "numba", "scipy", "dask", "distributed", "zarr")


@dataclass(frozen=True)
class Seconds:
    """Wall time by cause; what workers spend at the same time is their mean.

    wall : all of it
    rounds : programs on the workers; of these computing, waiting for files, and exchange
    visits : other work there;  loading, checkpoints, result : reading and writing
    untold : of a process that was killed, and by the history only: the least that it took
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
    untold: float = 0.0

    @property
    def starting(self) -> float:
        """Of the rounds what no worker accounts for: submitting them, and hearing of their end."""
        return max(0.0, self.rounds - self.computing - self.files - self.exchange)

    @property
    def driver(self) -> float:
        """What has no other cause: the optimiser, and waiting for workers to come back."""
        named = self.rounds + self.visits + self.loading + self.checkpoints + self.result
        return max(0.0, self.wall - named - self.untold)

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
    idle : workers that there was nothing for, as the store has too few partitions; the last time
    """

    seconds: Seconds = Seconds()
    starts: int = 0
    drivers: tuple[PlaceUsage, ...] = ()
    workers: tuple[PlaceUsage, ...] = ()
    idle: int = 0

    def plus(self, later: Usage) -> Usage:
        return Usage(
            self.seconds.plus(later.seconds),
            self.starts + later.starts,
            _joined(self.drivers, later.drivers),
            _joined(self.workers, later.workers),
            later.idle if later.starts else self.idle,
        )


def write_usage(directory: Path, usage: Usage) -> None:
    content = {"format_version": FORMAT_VERSION, **asdict(usage), "versions": versions()}
    content["recorded"] = _recorded(directory)
    replace_file(directory / USAGE, json.dumps(content, indent=2) + "\n")


def read_usage(directory: Path) -> Usage | None:
    """What a run has taken; None if that is not known, as of a run of an earlier release.

    Iterations that were made since the file was written are in it, as untold.
    """
    content = _content(directory)
    if content is None:
        return None
    try:
        seconds = Seconds(**content["seconds"])
        # Of an earlier release: at least as long as the history.
        untold = max(0.0, _recorded(directory) - content.get("recorded", seconds.wall))
        return Usage(
            seconds.plus(Seconds(wall=untold, untold=untold)),
            content["starts"],
            tuple(_place(row) for row in content["drivers"]),
            tuple(_place(row) for row in content["workers"]),
            content.get("idle", 0),
        )
    except (KeyError, TypeError):
        return None


def _recorded(directory: Path) -> float:
    """Seconds that the run had taken at the last row of its history."""
    records = read_history(directory)
    return records[-1].seconds if records else 0.0


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


def _joined(
    earlier: tuple[PlaceUsage, ...], later: tuple[PlaceUsage, ...]
) -> tuple[PlaceUsage, ...]:
    together = {one.key: one for one in earlier}
    for one in later:
        together[one.key] = together[one.key].plus(one) if one.key in together else one
    return tuple(together.values())
