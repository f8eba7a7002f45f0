"""What is kept of a fit while it runs: its history, its checkpoints, and what befell it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from slrt_dask.checkpoint import CheckpointObserver
from slrt_dask.optim.records import IterationRecord, MethodState
from slrt_dask.runs import RunDirectory
from slrt_dask.spending import Cause, Stopwatch


@dataclass(frozen=True)
class RunObserver:
    """Writes a run's history, and its checkpoints where they are due.

    events : what happened and is to be told with the next row; emptied when it has been
    stopwatch : the driver's
    """

    run: RunDirectory
    checkpoints: CheckpointObserver
    events: list[str]
    stopwatch: Stopwatch

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        with self.stopwatch.on(Cause.CHECKPOINTS):
            with open(self.run.records_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")
            self.events.clear()
            self.checkpoints.on_record(record, state)

    def end(self, state: Any, records: tuple[IterationRecord, ...]) -> tuple[IterationRecord, ...]:
        """Keep the last state, and tell with the last row what has not been told."""
        with self.stopwatch.on(Cause.CHECKPOINTS):
            self.checkpoints.save(state)
        if self.events:
            told = "; ".join(filter(None, [records[-1].event, *self.events]))
            records = (*records[:-1], replace(records[-1], event=told))
            self.run.write_records(records)
            self.events.clear()
        return records
