"""Progress as it happens: curves that are redrawn in a notebook, a line in a terminal.

One object shows whatever it is given to: the iterations of a fit and the trials of a search, as an
observer, and the stages of an ingest, a split or an export, as a `progress=` callback. It shows
nothing until it is told of something. This changes when what is shown while work goes on does.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from slrt_dask.curves import bar, fit_curves, search_curves
from slrt_dask.data import html
from slrt_dask.data.libraries import load
from slrt_dask.lines import StageLine
from slrt_dask.monitor import ProgressObserver, describe, describe_trial
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.records import IterationRecord, Observer
from slrt_dask.tuning.search import Tried

SECONDS_BETWEEN = 0.5
"""Between two drawings, unless the caller chooses."""
SECONDS_UNTOLD = 3.0
"""Of a fit that nobody asked to hear of, before it is told of all the same."""
logger = logging.getLogger("slrt_dask")


class LiveProgress:
    """Shows how far work is: `complete(…, observers=[LiveProgress()])`.

    every : seconds between two drawings, at least; the last state is always drawn
    after : seconds until anything is shown, so that nothing is of what is done by then

    In a notebook there are curves, below the cell that made the first of them; elsewhere lines on
    the standard error, one that is rewritten if that is a terminal. The same object may be given
    to `progress=` of `from_array`, `split`, `to_zarr` and so on, but to one of them at a time.
    """

    def __init__(
        self,
        *,
        every: float = SECONDS_BETWEEN,
        after: float = 0.0,
        stream: TextIO | None = None,
    ) -> None:
        self._every = every
        self._quiet_until = time.monotonic() + after
        self._is_ended = True
        self._records: list[IterationRecord] = []
        self._trials: list[Tried] = []
        self._stage: tuple[str, int, int | None] | None = None
        self._shown_at = -float("inf")
        self._handle: Any = None
        self._lines = None if _in_notebook() else _Lines(stream or sys.stderr)

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        """Called with every iteration of a fit."""
        if self._records and record.iteration <= self._records[-1].iteration:
            # Another fit, or iterations made again after workers were lost.
            self._records = [row for row in self._records if row.iteration < record.iteration]
        self._records.append(record)
        self._stage = None
        if not self._is_time():
            return
        if self._lines is not None:
            self._lines.rows.on_record(record, state)
        else:
            self._draw(at_once=len(self._records) == 1)

    def on_trial(self, tried: Tried) -> None:
        """Called with every setting that a search has tried."""
        if not self._trials:
            self._records = []  # of the fit before
        self._trials.append(tried)
        if not self._is_time():
            return
        if self._lines is not None:
            self._lines.rows.on_trial(tried)
        else:
            self._draw(at_once=True)

    def on_end(self) -> None:
        """Called when a fit has ended, so that its last iteration is shown."""
        if self._is_ended:  # already, or nothing was shown of it
            return
        if self._lines is not None:
            self._lines.rows.close()
        else:
            self._draw(at_once=True)
        # what comes next has a place of its own
        self._handle, self._trials, self._is_ended = None, [], True

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Called with a stage of other work, how much of it is done, and how much there is."""
        self._stage = (stage, done, total)
        if not self._is_time():
            return
        if self._lines is not None:
            self._lines.stages(stage, done, total)
            if done == total:
                self._lines.stages.clear()
        else:
            self._draw(at_once=done == total)

    def _repr_html_(self) -> str:
        parts: list[str] = []
        if self._stage is not None:
            stage, done, total = self._stage
            parts.append(html.note(_amount(stage, done, total)))
            parts += [bar(done / max(1, total))] if total is not None else []
        if self._trials:
            parts.append(html.note(f"{len(self._trials)} settings tried, the last: "))
            parts.append(html.note(describe_trial(self._trials[-1]), faint=True))
            parts.append(search_curves(self._trials))
        if self._records:
            parts.append(html.note(describe(self._records[-1])))
            parts.append(fit_curves(self._records))
            told = [row for row in self._records if row.event]
            parts += [html.note(f"{row.iteration}: {row.event}", faint=True) for row in told]
        return html.panel("", "", *parts)

    def __repr__(self) -> str:
        if self._records:
            return describe(self._records[-1])
        if self._trials:
            return describe_trial(self._trials[-1])
        return "LiveProgress()" if self._stage is None else _amount(*self._stage)

    def _is_time(self) -> bool:
        """Whether to show what there is now; what is shown has an end."""
        is_time = time.monotonic() >= self._quiet_until
        self._is_ended = self._is_ended and not is_time
        return is_time

    def _draw(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if not at_once and now - self._shown_at < self._every:
            return
        self._shown_at = now
        content = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        if self._handle is None:
            display = load("IPython.display").display
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


class _Lines:
    """What is shown where there is no notebook."""

    def __init__(self, stream: TextIO) -> None:
        self.rows, self.stages = ProgressObserver(None, stream), StageLine(stream)


@contextmanager
def told_where_seen(
    observers: Sequence[Observer[Any]] | None,
) -> Iterator[Sequence[Observer[Any]]]:
    """Observers of a fit: where none were given, one that tells of a long fit to who would see it.

    That is somebody at a terminal or in a notebook to whom no log tells of it already. None is for
    a fit that is to be quiet even there.
    """
    if observers is None or observers or not _is_seen():
        yield observers or ()
        return
    progress = LiveProgress(after=SECONDS_UNTOLD)
    try:
        yield (progress,)
    finally:
        progress.on_end()  # a search that fails does not end what was shown of it


def _is_seen() -> bool:
    is_logged = logger.isEnabledFor(logging.INFO) and logger.hasHandlers()
    return not is_logged and (_in_notebook() or bool(sys.stderr and sys.stderr.isatty()))


def _amount(stage: str, done: int, total: int | None) -> str:
    return f"{stage} {done:,}" if total is None else f"{stage} {100 * done / max(1, total):.0f} %"


def _in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel, which shows HTML; a terminal's IPython does not."""
    loaded = sys.modules.get("IPython")
    shell = None if loaded is None else loaded.get_ipython()
    return getattr(shell, "kernel", None) is not None
