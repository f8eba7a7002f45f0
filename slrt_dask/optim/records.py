"""What passes between methods, loop and observers: states, and the history with one row each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from slrt_dask.optim.problem import Linearised

ROUNDING = 1e-9
"""Costs that differ by no more than this part of themselves are the same."""


@dataclass(frozen=True, kw_only=True)
class MethodState(Linearised):
    """The accepted point with its gradients, and the effort of the last step.

    A state is a value, and a method holds only its settings: a state loaded from disk and given to
    an equal method continues exactly as the first run would have.
    """

    inner_iterations: int
    """Inner iterations of every evaluation of the last step."""
    inner_converged: bool
    """Whether every one of them reached its tolerance."""
    noise_scale: float
    """How far a cost may be too low, per squared inner residual; see `problem`."""
    iteration: int = 0
    step: float = 0.0
    """Length of the last step; 0 at the start and where a step was refused."""
    tightening: float = 1.0
    """Factor ≤ 1 on the inner tolerance, lowered when costs could not be compared."""
    exhausted: bool = False
    """True when no further decrease can be found at this precision."""


State = TypeVar("State", contravariant=True)
StateType = TypeVar("StateType", bound=MethodState)


@dataclass(frozen=True)
class IterationRecord:
    """One iteration. The certificate's columns are None where none was computed."""

    iteration: int
    """0 for the start, then one more for every step taken or refused."""
    cost: float
    """g at the accepted point, a lower estimate."""
    gradient_norm: float
    """Length of the Riemannian gradient, absolute."""
    paper_gap: float | None
    primal: float | None
    dual: float | None
    relative_gap: float | None
    violation: float | None
    inner_iterations: int
    """Inner iterations of all evaluations made in this step."""
    inner_residual: float
    """‖r‖ / ‖y‖ of the solve behind the accepted point."""
    inner_converged: bool
    """False when any inner solve of this step stopped before its tolerance."""
    sweeps: int
    """Passes over the observations since the last row, for whatever purpose."""
    step: float
    """Length of the step taken; 0 where none was."""
    seconds: float
    """Since the run began, by the run's clock."""
    ranks: tuple[int, ...]
    validation_rmse: float | None
    """Error on held-out observations; None where not measured."""
    complementarity: float | None = None
    """Σ |multiplier · (W − bound)|; with violation and inner residual, what optimality lacks."""
    event: str = ""
    """What happened to the run before this iteration, such as the loss of a worker."""


class Observer(Protocol[State]):
    """Receives every iteration: a log, a progress bar, a checkpoint."""

    def on_record(self, record: IterationRecord, state: State) -> None:
        """Called once an iteration with its row and the accepted state."""


def stages_of(records: Sequence[IterationRecord]) -> list[Sequence[IterationRecord]]:
    """The history in stages of one objective each, whose costs can be compared; usually just one.

    A fit with Hankel structure solves several problems on the way to the one asked for. No step
    raises the cost: where it rises without one, another objective begins. A fit that goes back to
    an earlier iteration says so.
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
    """The iterations at which stages begin, except the first."""
    return tuple(stage[0].iteration for stage in stages_of(records)[1:])
