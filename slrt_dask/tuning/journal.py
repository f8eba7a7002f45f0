"""What a search has tried, kept as it is made: one that is killed repeats no finished trial.

    <search>/asked.json           what is searched for, and with which observations; written first
    <search>/0003.json, 0003.npz  a trial, and the factors that it ended with
    <search>/modes/…              the same of trials with an offset per mode

Every trial depends on nothing but its settings and the factors that it started from, so a search
that reads its trials instead of making them again goes the same way. Factors are kept of the best
trial and of the newest, from which alone others start, and while a batch is tried of those that it
starts from; in memory, too. This changes with what a trial is.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slrt_dask.errors import CheckpointMismatch
from slrt_dask.optim.manifold import Point
from slrt_dask.runs import UNFINISHED, replace_file
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried

FORMAT_VERSION = 1
ASKED = "asked.json"
FIT, ALONE = "fit", "tune"
"""What a search is made for."""
logger = logging.getLogger("slrt_dask")


@dataclass
class Journal:
    """Trials in the order in which they were made; on disk where there is a directory.

    left_out : keys of candidates that there was no room for
    seconds : of wall time that the trials took; at the same time they take it once
    """

    directory: Path | None = None
    tried: list[Tried] = field(default_factory=list)
    left_out: list[Candidate] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def opened(cls, directory: Path, asked: dict[str, Any]) -> Journal:
        """The journal in a directory, new or of the same search; another's is refused.

        asked : what is searched for, as JSON takes it
        """
        asked = {"format_version": FORMAT_VERSION, **json.loads(json.dumps(asked))}
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / ASKED).exists():
            replace_file(directory / ASKED, json.dumps(asked, indent=2))
        elif _untimed(read_asked(directory)) != _untimed(asked):
            raise CheckpointMismatch(
                f"{directory} holds a search with other observations or settings; choose another "
                "directory, or ask for the same again"
            )
        journal = cls(directory)
        journal._read()
        return journal

    def beside(self, name: str) -> Journal:
        """A journal for other trials of the same search, in a directory of this one's."""
        if self.directory is None:
            return Journal()
        return Journal.opened(self.directory / name, read_asked(self.directory))

    def find(self, candidate: Candidate) -> Tried | None:
        return next((one for one in self.tried if one.candidate.key == candidate.key), None)

    def was_left_out(self, candidate: Candidate) -> bool:
        return any(candidate.key == other.key for other in self.left_out)

    def leave_out(self, candidate: Candidate) -> None:
        self.left_out.append(candidate)
        self._write(candidate.to_row(), None)

    def keep(self, tried: Tried, wall: float) -> None:
        """Add a trial; it is on disk when this returns.

        wall : by how many seconds the search is longer for it
        """
        row = tried.to_row() | {"wall": wall}
        self._write(row, tried.point)
        self.tried.append(tried)
        self.seconds += wall

    def settle(self, starts: Iterable[Tried]) -> None:
        """Let go of the factors that no trial will start from, before others are made.

        starts : what those start from; a batch that was half made may have a better one since
        """
        if not self.tried:
            return
        best = min(self.tried, key=lambda tried: tried.error)
        needed = {one.candidate.key for one in (best, self.tried[-1], *starts)}
        self.tried = [
            one if one.candidate.key in needed else replace(one, point=()) for one in self.tried
        ]
        if self.directory is None:
            return
        for file in self.directory.glob("[0-9]*.npz"):
            row = _row(file.with_suffix(".json"))
            if row is not None and Candidate.of_row(row).key not in needed:
                file.unlink(missing_ok=True)

    # ---- on disk -----------------------------------------------------------------------------

    def _write(self, row: dict[str, Any], point: Point | None) -> None:
        if self.directory is None:
            return
        number = len(list(self.directory.glob("[0-9]*.json")))
        if point is not None:
            file = self._factors(number)
            unfinished = file.with_name(file.name + UNFINISHED)
            with open(unfinished, "wb") as written:
                np.savez(written, *point)
                written.flush()
                os.fsync(written.fileno())
            os.replace(unfinished, file)
            row = {**row, "number": number, "checksum": zlib.crc32(file.read_bytes())}
        replace_file(self.directory / f"{number:04d}.json", json.dumps(row))

    def _read(self) -> None:
        """All trials up to the first that is torn, or whose factors are needed and lost."""
        assert self.directory is not None
        rows: list[dict[str, Any]] = []
        while (row := _row(self.directory / f"{len(rows):04d}.json")) is not None:
            rows.append(row)
        found = [(row, self._point(row)) for row in rows]
        while found and not self._suffices(found):
            found.pop()
        for number in range(len(found), len(list(self.directory.glob("[0-9]*.json")))):
            (self.directory / f"{number:04d}.json").unlink(missing_ok=True)
        for row, point in found:
            if "error" in row:
                self.tried.append(_tried(row, point))
                self.seconds += row.get("wall", row["seconds"])
            else:
                self.left_out.append(Candidate.of_row(row))
        if self.tried:
            logger.info("%d settings were tried before and are not tried again", len(self.tried))

    def _suffices(self, found: list[tuple[dict[str, Any], Point]]) -> bool:
        """Whether the factors of the best and of the newest trial are there."""
        trials = [(row, point) for row, point in found if "error" in row]
        if not trials:
            return True
        best = min(trials, key=lambda one: one[0]["error"])
        return bool(best[1]) and bool(trials[-1][1])

    def _point(self, row: dict[str, Any]) -> Point:
        if "number" not in row:
            return ()
        try:
            file = self._factors(row["number"])
            if zlib.crc32(file.read_bytes()) != row["checksum"]:
                return ()
            with np.load(file, allow_pickle=False) as content:
                return tuple(content[f"arr_{mode}"] for mode in range(len(content.files)))
        except (OSError, ValueError, KeyError):
            return ()

    def _factors(self, number: int) -> Path:
        assert self.directory is not None
        return self.directory / f"{number:04d}.npz"


def read_asked(directory: Path) -> dict[str, Any]:
    """What the search in a directory was asked for."""
    try:
        asked: dict[str, Any] = json.loads((directory / ASKED).read_text(encoding="utf-8"))
        version = asked["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatch(f"{directory}/{ASKED} cannot be read: {error}") from error
    if version != FORMAT_VERSION:
        raise CheckpointMismatch(
            f"{directory} has format version {version}; this release reads {FORMAT_VERSION}"
        )
    return asked


def _untimed(asked: dict[str, Any]) -> dict[str, Any]:
    """Without the time that a search may take, which changes nothing of its trials."""
    settings = asked.get("settings", {})
    timeless = {key: value for key, value in settings.items() if key != "max_seconds"}
    return {**asked, "settings": timeless}


def what_goes_on(directory: Path) -> str:
    """The command that goes on with the search in a directory, if it is given the run's path."""
    is_of_a_fit = read_asked(directory).get("purpose") == FIT
    return "slrt-dask resume" if is_of_a_fit else "the same slrt-dask tune"


def _tried(row: dict[str, Any], point: Point) -> Tried:
    names = ("error", "standard_error", "iterations", "sweeps", "seconds")
    return Tried(Candidate.of_row(row), point=point, **{name: row[name] for name in names})


def _row(path: Path) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        Candidate.of_row(row)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return row
