"""The life of a cluster: a scheduler here, workers somewhere, until someone stops them."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from network import Network
from processes import Processes

SECONDS_TO_START = 120
# Ctrl-C, an order to end, and the terminal's end, which not every system has.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Workers(ABC):
    """The workers of a cluster, wherever they run."""

    patience: float = SECONDS_TO_START
    """Seconds that they may take to come."""

    @abstractmethod
    def start(self, address: str, directory: Path) -> int:
        """Start them, with the scheduler's address and a directory that lasts as long as they do.

        Gives their number.
        """

    @abstractmethod
    def ended(self) -> list[str]:
        """Sentences on what ended by itself."""

    @abstractmethod
    def running(self) -> bool:
        """Whether any may still be there."""

    @abstractmethod
    def stop(self) -> None:
        """End all that was started, which may be only a part."""


class WorkerProcesses(Workers):
    """Workers that are processes of this machine, or of a program that it runs."""

    def __init__(self) -> None:
        self.processes = Processes()

    def ended(self) -> list[str]:
        return self.processes.ended()

    def running(self) -> bool:
        return self.processes.running()

    def stop(self) -> None:
        self.processes.stop()


def run(network: Network, workers: Workers) -> int:
    """Start a cluster, tell its address, and keep it until it is interrupted."""
    scheduler = Processes()
    with _signals(), tempfile.TemporaryDirectory(prefix="slrt-cluster-") as directory:
        try:
            address = _start_scheduler(scheduler, network, Path(directory) / "scheduler.json")
            count = workers.start(address, Path(directory))
            check = _patience(lambda: scheduler.ended() + workers.ended(), workers.patience)
            _wait_for_workers(address, network, count, check)
            _tell(address, network, count)
            return _watch(scheduler, workers)
        except KeyboardInterrupt:
            return 0
        finally:
            # Whoever is impatient must not leave half a cluster behind.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            # Workers first, so that they do not miss their scheduler.
            workers.stop()
            scheduler.stop()


@contextmanager
def _signals() -> Iterator[None]:
    """Let all do what Ctrl-C does, but for those that are ignored on purpose (nohup)."""

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, interrupted)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start_scheduler(scheduler: Processes, network: Network, meeting_point: Path) -> str:
    """Its address, which it writes for others to find it by."""
    arguments = [*network.scheduler(), "--scheduler-file", str(meeting_point)]
    scheduler.start_dask("the scheduler", arguments, network.environment("scheduler"))
    check = _patience(scheduler.ended, SECONDS_TO_START)
    while True:
        try:
            return str(json.loads(meeting_point.read_text())["address"])
        except (FileNotFoundError, json.JSONDecodeError):
            check()
            time.sleep(0.1)


def _patience(ended: Callable[[], list[str]], seconds: float) -> Callable[[], None]:
    """To be called while waiting: gives up when something ended, or after a while."""
    began = time.monotonic()

    def check() -> None:
        for sentence in ended():
            raise SystemExit(f"the cluster did not start: {sentence}.")
        if time.monotonic() - began > seconds:
            raise SystemExit(f"the cluster did not start within {seconds:g} seconds.")

    return check


def _wait_for_workers(
    address: str, network: Network, count: int, check: Callable[[], None]
) -> None:
    from distributed import Client

    security: Any = None if network.certificates is None else network.certificates.security()
    with Client(address, timeout=SECONDS_TO_START, security=security) as client:
        while len(client.scheduler_info(n_workers=-1)["workers"]) < count:
            check()
            time.sleep(0.1)


def _tell(address: str, network: Network, count: int) -> None:
    """The address on standard output, for programs; the rest is for people."""
    tls = "" if network.certificates is None else f" --tls {network.certificates.path}"
    ready = "1 worker is ready" if count == 1 else f"{count} workers are ready"
    print(address, flush=True)
    print(
        f"{ready}: slrt-dask fit … --scheduler {address}{tls}\nStop with Ctrl-C.",
        file=sys.stderr,
        flush=True,
    )


def _watch(scheduler: Processes, workers: Workers) -> int:
    """A fit goes on without some of its workers, so some may be lost; not all of them."""
    told: set[str] = set()
    while scheduler.running() and workers.running():
        for sentence in set(workers.ended()) - told:
            print(f"{sentence}; the others go on.", file=sys.stderr, flush=True)
            told.add(sentence)
        time.sleep(0.2)
    ended = "; ".join(scheduler.ended() + workers.ended())
    print(f"{ended}; the cluster ends.", file=sys.stderr)
    return 1
