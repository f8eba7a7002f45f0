"""The history of a run as its directory keeps it: one line per iteration."""

from __future__ import annotations

import json
from pathlib import Path

from slrt_dask.optim.records import IterationRecord

RECORDS = "records.jsonl"


def read_history(run: Path) -> tuple[IterationRecord, ...]:
    """The history of the run in a directory, as far as it is written; none if there is none."""
    try:
        lines = (run / RECORDS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(record for line in lines if (record := _parsed(line)) is not None)


def _parsed(line: str) -> IterationRecord | None:
    """A record, or None for the torn line that a killed process may leave."""
    try:
        row = json.loads(line)
        return IterationRecord(**{**row, "ranks": tuple(row["ranks"])})
    except (ValueError, KeyError, TypeError):
        return None
