"""What the mathematics may ask of an engine, wherever the blocks are."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slrt_dask.data.store import ObservationStore
from slrt_dask.engine.embedded import EmbeddedStore
from slrt_dask.engine.prepare import NumberFibres
from slrt_dask.engine.program import Program
from slrt_dask.engine.share import Share
from slrt_dask.engine.spending import Cause, ProcessMemory, ShareSpending, Stopwatch


class VectorHandle:
    """A name for vectors that live with the blocks; when nobody holds it, they are dropped."""

    def __init__(self, name: str, released: list[str]) -> None:
        self.name = name
        weakref.finalize(self, released.append, name)

    def __repr__(self) -> str:
        return f"VectorHandle({self.name!r})"


class Engine(ABC):
    """Holds a loaded problem and runs programs on its blocks."""

    in_process = True
    """Whether all shares are in this process."""

    def __init__(self, store: ObservationStore, sections: int = 1) -> None:
        """sections : into how many parts the slab mode's fibres are cut, with sums for each"""
        self.store, self.sections = store, sections
        self.fibre_count = 0
        self.stopwatch = Stopwatch()
        self._names = itertools.count()
        self._released: list[str] = []

    def new_vector(self) -> VectorHandle:
        """A fresh name for a vector that a program is about to leave on the blocks."""
        return VectorHandle(f"v{next(self._names)}", self._released)

    def take_released(self) -> tuple[str, ...]:
        """Names whose handles are gone since the last call; their vectors can be dropped."""
        # Handles may go away in any thread meanwhile: take one by one, lose none.
        names = []
        while self._released:
            names.append(self._released.pop())
        return tuple(names)

    def number_fibres(self) -> None:
        """Number the loaded blocks' fibres; must be run once before any other program."""
        if isinstance(self.store, EmbeddedStore):
            return  # whose blocks have no fibres to be numbered
        program = NumberFibres(self.store.shape, self.store.slab_mode, self.store.nnz)
        self.fibre_count = int(self.run(program))

    def run(self, program: Program) -> Any:
        """Run a program to its end; returns its outcome."""
        with self.stopwatch.on(Cause.ROUNDS):
            return self._run(program)

    def on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call task(share, *arguments) once where each share is; returns the small results."""
        with self.stopwatch.unless_named(Cause.VISITS):
            return self._on_shares(task, *arguments)

    def spending(self) -> list[ShareSpending]:
        """What every share has spent until now."""
        spent = self._on_shares(share_spending)
        return [replace(one, place=place) for one, place in zip(spent, self._places, strict=True)]

    @property
    @abstractmethod
    def _places(self) -> list[str]:
        """The addresses of the shares' workers; empty for this process."""

    @abstractmethod
    def _run(self, program: Program) -> Any: ...

    @abstractmethod
    def _on_shares(self, task: Callable[..., Any], *arguments: Any) -> list[Any]: ...

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that is held on workers."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def share_bytes(share: Share) -> int:
    """Bytes that a share holds now; for comparing with the plan."""
    return share.nbytes


def share_spending(share: Share) -> ShareSpending:
    """What a share has spent; its place is not known to it."""
    spent, memory = share.seconds, ProcessMemory.of_this(share.peak_before)
    return ShareSpending("", spent.rounds, spent.computing, spent.files, spent.exchange, memory)
