"""Trials on workers, each one task on one of them.

The task loads the problem, fits it by itself and is done: nothing is left on the worker, so that a
driver that dies leaves nothing behind, and a worker that is lost takes one trial with it. This is
for problems that are loaded in no time; larger ones stay loaded, on all workers together.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace

from slrt_dask.config import FitSettings
from slrt_dask.data.holding_out import Kind
from slrt_dask.engine.cluster import PinnedTasks, own_copy
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.request import Request
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried
from slrt_dask.tuning.trials import Trials, settings_of, tell_left_out


@dataclass(frozen=True)
class Errand:
    """One trial as it travels: a request without a connection, and what is to be tried."""

    request: Request
    shares: tuple[float, ...]
    kind: Kind
    candidate: Candidate
    warm: Tried | None


def run_errand(errand: Errand) -> Tried | None:
    """Make a trial where this is called."""
    warm = errand.warm
    if warm is not None:
        warm = replace(warm, point=own_copy(warm.point))
    with errand.request.fitting() as fit:
        return Trials(fit, errand.shares, _room, errand.kind).attempt(errand.candidate, warm)


def _room(settings: FitSettings) -> None:
    """There is room: that was seen to before the errand was sent."""


class RemoteTrials:
    """Trials on one worker, with the interface of those on an engine.

    request : of the first candidate, for this worker only
    """

    def __init__(self, request: Request, shares: tuple[float, ...], kind: Kind) -> None:
        assert request.connection is not None
        assert request.only is not None
        self._request, self._shares, self._kind = request, shares, kind
        (self._address,) = request.only
        self._tasks = PinnedTasks(request.connection.client, [self._address])
        self._ended = threading.Event()
        place = request.plan().workers[0].place
        self._alone = replace(
            request,
            connection=None,
            only=None,
            threads=place.threads,
            memory_limit=place.memory_limit or request.memory_limit,
        )

    def attempt(self, candidate: Candidate, warm: Tried | None) -> Tried | None:
        settings = settings_of(candidate, self._request.settings, self._shares)
        try:
            if not replace(self._request, settings=settings).plan().in_memory:
                raise MemoryBudgetExceeded("observations would have to leave memory for it")
        except MemoryBudgetExceeded as reason:
            tell_left_out(candidate, reason)
            return None
        alone = replace(self._alone, settings=settings)
        errand = Errand(alone, self._shares, self._kind, candidate, warm)
        with self._tasks.losses_named():
            sent = self._tasks.scatter("errand", self._address, errand)
            future = self._tasks.submit("trial", self._address, run_errand, sent)
            tried: Tried | None = self._tasks.results([future], self._check)[0]
        return tried

    def _check(self) -> None:
        if self._ended.is_set():
            raise CancelledError("the search was ended")

    def close(self) -> None:
        """End what still runs: nobody waits for it any more."""
        self._ended.set()
