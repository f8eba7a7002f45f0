"""The engine on a distributed cluster: one share per worker, one task per worker and round.

A round is one task on every worker, a tree of sums, and one task that makes the next message; the
next round's tasks depend on that message, so several rounds are submitted at once and the driver
only looks at every few. Tasks that find the program finished pass that on. Vectors never leave the
worker that made them; each worker keeps its share in a plugin, where tasks find it by name.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
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
from slrt_dask.engine.graphs import PinnedGraph, Submitter
from slrt_dask.engine.placement import Place, assign_partitions, cluster_places
from slrt_dask.engine.program import Program
from slrt_dask.engine.watch import ANSWER_SECONDS, Watch, known_workers, usable_workers
from slrt_dask.errors import ClusterLost, StateLost

LOOK_SECONDS = 0.5
"""How long to wait for a result before looking whether the workers are still there."""
UNLOAD_SECONDS = 10.0
"""How long an engine that is closed waits for workers to let go of their shares."""
FAN_IN = 4
"""How many partial sums one task of the reduction tree adds."""
MOST_ROUNDS_AT_ONCE = 8

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
    ) -> None:
        """Load the observations.

        streamed : workers whose blocks are to be in files, with the size of a block there
        places : the workers to use; all that there are if None
        """
        super().__init__(store)
        self._client = client
        self._name = f"slrt-{uuid.uuid4().hex[:12]}"
        self._run_number = 0
        self._workers: list[str] = []
        self._loads: list[Any] = []
        self._watch = Watch(client)
        self._submitter = Submitter(client)
        places = cluster_places(client) if places is None else places
        try:
            with self._losses_named():
                self._load(places, precision, offset, validation, streamed or {})
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
    ) -> None:
        """Give every worker its partitions, in proportion to its threads."""
        counts = [part.count for part in self.store.partitions]
        for place, partitions in zip(places, assign_partitions(counts, places), strict=True):
            if partitions:
                address = str(place.address)
                streaming = Streaming(streamed[address]) if address in streamed else None
                assignment = Assignment(
                    self.store, partitions, place.threads, precision, offset, validation, streaming
                )
                self._workers.append(address)
                # Kept as long as the share is to be kept: see tasks.
                self._loads.append(
                    self._submit("load", address, tasks.load_share, self._name, assignment)
                )
        for load in self._loads:
            self._result(load)

    @contextlib.contextmanager
    def _losses_named(self) -> Iterator[None]:
        """Whatever dask makes of a worker or a connection that has gone is StateLost to us."""
        try:
            yield
        except GONE as error:
            self._watch.look(self._workers)  # which says who it was, if it still can be seen
            raise StateLost(f"a result was lost on its way ({error})") from error

    def _result(self, future: Any) -> Any:
        """A future's result; StateLost soon after a worker that holds a share has gone."""
        while True:
            try:
                return future.result(timeout=LOOK_SECONDS)
            except TimeoutError:
                if future.status == "error":  # a timeout that the task itself ran into
                    return future.result()
                self._watch.look(self._workers)

    def _submit(self, label: str, worker: str, task: Callable[..., Any], *args: Any) -> Any:
        return self._submitter.submit(label, worker, task, *args)

    def _scatter(self, **values: Any) -> list[Any]:
        """Put values on the first worker; their futures."""
        try:
            return self._submitter.scatter(self._workers[0], values, ANSWER_SECONDS)
        except (OSError, RuntimeError, AttributeError, KeyError) as error:
            self._watch.look(self._workers)
            raise StateLost(f"the worker {self._workers[0]} took nothing ({error})") from error

    def run(self, program: Program) -> Any:
        with self._losses_named():
            return self._run(program)

    def _run(self, program: Program) -> Any:
        self._run_number += 1
        discard = self.take_released()
        if len(self._workers) == 1:
            arguments = (self._name, self._run_number, discard, program)
            task = self._submit(program.label, self._workers[0], tasks.run_whole, *arguments)
            return self._result(task)
        shared, message = self._scatter(program=program, message=program.first())
        first, ahead = 0, program.expected_rounds()
        while True:
            rounds = range(first, first + ahead)
            message, look = self._submit_rounds(program.label, shared, message, rounds, discard)
            ending = self._result(look)
            if ending is not None:
                return ending.outcome
            first, ahead = first + ahead, min(2 * ahead, MOST_ROUNDS_AT_ONCE)

    def _submit_rounds(
        self, label: str, shared: Any, message: Any, rounds: range, discard: tuple[str, ...]
    ) -> list[Any]:
        """Some rounds as one graph; the message after them, and whether it was the last."""
        graph, root = PinnedGraph(), self._workers[0]
        for number in rounds:
            step = partial(tasks.step, self._name, (self._run_number, number), discard)
            parts = [
                (worker, graph.add(label, worker, step, shared, message))
                for worker in self._workers
            ]
            while len(parts) > FAN_IN:
                groups = [parts[i : i + FAN_IN] for i in range(0, len(parts), FAN_IN)]
                parts = [_add_sum(graph, shared, group) for group in groups]
            sums = [part for _, part in parts]
            message = graph.add("advance", root, tasks.advance, shared, message, *sums)
        look = graph.add("look", root, tasks.ending, message)
        return self._submitter.submit_graph(graph, message, look)

    def on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        with self._losses_named():
            futures = [
                self._submit("share", worker, tasks.on_share, self._name, task, arguments)
                for worker in self._workers
            ]
            return [self._result(future) for future in futures]

    def close(self) -> None:
        """Have the shares let go; what cannot answer now hears of it when dask forgets the load."""
        deadline = time.monotonic() + UNLOAD_SECONDS
        with contextlib.suppress(ClusterLost, *GONE):
            present = usable_workers(known_workers(self._client))
            unloading = [
                self._submit("unload", worker, tasks.unload_share, self._name)
                for worker in self._workers
                if worker in present
            ]
            for future in unloading:
                with contextlib.suppress(TimeoutError):
                    future.result(timeout=max(0.0, deadline - time.monotonic()))
        self._workers, self._loads = [], []
        self._submitter.forget()


def _add_sum(graph: PinnedGraph, shared: Any, group: list[tuple[str, str]]) -> tuple[str, str]:
    """Add where one of the parts is: every worker of the fit has room for that."""
    worker = group[0][0]
    return worker, graph.add("reduce", worker, tasks.combine, shared, *(part for _, part in group))
