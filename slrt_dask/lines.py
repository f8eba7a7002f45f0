"""How far work is, as text: on a terminal a line that is rewritten, elsewhere one now and then.

Everything that takes long tells of itself in one way, `progress(stage, done, total)`; this is
where that becomes text. It changes when that is to look different. Nothing heavy is imported here.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

SECONDS_BETWEEN = 0.1
"""Between two versions of the line on a terminal."""
SECONDS_UNTOLD = 10.0
"""Before the first line, and between two, where there is no terminal."""
SECONDS_TO_JUDGE = 3.0
"""Of a stage, before it is said how long the rest will take."""


class StageLine:
    """Shows the stage that work is in and how much of it is done."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._told = clock()
        self._stage, self._began = "", self._told
        self._shown = False

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = self._clock()
        is_new = stage != self._stage or done == 0
        if is_new:
            self._stage, self._began = stage, now
        on_terminal = self._stream.isatty()
        wait = SECONDS_BETWEEN if on_terminal else SECONDS_UNTOLD
        is_news = on_terminal and (is_new or done == total)
        if now - self._told < wait and not is_news:
            return
        self._told = now
        line = f"{stage} {self._amount(done, total)}{self._left(done, total, now)}"
        if on_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[2K{line[:width]}")
            self._shown = True
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def _amount(self, done: int, total: int | None) -> str:
        return f"{done:,}" if total is None else f"{100 * done / max(1, total):3.0f} %"

    def _left(self, done: int, total: int | None, now: float) -> str:
        passed = now - self._began
        if total is None or not 0 < done < total or passed < SECONDS_TO_JUDGE:
            return ""
        return f", about {readable_time(passed * (total - done) / done)} left"


def readable_time(seconds: float) -> str:
    """A duration as people say it: 40 s, 3 min, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
