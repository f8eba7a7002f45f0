"""Where a command computes: in this process, on workers started for it, or on a cluster.

The package never makes a cluster; this is the one place of the command line that does.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from slrt_dask.cli.options import Bytes
from slrt_dask.errors import SlrtError

SECONDS_TO_CONNECT = 5
SECONDS_FOR_WORKERS = 20
WITHOUT_STEALING = {"distributed.scheduler.work-stealing": False}
"""State lives on the workers, so tasks must stay where they were put."""


class ClusterUnavailable(SlrtError, ConnectionError):
    """A scheduler that does not answer, or one without workers."""


@dataclass(frozen=True)
class Computing:
    """What the options say. Neither scheduler nor workers: this process."""

    scheduler: str | None
    workers: int | None
    threads: int | None
    memory_limit: str | None

    def __post_init__(self) -> None:
        if self.scheduler is not None and self.workers is not None:
            raise click.UsageError("give --scheduler or --workers, not both.")
        if self.scheduler is not None and self.threads is not None:
            raise click.UsageError(
                "the workers of a scheduler have their own threads; leave --threads out."
            )

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """A distributed client, or None for this process."""
        if self.scheduler is not None:
            with _existing(self.scheduler) as client:
                yield client
        elif self.workers is not None:
            with _started(self.workers, self.threads, self.memory_limit) as client:
                yield client
        else:
            import dask

            with dask.config.set(scheduler="threads", num_workers=self.threads or _cores()):
                yield None


def computing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives the command an argument `computing`."""

    @click.option("--scheduler", metavar="ADDRESS", help="Use the dask cluster at this address.")
    @click.option(
        "--workers", type=click.IntRange(min=1), help="Start this many worker processes meanwhile."
    )
    @click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Threads of each worker, or of this process; all cores are used if left out.",
    )
    @click.option(
        "--memory-limit",
        type=Bytes(),
        metavar="SIZE",
        help="Memory that each worker, or this process, may use, such as 4GB.",
    )
    @wraps(command)
    def with_computing(
        *,
        scheduler: str | None,
        workers: int | None,
        threads: int | None,
        memory_limit: str | None,
        **others: Any,
    ) -> None:
        command(computing=Computing(scheduler, workers, threads, memory_limit), **others)

    return with_computing


@contextmanager
def _existing(address: str) -> Iterator[Any]:
    from distributed import Client

    try:
        client = Client(address, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise ClusterUnavailable(
            f"no scheduler answers at {address}; check the address, which looks like "
            "tcp://host:8786, and that the cluster is running."
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=SECONDS_FOR_WORKERS)
        except TimeoutError as error:
            raise ClusterUnavailable(
                f"the scheduler at {address} has no workers; start at least one."
            ) from error
        yield client


@contextmanager
def _started(workers: int, threads: int | None, memory_limit: str | None) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    with dask.config.set(WITHOUT_STEALING):
        with _interrupts_ignored():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=threads or max(1, _cores() // workers),
                processes=True,
                memory_limit="auto" if memory_limit is None else memory_limit,
                dashboard_address=":0",
                silence_logs=logging.ERROR,
            )
        with cluster, Client(cluster) as client:
            yield client


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started meanwhile outlive a Ctrl-C, so that a fit can still write its result."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
