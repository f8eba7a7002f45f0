"""What a fit spends, measured where it is spent: seconds by cause, and the memory of a process.

A driver's stopwatch always runs for exactly one cause, so that the causes add up to its time; a
share adds up what its rounds take. Nothing here grows with the number of rounds.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Cause(Enum):
    """What a driver waits for, or does."""

    DRIVER = "driver"
    """Everything that has no other cause: the optimiser, and arranging the work."""
    ROUNDS = "rounds"
    """Programs that run where the observations are."""
    VISITS = "visits"
    """Whatever else is done there, such as changing which entries are held."""
    LOADING = "loading"
    """Reading observations, or a checkpoint."""
    CHECKPOINTS = "checkpoints"
    """Writing history and checkpoints."""
    RESULT = "result"
    """Writing the result."""


class Stopwatch:
    """Seconds by cause, since it was made; it is one thread's."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(Cause, 0.0)
        self._cause, self._since = Cause.DRIVER, clock()

    @contextmanager
    def on(self, cause: Cause) -> Iterator[None]:
        """Run for this cause meanwhile, whatever it ran for before."""
        before = self._cause
        self._turn_to(cause)
        try:
            yield
        finally:
            self._turn_to(before)

    @contextmanager
    def unless_named(self, cause: Cause) -> Iterator[None]:
        """Run for this cause meanwhile, unless the caller has named another one."""
        with self.on(cause if self._cause is Cause.DRIVER else self._cause):
            yield

    @property
    def seconds(self) -> dict[Cause, float]:
        """By cause, until now."""
        self._turn_to(self._cause)
        return dict(self._seconds)

    def _turn_to(self, cause: Cause) -> None:
        now = self._clock()
        self._seconds[self._cause] += now - self._since
        self._cause, self._since = cause, now


@dataclass
class ShareSeconds:
    """What the rounds of a share took; of its threads the mean, which is at most the wall time.

    computing : kernels, and waiting for the slowest thread;  files : waiting for streamed blocks
    exchange : between rounds, waiting for the sums of other workers and the next message
    """

    rounds: int = 0
    computing: float = 0.0
    files: float = 0.0
    exchange: float = 0.0

    def add_round(self, seconds: float, waited: float) -> None:
        """waited : the part of the seconds in which threads waited for files"""
        self.rounds += 1
        self.files += waited
        self.computing += seconds - waited


@dataclass(frozen=True)
class ProcessMemory:
    """The largest resident size of a process in bytes, when a fit began there and until now."""

    before: int
    peak: int

    @classmethod
    def of_this(cls, before: int) -> ProcessMemory:
        return cls(before, peak_bytes())


def peak_bytes() -> int:
    """The most memory that this process has had."""
    try:
        # Unlike this, what getrusage says begins with what the parent process held.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest if sys.platform == "darwin" else 1024 * largest


@dataclass(frozen=True)
class ShareSpending:
    """What a share has spent since it was loaded.

    place : the address of its worker; empty for this process
    """

    place: str
    rounds: int
    computing: float
    files: float
    exchange: float
    memory: ProcessMemory


@dataclass(frozen=True)
class Rates:
    """What things take, in seconds: an entry of a sweep, a round between workers, a byte in it.

    threads : of the process that asks, if it could do it alone; else 0
    """

    entry: float
    round: float = 0.0
    byte: float = 0.0
    threads: int = 0


def readable(count: int) -> str:
    """A number of bytes with a unit that a person would choose."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000.0:
            return f"{size:.3g} {unit}"
        size /= 1000.0
    return f"{size:.3g} TB"
