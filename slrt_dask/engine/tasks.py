"""What runs on workers: their part in a run, and the plugin that keeps a worker's share.

A share lives as long as somebody wants the result of the task that loaded it. When the driver lets
go of that, or has died, dask forgets the key; the plugin hears of it and lets go of the share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import distributed
from distributed.diagnostics.plugin import WorkerPlugin

from slrt_dask.engine import reaching
from slrt_dask.engine.assignment import Assignment
from slrt_dask.engine.exchange import (
    EARLY,
    Exchange,
    Letter,
    Mailbox,
    Parked,
    TimedExchange,
    TreeExchange,
)
from slrt_dask.engine.helping import Helping, SeenOffers, beside
from slrt_dask.engine.neighbours import Inbox, Outbox, Parcel
from slrt_dask.engine.post import Address, Answer, Post, opened_post
from slrt_dask.engine.program import HandOver, Program, run_rounds
from slrt_dask.engine.seen_memory import OutOfSight
from slrt_dask.engine.share import Share
from slrt_dask.engine.wire import aligned
from slrt_dask.errors import StateLost

Result = TypeVar("Result")


@dataclass(frozen=True)
class ParkedParcel(Parked):
    """A part in a neighbour's memory."""

    part: Any
    answer: Answer

    @contextmanager
    def opened(self) -> Iterator[Any]:
        try:
            yield self.part
        finally:
            self.answer(True)


class SharePlugin(WorkerPlugin):  # type: ignore[misc]
    """Keeps one fit's share on a worker, and closes it when nobody wants it any more."""

    def __init__(self, name: str, load_key: str) -> None:
        self.name = name
        self.share: Share | None = None
        self.mailbox = Mailbox()
        self.outbox, self.inbox = Outbox(), Inbox()
        self.offers: SeenOffers = {}
        self.post: Post | None = None
        self.neighbours: dict[str, Address | None] = {}
        """Where the post of workers on this machine is; None of those that cannot be reached so."""
        self._load_key = load_key
        self._running: tuple[str, int] = ("", -1)
        self._worker: Any = None

    @property
    def held_share(self) -> Share:
        if self.share is None:
            raise StateLost("this worker does not hold its part of the problem any more")
        return self.share

    def setup(self, worker: Any) -> None:
        self._worker = worker
        # Not before: a plugin that is never added is never torn down.
        self.post = opened_post(self.mailbox.put, self.take_parcel, self.mailbox.close)
        worker.handlers.setdefault(reaching.DELIVER, reaching.deliverer(worker))
        worker.handlers.setdefault(reaching.ADDRESS, reaching.addresser(worker))

    def begin(self, key: str, run: int) -> None:
        """A task begins its part in a run, unless a later one has begun."""
        if run > self._running[1]:
            self._running = key, run
            self.mailbox.begin(run)

    def take_parcel(self, letter: Letter, parcel: Parcel, answer: Answer) -> None:
        """Keep a part that another worker of this machine has in its memory, if it can be seen."""
        try:
            if letter[2] == EARLY:
                self.mailbox.put(letter, ParkedParcel(self.inbox.seen(parcel), answer))
                return
            self.mailbox.put(letter, self.inbox.opened(parcel))
        except OutOfSight:
            answer(False)
        else:
            answer(True)

    def transition(self, key: str, start: str, finish: str, **more: Any) -> None:
        if key == self._load_key and finish in ("released", "forgotten"):
            self._worker.loop.add_callback(_remove_plugin, self._worker, self.name)
        elif key == self._running[0] and finish in ("cancelled", "released", "forgotten"):
            self.mailbox.give_up(self._running[1])

    async def teardown(self, worker: Any) -> None:
        self.mailbox.close("this worker has let go of its part of the problem")
        # Its threads may be in the middle of a sweep; the worker has to answer meanwhile.
        await asyncio.get_running_loop().run_in_executor(None, self._let_go)

    def _let_go(self) -> None:
        share, self.share = self.share, None
        self.offers.clear()
        with ExitStack() as closing:
            for held in (self.inbox, self.outbox, self.post, share):
                if held is not None:
                    closing.callback(held.close)


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


def _held_plugin(name: str) -> SharePlugin:
    plugin = distributed.get_worker().plugins.get(name)
    if plugin is None:
        raise StateLost("this worker does not hold its part of the problem any more")
    held: SharePlugin = plugin
    return held


# ---- running -------------------------------------------------------------------------------


def run_program(
    name: str,
    run: int,
    discard: tuple[str, ...],
    workers: tuple[str, ...],
    program: Program | None,
) -> Any:
    """A worker's part in a whole run; only the first worker is given the program.

    It leaves the worker's thread pool first: it waits for other workers, on which another fit's
    run may be waiting for this one.
    """
    worker, plugin = distributed.get_worker(), _held_plugin(name)
    share = plugin.held_share
    # First this, for a round of a run that was given up may wait for other workers.
    plugin.begin(worker.get_current_task(), run)
    share.begin(run, discard)
    distributed.secede()
    exchange: Exchange | None = None
    with ExitStack() as meeting:
        if len(workers) > 1:
            send = partial(reaching.send, worker, plugin, workers)
            place = workers.index(worker.address)
            meeting.enter_context(_met(worker, plugin, share, run, workers))
            tree = TreeExchange(plugin.mailbox, send, run, place, len(workers))
            exchange = TimedExchange(tree, share.seconds.add_exchange)
        shared = program if exchange is None else exchange.spread(program)

        def contribute(program: Program, message: Any, hand_over: HandOver | None) -> Any:
            return share.contribute_to(run, program, aligned(message), hand_over)

        outcome = run_rounds(aligned(shared), contribute, exchange)
    share.end(run)
    return outcome


@contextmanager
def _met(
    worker: Any, plugin: SharePlugin, share: Share, run: int, workers: tuple[str, ...]
) -> Iterator[None]:
    """Have a share know the workers on its machine meanwhile."""
    strangers, place = reaching.strangers(worker, workers), workers.index(worker.address)
    plugin.neighbours |= dict.fromkeys(strangers)
    here = [number for number, other in enumerate(workers) if other not in strangers]
    if len(here) < 2:
        share.meet(run)
        yield
        return
    write = partial(reaching.write, worker, plugin, workers)
    # Asked for their addresses now, and not when a round has begun.
    told = [n for n in beside(place, here) if reaching.can_write(worker, plugin, workers[n])]
    helping = Helping(plugin.mailbox, write, run, place, told, plugin.offers)
    try:
        share.meet(run, plugin.outbox.room, helping)
        yield
    finally:
        helping.close()
        share.part(helping)


def on_share(name: str, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Whatever else is to be done once where a share is."""
    return task(_held_plugin(name).held_share, *arguments)
