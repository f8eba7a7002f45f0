"""Start a dask scheduler here, and workers as SLURM jobs, by dask-jobqueue.

    python cluster/slurm.py --jobs 4 --cores 8 --memory 32GB --walltime 02:00:00 --tls certs

Prints the scheduler's address when the jobs run, however long they have to wait for that; their
script is shown by --print. Ctrl-C, or a TERM signal, cancels them. What is not given here is taken
from the section slurm of dask-jobqueue's own configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from launching import Workers, run
from network import (
    SECONDS_WITHOUT_SCHEDULER,
    WITHOUT_DASHBOARD,
    Network,
    add_network_options,
    network_of,
)
from remote import listening_address


class Jobs(Workers):
    """Jobs of dask-jobqueue, each with one worker or several."""

    patience = math.inf
    """Jobs wait for their turn."""

    def __init__(self, options: argparse.Namespace, network: Network) -> None:
        self.options, self.network = options, network
        self._submitted: list[Any] = []

    def start(self, address: str, directory: Path) -> int:
        for number in range(self.options.jobs):
            job = _job(address, f"slrt-{number}", self.options, self.network)
            self._submitted.append(job)
            try:
                asyncio.run(job.start())
            except (RuntimeError, ValueError) as error:
                raise SystemExit(f"SLURM did not take a job. {error}") from None
        print(f"jobs submitted: {self.options.jobs}", file=sys.stderr, flush=True)
        return int(self.options.jobs * self.options.workers_per_job)

    def ended(self) -> list[str]:
        """SLURM knows, and is not asked: whether workers come back is not for this to decide."""
        return []

    def running(self) -> bool:
        return True

    def stop(self) -> None:
        for job in self._submitted:
            asyncio.run(job.close())


def main() -> int:
    options, network = _options()
    if options.print:
        address = f"{network.protocol}://{network.host}:{network.port or 'PORT'}"
        print(_job(address, "NAME", options, network).job_script(), end="")
        return 0
    return run(network, Jobs(options, network))


def _job(address: str, name: str, options: argparse.Namespace, network: Network) -> Any:
    from dask_jobqueue.slurm import SLURMJob

    return SLURMJob(address, name=name, **job_settings(options, network))


def job_settings(options: argparse.Namespace, network: Network) -> dict[str, Any]:
    """What dask-jobqueue is told of a job, in its own words."""
    import dask

    prepare, arguments = listening_address(network, options.python)
    # jobqueue gives workers their interface itself.
    listening = [] if network.interface else [arguments]
    exports = [
        f"export {name}={shlex.quote(value)}" for name, value in network.settings("worker").items()
    ]
    site = dask.config.get("jobqueue.slurm")
    return {
        "cores": options.cores,
        "memory": options.memory,
        "processes": options.workers_per_job,
        "queue": options.queue,
        "account": options.account,
        "walltime": options.walltime,
        "log_directory": options.log_directory,
        "local_directory": options.local_directory,
        "job_extra_directives": [*site["job-extra-directives"], *options.directive],
        "job_script_prologue": [
            *site["job-script-prologue"], *options.prologue, *exports, prepare,
        ],
        "worker_extra_args": [*site["worker-extra-args"], *WITHOUT_DASHBOARD, *listening],
        "python": options.python,
        "death_timeout": SECONDS_WITHOUT_SCHEDULER,
        # None would mean that of jobqueue's configuration.
        "interface": network.interface or "",
        "protocol": f"{network.protocol}://",
        "security": None if network.certificates is None else network.certificates.security(),
    }  # fmt: skip


def _options() -> tuple[argparse.Namespace, Network]:
    parser = argparse.ArgumentParser(description="Start a dask cluster of SLURM jobs.")
    parser.add_argument("--jobs", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--cores", type=int, help="of each job")
    parser.add_argument("--memory", help="of each job, such as 32GB")
    parser.add_argument("--workers-per-job", type=int, default=1, help="that share it (default 1)")
    parser.add_argument("--walltime", help="of each job, such as 02:00:00")
    parser.add_argument("--queue", help="the partition to run in")
    parser.add_argument("--account", help="to charge")
    parser.add_argument("--directive", action="append", default=[], help="a further #SBATCH line")
    parser.add_argument("--prologue", action="append", default=[], help="a line before the worker")
    parser.add_argument("--log-directory", help="for what the jobs print")
    parser.add_argument("--local-directory", help="on the nodes, for workers' files meanwhile")
    parser.add_argument("--python", default=sys.executable, help="on the nodes (default: the same)")
    parser.add_argument("--print", action="store_true", help="show the job script; start nothing")
    add_network_options(parser, None)
    options = parser.parse_args()
    if min(options.jobs, options.workers_per_job) < 1:
        parser.error("--jobs and --workers-per-job must be at least 1.")
    _check_site(parser, options)
    network = network_of(parser, options)
    if network.certificates is not None and any(map(str.isspace, str(network.certificates.path))):
        parser.error("dask-jobqueue's scripts have no room for spaces in the path of --tls.")
    return options, network


def _check_site(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What the machine and jobqueue's configuration say, where the options do not."""
    import dask

    try:
        import dask_jobqueue  # noqa: F401  # reads its configuration
    except ImportError:
        parser.error("this needs dask-jobqueue: pip install 'slrt-dask[slurm]'.")
    for name in ("cores", "memory", "interface"):
        known = dask.config.get(f"jobqueue.slurm.{name}")
        if getattr(options, name) is None and not (name == "interface" and options.host):
            setattr(options, name, known)
    if options.cores is None or options.memory is None:
        parser.error("say what each job gets, with --cores and --memory.")
    for command in () if options.print else ("sbatch", "scancel"):
        if shutil.which(command) is None:
            parser.error(f"there is no {command} here; --print shows what would be submitted.")


if __name__ == "__main__":
    sys.exit(main())
