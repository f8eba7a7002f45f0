"""Start a dask scheduler and workers, each a process of its own, on this machine.

    python cluster/local.py --workers 4

Prints the scheduler's address when the workers are there, and stops everything when it is itself
stopped: by Ctrl-C, or by a TERM signal.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# State lives on the workers, so tasks must stay where they were put.
DEFAULTS = {
    "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
    "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "warning",
}
SECONDS_TO_START = 60
SECONDS_TO_STOP = 10


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _interrupted)
    environment = {**DEFAULTS, **os.environ}
    with tempfile.TemporaryDirectory(prefix="slrt-cluster-") as directory:
        meeting_point = Path(directory) / "scheduler.json"
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes.append(_start(_scheduler(options, meeting_point), environment))
            processes.append(_start(_workers(options, meeting_point, directory), environment))
            _tell(_address(meeting_point, processes), options.workers, processes)
            return _watch(processes)
        except KeyboardInterrupt:
            return 0
        finally:
            _stop(processes)


def _options() -> argparse.Namespace:
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(description="Start a dask cluster on this machine.")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--threads", type=int, help="threads per worker (default: share the cores)")
    parser.add_argument("--memory-limit", default="auto", help="per worker, such as 4GB")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--port", type=int, default=0, help="the scheduler's port (default: any)")
    options = parser.parse_args()
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    options.threads = options.threads or max(1, cores // options.workers)
    return options


def _scheduler(options: argparse.Namespace, meeting_point: Path) -> list[str]:
    return [
        "scheduler", "--host", options.host, "--port", str(options.port),
        "--no-dashboard", "--scheduler-file", str(meeting_point),
    ]  # fmt: skip


def _workers(options: argparse.Namespace, meeting_point: Path, directory: str) -> list[str]:
    return [
        "worker", "--scheduler-file", str(meeting_point), "--nworkers", str(options.workers),
        "--nthreads", str(options.threads), "--memory-limit", options.memory_limit,
        "--host", options.host, "--no-dashboard", "--local-directory", directory,
    ]  # fmt: skip


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches this script only, which stops the others in order.
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *command], env=environment, start_new_session=True
    )


def _address(meeting_point: Path, processes: list[subprocess.Popen[bytes]]) -> str:
    """What the scheduler writes for its workers to find it by."""
    began = time.monotonic()
    while time.monotonic() - began < SECONDS_TO_START and not _ended(processes):
        try:
            return str(json.loads(meeting_point.read_text())["address"])
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.1)
    raise SystemExit("the scheduler did not start")


def _tell(address: str, workers: int, processes: list[subprocess.Popen[bytes]]) -> None:
    """Print the address once all workers are connected."""
    from distributed import Client

    with Client(address, timeout=SECONDS_TO_START) as client:
        began = time.monotonic()
        while len(client.scheduler_info(n_workers=-1)["workers"]) < workers:
            if time.monotonic() - began > SECONDS_TO_START or _ended(processes):
                raise SystemExit(f"the {workers} workers did not start")
            time.sleep(0.1)
    print(address, flush=True)
    print(
        f"{workers} workers are ready; use them with: slrt-dask fit … --scheduler {address}\n"
        "Stop them with Ctrl-C.",
        file=sys.stderr,
        flush=True,
    )


def _watch(processes: list[subprocess.Popen[bytes]]) -> int:
    while not _ended(processes):
        time.sleep(0.2)
    print("a process of the cluster ended by itself; stopping the rest", file=sys.stderr)
    return 1


def _ended(processes: list[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is not None for process in processes)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Workers first, so that they do not miss their scheduler."""
    for process in reversed(processes):
        process.terminate()
        try:
            process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
