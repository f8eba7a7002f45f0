"""How workers of one machine take work from each other during a run.

A core is slower now and then, and whoever has done its part of a round would wait for the slower
worker. So each worker lays a part of its work where its neighbours see it, and those who are early
do some of that. Who are neighbours, where such memory is and how they hear of it is decided here;
what lies there, and what is done with it, is the business of the program.

Nobody depends on help: what no neighbour has begun its owner does itself. But who has been told of
an offer waits for it in every round, so whoever tells has to open it until the run is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from slrt_dask.engine.exchange import Letter, Mailbox
from slrt_dask.engine.seen_memory import (
    ALIGNMENT,
    OutOfSight,
    Whereabouts,
)

OFFERED_PART = 6
"""The last so many'th part of a worker's entries is offered; more memory is not worth the help."""
MOST_BESIDE = 2
"""How many neighbours a worker helps, and is helped by: memory of each is seen here."""
OFFER = "offer"

Content = NDArray[np.uint8]


class GivesUp(Protocol):
    """What a program makes of help."""

    def give_up(self) -> None:
        """Have nobody begin anything of the own offer any more."""


Made = TypeVar("Made", bound=GivesUp)
SeenOffers = dict[int, tuple[Whereabouts, Content]]
"""Neighbours' places, and where the memory of their offers is, and itself."""


def beside(place: int, here: Sequence[int]) -> tuple[int, ...]:
    """The workers next to one in the circle of those on its machine.

    here : the places of all of them, this one's included
    """
    at, count = list(here).index(place), len(here)
    found = (here[(at + step) % count] for step in (1, -1))
    return tuple(dict.fromkeys(other for other in found if other != place))


class Helping:
    """What one worker and its neighbours offer each other in a run.

    send : gives something small to a neighbour; whether that was possible
    neighbours : their places
    seen : their offers of earlier runs, most likely those of this one: memory that is looked at for
        the first time costs more than a round's help is worth
    """

    def __init__(
        self,
        mailbox: Mailbox,
        send: Callable[[int, Letter, Any], bool],
        run: int,
        place: int,
        neighbours: Sequence[int],
        seen: SeenOffers,
    ) -> None:
        self._mailbox, self._send, self._run, self._place = mailbox, send, run, place
        self._neighbours, self._unheard, self._seen = neighbours, list(neighbours), seen
        self._made: GivesUp | None = None
        self.waited = 0.0
        """Seconds spent waiting for neighbours, in which nothing was computed."""
        for gone in seen.keys() - set(neighbours):
            seen.pop(gone, None)

    def made(self, make: Callable[[], Made]) -> Made:
        """What the program makes of this, once for all its rounds."""
        if self._made is None:
            self._made = make()
        return cast("Made", self._made)

    def offer(self, whereabouts: Whereabouts, described: Any) -> None:
        """Tell the neighbours of an offer, once.

        described : what they have to know of it; short
        """
        letter = (self._run, 0, OFFER, self._place)
        for neighbour in self._neighbours:
            # Who cannot be told will not help.
            with suppress(OutOfSight):
                self._send(neighbour, letter, (whereabouts, described))

    def heard(self) -> list[tuple[Content, Any]]:
        """Offers of neighbours that have come since this was asked last."""
        found = []
        for neighbour in tuple(self._unheard):
            told = self._mailbox.look((self._run, 0, OFFER, neighbour))
            if told is not None:
                self._unheard.remove(neighbour)
                with suppress(OutOfSight):
                    found.append((self._opened(neighbour, told[0]), told[1]))
        return found

    def _opened(self, neighbour: int, whereabouts: Whereabouts) -> Content:
        known, content = self._seen.get(neighbour, (None, None))
        if content is None or known != whereabouts:
            memory = whereabouts.opened(shared=True)
            content = np.frombuffer(memory, np.uint8, offset=ALIGNMENT)
            self._seen[neighbour] = whereabouts, content
        return content

    def check(self) -> None:
        """Raise StateLost if the run is over, so that nobody will open an offer any more."""
        self._mailbox.check(self._run)

    def close(self) -> None:
        """The run is over here: nobody has to wait for the own offer any more."""
        if self._made is None:
            return
        self._made.give_up()
        for neighbour in self._unheard:  # has none any more
            self._seen.pop(neighbour, None)
