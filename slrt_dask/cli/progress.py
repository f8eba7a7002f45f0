"""Telling how far a command is: on a terminal a line that is rewritten, elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class StageLine:
    """Shows the stage of an ingest and how much of it is done."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = False

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if not self._stream.isatty():
            return
        amount = f"{done:,}" if total is None else f"{100 * done / max(1, total):3.0f} %"
        self._stream.write(f"\r\x1b[2K{stage} {amount}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()


@contextmanager
def stage_line() -> Iterator[StageLine]:
    line = StageLine()
    try:
        yield line
    finally:
        line.clear()


@contextmanager
def task_bar(quiet: bool) -> Iterator[None]:
    """A bar over the dask tasks run meanwhile in this process."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from dask.diagnostics import ProgressBar

    with ProgressBar(out=sys.stderr):
        yield
