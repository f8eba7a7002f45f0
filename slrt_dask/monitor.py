"""Who listens to a fit: log lines, a JSON-lines file, and a line of progress on a terminal.

Observers are told of every iteration with a frozen record; none of them changes the fit.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from dataclasses import asdict
from typing import TextIO

from slrt_dask.optim.method import MethodState
from slrt_dask.optim.records import IterationRecord
from slrt_dask.tuning.search import Tried

logger = logging.getLogger("slrt_dask")


Ranks = tuple[int, ...]


def describe(record: IterationRecord, known: Ranks | None = None) -> str:
    """One line about an iteration: cost, gradient norm, gap, error on held-out data, time.

    known : the ranks that were last told of; others are told
    """
    gap = "" if record.relative_gap is None else f"  gap {100 * record.relative_gap:7.3f} %"
    error = "" if record.validation_rmse is None else f"  rmse {record.validation_rmse:.5g}"
    ranks = "" if known in (None, record.ranks) else f"  ranks {record.ranks}"
    capped = "" if record.inner_converged else "  (an inner solve hit its limit)"
    return (
        f"iteration {record.iteration:4d}  cost {record.cost:.6e}  gradient "
        f"{record.gradient_norm:.2e}{gap}{error}{ranks}  {record.seconds:.1f} s{capped}"
    )


def describe_trial(tried: Tried) -> str:
    """One line about settings that were tried: which trial, what it subtracted, how it did."""
    number = f"trial {tried.number:2d}  " if tried.number else ""
    centring = f", {tried.centring}" if tried.centring else ""
    strengths = ", ".join(f"{strength:.4g}" for strength in tried.candidate.strengths)
    return (
        f"{number}ranks {tried.candidate.ranks}  C·λ ({strengths})  rmse {tried.error:.5g} ± "
        f"{tried.standard_error:.2g}  "
        f"{tried.sweeps} sweeps  {tried.seconds:.1f} s{centring}"
    )


class LogObserver:
    """Writes a line per iteration to the logger `slrt_dask`."""

    def __init__(self) -> None:
        self._ranks: Ranks | None = None

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        logger.info("%s", describe(record, self._ranks))
        self._ranks = record.ranks


class JsonLinesObserver:
    """Appends a record per iteration to a file, one JSON object a line."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


class ProgressObserver:
    """A line that is rewritten on a terminal; elsewhere a plain line whenever a gap is known."""

    def __init__(self, max_iterations: int | None, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._max_iterations = max_iterations
        self._measured = ""
        self._first: Ranks | None = None
        self._told: Ranks | None = None
        self._open = False

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        if self._first is None or record.iteration == 0:
            self._first = self._told = record.ranks
        if not self._stream.isatty():
            if record.relative_gap is not None:
                self._stream.write(describe(record, self._told) + "\n")
                self._stream.flush()
                self._told = record.ranks
            return
        # A line longer than the terminal wraps, and then cannot be rewritten.
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[2K" + self._line(record)[:width])
        self._stream.flush()
        self._open = True

    def on_trial(self, tried: Tried) -> None:
        """Called with every setting that a search has tried."""
        line = describe_trial(tried)
        if self._stream.isatty():
            line = "\r\x1b[2K" + line[: shutil.get_terminal_size().columns - 1]
            self._open = True
        self._stream.write(line if self._open else line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """End the line, so that what follows starts on a new one."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False

    def _line(self, record: IterationRecord) -> str:
        """The last gap and held-out error known stay on the line until there are newer ones.

        Ranks are on it once they have grown.
        """
        if record.relative_gap is not None:
            rmse = record.validation_rmse
            error = "" if rmse is None else f"  rmse {rmse:.4g}"
            self._measured = f"  gap {100 * record.relative_gap:.3g} %{error}"
        most = "" if self._max_iterations is None else f"/{self._max_iterations}"
        ranks = "" if record.ranks == self._first else f"  ranks {record.ranks}"
        return (
            f"{record.iteration}{most}  {record.seconds:.0f} s  "
            f"cost {record.cost:.4e}  gradient {record.gradient_norm:.1e}{self._measured}{ranks}"
        )
