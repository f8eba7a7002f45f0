"""The line that commands show while they work, and the option that does without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from slrt_dask.cli.options import is_verbose

if TYPE_CHECKING:
    from slrt_dask.show.progress import LiveProgress

quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")


@contextmanager
def stage_line(quiet: bool = False) -> Iterator[LiveProgress | None]:
    """What shows progress, or None where none is wanted: --quiet, or the log is shown."""
    from slrt_dask.show.progress import LiveProgress

    if quiet or is_verbose():
        yield None
        return
    line = LiveProgress()
    try:
        yield line
    finally:
        line.on_end()
