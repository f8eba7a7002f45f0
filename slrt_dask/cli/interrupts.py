"""Ctrl-C during a fit: said at once, and not lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slrt_dask.optim.method import MethodState
    from slrt_dask.optim.records import IterationRecord


class LostInterrupt:
    """Interrupts a fit whose interrupt got lost: one that lands in a destructor is discarded."""

    def __init__(self) -> None:
        self.pending = False

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt


@contextmanager
def search_can_go_on(run: str) -> Iterator[None]:
    """Say how to go on when Ctrl-C ends a search for settings, which has no result to show."""
    try:
        yield
    except KeyboardInterrupt:
        from slrt_dask.searching import open_search

        if open_search(run) is not None:
            sys.stderr.write(
                f"the settings tried so far are kept: slrt-dask resume {run} goes on\n"
            )
        raise


@contextmanager
def interrupt_explained() -> Iterator[LostInterrupt]:
    """Say on Ctrl-C that what was reached will be kept; the fit itself ends the loop."""
    second_chance = LostInterrupt()
    if threading.current_thread() is not threading.main_thread():
        yield second_chance
        return

    def explain(number: int, frame: FrameType | None) -> None:
        sys.stderr.write("\ninterrupted: ending the fit; what was reached so far is kept\n")
        second_chance.pending = True
        signal.default_int_handler(number, frame)

    previous = signal.signal(signal.SIGINT, explain)
    try:
        yield second_chance
    finally:
        signal.signal(signal.SIGINT, previous)
