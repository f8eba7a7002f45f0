"""The command line `slrt-dask`. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from slrt_dask.cli.application import main

__all__ = ["main"]
