"""Threads that do one thing after the other together with whoever calls them.

A round of a small problem takes a few milliseconds, and a thread that sleeps is woken late: a tenth
of a millisecond as a rule, several now and then. So a thread that has done its part looks for the
next one for a moment, without the interpreter's lock, before it goes to sleep; and so does whoever
waits for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

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
        self._others, self._threads = others, list[threading.Thread]()
        self._task: TakePart | None = None
        self._errors: list[BaseException] = []
        self._news, self._one_at_a_time = threading.Condition(), threading.Lock()
        self._asleep = 0

    def run(
        self, take_part: TakePart, parts: int, abandon: Callable[[], None] = lambda: None
    ) -> None:
        """Let the first ones take part, as many as there are parts; back when all have.

        An error of any of them is raised.
        abandon : is called after an error or an interrupt, and ends what others wait for
        """
        if parts <= 1:
            return take_part(0) if parts else None
        with self._one_at_a_time:
            return self._run(take_part, parts, abandon)

    def _run(self, take_part: TakePart, parts: int, abandon: Callable[[], None]) -> None:
        self._start()
        self._errors = []
        raised: BaseException | None = None
        try:
            self._begin(lambda number: take_part(number) if number < parts else None)
            # This thread is awake already, and a scheduler that sees it running puts the others
            # on other cores.
            take_part(0)
        except BaseException as error:
            raised = error
            abandon()
        # Whatever happens meanwhile, no thread may be at work when this is over.
        while True:
            try:
                if self._all_have_ended():
                    break
                self._wait_for_all()
            except BaseException as error:
                raised = raised or error
                abandon()
        self._task = None  # nothing of it is kept until the next one
        if raised is None and self._errors:
            raised = self._errors[0]
        if raised is not None:
            raise raised

    def close(self) -> None:
        """End all threads; there must be nothing that they still do."""
        if self._threads:
            self._begin(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self) -> None:
        for number in range(len(self._threads) + 1, self._others + 1):
            thread = threading.Thread(
                target=self._work, args=(number,), name=f"slrt-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _begin(self, task: TakePart | None) -> None:
        self._task = task
        self._tell(BEGUN)

    def _all_have_ended(self) -> bool:
        ended = self._counters[BEGUN + 1 :, 0]
        return bool((ended >= self._counters[BEGUN, 0]).all())

    def _wait_for_all(self) -> None:
        for row in range(BEGUN + 1, len(self._counters)):
            self._wait_until(row, int(self._counters[BEGUN, 0]))

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

    def _work(self, number: int) -> None:
        part = 0
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
