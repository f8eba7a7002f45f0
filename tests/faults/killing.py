"""Kills at random moments: workers of a run that goes on, and processes that write files."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time

import numpy as np

from tests.faults.processes import SECONDS_TO_REACH, start

PHASES = {
    "load": "fitting",
    "solve": "evaluate",
    "line search": "search",
    "certificate": "certify",
    "checkpoint": "write_checkpoint",
    "result": "write_result",
    "export": "write_dense",
    "use": "used_on_workers",
}
"""What this process does, by a function on its stack."""
ATTEMPTS = ("attempt", "write_dense", "used_on_workers")
"""What is begun again when workers were lost, by this project or by dask."""
LONGEST_DELAY = 0.05
"""Seconds; most phases of the small problems take about as long."""


class Killer(threading.Thread):
    """Kills something in each phase in turn, a random time after the thread that made it begins it.

    strike : kills, and starts what takes the place of the killed
    killed : the phases in which it has struck
    """

    def __init__(self, phases, seed, strike):
        super().__init__(daemon=True)
        self.left, self.killed = list(phases), []
        self._random = np.random.default_rng(seed)
        self._strike, self._watched = strike, threading.get_ident()
        self._over = threading.Event()
        self.error = None

    def run(self):
        try:
            while self.left and self._awaited(lambda: self._frame(PHASES[self.left[0]])):
                time.sleep(self._random.uniform(0.0, LONGEST_DELAY))
                attempt = self._frame(*ATTEMPTS)
                self.killed.append(self.left.pop(0))
                self._strike(self._random)
                # Before the loss is noticed, or was missed by nobody, another kill adds nothing.
                self._awaited(lambda attempt=attempt: self._frame(*ATTEMPTS) is not attempt)
        except BaseException as error:
            self.error = error

    def _awaited(self, condition):
        """Wait until something is the case; False if all is over before."""
        while not condition():
            if self._over.wait(0.002):
                return False
        return True

    def _frame(self, *functions):
        """The innermost frame of these functions on the watched thread's stack."""
        frame = sys._current_frames().get(self._watched)
        while frame is not None and frame.f_code.co_name not in functions:
            frame = frame.f_back
        return frame

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self.join(SECONDS_TO_REACH)
        assert self.error is None, self.error
        assert not self.is_alive()


def one_of(cluster):
    """A strike at a random worker, whose successor is of its size and there already."""

    def strike(random):
        address = sorted(cluster.workers)[random.integers(len(cluster.workers))]
        cluster.start_worker(nthreads=cluster.threads[address])
        cluster.kill_worker(address)

    return strike


def die():
    os.kill(os.getpid(), signal.SIGKILL)


CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")


def deaths(seed, directory, action, *arguments, times=3, spared=0):
    """Have action(*arguments) die at drawn moments among its changes below a directory.

    Yields after each; whatever it left is removed before the next. `spared` is how many of the
    last changes are not drawn.
    """
    before = set(os.listdir(directory))
    changes = _changes_until(directory, None, action, *arguments)
    _remove_new(directory, before)
    moments = np.random.default_rng(seed).choice(changes - spared, times, replace=False)
    for moment in moments.tolist():
        # Threads may need a few changes less this time: then it dies at its last ones.
        while _changes_until(directory, moment, action, *arguments) is None:
            _remove_new(directory, before)
            moment -= 1
        yield
        _remove_new(directory, before)


def _changes_until(directory, fatal, action, *arguments):
    """How many changes an action makes in a process of its own, which dies at one of them.

    None if it should have died and came to its end before that.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        marks = f"{elsewhere}/marks"
        process = start(_dying_at_change, str(directory), fatal, marks, action, *arguments)
        process.join()
        assert process.exitcode in ((0,) if fatal is None else (0, -signal.SIGKILL))
        made = os.stat(marks).st_size
        if fatal is None or process.exitcode:
            return made
        assert made <= fatal
        return None


def _dying_at_change(directory, fatal, marks, action, *arguments):
    marks = open(marks, "wb", buffering=0)  # noqa: SIM115 - it ends with the process
    counting = threading.Lock()

    def on_event(event, details):
        is_change = event in CHANGES or (event == "open" and set(str(details[1])) & set("wax+"))
        if is_change and str(details[0]).startswith(directory):
            with counting:
                if marks.tell() == fatal:
                    die()
                marks.write(b".")

    sys.addaudithook(on_event)
    action(*arguments)


def _remove_new(directory, before):
    for name in set(os.listdir(directory)) - before:
        shutil.rmtree(f"{directory}/{name}")
