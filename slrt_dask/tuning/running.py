"""A search on engines: which trials are made at the same time, and what happens to those made.

A problem that fits one worker, and is so small that workers would wait for each other most of the
time, is given to single workers, as one task a trial. Otherwise, and without workers, one engine
makes the trials of a batch one after another. It comes to the same: a trial does not depend on
those beside it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from slrt_dask.config import FitSettings
from slrt_dask.engine.plan import Plan
from slrt_dask.engine.watch import cluster_places
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.recovery import persist
from slrt_dask.request import Request
from slrt_dask.show.text import describe_trial
from slrt_dask.tuning.candidate import Candidate, Freedom
from slrt_dask.tuning.dividing import Divided
from slrt_dask.tuning.journal import Journal
from slrt_dask.tuning.remote import RemoteTrials
from slrt_dask.tuning.search import TOGETHER, Batch, Search, Tried
from slrt_dask.tuning.trials import Trials, settings_of

ROUND_SECONDS = 0.03
"""What a round between workers takes, however little there is to compute."""
ENTRIES_A_SECOND = 1e7
"""That a thread sweeps over, roughly, with the ranks that a search begins with."""
logger = logging.getLogger("slrt_dask")
Listener = Callable[[Tried], None]
Lane = Trials | RemoteTrials
"""Who makes trials, one at a time."""


@dataclass(frozen=True)
class Searching:
    """A search on engines, which are loaded when the first candidate has to be fitted.

    until : the time after which nothing more is tried
    events : what befell the search; added to here
    put_off : candidates that there was no time for; added to here
    beside : the journal of the other centring, where both are tried: trials are numbered in both
    centring : which of the two this is, in words
    """

    divided: Divided
    freedom: Freedom
    first: Candidate
    shares: tuple[float, ...]
    listeners: tuple[Listener, ...]
    until: float
    journal: Journal
    events: list[str]
    put_off: list[Candidate] = field(default_factory=list)
    beside: Journal | None = None
    centring: str = ""

    @functools.cached_property
    def begun(self) -> Request:
        """The request of the first candidate."""
        request = self.divided.request
        return replace(request, settings=settings_of(self.first, request.settings, self.shares))

    def persistently(self, most_trials: int, *, path_only: bool = False) -> list[Tried]:
        """All that was tried; when workers are lost, from where the search was.

        path_only : only along the strengths; called again without it, the search goes on from there
        """

        def attempt() -> list[Tried]:
            with contextlib.ExitStack() as stack:
                lanes = functools.cache(lambda: stack.enter_context(self._lanes()))
                search = Search(self.freedom, lambda batch: self._tried(lanes, batch), most_trials)
                walk = search.follow if path_only else search.run
                walk(self.first)
                if time.monotonic() <= self.until:  # what a time limit left out may yet be tried
                    self.journal.settle([])
                return search.history

        return persist(
            attempt,
            self.begun.connection,
            plan=self.begun.plan,
            reached=lambda: len(self.journal.tried),
            events=self.events,
            remedy="start workers and search again",
            unit="trial",
        )

    @contextlib.contextmanager
    def _lanes(self) -> Iterator[list[Lane]]:
        """Engines that can each make a trial at the same time."""
        single = single_workers(self.begun)
        with contextlib.ExitStack() as stack:
            if not single:
                fit = stack.enter_context(self.begun.fitting())
                fits_in = functools.partial(_check_room, self.begun, fit.plan)
                yield [Trials(fit, self.shares, fits_in, self.divided.kind)]
                return
            logger.info("every trial is made by one worker, %d at the same time", len(single))
            lanes: list[Lane] = []
            for request in single:
                lane = RemoteTrials(request, self.shares, self.divided.kind)
                stack.callback(lane.close)
                lanes.append(lane)
            yield lanes

    def _tried(self, lanes: Callable[[], list[Lane]], batch: Batch) -> list[Tried | None]:
        """The trials of a batch: those that are known, and the others made now."""
        left = [
            (candidate, warm)
            for candidate, warm in batch
            if self.journal.find(candidate) is None and not self.journal.was_left_out(candidate)
        ]
        # The first of all is made in any case: without it there is nothing to choose.
        if left and (not self.journal.tried or time.monotonic() <= self.until):
            self.journal.settle([warm for _, warm in left if warm is not None])
            self._make(lanes(), left)
        elif left:
            self.put_off.append(left[0][0])
        return [self.journal.find(candidate) for candidate, _ in batch]

    def _make(self, lanes: list[Lane], batch: Batch) -> None:
        if len(lanes) == 1:
            for number, (candidate, warm) in enumerate(batch):
                began = time.monotonic()
                if number == 0 or began <= self.until:
                    self._keep(candidate, lanes[0].attempt(candidate, warm), began)
                else:
                    self.put_off.append(candidate)
            return
        free: SimpleQueue[Lane] = SimpleQueue()
        for lane in lanes:
            free.put(lane)

        def attempt(candidate: Candidate, warm: Tried | None) -> Tried | None:
            lane = free.get()
            try:
                return lane.attempt(candidate, warm)
            finally:
                free.put(lane)

        pool = ThreadPoolExecutor(len(lanes), thread_name_prefix="slrt-trial")
        counted = time.monotonic()
        try:
            running = [(one, pool.submit(attempt, one, warm)) for one, warm in batch]
            for candidate, future in running:
                counted = self._keep(candidate, future.result(), counted)
        finally:
            # After an error or an interrupt the lanes are closed, which ends what still runs.
            pool.shutdown(wait=False, cancel_futures=True)

    def _keep(self, candidate: Candidate, tried: Tried | None, counted: float) -> float:
        """Keep a trial that has just ended, and tell of it.

        counted : the time up to which earlier ones were counted; returned is that for the next
        """
        now = time.monotonic()
        if tried is None:
            self.journal.leave_out(candidate)
            return counted
        self.journal.keep(tried, now - counted)
        number = len(self.journal.tried) + (len(self.beside.tried) if self.beside else 0)
        told = replace(tried, number=number, centring=self.centring)
        logger.info("%s", describe_trial(told))
        for listener in self.listeners:
            listener(told)
        return now


def single_workers(request: Request) -> list[Request]:
    """The request, for each worker that is to make trials by itself; none if all make them."""
    if request.connection is None or request.settings.tau is not None:
        return []
    places = cluster_places(request.connection.client)
    threads = sum(place.threads for place in places)
    alone = request.store.nnz / (ENTRIES_A_SECOND * places[0].threads)
    together = request.store.nnz / (ENTRIES_A_SECOND * threads) + ROUND_SECONDS
    if alone / min(TOGETHER, len(places)) > together:
        return []
    single = [replace(request, only=(str(place.address),)) for place in places]
    return list(itertools.islice(filter(_holds_it, single), TOGETHER))


def _holds_it(request: Request) -> bool:
    """Whether one worker has room for all of it."""
    try:
        return request.plan().in_memory
    except MemoryBudgetExceeded:
        return False


def _check_room(request: Request, loaded: Plan, settings: FitSettings) -> None:
    """Refuse settings that the observations, as they were loaded, have no room for."""
    plan = replace(request, settings=settings).plan()
    if plan.in_memory != loaded.in_memory:
        raise MemoryBudgetExceeded("observations would have to leave memory for it")
