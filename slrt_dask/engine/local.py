"""The engine in this process: one share, its threads, and no cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.assignment import Assignment, Streaming
from slrt_dask.engine.base import Engine
from slrt_dask.engine.program import Program, run_rounds
from slrt_dask.engine.share import Share


class LocalEngine(Engine):
    """Every partition in one share, run by threads of this process."""

    def __init__(
        self,
        store: ObservationStore,
        *,
        threads: int,
        precision: str = "float64",
        offset: float = 0.0,
        validation: ObservationStore | None = None,
        streaming: Streaming | None = None,
    ) -> None:
        super().__init__(store)
        partitions = tuple(range(len(store.partitions)))
        self._share = Share(
            Assignment(store, partitions, threads, precision, offset, validation, streaming)
        )
        try:
            self.number_fibres()
        except BaseException:
            self.close()
            raise

    def run(self, program: Program) -> Any:
        self._share.discard(self.take_released())
        return run_rounds(program, self._share.contribute)

    def on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [task(self._share, *arguments)]

    def close(self) -> None:
        self._share.close()
