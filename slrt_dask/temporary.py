"""Directories that last as long as somebody holds them."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from typing import Any


class TemporaryPlace:
    """A directory that goes when the last who holds it, in this process, goes."""

    def __init__(self, parent: str | None = None) -> None:
        self.path = tempfile.mkdtemp(prefix="slrt-", dir=parent)
        self._within: list[TemporaryPlace] = []
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def stays_within(self, other: TemporaryPlace) -> None:
        """Have another place, which this one is in, stay as long as this one."""
        self._within.append(other)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker that gets it with a task does not own the directory.
        return str, (self.path,)
