"""Where a store lives: a local path or an fsspec URL, and the few questions asked of either.

zarr opens both; what it does not offer is claiming a new place exclusively, removing what was
half written, and naming a sibling. This changes when another kind of address is supported.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from slrt_dask.errors import MissingDependency, StoreExists

StorePath = str | os.PathLike[str]


def normal_path(path: StorePath) -> str:
    """The one spelling of an address used everywhere: absolute local paths, URLs as given."""
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return text.rstrip("/") if is_url(text) else str(Path(text).expanduser().absolute())


def is_url(path: str) -> bool:
    return "://" in path


def exists(path: str) -> bool:
    if not is_url(path):
        return os.path.lexists(path)
    filesystem, inner = _filesystem(path)
    return bool(filesystem.exists(inner))


def claim(path: str) -> None:
    """Make sure that the path is new; a local one is created, so that only one caller can win."""
    if is_url(path):
        refuse_existing(path)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(path)
    except FileExistsError:
        refuse_existing(path)
        raise


def refuse_existing(path: str) -> None:
    if exists(path):
        raise StoreExists(
            f"{path} already exists; choose a new path, or remove it first if it is not needed."
        )


def remove(path: str) -> None:
    """Remove a store this process made; something already gone is fine."""
    if not is_url(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    filesystem, inner = _filesystem(path)
    if filesystem.exists(inner):
        filesystem.rm(inner, recursive=True)


def scratch_parent(path: str) -> str | None:
    """An existing local directory near the target, or None for the system's own choice.

    Scratch beside the target is on a disk that must have room for the data anyway; the system's
    temporary directory is often small, or memory.
    """
    if is_url(path):
        return None
    parent = Path(path).parent
    while not parent.is_dir():
        parent = parent.parent
    return str(parent)


def _filesystem(path: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependency(
            f"{path} is a URL, which needs fsspec; install slrt-dask[remote]."
        ) from error
    filesystem, inner = url_to_fs(path)
    return filesystem, inner
