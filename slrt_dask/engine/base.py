"""What the mathematics may ask of an engine, and the engine that is this process."""

from __future__ import annotations

import itertools
import math
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from slrt_dask import interrupts
from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.program import Course, Finished, Program
from slrt_dask.engine.share import Assignment, Share
from slrt_dask.errors import OutOfTime
from slrt_dask.spending import Cause, ShareSpending, Stopwatch


class VectorHandle:
    """A name for vectors that live with the blocks; when nobody holds it, they are dropped."""

    def __init__(self, name: str, released: list[str]) -> None:
        self.name = name
        weakref.finalize(self, released.append, name)


class Engine(AbstractContextManager["Engine"]):
    """Holds a loaded problem and runs programs on its blocks."""

    def __init__(self, store: ObservationStore) -> None:
        self.store = store
        self.stopwatch = Stopwatch()
        self.places: list[str] = [""]
        """The addresses of the shares' workers; one empty address for this process."""
        self.deadline = math.inf
        """By `time.monotonic`: when a fit is to end, and long programs with it."""
        self._is_late = False
        self._names = itertools.count()
        self._released: list[str] = []

    def new_vector(self) -> VectorHandle:
        """A fresh name for a vector that a program is about to leave on the blocks."""
        return VectorHandle(f"v{next(self._names)}", self._released)

    def take_released(self) -> tuple[str, ...]:
        """Names whose handles are gone since the last call; their vectors can be dropped."""
        # Handles may go away in any thread meanwhile: take one by one, lose none.
        return tuple(self._released.pop() for _ in range(len(self._released)))

    def run(self, program: Program) -> Any:
        """The outcome of a program; OutOfTime instead, once, if the deadline is over."""
        if self.seconds_left == 0.0 and not self._is_late:
            self._is_late = True
            raise OutOfTime("the time limit was reached")
        with self.stopwatch.on(Cause.ROUNDS):
            return self._run(program)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call task(share, *arguments) once where each share is; returns the small results."""
        with self.stopwatch.unless_named(Cause.VISITS):
            return self._on_shares(task, *arguments)

    def spending(self) -> list[ShareSpending]:
        """What every share has spent until now."""
        spent = self._on_shares(Share.spending)
        return [replace(one, place=place) for one, place in zip(spent, self.places, strict=True)]

    @abstractmethod
    def _run(self, program: Program) -> Any: ...

    @abstractmethod
    def _on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]: ...

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that is held on workers."""

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalEngine(Engine):
    """One share, swept over by threads of this process."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment.store)
        with self.stopwatch.on(Cause.LOADING):
            self._share = Share(assignment)
        self._runs = itertools.count()

    def _run(self, program: Program) -> Any:
        course, run, drop = Course(program), next(self._runs), self.take_released()
        rounds = itertools.count()
        while not isinstance(course.next, Finished):
            interrupts.check()
            course.advance(self._share.sweep(run, next(rounds), program, course.next, drop))
        return course.next.outcome

    def _on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [task(self._share, *arguments)]

    def close(self) -> None:
        self._share.close()
