"""What runs on workers: the tasks of a round, and the plugin that keeps a worker's share.

A share lives as long as somebody wants the result of the task that loaded it. When the driver lets
go of that, or has died, dask forgets the key; the plugin hears of it and lets go of the share.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar

import distributed
from distributed.diagnostics.plugin import WorkerPlugin

from slrt_dask.engine.assignment import Assignment
from slrt_dask.engine.program import Finished, Program, run_rounds
from slrt_dask.engine.share import Share
from slrt_dask.engine.wire import aligned
from slrt_dask.errors import StateLost

Result = TypeVar("Result")


class SharePlugin(WorkerPlugin):  # type: ignore[misc]
    """Keeps one fit's share on a worker, and closes it when nobody wants it any more."""

    def __init__(self, name: str, load_key: str) -> None:
        self.name = name
        self.share: Share | None = None
        self._load_key = load_key
        self._worker: Any = None

    def setup(self, worker: Any) -> None:
        self._worker = worker

    def transition(self, key: str, start: str, finish: str, **more: Any) -> None:
        if key == self._load_key and finish in ("released", "forgotten"):
            self._worker.loop.add_callback(_remove_plugin, self._worker, self.name)

    async def teardown(self, worker: Any) -> None:
        share, self.share = self.share, None
        if share is not None:
            # Its threads may be in the middle of a sweep; the worker has to answer meanwhile.
            await asyncio.get_running_loop().run_in_executor(None, share.close)


# ---- loading and letting go -----------------------------------------------------------------


def load_share(name: str, assignment: Assignment) -> int:
    """Load a worker's part of a problem; returns the bytes it takes."""
    worker = distributed.get_worker()
    # First the plugin: if the driver dies meanwhile, it has to hear of that.
    _on_event_loop(worker, worker.plugin_add(SharePlugin(name, worker.get_current_task()), name))
    if assignment.streaming is not None:
        streaming = replace(assignment.streaming, directory=worker.local_directory)
        assignment = replace(assignment, streaming=streaming)
    share = Share(assignment)
    if not _on_event_loop(worker, _keep(worker, name, share)):
        share.close()
        raise StateLost("the fit that this was loaded for has ended")
    return int(share.nbytes)


def unload_share(name: str) -> None:
    """Let go of a share now, and not only when dask hears that nobody wants it."""
    worker = distributed.get_worker()
    _on_event_loop(worker, _remove_plugin(worker, name))


async def _keep(worker: Any, name: str, share: Share) -> bool:
    plugin = worker.plugins.get(name)
    if plugin is None:
        return False
    plugin.share = share
    return True


async def _remove_plugin(worker: Any, name: str) -> None:
    if name in worker.plugins:
        await worker.plugin_remove(name)


def _on_event_loop(worker: Any, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run something where a worker's plugins may be touched, and wait for it."""
    return asyncio.run_coroutine_threadsafe(coroutine, worker.loop.asyncio_loop).result()


def _held_share(name: str) -> Share:
    plugin = distributed.get_worker().plugins.get(name)
    if plugin is None or plugin.share is None:
        raise StateLost("this worker does not hold its part of the problem any more")
    share: Share = plugin.share
    return share


# ---- the tasks of a round -------------------------------------------------------------------


def step(
    name: str, position: tuple[int, int], discard: tuple[str, ...], program: Program, message: Any
) -> Any:
    """What a worker's share contributes to a round."""
    if isinstance(message, Finished):
        return message
    share = _held_share(name)
    return share.contribute_at(position, aligned(program), aligned(message), discard)


def combine(program: Program, *parts: Any) -> Any:
    """The sum of some contributions."""
    if isinstance(parts[0], Finished):
        return parts[0]
    # What came over the wire is read-only, and what did not still belongs to its task.
    return reduce(program.combine, parts[1:], _copied(parts[0]))


def advance(program: Program, message: Any, *parts: Any) -> Any:
    """The message of the next round."""
    if isinstance(message, Finished):
        return message
    return program.advance(message, combine(program, *parts))


def ending(message: Any) -> Finished | None:
    """The message if it is the last one; anything else stays on the workers."""
    return message if isinstance(message, Finished) else None


def run_whole(name: str, run_number: int, discard: tuple[str, ...], program: Program) -> Any:
    """A problem that one worker holds needs no rounds between tasks: it is one task."""
    share, rounds = _held_share(name), itertools.count()

    def contribute(program: Program, message: Any) -> Any:
        # By number, so that a run which the driver gave up ends when the next one begins.
        return share.contribute_at((run_number, next(rounds)), program, message, discard)

    return run_rounds(aligned(program), contribute)


def on_share(name: str, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Whatever else is to be done once where a share is."""
    return task(_held_share(name), *arguments)


def _copied(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(_copied(piece) for piece in part)
    return part.copy() if hasattr(part, "copy") else part
