"""A run on disk: what was asked for, its history, its checkpoints and its result.

<run>/settings.json     the store, its digest, the settings; written first
<run>/records.jsonl     one line per iteration
<run>/checkpoints/      states from which the run can go on
<run>/completion/       the result, once there is one
<run>/start.npz         the factors that it starts from, where these were searched for
<run>/search.json       and what that search tried
<run>/search/           what it has tried so far, as long as it goes on
<run>/rows-…            the rows of its linear constraints, if they were given in memory
<run>/usage.json        seconds by cause and memory, up to some moment; see usage.py
<run>/observations-…    the observations themselves, if they were given as an array
<run>/lock              held by the process that is at work on the run, as long as it lives
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slrt_dask.config import FitSettings
from slrt_dask.data.location import is_url, normal_path
from slrt_dask.data.store import ObservationStore, open_store
from slrt_dask.errors import CheckpointMismatch, InvalidInput, StoreExists, StoreNotFound
from slrt_dask.history import RECORDS, read_history
from slrt_dask.locking import LOCK, is_locked, locked
from slrt_dask.optim.manifold import Point
from slrt_dask.optim.records import IterationRecord
from slrt_dask.temporary import TemporaryPlace

FORMAT_VERSION = 1
SETTINGS, CHECKPOINTS, COMPLETION = "settings.json", "checkpoints", "completion"
ROWS, OBSERVATIONS, STORE = "rows-", "observations-", "store"
START, SEARCH, SEARCHING, USAGE = "start.npz", "search.json", "search", "usage.json"
FIRST_TRIAL = "0000.json"
UNFINISHED = ".part"
logger = logging.getLogger("slrt_dask")


@dataclass(frozen=True)
class Start:
    """Where a fit begins whose settings were searched for.

    point : K factors (n_k, r_k);  chosen : a sentence about them;  tried : a row per setting tried
    held_out : how many observations these were judged on, of which kind, and why
    offsets : whether modes have offsets of their own, and the errors that told
    seconds : that the trials took, those at the same time counted once
    """

    point: Point
    chosen: str
    tried: list[dict[str, Any]]
    held_out: dict[str, Any] | None = None
    offsets: dict[str, Any] | None = None
    seconds: float | None = None

    @property
    def took(self) -> float:
        """Seconds of the search; of an earlier release's, as if its trials were made in turn."""
        if self.seconds is not None:
            return self.seconds
        return sum(float(row["seconds"]) for row in self.tried)

    def write(self, directory: Path) -> None:
        np.savez(directory / START, *self.point)
        self.write_tried(directory / SEARCH)

    def write_tried(self, path: Path) -> None:
        names = ["chosen", "held_out", "tried"]
        names += [name for name in ("offsets", "seconds") if getattr(self, name) is not None]
        content = {name: getattr(self, name) for name in names}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class RunDirectory:
    """A directory that belongs to one fit.

    held : keeps a directory that is to go with its result
    """

    path: Path
    store: str
    observations: str
    validation: str | None
    held_out: str | None
    settings: FitSettings
    held: TemporaryPlace | None = None

    @property
    def records_file(self) -> Path:
        return self.path / RECORDS

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def completion(self) -> Path:
        return self.path / COMPLETION

    @property
    def binding(self) -> dict[str, Any]:
        """What a checkpoint belongs to: it is of no use to another fit."""
        settings = json.loads(json.dumps(self.settings.to_dict()))
        for key in ("chosen", "patience", "huber"):
            if not settings[key]:
                del settings[key]  # which earlier runs do not have
        return {"observations": self.observations, "settings": settings}

    def open_store(self) -> ObservationStore:
        """The observations of the run, if they are still the same."""
        return open_unchanged(self.store, self.observations, self.path)

    def open_validation(self) -> ObservationStore | None:
        """The held-out observations of the run, if it has any and they are still the same."""
        if self.validation is None:
            return None
        return open_unchanged(self.validation, str(self.held_out), self.path)

    def read_start(self) -> Start | None:
        """Where the run starts from, if that was searched for."""
        if not (self.path / START).exists():
            return None
        with np.load(self.path / START, allow_pickle=False) as content:
            point = tuple(content[f"arr_{mode}"] for mode in range(len(content.files)))
        return Start(point, **json.loads((self.path / SEARCH).read_text(encoding="utf-8")))

    def read_records(self) -> tuple[IterationRecord, ...]:
        """The history until now."""
        return read_history(self.path)

    def keep_records(
        self, last_iteration: int
    ) -> tuple[tuple[IterationRecord, ...], tuple[IterationRecord, ...]]:
        """The history up to an iteration, and what came later, which is taken out of the file."""
        records = self.read_records()
        kept = tuple(record for record in records if record.iteration <= last_iteration)
        self.write_records(kept)
        return kept, tuple(record for record in records if record.iteration > last_iteration)

    def write_records(self, records: tuple[IterationRecord, ...]) -> None:
        """Replace the history."""
        text = "".join(json.dumps(asdict(record)) + "\n" for record in records)
        replace_file(self.records_file, text)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from working on the run meanwhile; RunInUse if one does already."""
        with locked(self.path):
            yield

    @property
    def is_in_use(self) -> bool:
        """Whether a process is at work on the run."""
        return is_locked(self.path)

    def prepare_completion(self) -> str:
        """The path for the result; one that an earlier part of the run left is put aside."""
        shutil.rmtree(self.path / "completion.old", ignore_errors=True)
        if self.completion.exists():
            os.replace(self.completion, self.path / "completion.old")
        return str(self.completion)

    def forget_old_completion(self) -> None:
        shutil.rmtree(self.path / "completion.old", ignore_errors=True)


def open_unchanged(path: str, digest: str, run: Path) -> ObservationStore:
    """A store that a run was made for, if it is still the same."""
    store = open_store(path)
    if store.digest != digest:
        raise CheckpointMismatch(
            f"{path} holds other observations (digest {store.digest[:12]}) than the run "
            f"{run} was made for ({digest[:12]}); start a new run"
        )
    return store


def is_begun(path: Path) -> bool:
    """Whether a directory holds a run, or a search that has tried something."""
    return (path / SETTINGS).exists() or (path / SEARCHING / FIRST_TRIAL).exists()


def refuse_used_directory(directory: str | os.PathLike[str], *, after_search: bool = False) -> Path:
    """The path of a directory that is new or empty, but for the search that was just made."""
    if is_url(os.fspath(directory)):
        raise InvalidInput(
            f"the run directory {os.fspath(directory)} is a URL; give a local path, or one on a "
            f"file system that all workers see"
        )
    path = Path(normal_path(directory))
    allowed = (SEARCHING,) if after_search else ()
    if path.exists() and not (path.is_dir() and _holds_nothing(path, allowed)):
        raise StoreExists(
            f"{path} already exists and is not empty; choose a new run directory, or resume the "
            f"run that is there"
        )
    return path


def _holds_nothing(path: Path, allowed: tuple[str, ...] = ()) -> bool:
    """Whether a directory is empty, but for what a process killed while making a run leaves."""
    left = (LOCK, SETTINGS + UNFINISHED, START, SEARCH, *allowed)
    return all(
        entry.name in left or entry.name.startswith((ROWS, OBSERVATIONS))
        for entry in path.iterdir()
    )


@contextlib.contextmanager
def create_run(
    directory: str | os.PathLike[str],
    store: ObservationStore,
    validation: ObservationStore | None,
    settings: FitSettings,
    held: TemporaryPlace | None = None,
    start: Start | None = None,
) -> Iterator[RunDirectory]:
    """Make a directory for a new run, locked as long as the context lasts.

    It is removed again if the run ends with an error before it has any history, or a search.
    """
    path = Path(normal_path(directory))
    refuse_used_directory(path, after_search=start is not None)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path):
        # somebody else may have made a run here in between
        refuse_used_directory(path, after_search=start is not None)
        for left in (START, SEARCH):
            (path / left).unlink(missing_ok=True)  # by a process that was killed just here
        if start is not None:
            start.write(path)
        _write_settings(path, store, validation, settings)
        remove_leftovers(path)
        run = replace(open_run(path), held=held)
        try:
            yield run
        except BaseException:
            if start is None and not run.records_file.exists():
                shutil.rmtree(path, ignore_errors=True)
            raise


def _write_settings(
    path: Path,
    store: ObservationStore,
    validation: ObservationStore | None,
    settings: FitSettings,
) -> None:
    content = {
        "format_version": FORMAT_VERSION,
        "store": store.path,
        "observations": store.digest,
        "validation": None if validation is None else validation.path,
        "held_out": None if validation is None else validation.digest,
        "settings": settings.to_dict(),
    }
    replace_file(path / SETTINGS, json.dumps(content, indent=2) + "\n")


def remove_leftovers(path: Path) -> None:
    """Remove what a run that has settings needs no more, or never did; while it is locked.

    That is its search, and stores of observations and rows that killed processes made.
    """
    shutil.rmtree(path / SEARCHING, ignore_errors=True)
    named = (path / SETTINGS).read_text(encoding="utf-8")
    for entry in [*path.glob(f"{ROWS}*/"), *path.glob(f"{OBSERVATIONS}*/")]:
        inside = [one.name for one in entry.iterdir()]
        is_ours = all(name == STORE or name.startswith(ROWS) for name in inside)
        if is_ours and entry.name not in named:
            shutil.rmtree(entry, ignore_errors=True)


def open_run(directory: str | os.PathLike[str]) -> RunDirectory:
    """The run in a directory."""
    path = Path(normal_path(directory))
    try:
        content = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
        return RunDirectory(
            path,
            content["store"],
            content["observations"],
            content["validation"],
            content["held_out"],
            settings_from(content["settings"]),
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreNotFound(f"{path} holds no run; check the path") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointMismatch(f"{path}/{SETTINGS} cannot be read: {error}") from error


def settings_from(table: dict[str, Any]) -> FitSettings:
    """Settings as JSON has them."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
    }
    return FitSettings(**values)


def replace_file(path: Path, text: str) -> None:
    """Write a text file anew; whoever reads it sees the old one or the new one."""
    unfinished = path.with_name(path.name + UNFINISHED)
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
