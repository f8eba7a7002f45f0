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
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

import click

from slrt_dask.certificates import ROLES, CertificateDirectory
from slrt_dask.cli.connecting import existing_cluster
from slrt_dask.cli.options import BYTES, CERTIFICATES
from slrt_dask.dask_settings import SETTINGS

SECONDS_TO_CONNECT = 5


@dataclass(frozen=True)
class Computing:
    """What the options say. Neither scheduler nor workers: this process."""

    scheduler: str | None
    workers: int | None
    threads: int | None
    memory_limit: str | None
    tls: CertificateDirectory | None = None

    def __post_init__(self) -> None:
        if self.scheduler is not None and self.workers is not None:
            raise click.UsageError("give --scheduler or --workers, not both.")
        if self.scheduler is not None and self.threads is not None:
            raise click.UsageError(
                "the workers of a scheduler have their own threads; leave --threads out."
            )
        if self.tls is not None and self.scheduler is None and self.workers is None:
            raise click.UsageError("--tls goes with --scheduler or --workers.")
        if self.tls is not None and not (self.scheduler or "tls://").startswith("tls://"):
            raise click.UsageError(
                f"with --tls the scheduler's address begins with tls://, unlike {self.scheduler}."
            )

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """A distributed client, or None for this process."""
        if self.scheduler is not None:
            with existing_cluster(self.scheduler, self.tls, SECONDS_TO_CONNECT) as client:
                yield client
        elif self.workers is not None:
            with _started(self.workers, self) as client:
                yield client
        else:
            import dask

            with dask.config.set(scheduler="threads", num_workers=self.threads or _cores()):
                yield None


OPTIONS = (
    click.option("--scheduler", metavar="ADDRESS", help="Use the dask cluster at this address."),
    click.option(
        "--workers", type=click.IntRange(min=1), help="Start this many worker processes meanwhile."
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Threads of each worker, or of this process; all cores are used if left out.",
    ),
    click.option(
        "--memory-limit",
        type=BYTES,
        metavar="SIZE",
        help="Memory that each worker, or this process, may use, such as 4GB.",
    ),
    click.option(
        "--tls",
        type=CERTIFICATES,
        metavar="DIRECTORY",
        help="Certificates of the cluster, from slrt-dask certificates.",
    ),
)


def computing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives the command an argument `computing`."""

    @wraps(command)
    def with_computing(**flags: Any) -> None:
        given = {one.name: flags.pop(one.name) for one in fields(Computing)}
        command(computing=Computing(**given), **flags)

    for option in reversed(OPTIONS):
        with_computing = option(with_computing)
    return with_computing


@contextmanager
def _started(workers: int, computing: Computing) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    security = None
    if computing.tls is not None:
        computing.tls.check(*ROLES)
        security = computing.tls.security()
    with dask.config.set(SETTINGS):
        with _interrupts_ignored():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=computing.threads or max(1, _cores() // workers),
                processes=True,
                memory_limit=computing.memory_limit or "auto",
                # An address without a host would open the dashboard to the whole network.
                dashboard_address="127.0.0.1:0",
                security=security,
                # Errors of tasks are raised here. What else dask calls an error is mostly a
                # connection that closes because the cluster does.
                silence_logs=logging.CRITICAL,
            )
        with cluster, Client(cluster) as client, _limit_suspected(computing.memory_limit):
            yield client


@contextmanager
def _limit_suspected(memory_limit: str | None) -> Iterator[None]:
    """Say that workers which are gone were most likely too large for the limit, if there is one."""
    from slrt_dask.errors import ClusterLost, NoWorkers

    try:
        yield
    except (ClusterLost, NoWorkers) as error:
        if memory_limit is None:
            raise
        from slrt_dask.engine.plan import RUNTIME_BYTES
        from slrt_dask.spending import readable

        what = "no worker is left" if isinstance(error, NoWorkers) else str(error)
        raise type(error)(
            f"{what}; a worker that uses more than --memory-limit {memory_limit} is ended, and "
            f"needs some {readable(RUNTIME_BYTES)} before it holds anything: raise the limit"
        ) from error


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
