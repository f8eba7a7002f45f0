"""States of a run on disk: atomic, versioned, bound to the observations and the settings.

    <run>/checkpoints/000012/state.bin, dual/p00000.bin …, state.json

A checkpoint is written under another name and renamed when it is whole; `state.json`, written last,
holds a checksum of everything else, so a torn one is known and the one before it is taken. The
newest two are kept. The dual entries are written, and read again, where they are held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import shutil
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dask.utils import parse_timedelta

from slrt_dask.errors import CheckpointMismatch, InvalidInput
from slrt_dask.optim.line_search import DescentState
from slrt_dask.optim.methods import TrustRegionState
from slrt_dask.optim.records import IterationRecord, MethodState

FORMAT_VERSION = 3
KEPT = 2
PROGRESS, ROWS = "progress.", "rows"
"""Names of arrays that are not a mode's matrix: of the problem, and multipliers of rows."""
STATES: dict[str, type[MethodState]] = {
    kind.__name__: kind for kind in (DescentState, TrustRegionState)
}
# As two kinds of descent were called in earlier checkpoints.
STATES |= dict.fromkeys(("ConjugateGradientState", "LimitedMemoryState"), DescentState)
logger = logging.getLogger("slrt_dask")
WriteDual = Callable[[str, MethodState], dict[int, int]]


@dataclass(frozen=True)
class Checkpoint:
    """A state that was read: everything but the dual entries, which are in `dual`."""

    path: Path
    kind: type[MethodState]
    arrays: dict[str, Any]
    scalars: dict[str, Any]
    dual_checksums: dict[int, int]
    progress: dict[str, Any]

    @property
    def dual(self) -> Path:
        return self.path / "dual"

    @property
    def rows(self) -> Any | None:
        """The multipliers of a linear constraint's rows, if there are any."""
        return self.arrays.get(ROWS)

    @property
    def iteration(self) -> int:
        return int(self.scalars["iteration"])

    def matrices(self, name: str) -> tuple[Any, ...]:
        """K matrices, one per mode."""
        found = [key for key in self.arrays if key.rsplit("_", 1)[0] == name]
        return tuple(self.arrays[f"{name}_{mode}"] for mode in range(len(found)))

    def state(self, evaluation: Any) -> MethodState:
        """The method's state, given its evaluation made again."""
        values: dict[str, Any] = {"evaluation": evaluation}
        for field in dataclasses.fields(self.kind):
            if field.name in self.scalars:
                values[field.name] = self.scalars[field.name]
            elif field.name != "evaluation":
                values[field.name] = self.matrices(field.name)
        return self.kind(**values)


@dataclass(frozen=True)
class Cadence:
    """How far apart checkpoints are: so many iterations, or so many seconds."""

    iterations: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, every: int | str) -> Cadence:
        """From a number of iterations, or a time with its unit such as "30s" or "5m"."""
        found = cls()
        if isinstance(every, str) and not every.strip().isdigit():
            with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
                found = cls(seconds=float(parse_timedelta(every, default=False)))
        elif isinstance(every, int | str) and not isinstance(every, bool):
            found = cls(iterations=int(every))
        if not 0 < (found.iterations or found.seconds or 0) < math.inf:
            raise InvalidInput(
                f"checkpoint_every is {every!r}; give a whole number of iterations, at least 1, or "
                f"a time such as '30s'"
            )
        return found


