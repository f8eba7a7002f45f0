"""The stages of a history: rows of one objective each, whose costs alone can be compared.

A fit with Hankel structure goes through several problems on the way to the one asked for. This
changes when a history says in another way where one begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from slrt_dask.optim.records import IterationRecord

ROUNDING = 1e-9
"""Costs that differ by no more than this part of themselves are the same."""


def stages_of(records: Sequence[IterationRecord]) -> list[Sequence[IterationRecord]]:
    """The rows of every stage; all of them in one, of most fits.

    No step raises the cost: where it rises without one, another objective begins. A fit that goes
    back to an earlier iteration says so.
    """
    begins = [
        number
        for number, (before, row) in enumerate(itertools.pairwise(records), start=1)
        if row.step == 0.0
        and row.cost > before.cost + ROUNDING * abs(before.cost)
        and "went back" not in row.event
    ]
    ends = [*begins, len(records)]
    return [records[first:stop] for first, stop in zip([0, *begins], ends, strict=True)]


def above_lowest(records: Sequence[IterationRecord]) -> list[tuple[int, float]]:
    """(iteration, cost above the lowest of its stage), without the rows that have the lowest."""
    above = []
    for stage in stages_of(records):
        lowest = min((row.cost for row in stage), default=0.0)
        above += [(row.iteration, row.cost - lowest) for row in stage if row.cost > lowest]
    return above


def stage_begins(records: Sequence[IterationRecord]) -> tuple[int, ...]:
    """The iterations at which stages begin, the first aside."""
    return tuple(stage[0].iteration for stage in stages_of(records)[1:])
