"""Threads that do one thing after the other together with whoever calls them.

A round of a small problem takes a few milliseconds, and a thread that sleeps is woken late: a tenth
of a millisecond as a rule, several now and then. So a thread that has done its part looks for the
next one for a moment, without the interpreter's lock, before it goes to sleep; and so does whoever
waits for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from slrt_dask.errors import StateLost
from slrt_dask.kernels.turns import GIVEN_UP, new_counters, wait_for

OFFERS = 300
"""How often a core is offered to others while looking for news, some 0.2 ms; then one sleeps."""
BEGUN = GIVEN_UP + 1
"""The counter of parts begun; after it, those of parts that each thread has ended."""

TakePart = Callable[[int], None]


class Crew:
    """The caller, who is number 0, and up to `others` threads, numbered from 1."""

    def __init__(self, others: int) -> None:
        self._counters = new_counters(BEGUN + 1 + others)
        self._threads: dict[int, threading.Thread] = {}
        self._task: TakePart | None = None
        self._errors: list[BaseException] = []
        self._news, self._one_at_a_time = threading.Condition(), threading.Lock()
        self._asleep, self._closed = 0, False

    def run(
        self, take_part: TakePart, parts: int, abandon: Callable[[], None] = lambda: None
    ) -> None:
        """Let the first ones take part, as many as there are parts; back when all have.

        An error of any of them is raised.
        abandon : is called after an error or an interrupt, once or more, and ends what others wait
            for
        """
        if parts <= 1:
            return take_part(0) if parts else None
        with self._one_at_a_time:
            if self._closed:
                raise StateLost("the threads that were to take part have been sent away")
            self._start(parts - 1)
            return self._run(take_part, parts, abandon)

    def _run(self, take_part: TakePart, parts: int, abandon: Callable[[], None]) -> None:
        raised: BaseException | None = None
        try:
            self._begin(lambda number: take_part(number) if number < parts else None)
            # This thread is awake already, and a scheduler that sees it running puts the others
            # on other cores.
            take_part(0)
        except BaseException as error:
            raised = error
        # Whatever happens meanwhile, no thread may be at work when this is over.
        while True:
            try:
                if raised is not None:
                    abandon()
                if self._all_have_ended():
                    break
                self._wait_for_all()
            except BaseException as error:
                raised = raised or error
        # Nothing of the task is kept until the next one.
        errors, self._errors, self._task = self._errors, [], None
        if raised is not None or errors:
            raise raised or errors[0]

    def close(self) -> None:
        """End all threads, when they have done what they are at."""
        with self._one_at_a_time:
            if self._threads:
                self._begin(None)
            for thread in self._threads.values():
                thread.join()
            self._threads, self._closed = {}, True

    def _start(self, others: int) -> None:
        for number in range(1, others + 1):
            if number in self._threads and self._threads[number].ident is not None:
                continue
            part = self._counters[BEGUN + number, 0] = self._counters[BEGUN, 0]
            # Known before it is started: an interrupt may come when it runs already.
            self._threads[number] = threading.Thread(
                target=self._work, args=(number, int(part)), name=f"slrt-{number}", daemon=True
            )
            self._threads[number].start()

    def _begin(self, task: TakePart | None) -> None:
        self._task = task
        self._tell(BEGUN)

    def _all_have_ended(self) -> bool:
        begun = self._counters[BEGUN, 0]
        return all(self._counters[BEGUN + number, 0] >= begun for number in self._threads)

    def _wait_for_all(self) -> None:
        begun = int(self._counters[BEGUN, 0])
        for number in self._threads:
            self._wait_until(BEGUN + number, begun)

    def _tell(self, row: int) -> None:
        self._counters[row, 0] += 1  # which nobody else writes to
        if self._asleep:
            with self._news:
                self._news.notify_all()

    def _wait_until(self, row: int, count: int) -> None:
        if wait_for(self._counters, row, count, OFFERS):
            return
        with self._news:
            # Whoever tells looks at this after it has counted, and who waits looks at the count
            # after this: one of both sees the other. Unless the former was interrupted: so tell.
            self._asleep += 1
            try:
                self._news.notify_all()
                self._news.wait_for(lambda: self._counters[row, 0] >= count)
            finally:
                self._asleep -= 1

    def _work(self, number: int, part: int) -> None:
        while True:
            part += 1
            self._wait_until(BEGUN, part)
            task = self._task
            if task is None:
                return
            try:
                task(number)
            except BaseException as error:
                self._errors.append(error)
            del task
            self._tell(BEGUN + number)
