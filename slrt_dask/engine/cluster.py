"""The engine on a distributed cluster: rounds are tasks of a dask graph.

A round is one `slrt-sweep` task for every worker, pinned to it, a tree of `slrt-sum` tasks where
there are many workers, and one `slrt-advance` task at the first worker, the root, on whose result
the next round's sweeps depend. Several rounds go in one submission; those after a program's end do
nothing. Vectors never leave the worker that made them: a plugin keeps each worker's share, and the
root's also keeps the program on its way, so that no task of one submission depends on another's.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, cast

import dask
import distributed
import numpy as np
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.scheduler import KilledWorker

from slrt_dask import interrupts
from slrt_dask.engine.base import Engine
from slrt_dask.engine.program import Course, Finished, Program, Sweep
from slrt_dask.engine.share import Assignment, Share
from slrt_dask.engine.watch import ANSWER_SECONDS, Watch, known_workers, usable_workers
from slrt_dask.errors import ClusterLost, StateLost
from slrt_dask.spending import Cause

FAN_IN = 4
"""How many sums one task adds up."""
LOOK_SECONDS = 0.5
"""How long to wait for a result before looking whether the workers are still there."""
UNLOAD_SECONDS = 10.0
"""How long an engine that is closed waits for workers to let go of their shares."""
GONE = (KilledWorker, CancelledError, CommClosedError, ClosedClientError)
"""What a future or a client raises when a task, or the way to it, was lost."""


# ---- on workers -------------------------------------------------------------------------------


@dataclass
class Held:
    """What a worker has of one fit: its share and a run; at the root, the program's course."""

    share: Share
    run: int = -1
    program: Program | None = None
    course: Course | None = None


class SharesPlugin(WorkerPlugin):  # type: ignore[misc]
    """Keeps shares on a worker, each while somebody wants the result of the task that loaded it.

    When the driver lets go of that, or has died, dask forgets the key, and the share is closed.
    """

    idempotent = True
    name = "slrt-shares"

    def setup(self, worker: Any) -> None:
        self.held: dict[str, Held] = {}

    def transition(self, key: Any, start: str, finish: str, **more: Any) -> None:
        if finish in ("released", "forgotten") and key in self.held:
            # Its threads may be in the middle of a sweep; the worker has to answer meanwhile.
            closing = self.held.pop(key).share.close
            threading.Thread(target=closing, name="slrt-close", daemon=True).start()

    async def teardown(self, worker: Any) -> None:
        for key in tuple(self.held):
            self.transition(key, "", "released")


def _shares() -> dict[str, Held]:
    return cast("dict[str, Held]", distributed.get_worker().plugins[SharesPlugin.name].held)


def _held(name: str) -> Held:
    if name not in _shares():
        raise StateLost("this worker does not hold its part of the problem any more")
    return _shares()[name]


@dataclass(frozen=True)
class Run:
    """A program as it travels to the workers, once.

    names : of the shares, by worker: the keys of the tasks that loaded them
    drop : names of vectors that nobody needs any more
    """

    names: dict[str, str]
    number: int
    program: Program
    drop: tuple[str, ...]

    def here(self) -> Held:
        """What this worker has; it goes on with this run, unless with a later one already."""
        held = _held(self.names[distributed.get_worker().address])
        if self.number < held.run:
            raise StateLost(f"run {self.number} was given up for run {held.run}")
        if self.number > held.run:
            held.run, held.program, held.course = self.number, own_copy(self.program), None
        return held


def load(assignment: Assignment) -> int:
    """Load a worker's part of a problem; returns the bytes it takes."""
    worker = distributed.get_worker()
    if assignment.block_entries is not None:
        assignment = replace(assignment, directory=worker.local_directory)
    share = Share(assignment)
    _shares()[worker.get_current_task()] = Held(share)
    return int(share.nbytes)


def unload(name: str) -> None:
    """Let go of a share now, and not only when dask hears that nobody wants it."""
    held = _shares().pop(name, None)
    if held is not None:
        held.share.close()


