"""Settings that a search may try, and the steps from one to its neighbours.

Only the products C·λ_k matter to the answer, so they are what is searched, as `strengths`: a mode
with a large one may be fitted closely, one with a small one hardly takes part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

FIRST_RANKS = (8, 5, 2)
"""Ranks to begin with, the first for which there is room. Narrow factors ask for weaker strengths
than wide ones, and from there neither is changed for the better by itself."""
LADDER = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 135, 200, 300)
"""Ranks that are tried: always the same, because kernels are compiled for each."""
SHARE_STEP, STRENGTH_STEP = 3.0, 2.0
"""By which factors neighbours differ in one strength, and in all of them."""


@dataclass(frozen=True)
class Candidate:
    """One choice of settings.

    ranks : one per mode;  strengths : C·λ_k, one per mode
    """

    ranks: tuple[int, ...]
    strengths: tuple[float, ...]

    @classmethod
    def first(
        cls, lengths: tuple[int, ...], shares: tuple[float, ...], rank: int = FIRST_RANKS[0]
    ) -> Candidate:
        """Where a search begins: ranks of some width, and weights that hardly fit anything yet."""
        largest = max(shares)
        ranks = tuple(min(rank, length) for length in lengths)
        return cls(ranks, tuple(share / largest for share in shares))

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Candidate:
        return cls(tuple(row["ranks"]), tuple(row["strengths"]))

    def to_row(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"ranks": list(self.ranks), "strengths": list(self.strengths)}

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for candidates that differ by rounding only."""
        return self.ranks, tuple(round(math.log(strength), 6) for strength in self.strengths)

    def scaled(self, factor: float) -> Candidate:
        return replace(self, strengths=tuple(factor * strength for strength in self.strengths))

    def with_strength(self, mode: int, factor: float) -> Candidate:
        strengths = list(self.strengths)
        strengths[mode] *= factor
        return replace(self, strengths=tuple(strengths))

    def with_rank(self, mode: int, up: bool, lengths: tuple[int, ...]) -> Candidate:
        """One rank one step up or down the ladder, as far as the mode's length allows."""
        ranks = list(self.ranks)
        before = ranks[mode]
        if up:
            ranks[mode] = min((*(r for r in LADDER if r > before), before)[0], lengths[mode])
        else:
            ranks[mode] = (1, *(r for r in LADDER if r < before))[-1]
        return replace(self, ranks=tuple(ranks))


@dataclass(frozen=True)
class Move:
    """A direction to look in: one rank or one strength, or all of them (mode None)."""

    kind: str
    mode: int | None

    def applied(self, candidate: Candidate, up: bool, lengths: tuple[int, ...]) -> Candidate:
        if self.kind == "rank":
            for mode in range(len(lengths)) if self.mode is None else (self.mode,):
                candidate = candidate.with_rank(mode, up, lengths)
            return candidate
        if self.mode is None:
            return candidate.scaled(STRENGTH_STEP if up else 1.0 / STRENGTH_STEP)
        return candidate.with_strength(self.mode, SHARE_STEP if up else 1.0 / SHARE_STEP)


@dataclass(frozen=True)
class Freedom:
    """What a search may change.

    lengths : the largest rank of each mode
    """

    lengths: tuple[int, ...]
    ranks: bool = True
    strength: bool = True
    shares: bool = True

    def moves(self) -> Iterator[Move]:
        """In the order in which they are tried: larger ranks cost more, and help good weights."""
        modes = range(len(self.lengths))
        if self.shares and len(self.lengths) > 1:
            yield from (Move("strength", mode) for mode in modes)
        if self.strength:
            yield Move("strength", None)
        if self.ranks and len(self.lengths) > 1:
            # One wider factor alone may have nothing to add to the others' narrow ones.
            yield Move("rank", None)
        if self.ranks:
            yield from (Move("rank", mode) for mode in modes)
