"""States of a run on disk: atomic, versioned, bound to the observations and the settings.

    <run>/checkpoints/000012/state.npz, state.json      one directory per checkpoint
    <run>/checkpoints/latest                            the name of the newest, replaced atomically

A checkpoint is written under another name and renamed when it is whole, so a directory with a
proper name is complete. The newest two are kept.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from slrt_dask.optim.method import MethodState
from slrt_dask.optim.records import IterationRecord

FORMAT_VERSION = 1
KEPT = 2


class CheckpointObserver:
    """Writes a checkpoint after every accepted iteration.

    binding : what the state belongs to, written with it (store digest, settings)
    """

    def __init__(self, run_directory: str | os.PathLike[str], binding: dict[str, Any]) -> None:
        self._directory = Path(run_directory) / "checkpoints"
        self._binding = binding

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        write_checkpoint(self._directory, state, self._binding)


def write_checkpoint(directory: Path, state: MethodState, binding: dict[str, Any]) -> Path:
    """Write a state as the newest checkpoint; returns its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{state.iteration:06d}"
    unfinished, target = directory / f"{name}.part", directory / name
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    arrays, scalars = _taken_apart(state)
    with open(unfinished / "state.npz", "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        _to_disk(file)
    with open(unfinished / "state.json", "w", encoding="utf-8") as file:
        json.dump({"format_version": FORMAT_VERSION, "state": scalars, "binding": binding}, file)
        _to_disk(file)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(unfinished, target)
    _point_to(directory, name)
    for older in sorted(_complete(directory))[:-KEPT]:
        shutil.rmtree(directory / older, ignore_errors=True)
    return target


def _taken_apart(state: MethodState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays by name, and everything else as plain values."""
    arrays: dict[str, Any] = {}
    scalars: dict[str, Any] = {"method": type(state).__name__}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if field.name == "evaluation":
            scalars["cost"] = value.cost
            scalars["inner_residual"] = value.inner.residual
            _add_matrices(arrays, "point", value.point)
        elif isinstance(value, tuple):
            _add_matrices(arrays, field.name, value)
        else:
            scalars[field.name] = value
    return arrays, scalars


def _add_matrices(arrays: dict[str, Any], name: str, matrices: tuple[Any, ...]) -> None:
    for mode, matrix in enumerate(matrices):
        arrays[f"{name}_{mode}"] = matrix


def _complete(directory: Path) -> list[str]:
    return [entry.name for entry in directory.iterdir() if entry.name.isdigit()]


def _point_to(directory: Path, name: str) -> None:
    pointer = directory / "latest.part"
    pointer.write_text(name + "\n", encoding="utf-8")
    os.replace(pointer, directory / "latest")


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
