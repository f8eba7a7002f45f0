"""Start a dask scheduler and workers, each a process of its own, on this machine.

    python cluster/local.py --workers 4

Prints the scheduler's address when the workers are there, and stops everything when it is itself
stopped: by Ctrl-C, or by a TERM signal.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from launching import WorkerProcesses, run
from network import LOOPBACK, Network, add_network_options, network_of, workers_command


class LocalWorkers(WorkerProcesses):
    def __init__(self, options: argparse.Namespace, network: Network) -> None:
        super().__init__()
        self.options, self.network = options, network

    def start(self, address: str, directory: Path) -> int:
        options, network = self.options, self.network
        command = workers_command(
            address,
            workers=options.workers,
            threads=options.threads,
            memory_limit=options.memory_limit,
            local_directory=options.local_directory or str(directory),
        )
        arguments = [*command, "--host", network.host]
        self.processes.start_dask("the workers", arguments, network.environment("worker"))
        return int(options.workers)


def main() -> int:
    options, network = _options()
    return run(network, LocalWorkers(options, network))


def _options() -> tuple[argparse.Namespace, Network]:
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(description="Start a dask cluster on this machine.")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--threads", type=int, help="threads per worker (default: share the cores)")
    parser.add_argument("--memory-limit", default="auto", help="per worker, such as 4GB")
    parser.add_argument("--local-directory", help="where workers may keep files meanwhile")
    add_network_options(parser, LOOPBACK)
    options = parser.parse_args()
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    options.threads = options.threads or max(1, cores // options.workers)
    return options, network_of(parser, options)


if __name__ == "__main__":
    sys.exit(main())
