"""The walk through candidates: which one is tried next, and when to be content.

First all strengths are raised together, from where nothing is fitted to where the error on held-out
observations turns: a path on which every fit starts warm from the one before. Then, from the best
of these, one rank or strength at a time is changed, as long as that helps, until no direction does
any more, or that has taken several times the effort of the path.

What is best then are factors that once fitted with the first shares of the modes, and were mended.
So the path is followed once more, with the shares that were found, and changes are looked for from
its best. On traffic counts that took the error from 26.4 to 25.6; elsewhere it changed little.

Candidates come in batches that are settled before any of them is fitted, so that they can be fitted
at the same time, and the walk is the same whoever does so. A batch is one change in both
directions: where neither helps, which is most of the time, both have to be tried anyway. The path
is followed one by one: in pairs it took half as many trials again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from slrt_dask.optim.manifold import Point
from slrt_dask.tuning.candidate import Candidate, Freedom, Move

PATH_STEP = 4.0
"""Factor between neighbours on the path of strengths."""
TOGETHER = 2
"""Candidates in the largest batch: both directions of a change."""
TURNED = 2
"""How many strengths in a row that do no better end the path."""
PATIENCE = 6
"""How many times the effort of the path all that follows may take together."""
BACK = 4
"""Steps below the best strengths at which the path begins once more."""
ALONE = 40
"""The same where there was no path but a single fit."""
STILL_FALLS = 2e-2
"""The part of the error by which it has to fall along the path for that not to have turned."""
FITTED, LONGEST_RISE = 0.98, 12
"""Something is fitted when the error is this part of the first; and surely after so many steps."""
CONTENT = 5e-3
"""The part of the first error from which on nothing is to be gained: data without noise are fitted
the better the larger the strengths, at an effort that grows with them."""
WORTH = {"rank": 5e-3, "strength": 3e-3}
"""By what part of itself the error has to fall for a change to be made; ranks cost more."""


@dataclass(frozen=True)
class Tried:
    """How well a candidate did.

    error : root mean square error on held-out observations, at its best iteration
    iterations : how many iterations from its start that was
    point : the factors there, K matrices (n_k, r_k); none are kept where no other can start
    standard_error : of the error
    number : which trial of its search it was, from 1, for those who are told of it as it ends
    centring : what was subtracted, for the same, where both the mean and offsets are tried
    """

    candidate: Candidate
    error: float
    iterations: int
    sweeps: int
    seconds: float
    point: Point
    standard_error: float = math.inf
    number: int = field(default=0, compare=False)
    centring: str = field(default="", compare=False)

    def to_row(self) -> dict[str, Any]:
        """All but the factors, as JSON takes it."""
        names = ("error", "standard_error", "iterations", "sweeps", "seconds")
        return {**self.candidate.to_row(), **{name: getattr(self, name) for name in names}}

    @property
    def effort(self) -> float:
        """Sweeps take time in proportion to the ranks."""
        return float(self.sweeps * sum(self.candidate.ranks))


Batch = list[tuple[Candidate, Tried | None]]
"""Candidates, each with what it starts warm from."""
Attempts = Callable[[Batch], list[Tried | None]]
"""Fit the candidates of a batch, in any order; None for those that there is no room for."""


@dataclass
class Search:
    """A search and what it has seen.

    history : all that was tried, in order; with factors of the best only
    """

    freedom: Freedom
    attempts: Attempts
    most_trials: int
    history: list[Tried] = field(default_factory=list)
    most_effort: float = math.inf
    _seen: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def best(self) -> Tried:
        return min(self.history, key=lambda tried: tried.error)

    @property
    def is_spent(self) -> bool:
        lowest = self.best.error if self.history else math.inf
        if lowest == 0.0 or (self.history and lowest < CONTENT * self.history[0].error):
            return True
        return len(self.history) >= self.most_trials or self._effort > self.most_effort

    @property
    def _effort(self) -> float:
        return sum(tried.effort for tried in self.history)

    def run(self, first: Candidate) -> Tried:
        """The best candidate found."""
        self.follow(first)
        most = self._effort * (PATIENCE if self.freedom.strength else ALONE)
        self._improve(most)
        if self.freedom.strength and self.freedom.shares and len(self.freedom.lengths) > 1:
            before = self.best
            self._follow_path(before.candidate.scaled(PATH_STEP**-BACK))
            if self.best is not before:
                self._improve(most)
        return self.best

    def follow(self, first: Candidate) -> None:
        """Only the path, or the single fit where strengths are given."""
        if self.freedom.strength:
            self._follow_path(first)
        else:
            self._try([(first, None)])

    def _follow_path(self, first: Candidate) -> None:
        self.most_effort = math.inf
        candidate, last, idle, errors = first, None, 0, list[float]()
        while idle < TURNED and not self.is_spent:
            lowest = min(errors, default=math.inf)
            is_new = candidate.key not in self._seen
            (tried,) = self._try([(candidate, last)])
            if tried is None:
                return
            errors.append(tried.error)
            # Before anything is fitted errors hardly differ, and their order means nothing.
            fitted = lowest < FITTED * errors[0] or len(errors) > LONGEST_RISE
            idle = idle + 1 if fitted and tried.error > (1.0 - STILL_FALLS) * lowest else 0
            # Of what was tried before the path came to it, the factors may be gone.
            last, candidate = tried if is_new else last, candidate.scaled(PATH_STEP)

    def _improve(self, effort: float) -> None:
        """Change one thing at a time, as long as it helps, with this much effort at most."""
        self.most_effort = self._effort + effort
        moves = list(self.freedom.moves())
        position, idle = 0, 0
        while moves and idle < len(moves) and not self.is_spent:
            move = moves[position % len(moves)]
            position += 1
            idle = 0 if self._changes(move) else idle + 1

    def _changes(self, move: Move) -> bool:
        """Look in both directions, and go as far as it helps; whether it did at all."""
        best, helped = self.best, False
        directions = [up for up in (True, False) if self._is_new(move, up)]
        while directions and not self.is_spent:
            start = best.candidate
            neighbours = [move.applied(start, up, self.freedom.lengths) for up in directions]
            found = self._try([(neighbour, best) for neighbour in neighbours])
            # The last batch of all may be shorter.
            tried = [(one.error, up) for one, up in zip(found, directions, strict=False) if one]
            least, up = min(tried, default=(math.inf, True))
            if not least < (1.0 - WORTH[move.kind]) * best.error:
                return helped
            best, helped = self.best, True
            directions = [up] if self._is_new(move, up) else []
        return helped

    def _is_new(self, move: Move, up: bool) -> bool:
        neighbour = move.applied(self.best.candidate, up, self.freedom.lengths)
        return neighbour.key not in self._seen

    def _try(self, batch: Batch) -> list[Tried | None]:
        batch = batch[: self.most_trials - len(self.history)]
        new = [candidate.key not in self._seen for candidate, _ in batch]
        self._seen.update(candidate.key for candidate, _ in batch)
        found = self.attempts(batch)
        self.history += [
            tried for tried, is_new in zip(found, new, strict=True) if tried is not None and is_new
        ]
        if self.history:
            best = self.best
            self.history = [one if one is best else replace(one, point=()) for one in self.history]
        return found
