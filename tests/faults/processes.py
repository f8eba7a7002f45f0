"""Schedulers, workers and drivers as real processes that are quick to start, to be killed.

They are forked from a process that has imported everything and compiled the kernels already, so
that a test can afford to kill many.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

import dask
import distributed

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.faults.warm"])
SECONDS_TO_REACH = 60.0


def wait_until(condition, process=None, seconds=SECONDS_TO_REACH):
    """Until something is the case; a process on which it depends must not end before."""
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.is_alive(), f"ended with {process.exitcode}"
        assert time.monotonic() < end
        time.sleep(0.002)  # between looks; whatever is waited for needs the processor


def start(target, *arguments, **options):
    """A process that calls target(*arguments, **options)."""
    process = FORKED.Process(target=target, args=arguments, kwargs=options, daemon=True)
    process.start()
    return process


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


class Cluster:
    """A scheduler with its workers, each a process of its own; killed at the end of a context.

    config : settings of dask for the scheduler
    """

    def __init__(self, directory: Path, **config) -> None:
        self._directory = directory
        self._config = config
        self._started = 0
        self._port = 0
        self.scheduler = None
        self.address = ""
        self.workers, self.threads = {}, {}
        """Processes by address, and how many threads these were started with."""

    def start_scheduler(self):
        """On the port that it had before, if there was one."""
        options = {"port": self._port, "dashboard_address": ":0"}
        self.scheduler, self.address = self._start("Scheduler", options, self._config)
        self._port = int(self.address.rsplit(":", 1)[1])

    def start_worker(self, config=None, **options):
        """Another worker, registered; its address."""
        options = {"scheduler_ip": self.address, "nthreads": 2, "memory_limit": 0, **options}
        process, address = self._start("Worker", options, config)
        self.workers[address], self.threads[address] = process, options["nthreads"]
        return address

    def kill_worker(self, address):
        kill(self.workers.pop(address))

    def kill_scheduler(self):
        kill(self.scheduler)

    def __enter__(self):
        self.start_scheduler()
        return self

    def __exit__(self, *error):
        for process in (*self.workers.values(), self.scheduler):
            if process is not None:
                process.kill()  # or it has ended by itself, as workers without a scheduler do
                process.join()

    def _start(self, kind, options, config=None):
        self._started += 1
        told = self._directory / f"{kind}-{self._started}"
        common = {"host": "127.0.0.1", "dashboard": False, "local_directory": str(self._directory)}
        if kind == "Scheduler":
            del common["local_directory"]
        process = start(_serve, kind, str(told), {**common, **options}, config or {})
        wait_until(told.exists, process)
        return process, told.read_text()


def _serve(kind, told, options, config):
    """Be a scheduler or a worker until killed; a file says the address when it is ready."""
    logging.disable(logging.CRITICAL)
    dask.config.set(config)

    async def serve():
        async with getattr(distributed, kind)(**options) as server:
            Path(told + ".part").write_text(server.address)
            os.replace(told + ".part", told)
            await server.finished()

    asyncio.run(serve())
