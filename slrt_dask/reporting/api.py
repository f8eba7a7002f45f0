"""The call that makes a page of a run."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slrt_dask.data.location import is_url, normal_path
from slrt_dask.errors import InvalidInput, StoreExists
from slrt_dask.reporting.gathering import facts_of
from slrt_dask.reporting.page import page_of
from slrt_dask.runs import replace_file

if TYPE_CHECKING:
    from slrt_dask.completion import Completion


def report(
    run: str | os.PathLike[str] | Completion,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    modes: tuple[int, int] | None = None,
) -> Path:
    """Write one HTML page about a run; returns its path.

    run : a run directory, whether the run has ended, is under way or was killed, but not before
        its search for settings has ended; or a completion
    path : of the page; a new file, unless `overwrite`
    modes : the two modes that slices of the answer show; those of the most similar lengths if None

    The page stands on its own: it fetches nothing and runs nothing. Observations are read once, a
    partition at a time, and the answer is computed where it is shown only.
    """
    target = new_page(path, overwrite=overwrite)
    page = page_of(facts_of(run, modes), datetime.now().astimezone())
    replace_file(target, page)
    return target


def new_page(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The path for a page, if it can be written there."""
    if is_url(os.fspath(path)):
        raise InvalidInput(f"the page {os.fspath(path)} would be at a URL; give a local path")
    target = Path(normal_path(path))
    if target.is_dir():
        raise InvalidInput(f"{target} is a directory; give the path of a file, such as report.html")
    if target.exists() and not overwrite:
        raise StoreExists(
            f"{target} already exists; choose another path, or replace it with --overwrite "
            "(overwrite=True)"
        )
    if not target.parent.is_dir():
        raise InvalidInput(f"there is no directory {target.parent}; make it, or check the path")
    return target
