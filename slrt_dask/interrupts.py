"""Ctrl-C while a fit runs: the first ends it with what it has reached, the second ends it at once.

A KeyboardInterrupt in the middle of a round would leave kernels half compiled and vectors half
changed. So while the loop of a fit runs, the first Ctrl-C only sets a flag, and `check` raises
where nothing is half done: between iterations, between rounds, and while waiting for workers.
Everywhere else Ctrl-C is an ordinary KeyboardInterrupt.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger("slrt_dask")
REQUESTED = threading.Event()
"""Set when Ctrl-C has asked for an end that no `check` has seen yet."""


def check() -> None:
    """Raise KeyboardInterrupt, once, if Ctrl-C has asked for an end."""
    if REQUESTED.is_set():
        REQUESTED.clear()
        raise KeyboardInterrupt


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Have the first Ctrl-C set the flag; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        REQUESTED.set()
        logger.warning("interrupted: ending the fit with what it has reached (again: at once)")

    previous = signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        REQUESTED.clear()
        signal.signal(signal.SIGINT, previous)
