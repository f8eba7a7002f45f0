"""Riemannian conjugate gradients, Hestenes–Stiefel with restarts.

This file changes when the choice of direction does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.descent import DescentState, LineDescent, Step, descends
from slrt_dask.optim.manifold import Point, SpectrahedronProduct, combine, scale


@dataclass(frozen=True)
class ConjugateGradientState(DescentState):
    """Conjugacy remembers nothing but the last direction."""


@dataclass(frozen=True)
class ConjugateGradient(LineDescent[ConjugateGradientState]):
    """The method and its settings."""

    orthogonality: float = 1.0
    """Restart when |⟨grad, last grad⟩| exceeds this fraction of ‖grad‖²."""

    def __post_init__(self) -> None:
        if not self.orthogonality > 0.0:
            raise InvalidConfig(f"orthogonality is {self.orthogonality}; give a number above 0")

    def _first(self, state: DescentState) -> ConjugateGradientState:
        return ConjugateGradientState(**vars(state))

    def _forget(self, state: ConjugateGradientState) -> ConjugateGradientState:
        return state

    def _turn(
        self, manifold: SpectrahedronProduct, state: ConjugateGradientState, step: Step
    ) -> ConjugateGradientState:
        return replace(state, direction=self._conjugate(manifold, step))

    def _conjugate(self, manifold: SpectrahedronProduct, step: Step) -> Point:
        """The next direction: −grad + max(0, β) · the last one carried along, or just −grad."""
        here, there = step.start.evaluation.point, step.at.evaluation.point
        gradient = step.at.gradient
        downhill = scale(-1.0, gradient)
        last_gradient = manifold.transport(here, there, step.start.gradient)
        overlap = abs(manifold.inner_product(there, gradient, last_gradient))
        if overlap > self.orthogonality * step.at.gradient_norm**2:
            return downhill
        carried = manifold.transport(here, there, step.direction)
        change = combine(1.0, gradient, -1.0, last_gradient)
        curvature = manifold.inner_product(there, carried, change)
        if not curvature > 0.0:
            return downhill
        beta = manifold.inner_product(there, gradient, change) / curvature
        turned = combine(1.0, downhill, max(0.0, beta), carried)
        return turned if descends(manifold, step.at, turned) else downhill
