"""The history of a run: one frozen row an iteration, and who may listen to it.

This file changes when the columns of the history do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

State = TypeVar("State", contravariant=True)


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
    """Whoever wants to hear of every iteration: a log, a progress bar, a checkpoint."""

    def on_record(self, record: IterationRecord, state: State) -> None:
        """Called once an iteration with its row and the accepted state."""
