"""What is kept of a fit while it runs: its history, its checkpoints, and what befell it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from slrt_dask.checkpoint import CheckpointObserver
from slrt_dask.engine.spending import Cause, Stopwatch
from slrt_dask.monitor import JsonLinesObserver
from slrt_dask.newcomers import Newcomers
from slrt_dask.optim.method import MethodState
from slrt_dask.optim.records import IterationRecord
from slrt_dask.recovery import WorkersJoined
from slrt_dask.runs import RunDirectory


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
            JsonLinesObserver(self.run.records_file).on_record(record, state)
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


class MoveObserver:
    """Ends an attempt, at a checkpoint, when other workers would do clearly better."""

    def __init__(self, newcomers: Newcomers, checkpoints: CheckpointObserver) -> None:
        self._newcomers = newcomers
        self._checkpoints = checkpoints
        self._began: float | None = None
        self._sweeps = 0

    def on_record(self, record: IterationRecord, state: MethodState) -> None:
        if self._began is None:
            self._began = record.seconds
            return
        self._sweeps += record.sweeps
        sweep_seconds = (record.seconds - self._began) / max(1, self._sweeps)
        joined = self._newcomers.worth_moving(sweep_seconds)
        if joined:
            self._checkpoints.save(state)
            raise WorkersJoined(joined)