class CheckpointObserver:
    """Writes a checkpoint after accepted iterations, as far apart as the cadence says.

    write_dual : writes the dual entries of a state into a directory; checksums by partition
    newest : the iteration of the checkpoint from which the run goes on, if there is one
    progress : tells numbers, and arrays of them, of the problem that belong to the state
    """

    def __init__(
        self,
        directory: Path,
        binding: dict[str, Any],
        write_dual: WriteDual,
        cadence: Cadence,
        newest: int = -1,
        clock: Callable[[], float] = time.monotonic,
        progress: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._directory = directory
        self._binding = binding
        self._write_dual = write_dual
        self._cadence = cadence
        self._newest = newest
        self._clock = clock
        self._progress = progress
        self._last_time = clock()

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        if self._is_due(state.iteration):
            self.save(state)

    def save(self, state: MethodState) -> None:
        """Make sure that there is a checkpoint of this state."""
        if self._newest != state.iteration:
            write_checkpoint(
                self._directory, state, self._binding, self._write_dual, self._progress()
            )
            self._newest, self._last_time = state.iteration, self._clock()

    def _is_due(self, iteration: int) -> bool:
        if self._cadence.iterations is not None:
            return iteration % self._cadence.iterations == 0
        assert self._cadence.seconds is not None
        return self._clock() - self._last_time >= self._cadence.seconds


def write_checkpoint(
    directory: Path,
    state: MethodState,
    binding: dict[str, Any],
    write_dual: WriteDual,
    progress: dict[str, Any] | None = None,
) -> Path:
    """Write a state as the newest checkpoint; returns its directory.

    progress : numbers, and arrays of them, of the problem that belong to the state
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{state.iteration:06d}"
    unfinished, target = directory / f"{name}.part", directory / name
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _write_whole(unfinished, state, binding, write_dual, progress or {})
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(target, ignore_errors=True)
    os.replace(unfinished, target)
    for older in _numbered(directory)[:-KEPT]:
        shutil.rmtree(directory / older, ignore_errors=True)
    return target


def _write_whole(
    directory: Path,
    state: MethodState,
    binding: dict[str, Any],
    write_dual: WriteDual,
    progress: dict[str, Any],
) -> None:
    """Write all of a checkpoint into a new directory."""
    (directory / "dual").mkdir(parents=True)
    arrays, scalars = _taken_apart(state)
    numbers = {}
    for key, value in progress.items():
        if isinstance(value, np.ndarray):
            arrays[PROGRESS + key] = value
        else:
            numbers[key] = value
    with open(directory / "state.bin", "wb") as file:
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, dtype="<f8").tobytes())
        _to_disk(file)
    content = {
        "format_version": FORMAT_VERSION,
        "kind": type(state).__name__,
        "state": scalars,
        "progress": numbers,
        "binding": binding,
        "arrays": {name: array.shape for name, array in arrays.items()},
        "arrays_checksum": zlib.crc32((directory / "state.bin").read_bytes()),
        "dual_checksums": write_dual(str(directory / "dual"), state),
    }
    with open(directory / "state.json", "w", encoding="utf-8") as file:
        json.dump({**content, "checksum": _checksum(content)}, file)
        _to_disk(file)


def read_checkpoint(directory: Path, binding: dict[str, Any]) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none.

    One that belongs to other observations or settings is an error: it must not be skipped.
    """
    for name in reversed(_numbered(directory)):
        checkpoint = _read_one(directory / name, binding)
        if checkpoint is not None:
            return checkpoint
        logger.warning("the checkpoint %s is torn, and left out", directory / name)
    return None


def newest_iteration(directory: Path) -> int:
    """The iteration of the newest checkpoint, torn or not; -1 if there is none."""
    return max((int(name) for name in _numbered(directory)), default=-1)


def drop_checkpoint(checkpoint: Checkpoint) -> None:
    """Remove a checkpoint whose dual entries turned out to be torn."""
    shutil.rmtree(checkpoint.path, ignore_errors=True)


def _read_one(path: Path, binding: dict[str, Any]) -> Checkpoint | None:
    try:
        content = json.loads((path / "state.json").read_text(encoding="utf-8"))
        raw = (path / "state.bin").read_bytes()
        version = content["format_version"]
        if version == FORMAT_VERSION and content.pop("checksum") != _checksum(content):
            return None
        if zlib.crc32(raw) != content["arrays_checksum"]:
            return None
        arrays = _read_arrays(raw, content["arrays"])
        checksums = {int(number): sum_ for number, sum_ in content["dual_checksums"].items()}
        kind, scalars, bound = STATES[content["kind"]], content["state"], content["binding"]
        progress = content.get("progress", {})
        for name in [name for name in arrays if name.startswith(PROGRESS)]:
            progress[name.removeprefix(PROGRESS)] = arrays.pop(name)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if version != FORMAT_VERSION:
        raise CheckpointMismatch(
            f"{path} has format version {version}; this release reads {FORMAT_VERSION}"
        )
    if bound != binding:
        raise CheckpointMismatch(
            f"{path} belongs to other observations or settings than its run; start a new run"
        )
    return Checkpoint(path, kind, arrays, scalars, checksums, progress)


def _checksum(content: dict[str, Any]) -> int:
    """Of what a checkpoint says, whether it was just made or has been read."""
    read = json.loads(json.dumps(content))
    return zlib.crc32(json.dumps(read, sort_keys=True).encode())


def _taken_apart(state: MethodState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays by name, and everything else as plain values."""
    arrays: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if field.name == "evaluation":
            scalars["cost"] = value.cost
            scalars["inner"] = dataclasses.asdict(value.inner)
            _add_matrices(arrays, "point", value.point)
            if getattr(value, "rows", None) is not None:
                arrays[ROWS] = value.rows
        elif isinstance(value, tuple):
            _add_matrices(arrays, field.name, value)
        else:
            scalars[field.name] = value
    return arrays, scalars


def _read_arrays(raw: bytes, shapes: dict[str, list[int]]) -> dict[str, Any]:
    """The matrices that were written one after another."""
    numbers, arrays = np.frombuffer(raw, dtype="<f8"), {}
    for name, shape in shapes.items():
        count = math.prod(shape)
        arrays[name] = numbers[:count].reshape(shape).astype(np.float64)
        numbers = numbers[count:]
    return arrays


def _add_matrices(arrays: dict[str, Any], name: str, matrices: tuple[Any, ...]) -> None:
    for mode, matrix in enumerate(matrices):
        arrays[f"{name}_{mode}"] = matrix


def _numbered(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    names = (entry.name for entry in directory.iterdir() if entry.name.isdigit())
    return sorted(names, key=int)


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
