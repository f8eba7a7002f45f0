"""Ctrl-C during a command: said at once, not lost, and told what is left of the work.

And what ends it from elsewhere, which a batch system or a cluster does before it kills.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slrt_dask.optim.method import MethodState
    from slrt_dask.optim.records import IterationRecord
    from slrt_dask.tuning.search import Tried

NOTHING = "nothing was computed yet, and nothing is kept"


class Interrupts:
    """Interrupts of a command, and how far its fit was.

    count : how many there were
    lost : whether one landed in a destructor, which discards it: the next record raises it again
    told : whether the last one was said to have come
    reached : whether there is a record, from which on an interrupted fit ends with a result
    """

    def __init__(self) -> None:
        self.count = 0
        self.lost = False
        self.told = False
        self.reached = False

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        self.reached = True
        self._raise_lost()

    def on_trial(self, tried: Tried) -> None:
        self._raise_lost()

    def _raise_lost(self) -> None:
        if self.lost:
            self.lost = False
            raise KeyboardInterrupt


Say = Callable[[Interrupts], None] | None
NOTICING: list[tuple[Interrupts, Say]] = []
"""Who is to hear of interrupts now, the innermost last."""


SECONDS_TO_COMPILE = 0.05
"""After which it is looked again whether a kernel is still being compiled."""
postponed = threading.Event()


def _notice(number: int, frame: FrameType | None) -> None:
    if not postponed.is_set():
        told = any(say is not None for _, say in NOTICING)
        for seen, say in reversed(NOTICING):
            seen.count += 1
            seen.told = told
            if say is not None:
                say(seen)
    postponed.clear()
    if _is_compiling():
        # A kernel whose compilation is broken off cannot be compiled again by this process, which
        # has a certificate to make yet.
        postponed.set()
        again = threading.Timer(SECONDS_TO_COMPILE, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    # Not the handler from before: that of a program around this one may end it without a word.
    signal.default_int_handler(number, frame)


def _is_compiling() -> bool:
    """Whether this thread compiles a kernel just now."""
    compiling = sys.modules.get("numba.core.compiler_lock")
    return compiling is not None and bool(compiling.global_compiler_lock.is_locked())


@contextmanager
def interrupts_noticed(say: Say = None) -> Iterator[Interrupts]:
    """Count interrupts, and have what they break off fall apart without a word.

    say : called at every interrupt, before it is raised

    An interrupt may leave objects half made, whose destructors then fail. That is no news.
    """
    seen = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def fall_apart(trouble: sys.UnraisableHookArgs) -> None:
        if issubclass(trouble.exc_type, KeyboardInterrupt):
            seen.lost = True
        elif not seen.count:
            earlier_hook(trouble)

    earlier_hook, earlier_handler = sys.unraisablehook, signal.getsignal(signal.SIGINT)
    sys.unraisablehook = fall_apart
    # A job in the background may ignore interrupts; a fit is ended by one that is sent to it.
    is_heard = callable(earlier_handler) or say is not None
    if is_heard:
        signal.signal(signal.SIGINT, _notice)
    NOTICING.append((seen, say))
    try:
        yield seen
    finally:
        NOTICING.pop()
        sys.unraisablehook = earlier_hook
        if is_heard:
            signal.signal(signal.SIGINT, earlier_handler)


@contextmanager
def termination_heard() -> Iterator[None]:
    """Have SIGTERM end a command as an error would: scratch, locks and workers are let go of."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # who cannot wait may send it again
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupted_fit_explained() -> Iterator[Interrupts]:
    """Say on Ctrl-C what happens next; the fit itself ends the loop."""

    def say(seen: Interrupts) -> None:
        ending = "interrupted"
        if seen.reached:
            ending += ": ending the fit; what was reached so far is kept"
        if seen.count > 1:
            ending = "interrupted again: ending at once"
        sys.stderr.write(f"\n{ending}\n")

    with interrupts_noticed(say) as seen:
        yield seen


@contextmanager
def rest_is_told(run: str | None) -> Iterator[None]:
    """Say what is left, and how to go on, when Ctrl-C ends what has no result to show.

    run : where a fit or a search is kept, if it is
    """
    try:
        yield
    except KeyboardInterrupt:
        if run is not None:
            sys.stderr.write(f"{_rest(run)}\n")
        raise


def _rest(run: str) -> str:
    from slrt_dask.errors import SlrtError
    from slrt_dask.runs import SEARCHING, open_run
    from slrt_dask.tuning.journal import what_goes_on

    resuming = f"slrt-dask resume {shlex.quote(run)}"
    with suppress(SlrtError):
        begun = open_run(run).read_records()
        what = "the run has no result yet, but its checkpoints" if begun else "the run has begun"
        return f"{what}: {resuming} goes on"
    with suppress(SlrtError):
        command = what_goes_on(Path(run, SEARCHING))
        command = resuming if command in resuming else command
        return f"the settings tried so far are kept: {command} goes on"
    return NOTHING
