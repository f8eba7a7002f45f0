"""Progress as it happens: bars and lines in a terminal, charts in a notebook, lines in the log."""

from __future__ import annotations

import logging
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from slrt_dask.data.libraries import load
from slrt_dask.optim.records import IterationRecord, MethodState, Observer
from slrt_dask.show.text import describe, describe_trial, remaining

if TYPE_CHECKING:
    from slrt_dask.tuning.search import Tried

SECONDS_QUIET = 3.0
"""Of a fit without observers, before its progress is shown."""
SECONDS_BETWEEN_LINES = 10.0
"""Between two lines about a stage where there is no terminal."""
DRAWING = 0.1
"""The part of the time that drawing charts in a notebook may take, at most."""
LARGE = 9_999
"""Larger amounts are shown in thousands or millions."""
logger = logging.getLogger("slrt_dask")


class LogObserver:
    """Writes a line per iteration to the logger `slrt_dask`."""

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] | None = None

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        logger.info("%s", describe(record, self._ranks))
        self._ranks = record.ranks


class LiveProgress:
    """Shows how far work is: `complete(…, observers=[LiveProgress()])`.

    every : seconds between two drawings, at least; the last state is always drawn
    after : seconds until anything is shown, so that nothing is of what is done by then
    stream : where lines go; the standard error if None

    In a notebook there are charts, below the cell that made the first of them, for which matplotlib
    is needed; elsewhere lines, one that is rewritten if the stream is a terminal. The same object
    may be given to `progress=` of `from_array`, `split`, `to_zarr` and so on, which it shows as
    bars, but to one of them at a time.
    """

    def __init__(
        self, *, every: float = 0.5, after: float = 0.0, stream: TextIO | None = None
    ) -> None:
        self._every = every
        self._begins = time.monotonic() + after
        self._stream = stream or sys.stderr
        self._in_notebook = stream is None and _in_notebook()
        self._records: list[IterationRecord] = []
        self._trials: list[Tried] = []
        self._stage: tuple[str, int | None] | None = None
        self._bar: Any = None
        self._display: Any = None
        self._next = -float("inf")
        self._is_open = False
        self._known_ranks: tuple[int, ...] | None = None

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        """Called with every iteration of a fit."""
        if self._records and record.iteration <= self._records[-1].iteration:
            # Another fit, or iterations made again after workers were lost.
            self._records = [row for row in self._records if row.iteration < record.iteration]
        self._records.append(record)
        self._show(at_once=len(self._records) == 1)

    def on_trial(self, tried: Tried) -> None:
        """Called with every setting that a search has tried."""
        if not self._trials:
            self._records = []  # of the fit before
        self._trials.append(tried)
        self._show(at_once=True)

    def on_end(self) -> None:
        """Called when a fit has ended: its last iteration is shown, and other text can follow."""
        if self._is_open and (self._in_notebook or self._stream.isatty()):
            self._draw()
        self._close_bar()
        # what comes next has a place of its own
        self._display, self._trials, self._is_open = None, [], False

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Called with a stage of other work, how much of it is done, and how much there is."""
        if time.monotonic() < self._begins:
            return
        if self._bar is None or self._stage != (stage, total):
            self._close_bar()
            self._stage, self._bar = (stage, total), self._new_bar(stage, total)
        self._bar.update(done - self._bar.n)
        if done == total:
            self._close_bar()

    def __repr__(self) -> str:
        if self._records:
            return describe(self._records[-1])
        return describe_trial(self._trials[-1]) if self._trials else "LiveProgress()"

    def _repr_html_(self) -> str:
        from slrt_dask.show.html import progress_html

        return progress_html(self._trials, self._records)

    def _show(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if now < self._begins:
            return
        self._is_open = True
        if not self._in_notebook and not self._stream.isatty():
            self._write_line()
        elif at_once or now >= self._next:
            self._draw()
            took = time.monotonic() - now if self._in_notebook else 0.0
            self._next = now + max(self._every, took / DRAWING)

    def _write_line(self) -> None:
        """A line about every trial, and about iterations with a certificate."""
        line = describe_trial(self._trials[-1]) if self._trials else ""
        if self._records:
            record = self._records[-1]
            line = "" if record.relative_gap is None else describe(record, self._known_ranks)
            if line or record.iteration == 0:
                self._known_ranks = record.ranks
        if line:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def _draw(self) -> None:
        """Show the newest state: charts, or the line that is rewritten."""
        if not self._in_notebook:
            if self._bar is None:
                self._bar = _tqdm(file=self._stream, bar_format="{desc}", leave=True)
            # A line longer than the terminal wraps, and then cannot be rewritten.
            width = shutil.get_terminal_size().columns - 1
            self._bar.set_description_str(self._line()[:width])
            return
        content = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        if self._display is None:
            display = load("IPython.display").display
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)

    def _line(self) -> str:
        """The last trial, or iteration with the gap and held-out error that were last measured."""
        if not self._records:
            return describe_trial(self._trials[-1])
        gaps = [row.relative_gap for row in self._records if row.relative_gap is not None]
        errors = [row.validation_rmse for row in self._records if row.validation_rmse is not None]
        newest = replace(
            self._records[-1],
            relative_gap=gaps[-1] if gaps else None,
            validation_rmse=errors[-1] if errors else None,
        )
        return describe(newest, self._records[0].ranks)

    def _new_bar(self, stage: str, total: int | None) -> Any:
        is_large = total is None or total > LARGE
        options = {"desc": stage, "total": total, "unit": "", "unit_scale": is_large, "miniters": 1}
        if self._in_notebook:
            return _tqdm(**options)
        if self._stream.isatty():
            return _tqdm(**options, file=self._stream, leave=False, dynamic_ncols=True)
        between = SECONDS_BETWEEN_LINES
        lines = _Lines(self._stream)
        return _tqdm(**options, file=lines, leave=False, mininterval=between, delay=between)

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = self._stage = None


class _Lines:
    """A stream on which nothing can be rewritten: every version is a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if text := text.strip("\r\n\x1b[A "):
            self._stream.write(f"{text}\n")

    def flush(self) -> None:
        self._stream.flush()


def _tqdm(**options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets has bars of text
        return load("tqdm.auto").tqdm(**options)


def _in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel, which shows HTML; a terminal's IPython does not."""
    loaded = sys.modules.get("IPython")
    shell = None if loaded is None else loaded.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def watched(
    observers: Sequence[Observer[Any]] | None, after: float = SECONDS_QUIET
) -> Iterator[Sequence[Observer[Any]]]:
    """Observers of a fit: where none were given, one that shows a long fit to who would see it.

    That is at a terminal or in a notebook, unless the log is shown there. None is for a fit that is
    to be quiet even there.
    """
    is_logged = logger.isEnabledFor(logging.INFO) and logger.hasHandlers()
    is_seen = _in_notebook() or bool(sys.stderr and sys.stderr.isatty())
    if observers is None or observers or is_logged or not is_seen:
        yield observers or ()
        return
    progress = LiveProgress(after=after)
    try:
        yield (progress,)
    finally:
        progress.on_end()  # a search that fails does not end what was shown of it


@contextmanager
def rest_shown(run: str | None) -> Iterator[None]:
    """Say what is left, and how to go on, when Ctrl-C ends what has no result to show.

    run : where a fit or a search is kept, if it is
    """
    try:
        yield
    except KeyboardInterrupt:
        if run is not None:
            sys.stderr.write(f"{remaining(run)}\n")
        raise
