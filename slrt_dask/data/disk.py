"""Disks that are full: what was to be written where, and what to do.

This changes with how a full disk is told.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.errors import DiskFull

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def full_disk_told(place: str, remedy: str) -> Iterator[None]:
    """Have a disk that is full meanwhile raise DiskFull.

    place : what was being written;  remedy : what to do
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(f"the disk of {place} is full{_left(Path(place))}; {remedy}") from error


def _left(path: Path) -> str:
    try:
        there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        return f" ({shutil.disk_usage(there).free:,} bytes are left)"
    except OSError:
        return ""


def write_all(file: IO[bytes], values: NDArray[Any]) -> None:
    """Write an array's bytes to a file without a buffer, which may take them in several parts.

    numpy's own way to do it does not tell why a disk has not taken all of them.
    """
    if values.size:
        left = np.ascontiguousarray(values).data.cast("B")
        while left:
            left = left[file.write(left) :]
