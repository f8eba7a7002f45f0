"""Moments to die at: a worker at one of its tasks, and a process at something that it writes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading

import numpy as np
from distributed.diagnostics.plugin import WorkerPlugin

from tests.faults.phases import CHANGES
from tests.faults.processes import start


class DiesAtTask(WorkerPlugin):
    """Kills its worker when that begins or ends the n-th task of some name, counted over all.

    moment : "executing", when the task begins; "memory", when it is done but not yet reported
    marks : a directory that all workers see, in which they count; the first is 0
    """

    def __init__(self, task, number, moment, marks):
        self.task, self.number, self.moment, self.marks = task, number, moment, str(marks)

    def transition(self, key, start, finish, **_):
        if finish == self.moment and self.task in str(key) and self._count() == self.number:
            die()

    def _count(self):
        """How many such moments there were before, on all workers."""
        number = 0
        while True:
            try:
                open(f"{self.marks}/{number}", "x").close()
            except FileExistsError:
                number += 1
            else:
                return number


def die():
    os.kill(os.getpid(), signal.SIGKILL)


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
