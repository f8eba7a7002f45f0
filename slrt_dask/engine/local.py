"""The engine in this process: one share, its threads, and no cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.assignment import Assignment, Streaming
from slrt_dask.engine.base import Engine
from slrt_dask.engine.program import Program, run_rounds
from slrt_dask.engine.share import Share
from slrt_dask.engine.spending import Cause


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
        tiles: bool = False,
        sections: int = 1,
    ) -> None:
        super().__init__(store, sections)
        partitions = tuple(range(len(store.partitions)))
        assignment = Assignment(
            store, partitions, threads, precision, offset, validation, streaming, tiles, sections
        )
        with self.stopwatch.on(Cause.LOADING):
            self._share = Share(assignment)
        try:
            self.number_fibres()
        except BaseException:
            self.close()
            raise

    @property
    def _places(self) -> list[str]:
        return [""]

    def _run(self, program: Program) -> Any:
        self._share.discard(self.take_released())
        return run_rounds(program, self._share.contribute)

    def _on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [task(self._share, *arguments)]

    def close(self) -> None:
        self._share.close()
