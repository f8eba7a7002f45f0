"""The engine on a distributed cluster: one share per worker, one task per worker and round.

A round is one task on every worker, a tree of sums, and one task that makes the next message; the
next round's tasks depend on that message, so several rounds are submitted at once and the driver
only looks at every few. Tasks that find the program finished pass that on. Vectors never leave the
worker that made them; each worker keeps its share in a plugin, where tasks find it by name.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import reduce
from typing import Any

import distributed
from distributed.comm import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.scheduler import KilledWorker

from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.assignment import Assignment, Streaming
from slrt_dask.engine.base import Engine
from slrt_dask.engine.placement import Place, assign_partitions, cluster_places
from slrt_dask.engine.program import Finished, Program, run_rounds
from slrt_dask.engine.share import Share
from slrt_dask.errors import StateLost

LOOK_SECONDS = 0.5
"""How long to wait for a result before looking whether the workers are still there."""
PAUSE_SECONDS = 20.0
"""How long a worker may be paused for memory before it counts as lost."""
FAN_IN = 4
"""How many partial sums one task of the reduction tree adds."""
MOST_ROUNDS_AT_ONCE = 8


GONE = (KilledWorker, CancelledError, CommClosedError)
"""What a future raises when its task, or the way to it, was lost."""


@contextlib.contextmanager
def _losses_named() -> Iterator[None]:
    """Whatever dask makes of a worker or a connection that has gone is StateLost to us."""
    try:
        yield
    except GONE as error:
        raise StateLost(f"a worker or the way to it was lost ({error})") from None


class SharePlugin(WorkerPlugin):  # type: ignore[misc]
    """Keeps one fit's share on a worker, and closes it when the fit is over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.share: Share | None = None

    def teardown(self, worker: Any) -> None:
        if self.share is not None:
            self.share.close()
            self.share = None


def _held_share(name: str) -> Share:
    plugin = distributed.get_worker().plugins.get(name)
    if plugin is None or plugin.share is None:
        raise StateLost("this worker does not hold its part of the problem any more")
    share: Share = plugin.share
    return share


def _load_share(name: str, assignment: Assignment) -> int:
    worker = distributed.get_worker()
    plugin = worker.plugins[name]
    if assignment.streaming is not None:
        streaming = replace(assignment.streaming, directory=worker.local_directory)
        assignment = replace(assignment, streaming=streaming)
    plugin.share = Share(assignment)
    return int(plugin.share.nbytes)


def _step(
    name: str, position: tuple[int, int], discard: tuple[str, ...], program: Program, message: Any
) -> Any:
    if isinstance(message, Finished):
        return message
    return _held_share(name).contribute_at(position, program, message, discard)


def _combine(program: Program, *parts: Any) -> Any:
    if isinstance(parts[0], Finished):
        return parts[0]
    # What came over the wire is read-only, and what did not still belongs to its task.
    return reduce(program.combine, parts[1:], _copied(parts[0]))


def _advance(program: Program, message: Any, *parts: Any) -> Any:
    if isinstance(message, Finished):
        return message
    return program.advance(message, _combine(program, *parts))


def _copied(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(_copied(piece) for piece in part)
    return part.copy() if hasattr(part, "copy") else part


def _ending(message: Any) -> Finished | None:
    """The message if it is the last one; anything else stays on the workers."""
    return message if isinstance(message, Finished) else None


def _run_whole(name: str, run_number: int, discard: tuple[str, ...], program: Program) -> Any:
    """A problem that one worker holds needs no rounds between tasks: it is one task."""
    share, rounds = _held_share(name), itertools.count()

    def contribute(program: Program, message: Any) -> Any:
        # By number, so that a run which the driver gave up ends when the next one begins.
        return share.contribute_at((run_number, next(rounds)), program, message, discard)

    return run_rounds(program, contribute)


def _on_share(name: str, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return task(_held_share(name), *arguments)


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
        self._paused: dict[str, float] = {}
        places = cluster_places(client) if places is None else places
        self._client.register_plugin(SharePlugin(self._name), name=self._name)
        try:
            with _losses_named():
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
        loads = []
        for place, partitions in zip(places, assign_partitions(counts, places), strict=True):
            if partitions:
                address = str(place.address)
                streaming = Streaming(streamed[address]) if address in streamed else None
                assignment = Assignment(
                    self.store, partitions, place.threads, precision, offset, validation, streaming
                )
                self._workers.append(address)
                loads.append(
                    self._submit("load", place.address, _load_share, self._name, assignment)
                )
        for load in loads:
            self._result(load)

    def _result(self, future: Any) -> Any:
        """A future's result; StateLost soon after a worker that holds a share has gone.

        Tasks are pinned to their workers, so without this a task of a lost one waits for ever.
        """
        while True:
            try:
                return future.result(timeout=LOOK_SECONDS)
            except TimeoutError:
                self._look_after_workers()

    def _look_after_workers(self) -> None:
        present = self._client.scheduler_info(n_workers=-1)["workers"]
        now = time.monotonic()
        for address in self._workers:
            if address not in present:
                raise StateLost(f"the worker {address} is gone")
            if present[address].get("status") != "paused":
                self._paused.pop(address, None)
            elif now - self._paused.setdefault(address, now) > PAUSE_SECONDS:
                raise StateLost(f"the worker {address} is paused for want of memory")

    def _submit(self, label: str, worker: str | None, task: Callable[..., Any], *args: Any) -> Any:
        return self._client.submit(
            task,
            *args,
            key=f"slrt-{label}-{uuid.uuid4().hex}",
            workers=None if worker is None else [worker],
            allow_other_workers=False,
            pure=False,
        )

    def run(self, program: Program) -> Any:
        with _losses_named():
            return self._run(program)

    def _run(self, program: Program) -> Any:
        self._run_number += 1
        discard = self.take_released()
        if len(self._workers) == 1:
            task = self._submit(
                program.label,
                self._workers[0],
                _run_whole,
                self._name,
                self._run_number,
                discard,
                program,
            )
            return self._result(task)
        shared = self._client.scatter(program, hash=False)
        message = self._client.scatter(program.first(), hash=False)
        round_number, ahead = 0, program.expected_rounds()
        while True:
            for _ in range(ahead):
                position = (self._run_number, round_number)
                message = self._submit_round(program, shared, message, position, discard)
                round_number += 1
            ending = self._result(self._submit("look", None, _ending, message))
            if ending is not None:
                return ending.outcome
            ahead = min(2 * ahead, MOST_ROUNDS_AT_ONCE)

    def _submit_round(
        self, program: Program, shared: Any, message: Any, position: Any, discard: tuple[str, ...]
    ) -> Any:
        parts = [
            self._submit(
                program.label, worker, _step, self._name, position, discard, shared, message
            )
            for worker in self._workers
        ]
        while len(parts) > FAN_IN:
            groups = [parts[i : i + FAN_IN] for i in range(0, len(parts), FAN_IN)]
            parts = [self._submit("reduce", None, _combine, shared, *group) for group in groups]
        return self._submit("advance", self._workers[0], _advance, shared, message, *parts)

    def on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        with _losses_named():
            futures = [
                self._submit("share", worker, _on_share, self._name, task, arguments)
                for worker in self._workers
            ]
            return [self._result(future) for future in futures]

    def close(self) -> None:
        if self._client.status == "running":
            with contextlib.suppress(OSError, *GONE):
                self._client.unregister_worker_plugin(self._name)
