"""The walk through candidates: which one is tried next, and when to be content.

First all strengths are raised together, from where nothing is fitted to where the error on held-out
observations turns: a path on which every fit starts warm from the one before. Then, from the best
of these, one rank or strength at a time is changed, as long as that helps; a direction that helped
is tried first the next time. The walk ends when no direction helps any more, or when it has taken
several times the effort of the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from slrt_dask.optim.manifold import Point
from slrt_dask.tuning.candidate import Candidate, Freedom, Move

PATH_STEP = 4.0
"""Factor between neighbours on the path of strengths."""
TURNED = 2
"""How many strengths in a row that do no better end the path."""
PATIENCE = 6
"""How many times the effort of the path all that follows may take together."""
ALONE = 40
"""The same where there was no path but a single fit."""
STILL_FALLS = 1e-3
"""The part of the error by which it has to fall along the path for that not to have turned."""
FITTED, LONGEST_RISE = 0.98, 12
"""Something is fitted when the error is this part of the first; and surely after so many steps."""
WORTH = {"rank": 5e-3, "strength": 3e-3}
"""By what part of itself the error has to fall for a change to be made; ranks cost more."""


@dataclass(frozen=True)
class Tried:
    """How well a candidate did.

    error : root mean square error on held-out observations, at its best iteration
    iterations : how many iterations from its start that was
    point : the factors there, K matrices (n_k, r_k)
    held : what the next candidate can start from beside the point, as long as the engine lives
    """

    candidate: Candidate
    error: float
    iterations: int
    sweeps: int
    seconds: float
    point: Point
    held: Any = field(default=None, compare=False, repr=False)

    @property
    def effort(self) -> float:
        """Sweeps take time in proportion to the ranks."""
        return float(self.sweeps * sum(self.candidate.ranks))


Attempt = Callable[[Candidate, Tried | None], Tried | None]
"""Fit a candidate, warm from another; None where there is no room for it."""


@dataclass
class Search:
    """A search and what it has seen.

    history : all that was tried, in order
    """

    freedom: Freedom
    attempt: Attempt
    most_trials: int
    history: list[Tried] = field(default_factory=list)
    most_effort: float = math.inf
    _seen: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def best(self) -> Tried:
        return min(self.history, key=lambda tried: tried.error)

    @property
    def is_spent(self) -> bool:
        effort = sum(tried.effort for tried in self.history)
        return len(self.history) >= self.most_trials or effort > self.most_effort

    def run(self, first: Candidate) -> Tried:
        """The best candidate found."""
        if self.freedom.strength:
            self._follow_path(first)
        else:
            self._try(first, None)
        paths = PATIENCE if self.freedom.strength else ALONE
        self.most_effort = (1 + paths) * sum(tried.effort for tried in self.history)
        self._improve()
        return self.best

    def _follow_path(self, first: Candidate) -> None:
        candidate, last, idle = first, None, 0
        while idle < TURNED and not self.is_spent:
            lowest = min((tried.error for tried in self.history), default=math.inf)
            tried = self._try(candidate, last)
            if tried is None or tried.error == 0.0:
                return
            # Before anything is fitted errors hardly differ, and their order means nothing.
            fitted = lowest < FITTED * self.history[0].error or len(self.history) > LONGEST_RISE
            idle = idle + 1 if fitted and tried.error > (1.0 - STILL_FALLS) * lowest else 0
            last, candidate = tried, candidate.scaled(PATH_STEP)

    def _improve(self) -> None:
        moves = list(self.freedom.moves())
        upwards = dict.fromkeys(moves, True)
        position, idle = 0, 0
        while moves and idle < len(moves) and not self.is_spent:
            move = moves[position % len(moves)]
            position += 1
            helped = next(
                (up for up in (upwards[move], not upwards[move]) if self._goes(move, up)), None
            )
            idle = idle + 1 if helped is None else 0
            upwards[move] = upwards[move] if helped is None else helped

    def _goes(self, move: Move, up: bool) -> bool:
        """Go as far as it helps; whether it did at all."""
        helped = False
        while not self.is_spent:
            best = self.best
            neighbour = move.applied(best.candidate, up, self.freedom.lengths)
            if neighbour.key in self._seen:
                return helped
            tried = self._try(neighbour, best)
            if tried is None or not tried.error < (1.0 - WORTH[move.kind]) * best.error:
                return helped
            helped = True
        return helped

    def _try(self, candidate: Candidate, warm: Tried | None) -> Tried | None:
        self._seen.add(candidate.key)
        tried = self.attempt(candidate, warm)
        if tried is not None:
            self.history.append(tried)
            best = self.best
            # What fits can start from takes as much room as the observations.
            self.history = [
                one if one is best or one is tried else replace(one, held=None)
                for one in self.history
            ]
        return tried