def visit(name: str, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Whatever is to be done once where a share is."""
    return task(_held(name).share, *arguments)


def begin(run: Run) -> Sweep | Finished:
    """At the root: begin a run, or go on with it; its next sweep."""
    held = run.here()
    if held.course is None:
        assert held.program is not None
        held.course = Course(held.program)
    return held.course.next


def sweep(run: Run, number: int, message: Sweep | Finished) -> Any:
    """One round on what this worker holds."""
    if isinstance(message, Finished):
        return None
    held = run.here()
    assert held.program is not None
    message = Sweep(message.step, aligned(message.message))
    return held.share.sweep(run.number, number, held.program, message, run.drop)


def add_up(run: Run, *parts: Any) -> Any:
    """The sum of some workers' sums, the first of which was made here."""
    return None if parts[0] is None else reduce(run.program.combine, aligned(parts))


def advance(run: Run, last: bool, *parts: Any) -> Sweep | Finished | None:
    """At the root: what comes after this round's sums; a sweep that is not in this submission stays
    here until `begin`."""
    course = run.here().course
    if course is None:
        raise StateLost(f"run {run.number} did not begin here")
    if not isinstance(course.next, Finished):
        course.advance(add_up(run, *parts))
    return None if last and not isinstance(course.next, Finished) else course.next


def aligned(value: Any) -> Any:
    """The same arrays as kernels want them: what another process has sent is often not aligned."""
    if isinstance(value, np.ndarray):
        return np.require(value, requirements=("C", "A", "W"))
    return tuple(map(aligned, value)) if type(value) is tuple else value


def own_copy(value: Any) -> Any:
    """A copy of something small that another process has sent, all its arrays aligned."""
    return pickle.loads(pickle.dumps(value))


# ---- at the driver ----------------------------------------------------------------------------


def _key(label: str) -> str:
    return f"slrt-{label}-{uuid.uuid4().hex}"


@dataclass
class PinnedTasks:
    """Tasks on named workers, under names that read well on a dashboard: slrt-<label>.

    A scheduler remembers for good every task group that it has ever seen, and makes a new one
    whenever a name comes up of which no task is left. So that it does not grow with the iterations
    of a fit, one small task of every name is kept for as long as the fit runs.
    """

    client: distributed.Client
    workers: list[str]
    _kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watch = Watch(self.client)

    def submit(self, label: str, worker: str, task: Callable[..., Any], *arguments: Any) -> Any:
        """One task on one worker; its future, whose key is its name."""
        self._keep_group(label, worker)
        return self.client.submit(
            task, *arguments, key=_key(label), workers=[worker], allow_other_workers=False,
            pure=False,
        )  # fmt: skip

    def delayed(self, label: str, worker: str, task: Callable[..., Any], *arguments: Any) -> Any:
        """The same as part of a graph."""
        self._keep_group(label, worker)
        with dask.annotate(workers=[worker], allow_other_workers=False):
            call = dask.delayed(task, pure=False, traverse=False)
            return call(*arguments, dask_key_name=_key(label))

    def _keep_group(self, label: str, worker: str) -> None:
        if label not in self._kept:
            self._kept[label] = self.client.submit(
                int, key=_key(label), workers=[worker], pure=False
            )

    def scatter(self, label: str, worker: str, value: Any) -> Any:
        """A value on a worker; what is large should not pass through the scheduler."""
        self._keep_group(label, worker)
        key = _key(label)
        try:
            send = partial(self.client.scatter, {key: value}, workers=[worker], asynchronous=True)
            return self.client.sync(send, callback_timeout=ANSWER_SECONDS)[key]
        except (OSError, RuntimeError, AttributeError, KeyError) as error:
            self.watch.look(self.workers)
            raise StateLost(f"the worker {worker} took nothing ({error})") from error

    @contextlib.contextmanager
    def losses_named(self) -> Iterator[None]:
        """Whatever dask makes of a worker or a connection that has gone is StateLost to us."""
        try:
            yield
        except GONE as error:
            self.watch.look(self.workers)  # which says who it was, if it still can be seen
            raise StateLost(f"a result was lost on its way ({error})") from error

    def results(
        self, futures: Sequence[Any], check: Callable[[], None] = lambda: None, keep: bool = False
    ) -> list[Any]:
        """Results of tasks; StateLost soon after a worker of ours has gone.

        None is kept unless asked: left to Python, futures live on, in the cycles of errors.
        check : called while waiting; raises when nobody wants the results any more
        """
        try:
            while left := [future for future in futures if not future.done()]:
                check()
                with self._watching():
                    self.wait_for(left[:1], LOOK_SECONDS)
            for future in futures:
                if future.status == "error":
                    keep = False
                    future.result()
            coming = _in_background(self.client.gather, list(futures))
            while not coming.done():
                with self._watching():
                    coming.result(LOOK_SECONDS)
            return list(coming.result())
        finally:
            for future in () if keep else futures:
                future.release()

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """If what is waited for takes too long, see whether all workers are at work."""
        try:
            yield
        except TimeoutError:
            self.watch.look(self.workers)

    def wait_for(self, futures: Sequence[Any], seconds: float) -> None:
        """Wait until futures are done, or raise TimeoutError."""
        for future in futures:  # not by `distributed.wait`, which takes the client of the process
            done = threading.Event()
            future.add_done_callback(lambda _, done=done: done.set())
            if not done.wait(seconds) or not future.done():  # or lost, with its worker
                time.sleep(0.05)
                raise TimeoutError


def _in_background(call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """A call in a thread that nobody has to wait for: dask may wait long for a lost worker."""
    coming: Future[Any] = Future()

    def run() -> None:
        try:
            coming.set_result(call(*arguments))
        except BaseException as error:
            coming.set_exception(error)

    threading.Thread(target=run, name="slrt-gather", daemon=True).start()
    return coming


class ClusterEngine(Engine):
    """One share for every worker that has work to do."""

    def __init__(self, client: distributed.Client, assignments: dict[str, Assignment]) -> None:
        """Load the observations.

        assignments : what every worker has to load, by address; the first one is the root
        """
        first = next(iter(assignments.values()))
        super().__init__(first.store)
        self.places = list(assignments)
        self._client, self._tasks = client, PinnedTasks(client, self.places)
        self._runs, self._loads = itertools.count(), []
        try:
            with self._tasks.losses_named(), self.stopwatch.on(Cause.LOADING):
                client.register_plugin(SharesPlugin())
                # Kept as long as the shares are to be kept.
                self._loads = [
                    self._tasks.submit("load", worker, load, assignment)
                    for worker, assignment in assignments.items()
                ]
                self._tasks.results(self._loads, keep=True)
        except BaseException:
            self.close()
            raise

    @property
    def _shares(self) -> dict[str, str]:
        """The names of shares, by worker."""
        return {worker: load.key for worker, load in zip(self.places, self._loads, strict=True)}

    def _run(self, program: Program) -> Any:
        run = Run(self._shares, next(self._runs), program, self.take_released())
        with self._tasks.losses_named():
            sent = self._tasks.scatter("run", self.places[0], run)
            first, ended = 0, None
            try:
                while not isinstance(ended, Finished):
                    rounds = range(first, first + program.at_once)
                    future = self._submitted(sent, rounds)
                    (ended,) = self._tasks.results([future], interrupts.check)
                    first = rounds.stop
            finally:
                sent.release()
            return ended.outcome

    def _submitted(self, run: Any, rounds: range) -> Any:
        """Some rounds; the future of what comes after the last one."""
        root = self.places[0]
        message = self._tasks.delayed("begin", root, begin, run)
        for number in rounds:
            parts = [
                (worker, self._tasks.delayed("sweep", worker, sweep, run, number, message))
                for worker in self.places
            ]
            while len(parts) > FAN_IN:
                groups = [parts[n : n + FAN_IN] for n in range(0, len(parts), FAN_IN)]
                # Each is added up where the first of its parts is made.
                parts = [
                    (at, self._tasks.delayed("sum", at, add_up, run, *(part for _, part in group)))
                    for group in groups
                    for at, _ in group[:1]
                ]
            sums = (part for _, part in parts)
            last = number == rounds[-1]
            message = self._tasks.delayed("advance", root, advance, run, last, *sums)
        return self._client.compute(message, optimize_graph=False)

    def _on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        with self._tasks.losses_named():
            return self._tasks.results(
                [
                    self._tasks.submit("visit", worker, visit, name, task, arguments)
                    for worker, name in self._shares.items()
                ]
            )

    def close(self) -> None:
        """Have the shares let go; what cannot answer now hears of it when dask forgets the load."""
        with contextlib.suppress(ClusterLost, TimeoutError, ValueError, *GONE):
            present = usable_workers(known_workers(self._client))
            unloading = [
                self._tasks.submit("unload", worker, unload, name)
                for worker, name in self._shares.items()
                if worker in present
            ]
            self._tasks.wait_for(unloading, UNLOAD_SECONDS)
        for future in self._loads:
            future.release()
        self._loads = []
