"""How the workers of a fit reach each other: by letters on one machine, else through dask.

Handlers that a worker's plugin sets up, and what others call to end there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from distributed.protocol import to_serialize

from slrt_dask.engine.exchange import Arrival, Letter, Mailbox
from slrt_dask.engine.neighbours import Outbox
from slrt_dask.engine.post import Address, Post
from slrt_dask.engine.seen_memory import OutOfSight
from slrt_dask.errors import StateLost

DELIVER, ADDRESS = "slrt_deliver", "slrt_address"
"""The names under which workers take parts from each other, and tell where their post is."""


class Correspondent(Protocol):
    """What a fit has on a worker to reach others, and for them to reach it.

    neighbours : where the post of workers on this machine is; None of those that cannot be reached
        so
    """

    name: str
    mailbox: Mailbox
    outbox: Outbox
    post: Post | None
    neighbours: dict[str, Address | None]


def deliverer(worker: Any) -> Callable[..., Coroutine[Any, Any, bool]]:
    """What a worker does with a part that another one sends it; whether it wants it."""

    async def deliver(name: str, letter: Sequence[Any], part: Any) -> bool:
        plugin = worker.plugins.get(name)
        if plugin is not None:
            run, round_number, kind, sender = letter
            plugin.mailbox.put((run, round_number, kind, sender), part)
        return plugin is not None

    return deliver


def addresser(worker: Any) -> Callable[..., Coroutine[Any, Any, Address | None]]:
    """What a worker tells others of its post."""

    async def address(name: str, asker: Sequence[Any]) -> Address | None:
        plugin = worker.plugins.get(name)
        if plugin is None or plugin.post is None:
            return None
        try:
            plugin.post.route_to(tuple(asker))  # or it could not be answered
        except OutOfSight:
            return None
        own: Address = plugin.post.address
        return own

    return address


def send(
    worker: Any, plugin: Correspondent, workers: tuple[str, ...], to: int, letter: Letter, part: Any
) -> Arrival:
    """Give a part to another worker: at once if it is on this machine, or else on its way now."""
    peer = workers[to]
    address = _post_of(worker, plugin, peer)
    if address is not None and plugin.post is not None:
        try:
            if plugin.post.send(address, letter, part):
                return None
            check = partial(plugin.mailbox.check, letter[0])
            with plugin.outbox.holding(part) as parcel:
                if parcel and plugin.post.send_parcel(address, letter, parcel, check):
                    return None
        except OutOfSight:
            plugin.neighbours[peer] = None
    named = {"name": plugin.name, "letter": letter, "part": to_serialize(part)}
    return partial(_arrived, peer, _calling(worker, peer, DELIVER, **named))


def can_write(worker: Any, plugin: Correspondent, peer: str) -> bool:
    """Whether a worker's post can be reached from here."""
    return plugin.post is not None and _post_of(worker, plugin, peer) is not None


def write(
    worker: Any, plugin: Correspondent, workers: tuple[str, ...], to: int, letter: Letter, part: Any
) -> bool:
    """Give something short to a worker on this machine; whether that was possible."""
    address = _post_of(worker, plugin, workers[to])
    return bool(address and plugin.post and plugin.post.send(address, letter, part))


def _post_of(worker: Any, plugin: Correspondent, peer: str) -> Address | None:
    """Where another worker's post is; None if it cannot be reached from here."""
    if plugin.post is None:
        return None
    if peer not in plugin.neighbours:
        asking = _calling(worker, peer, ADDRESS, name=plugin.name, asker=plugin.post.address)
        told = _arrived(peer, asking)
        plugin.neighbours[peer] = None if told is None else tuple(told)
    return plugin.neighbours[peer]


def _calling(worker: Any, peer: str, handler: str, **question: Any) -> Any:
    """Ask something of another worker, from now on; the future of its answer."""

    async def call() -> Any:
        return await getattr(worker.rpc(peer), handler)(**question)

    return asyncio.run_coroutine_threadsafe(call(), worker.loop.asyncio_loop)


def _arrived(peer: str, answering: Any) -> Any:
    """Wait for another worker's answer."""
    try:
        answer = answering.result()
    except (OSError, TimeoutError) as error:
        raise StateLost(f"the worker {peer} cannot be reached ({error})") from error
    if answer is False:
        raise StateLost(f"the worker {peer} does not hold its part of the problem any more")
    return answer


def strangers(worker: Any, workers: tuple[str, ...]) -> set[str]:
    """Workers that surely share no memory with this one, or need none to: those in its process."""
    here = _host(worker.address)
    return {address for address in workers if here is None or _host(address) != here}


def _host(address: str) -> str | None:
    """The host of an address; None if it has none."""
    protocol, _, place = address.partition("://")
    return place.rpartition(":")[0] if protocol in ("tcp", "tls") else None
