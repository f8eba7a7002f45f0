"""The engine on a distributed cluster: one share per worker, one task per worker and run.

The tasks of a run make its rounds together: they add up their sums and pass on messages from worker
to worker (`exchange.py`), and the driver only waits for the outcome. Vectors never leave the worker
that made them; each worker keeps its share in a plugin, where tasks find it by name.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import distributed
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from slrt_dask.data.store import ObservationStore
from slrt_dask.engine import tasks
from slrt_dask.engine.assignment import Assignment, Streaming
from slrt_dask.engine.base import Engine
from slrt_dask.engine.placement import Place, assign_partitions, cluster_places
from slrt_dask.engine.program import Program
from slrt_dask.engine.spending import Cause
from slrt_dask.engine.submitting import Submitter
from slrt_dask.engine.watch import ANSWER_SECONDS, Watch, known_workers, usable_workers
from slrt_dask.errors import ClusterLost, StateLost

LOOK_SECONDS = 0.5
"""How long to wait for a result before looking whether the workers are still there."""
UNLOAD_SECONDS = 10.0
"""How long an engine that is closed waits for workers to let go of their shares."""
AT_ONCE = 16
"""Results that are asked for together; they have to be here within ANSWER_SECONDS."""
GONE = (KilledWorker, CancelledError, CommClosedError, ClosedClientError)
"""What a future or a client raises when a task, or the way to it, was lost."""


class ClusterEngine(Engine):
    """One share per worker that has work to do; messages and sums go from worker to worker."""

    in_process = False

    def __init__(
        self,
        store: ObservationStore,
        client: distributed.Client,
        *,
        precision: str = "float64",
        offset: float = 0.0,
        validation: ObservationStore | None = None,
        streamed: dict[str, int] | None = None,
        places: list[Place] | None = None,
        tiles: bool = False,
        sections: int = 1,
    ) -> None:
        """Load the observations.

        streamed : workers whose blocks are to be in files, with the size of a block there
        places : the workers to use; all that there are if None
        tiles : whether products are made on dense tiles
        sections : into how many parts the slab mode's fibres are cut
        """
        super().__init__(store, sections)
        self._client = client
        self._name = f"slrt-{uuid.uuid4().hex[:12]}"
        self._run_number = 0
        self._workers: list[str] = []
        self._loads: list[Any] = []
        self._watch = Watch(client)
        self._submitter = Submitter(client)
        places = cluster_places(client) if places is None else places
        try:
            with self._losses_named(), self.stopwatch.on(Cause.LOADING):
                self._load(places, precision, offset, validation, streamed or {}, tiles)
            self.number_fibres()
        except BaseException:
            self.close()
            raise

    def _load(
        self,
        places: list[Place],
        precision: str,
        offset: float,
        validation: ObservationStore | None,
        streamed: dict[str, int],
        tiles: bool,
    ) -> None:
        """Give every worker its partitions, in proportion to its threads."""
        counts = [part.count for part in self.store.partitions]
        for place, partitions in zip(places, assign_partitions(counts, places), strict=True):
            if partitions:
                address = str(place.address)
                streaming = Streaming(streamed[address]) if address in streamed else None
                assignment = Assignment(
                    self.store, partitions, place.threads, precision, offset, validation, streaming,
                    tiles, self.sections,
                )  # fmt: skip
                self._workers.append(address)
                # Kept as long as the share is to be kept: see tasks.
                self._loads.append(
                    self._submit("load", address, tasks.load_share, self._name, assignment)
                )
        self._results(self._loads)

    @contextlib.contextmanager
    def _losses_named(self) -> Iterator[None]:
        """Whatever dask makes of a worker or a connection that has gone is StateLost to us."""
        try:
            yield
        except GONE as error:
            self._watch.look(self._workers)  # which says who it was, if it still can be seen
            raise StateLost(f"a result was lost on its way ({error})") from error

    def _results(self, futures: Sequence[Any], wanted: int | None = None) -> list[Any]:
        """Results of tasks, or of the first ones; StateLost soon after a worker of ours has gone.

        They are asked for many at a time: one after the other, with many workers that would take
        longer than what they do. None is asked for before it is there: a request that is given up
        just as it is sent breaks every later one of the client.
        """
        while unfinished := [future for future in futures if not future.done()]:
            self._attempted(futures, partial(self._wait_for, unfinished[0], LOOK_SECONDS))
        _raise_failed(futures)
        results: list[Any] = []
        while asked := list(futures[:wanted])[len(results) :][:AT_ONCE]:
            results += self._attempted(futures, partial(self._gathered, asked)) or []
        return results

    def _attempted(self, futures: Sequence[Any], attempt: Callable[[], Any]) -> Any:
        """What an attempt returns; None if it took too long, but all workers are at work."""
        try:
            return attempt()
        except TimeoutError:
            _raise_failed(futures)  # others may wait for that one; or it had a timeout itself
            self._watch.look(self._workers)
            return None

    def _wait_for(self, future: Any, seconds: float) -> None:
        """Wait until a future is done, or raise TimeoutError."""
        with self._client.as_current():
            distributed.wait(future, timeout=seconds)

    def _gathered(self, futures: list[Any]) -> list[Any]:
        gather = partial(self._client.gather, futures, asynchronous=True)
        results: list[Any] = self._client.sync(gather, callback_timeout=ANSWER_SECONDS)
        return results

    def _submit(self, label: str, worker: str, task: Callable[..., Any], *args: Any) -> Any:
        return self._submitter.submit(label, worker, task, *args)

    def _scatter(self, **values: Any) -> list[Any]:
        """Put values on the first worker; their futures."""
        try:
            return self._submitter.scatter(self._workers[0], values, ANSWER_SECONDS)
        except (OSError, RuntimeError, AttributeError, KeyError) as error:
            self._watch.look(self._workers)
            raise StateLost(f"the worker {self._workers[0]} took nothing ({error})") from error

    @property
    def _places(self) -> list[str]:
        return self._workers

    def _run(self, program: Program) -> Any:
        with self._losses_named():
            return self._run_on_workers(program)

    def _run_on_workers(self, program: Program) -> Any:
        self._run_number += 1
        workers, discard = tuple(self._workers), self.take_released()
        (shared,) = self._scatter(program=program)
        running = [
            self._submit(
                program.label, worker, tasks.run_program, self._name, self._run_number, discard,
                workers, shared if place == 0 else None,
            )
            for place, worker in enumerate(workers)
        ]  # fmt: skip
        try:
            (outcome,) = self._results(running, wanted=1)
            return outcome
        finally:
            # What still runs, after an error or an interrupt, ends when nobody wants it.
            for future in running:
                future.release()

    def _on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        with self._losses_named():
            futures = [
                self._submit("share", worker, tasks.on_share, self._name, task, arguments)
                for worker in self._workers
            ]
            return self._results(futures)

    def close(self) -> None:
        """Have the shares let go; what cannot answer now hears of it when dask forgets the load."""
        with contextlib.suppress(ClusterLost, TimeoutError, *GONE):
            present = usable_workers(known_workers(self._client))
            unloading = [
                self._submit("unload", worker, tasks.unload_share, self._name)
                for worker in self._workers
                if worker in present
            ]
            deadline = time.monotonic() + UNLOAD_SECONDS
            for future in unloading:
                self._wait_for(future, max(0.0, deadline - time.monotonic()))
        self._workers, self._loads = [], []
        self._submitter.forget()


def _raise_failed(futures: Sequence[Any]) -> None:
    """Raise what the first of some tasks to be looked at has raised, if one has."""
    for future in futures:
        if future.status == "error":
            future.result()
