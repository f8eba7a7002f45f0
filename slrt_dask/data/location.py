"""Where data lies: a local path or an fsspec URL, and the few questions asked of either.

zarr opens both. What it does not offer is claiming a new place exclusively, removing what was
half written, and an error that says which disk is full.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from slrt_dask.errors import DiskFull, InvalidInput, MissingDependency, StoreExists, StoreNotFound

StorePath = str | os.PathLike[str]
FULL = (errno.ENOSPC, errno.EDQUOT)


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
    try:
        return bool(filesystem.exists(inner))
    except Exception as error:
        # Each kind of file system has errors of its own for this, few of them OSErrors.
        raise StoreNotFound(
            f"{path} cannot be reached ({error}); check the address, the credentials and the "
            "connection."
        ) from error


def claim(path: str) -> None:
    """Make sure that the path is new; a local one is created, so that only one caller can win.

    A URL cannot be claimed like that. Where two write to one, the checksums of whoever finishes
    last do not fit what the other wrote, so that their mixture is refused when it is read.
    """
    if is_url(path):
        refuse_existing(path)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(path)
    except FileExistsError:
        refuse_existing(path)
        raise


def refuse_existing(*paths: str) -> None:
    for path in paths:
        if exists(path):
            raise StoreExists(
                f"{path} already exists; choose a new path, or remove it first if not needed, as "
                "when the process that wrote there was killed."
            )


def remove(path: str) -> None:
    """Remove a store this process made; something already gone is fine."""
    if not is_url(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    filesystem, inner = _filesystem(path)
    if filesystem.exists(inner):
        filesystem.rm(inner, recursive=True)


def open_file(path: str) -> IO[bytes]:
    """A file for reading, wherever it is."""
    if not is_url(path):
        return open(path, "rb")
    filesystem, inner = _filesystem(path)
    return cast("IO[bytes]", filesystem.open(inner, "rb"))


def write_file(path: str, content: bytes) -> None:
    """Write a new file, and the directories that it is in."""
    if is_url(path):
        filesystem, inner = _filesystem(path)
        filesystem.pipe_file(inner, content)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)


def scratch_parent(path: str) -> str | None:
    """An existing local directory near the target, or None for the system's own choice.

    The target's disk must have room for the data anyway; the system's temporary directory is often
    small, or memory.
    """
    if is_url(path):
        return None
    parent = Path(path).parent
    while not parent.is_dir():
        parent = parent.parent
    return str(parent)


@contextmanager
def naming_full_disk(place: str, remedy: str) -> Iterator[None]:
    """Raise DiskFull, with the place that is written to and a remedy, when its disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        left = ""
        if (parent := scratch_parent(place)) is not None:
            left = f" ({shutil.disk_usage(parent).free:,} bytes are left)"
        raise DiskFull(f"the disk of {place} is full{left}; {remedy}") from error


def _filesystem(path: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependency(
            f"{path} is a URL, which needs fsspec; install slrt-dask[remote]."
        ) from error
    try:
        filesystem, inner = url_to_fs(path)
    except ImportError as error:
        raise MissingDependency(f"{path} needs a package: {error}.") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is no address that is understood: {error}.") from error
    # Listings are remembered for as long as the process lives, and others write there too.
    filesystem.invalidate_cache()
    return filesystem, inner
