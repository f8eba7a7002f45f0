"""What a distributed computation is here: rounds of one step per block and one sum.

A program says what every block does in a round (`step`), how two sums become one (`combine`), and
what the next round's message is (`advance`). It never says where blocks are: `run_rounds` is all
that an engine does with it, in this process and on every worker of a cluster alike. Programs
travel to workers, so they hold only small things: factors, names, tolerances.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slrt_dask.engine.block import Block, Buffers
from slrt_dask.engine.exchange import Exchange


@dataclass(frozen=True)
class Finished:
    """The message that ends a program; `outcome` is small, for it goes to the driver."""

    outcome: Any


class Program(ABC):
    """Rounds of step, combine and advance; a pure function of its fields and the blocks."""

    label = "sweep"
    """How its tasks are called on a dashboard: slrt-<label>."""

    @abstractmethod
    def first(self) -> Any:
        """The message of the first round."""

    @abstractmethod
    def step(self, block: Block, message: Any, total: Any) -> Any:
        """Add what one block contributes to this round to a sum; may change the block's vectors.

        total : the sum over the blocks before, None for the first. It may be added to in place,
            which matters: fibre sums can be larger than a block.
        """

    @abstractmethod
    def advance(self, message: Any, total: Any) -> Any:
        """The next round's message from this one's and the sum of contributions, or Finished."""

    def section(self, message: Any) -> int | None:
        """The section of every block that a round is about; None if it is about whole blocks.

        Steps of such a round see only a section's entries, and of their index the slab mode's part.
        """
        return None

    def sent(self, message: Any) -> Any:
        """What of a message the blocks have to be told; the rest is for `advance` alone."""
        return message

    def combine(self, left: Any, right: Any) -> Any:
        """The sum of two sums: tuples are added part by part, into the left one where possible."""
        return tuple(add_into(a, b) for a, b in zip(left, right, strict=True))


@dataclass(frozen=True)
class OneRound(Program):
    """A program of a single round, whose total is its outcome."""

    def first(self) -> None:
        return None

    def advance(self, message: None, total: Any) -> Finished:
        return Finished(total)


class Place(Protocol):
    """What a thread has."""

    buffers: Buffers

    def opened(self) -> Iterable[Block]:
        """Its blocks."""


class SharedStep(Protocol):
    """A round's steps on all blocks of a place, of which threads take one turn after the other.

    Who takes which turn does not change a bit of what is summed.
    follows : whether second halves are shared so as well
    """

    follows: bool

    def step(self, thread: int) -> bool:
        """Take turns of the first halves until there are none; whether this thread did the last."""

    def total(self) -> tuple[Any, Any]:
        """The sum of the first halves, when all of them are done."""

    def follow(self, thread: int) -> None:
        """Wait until the first halves are done, and take turns of the second ones."""

    def rest(self) -> Any:
        """The sum of the second halves, when all of them are done."""

    def give_up(self) -> None:
        """Have nobody wait any more, nor take another turn."""


class Overlapping(Program):
    """A program whose steps have a second half, which the large part of their sum does not need.

    Sums are pairs: what all workers have to know in full, and the rest, which is small. The former
    travels while the second half is computed, and reaches the blocks of several workers without the
    message. Messages as `advance` makes them are complete: a lone worker's blocks get just these.
    """

    @abstractmethod
    def follow(self, block: Block, message: Any, rest: Any) -> Any:
        """The second half of a step: add to the rest of the sum, None for the first.

        block : may be some slices of one (`Block.piece`), and then several threads are at work on
            others of it: what is not of these slices must neither be read nor written
        """

    @abstractmethod
    def known_of(self, shared: Any) -> Any:
        """What `advance` has to know of the large part when it is complete, added to the rest.

        Made once, by whoever completes the sum, while others still compute.
        """

    def shared(self, message: Any, places: Sequence[Place]) -> SharedStep | None:
        """The steps of a round as something that threads share, for which there may be a way.

        There is none where steps are not alike, and then every thread goes through its own blocks.
        places : every thread's blocks and room
        """
        return None

    @abstractmethod
    def told(self, message: Any, shared: Any) -> Any:
        """A message as blocks take it, given the part of the last sum that all workers know.

        That part must not be written to, nor kept for longer than the next round: it may lie in
        another worker's memory.
        """

    def fused(self, block: Block, message: Any, total: Any) -> Any:
        """Both halves, where nothing travels meanwhile."""
        shared, rest = self.step(block, message, total)
        return shared, self.follow(block, message, rest)


def add_into(left: Any, right: Any) -> Any:
    """left + right; an array on the left takes the sum itself."""
    if hasattr(left, "flags") and left.flags.writeable:
        left += right
        return left
    return left + right


HandOver = Callable[[Any], None]
"""Takes the part of a sum that all workers are to know, as soon as it is complete here."""
Contribute = Callable[[Program, Any, HandOver | None], Any]


def run_rounds(program: Program, contribute: Contribute, exchange: Exchange | None = None) -> Any:
    """Run a program to its end, given how the blocks here contribute to a round.

    exchange : joins these blocks with those of other workers, each of which runs the same rounds
    """
    return (
        _run_alone(program, contribute)
        if exchange is None
        else _run_with_others(program, contribute, exchange)
    )


def _run_with_others(program: Program, contribute: Contribute, others: Exchange) -> Any:
    message = program.first()
    heard = others.spread(program.sent(message))
    while not isinstance(heard, Finished):
        if isinstance(program, Overlapping):
            total = _overlapped(program, heard, contribute, others)
        else:
            total = others.total(program.combine, contribute(program, heard, None))
        if others.is_root:
            message = program.advance(message, total)
        heard = others.spread(_sent(program, message))
        if isinstance(program, Overlapping) and not isinstance(heard, Finished):
            heard = program.told(heard, total[0])
    others.settle()
    return message.outcome if others.is_root else None


def _run_alone(program: Program, contribute: Contribute) -> Any:
    """The same where nobody else has blocks."""
    message, overlapping = program.first(), isinstance(program, Overlapping)
    while not isinstance(message, Finished):
        # What all workers know has not to be taken out of a message here, and put into it again.
        heard = message if overlapping else program.sent(message)
        message = program.advance(message, contribute(program, heard, None))
    return message.outcome


def _sent(program: Program, message: Any) -> Any:
    return Finished(None) if isinstance(message, Finished) else program.sent(message)


def _overlapped(
    program: Overlapping, message: Any, contribute: Contribute, others: Exchange
) -> Any:
    """One round's sum; the part that everybody needs travels while the rest is computed."""
    shared: list[Callable[[], Any]] = []

    def hand_over(part: Any) -> None:
        shared.append(others.share(add_into, part, program.known_of))

    rest = contribute(program, message, hand_over)
    (wait,) = shared
    total, known = wait()
    rest = others.total(add_into, rest)
    return total, add_into(rest, known) if others.is_root else rest
