"""What every optimisation method has: a state the loop can read, `init` and `step`.

A state is a value. A method holds only its settings, so that a state loaded from disk and given to
an equal method continues exactly as the first run would have. This file changes when the loop
needs to know something else of every method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from slrt_dask.optim.accuracy import Accuracy
from slrt_dask.optim.manifold import Point
from slrt_dask.optim.problem import AnyProblem, Evaluation


@dataclass(frozen=True)
class MethodState:
    """Where a run is: the accepted point, what is known there, and the last step's effort."""

    iteration: int
    evaluation: Evaluation
    gradient: Point
    """Riemannian gradient at the accepted point, K arrays (n_k, r_k)."""
    gradient_norm: float
    tightening: float
    """Factor ≤ 1 on the inner tolerance, lowered when costs could not be told apart."""
    noise_scale: float
    """How far a cost may be too low, per squared inner residual; see accuracy."""
    step: float
    """Length of the last step; 0 at the start and where a step was refused."""
    inner_iterations: int
    """Inner iterations of every evaluation of the last step."""
    inner_converged: bool
    """Whether every one of them reached its tolerance."""
    exhausted: bool
    """True when no further decrease can be found at this precision."""


StateType = TypeVar("StateType", bound=MethodState)


class Method(Protocol[StateType]):
    """A way of stepping downhill."""

    @property
    def accuracy(self) -> Accuracy:
        """How tightly inner problems are solved, and how far costs are believed."""

    def init(self, problem: AnyProblem, point: Point, warm: Evaluation | None = None) -> StateType:
        """The state at a starting point; `warm` is where its inner solve may start."""

    def step(self, problem: AnyProblem, state: StateType) -> StateType:
        """The state after one more step, or the same point marked exhausted."""
