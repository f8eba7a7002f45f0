"""What a distributed computation is here: rounds of one sweep over all blocks and one sum.

A program is a value. Its `rounds` is the algorithm, top to bottom: a generator that yields what
every block has to do next, is sent the sum of what they contributed, and returns the outcome. It
never says where blocks are: an engine runs it on threads of this process or on a cluster. The
generator lives in one place and holds only small things; a program travels to every worker once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from slrt_dask.engine.block import Block


@dataclass(frozen=True)
class Sweep:
    """One round: what every block does, and what it has to know for that beside the program.

    step : a function (program, block, total, *message) that adds what a block contributes to the
        sum over the blocks before, None for the first one, and returns it. It may add in place,
        which matters: fibre sums can be larger than a block
    """

    step: Callable[..., Any]
    message: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Finished:
    """In the place of a sweep: the program has ended. The outcome is small: the driver gets it."""

    outcome: Any


Rounds = Generator[Sweep, Any, Any]


class Program(ABC):
    """Rounds of sweeps and sums; a pure function of its fields and the blocks."""

    at_once = 2
    """Rounds that a cluster is given in one submission; those after the last one do nothing."""

    @abstractmethod
    def rounds(self) -> Rounds:
        """Yields sweeps, is sent their sums, returns the outcome."""

    def combine(self, left: Any, right: Any) -> Any:
        """The sum of two sums, made in the left one where possible."""
        return add_into(left, right)


class OneRound(Program):
    """A program of a single sweep, whose sum is its outcome."""

    at_once = 1

    def rounds(self) -> Rounds:
        return (yield Sweep(type(self).step))

    @abstractmethod
    def step(self, block: Block, total: Any) -> Any:
        """Add what one block contributes to the sum."""


class Course:
    """A program on its way.

    next : the sweep that it waits for, or Finished
    """

    next: Sweep | Finished

    def __init__(self, program: Program) -> None:
        self._rounds = program.rounds()
        self.advance(None)

    def advance(self, total: Any) -> None:
        """Take the sum of the sweep that it waited for."""
        try:
            self.next = self._rounds.send(total)
        except StopIteration as end:
            self.next = Finished(end.value)


def add_into(left: Any, right: Any) -> Any:
    """left + right, tuples part by part; an array on the left takes the sum itself."""
    if isinstance(left, tuple):
        return tuple(add_into(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, np.ndarray) and left.flags.writeable:
        left += right
        return left
    return left + right
