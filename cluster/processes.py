"""Processes that belong together: started here, looked after, and ended in time."""

from __future__ import annotations

import subprocess
import sys
import time

SECONDS_TO_STOP = 10


class Processes:
    """Processes by name."""

    def __init__(self) -> None:
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start_dask(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.start(name, [sys.executable, "-m", "dask", *arguments], environment=environment)

    def start(
        self,
        name: str,
        command: list[str],
        *,
        environment: dict[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        # A session of its own: Ctrl-C reaches the launcher only, which stops the others in order.
        self._started[name] = subprocess.Popen(
            command, env=environment, stdin=stdin, start_new_session=True
        )

    def ended(self) -> list[str]:
        """Sentences on the processes that ended by themselves."""
        return [
            f"{name} ended with exit code {process.returncode}"
            for name, process in self._started.items()
            if process.poll() is not None
        ]

    def running(self) -> bool:
        return any(process.poll() is None for process in self._started.values())

    def stop(self) -> None:
        """Ask each to end, by closing its standard input where it was given one to mind."""
        for process in self._started.values():
            if process.stdin is None:
                process.terminate()
            else:
                process.stdin.close()
        deadline = time.monotonic() + SECONDS_TO_STOP
        for process in self._started.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
