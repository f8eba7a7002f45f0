"""How the shares of a fit add up their contributions and hear what comes next, without a scheduler.

Workers form a tree with the first one at its root. Every worker adds its children's sums to its own
and passes the total to its parent; the root makes the next message, which goes down the same way.
Parts travel straight from worker to worker and wait in a mailbox until they are asked for: a round
costs two short hops, where tasks of a round each would cost two more through the scheduler.

Nobody waits for ever: a mailbox is closed when the driver lets go of the run, or has died, and
whoever waits at it raises StateLost.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from slrt_dask.errors import StateLost

FAN_IN = 4
"""How many workers one adds the sums of, besides its own."""

EARLY = "early sum"
"""What is added to another sum at once, and not kept: it may be parked."""
Letter = tuple[int, int, str, int]
"""What a part is: run, round, its kind, such as "sum", and the number of the worker it is from."""
Combine = Callable[[Any, Any], Any]
"""How two sums become one."""
Shared = Callable[[], tuple[Any, Any]]
"""Waits for a sum that all workers are to know, with what the root knows of it."""
Arrival = Callable[[], object] | None
"""Waits until a part that was sent has arrived, and raises if it never will; None if it has."""


class Parked(ABC):
    """A part that lies where its sender has put it, and waits there until it is taken.

    A sender whose part is never taken, because its run is over, finds that out by itself.
    """

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """The part for as long as this lasts; its arrays cannot be written to."""


class Mailbox:
    """Parts that have come from other workers; threads wait here for those they need."""

    def __init__(self) -> None:
        self._parts: dict[Letter, Any] = {}
        self._changed = threading.Condition()
        self._run = -1
        self._closed = ""

    def begin(self, run: int) -> None:
        """From now on only parts of this run are of interest."""
        with self._changed:
            self._run = max(self._run, run)
            self._parts = {key: part for key, part in self._parts.items() if key[0] >= run}
            self._changed.notify_all()

    def put(self, letter: Letter, part: Any) -> None:
        with self._changed:
            if letter[0] >= self._run and not self._closed:
                self._parts[letter] = part
                self._changed.notify_all()

    def take(self, letter: Letter) -> Any:
        """The part, as soon as it is there; StateLost when it will not come any more."""
        with self._changed:
            while letter not in self._parts:
                self.check(letter[0])
                self._changed.wait()
            return self._parts.pop(letter)

    def look(self, letter: Letter) -> Any:
        """The part if it is there already, else None."""
        with self._changed:
            return self._parts.pop(letter, None)

    def check(self, run: int) -> None:
        """Raise StateLost if nothing of this run will come any more."""
        if self._closed or run < self._run:
            raise StateLost(self._closed or "another run has begun")

    def give_up(self, run: int) -> None:
        """End a run that nobody wants any more."""
        self.begin(run + 1)

    def close(self, reason: str) -> None:
        with self._changed:
            self._closed = reason
            self._parts.clear()
            self._changed.notify_all()


class Exchange(ABC):
    """What a worker knows of the others: sums go up, messages come down."""

    is_root = True

    @abstractmethod
    def total(self, combine: Combine, part: Any) -> Any:
        """The sum of all workers' parts, at the root; elsewhere nothing of use."""

    @abstractmethod
    def spread(self, message: Any) -> Any:
        """The root's message, everywhere."""

    @abstractmethod
    def share(self, combine: Combine, part: Any, known_of: Callable[[Any], Any]) -> Shared:
        """Begin to add up all workers' parts; the call returned waits for the sum, everywhere.

        The sum may lie in another worker's memory: it is to be read only, and only until the next
        sum of its kind is complete.
        known_of : what the root makes of the sum meanwhile; elsewhere it is None
        """

    @abstractmethod
    def settle(self) -> None:
        """Wait until all that was sent has arrived."""


class TreeExchange(Exchange):
    """One worker's place in the tree during one run.

    place : its number; the root's is 0
    send : gives a part to the worker of a number

    Nobody waits for a message to arrive before going on: whoever made it, or passed it on, has
    work to do in the meantime.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        send: Callable[[int, Letter, Any], Arrival],
        run: int,
        place: int,
        workers: int,
    ) -> None:
        self.is_root = place == 0
        self._mailbox, self._send, self._run, self._place = mailbox, send, run, place
        self._parent = (place - 1) // FAN_IN
        first = FAN_IN * place + 1
        self._children = range(first, min(first + FAN_IN, workers))
        self._round = 0
        self._arrivals: list[Arrival] = []

    def total(self, combine: Combine, part: Any) -> Any:
        return self._up("sum", combine, part)

    def spread(self, message: Any) -> Any:
        self.settle()
        message, self._arrivals = self._down("message", message)
        self._round += 1
        return message

    def settle(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        _wait_for(arrivals)

    def share(self, combine: Combine, part: Any, known_of: Callable[[Any], Any]) -> Shared:
        done: Future[tuple[Any, Any]] = Future()

        def travel() -> None:
            try:
                total, arrivals = self._down("shared", self._up(EARLY, combine, part))
                known = known_of(total) if self.is_root else None
                _wait_for(arrivals)
                done.set_result((total, known))
            except BaseException as error:
                done.set_exception(error)

        # Not of a pool: it waits for others, and must not keep a worker that ends from ending.
        threading.Thread(target=travel, name="slrt-share", daemon=True).start()
        return done.result

    def _up(self, kind: str, combine: Combine, part: Any) -> Any:
        for child in self._children:
            theirs = self._mailbox.take((self._run, self._round, kind, child))
            with theirs.opened() if isinstance(theirs, Parked) else nullcontext(theirs) as opened:
                part = combine(part, opened)
        if not self.is_root:
            _wait_for([self._send(self._parent, (self._run, self._round, kind, self._place), part)])
        return part

    def _down(self, kind: str, part: Any) -> tuple[Any, list[Arrival]]:
        """The root's part, and what waits until it has arrived further down."""
        letter = (self._run, self._round, kind, self._parent)
        if not self.is_root:
            part = self._mailbox.take(letter)
        own = (*letter[:3], self._place)
        return part, [self._send(child, own, part) for child in self._children]


def _wait_for(arrivals: list[Arrival]) -> None:
    for arrived in arrivals:
        if arrived is not None:
            arrived()


class TimedExchange(Exchange):
    """An exchange that tells how long it made a worker wait.

    took : is told seconds, in which the worker did nothing else
    """

    def __init__(self, exchange: Exchange, took: Callable[[float], None]) -> None:
        self.is_root = exchange.is_root
        self._exchange, self._took = exchange, took

    def total(self, combine: Combine, part: Any) -> Any:
        with self._timed():
            return self._exchange.total(combine, part)

    def spread(self, message: Any) -> Any:
        with self._timed():
            return self._exchange.spread(message)

    def settle(self) -> None:
        with self._timed():
            self._exchange.settle()

    def share(self, combine: Combine, part: Any, known_of: Callable[[Any], Any]) -> Shared:
        wait = self._exchange.share(combine, part, known_of)

        def timed() -> tuple[Any, Any]:
            with self._timed():
                return wait()

        return timed

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._took(time.perf_counter() - began)
