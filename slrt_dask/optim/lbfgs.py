"""Riemannian quasi-Newton steps of limited memory (L-BFGS).

The last few moves and changes of the gradient, carried along to every new point, tell of the cost's
curvature along them. The two-loop recursion turns a gradient by it; its direction has a natural
length, so that the first trial of a search is nearly always the last. This file changes when what
is remembered, or made of it, does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.descent import DescentState, LineDescent, Step, descends
from slrt_dask.optim.manifold import Point, SpectrahedronProduct, combine, scale

STEEPNESS = 1e-8
"""A direction is taken if the cost falls along it at this part of its fall down the gradient."""


@dataclass(frozen=True)
class LimitedMemoryState(DescentState):
    """The common state, and what tells of curvature."""

    moves: Point
    """K arrays (m, n_k, r_k): the last m steps, the oldest first, as tangent vectors here."""
    changes: Point
    """K arrays (m, n_k, r_k): how the gradient changed over each of them."""

    @property
    def pairs(self) -> Iterator[tuple[Point, Point]]:
        """Moves and changes of the gradient, the oldest first."""
        for number in range(len(self.moves[0])):
            yield _one(self.moves, number), _one(self.changes, number)


@dataclass(frozen=True)
class LimitedMemory(LineDescent[LimitedMemoryState]):
    """The method and its settings."""

    memory: int = 8
    """How many steps are remembered."""
    curvature: float = 1e-4
    """The least cosine between a move and the change of the gradient that tells anything: below it
    what inner solves leave open decides."""

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise InvalidConfig(f"memory is {self.memory}; give 1 or more")
        if not 0.0 < self.curvature < 1.0:
            raise InvalidConfig(f"curvature is {self.curvature}; give a number between 0 and 1")

    def _first(self, state: DescentState) -> LimitedMemoryState:
        nothing = tuple(np.zeros((0, *factor.shape)) for factor in state.gradient)
        return LimitedMemoryState(**vars(state), moves=nothing, changes=nothing)

    def _forget(self, state: LimitedMemoryState) -> LimitedMemoryState:
        nothing = tuple(stack[:0] for stack in state.moves)
        return replace(state, moves=nothing, changes=nothing)

    def _multiplier(self, state: LimitedMemoryState, slope: float, length: float) -> float:
        longest = self.line_search.longest_length / length
        if len(state.moves[0]):
            return min(1.0, longest)
        return super()._multiplier(state, slope, length)

    def _turn(
        self, manifold: SpectrahedronProduct, state: LimitedMemoryState, step: Step
    ) -> LimitedMemoryState:
        carried = self._carried(manifold, state, step)
        direction = _newton_direction(manifold, step.at.evaluation.point, carried, step.at.gradient)
        if not descends(manifold, step.at, direction, STEEPNESS):
            carried = self._forget(carried)
            direction = scale(-1.0, step.at.gradient)
        return replace(carried, direction=direction)

    def _carried(
        self, manifold: SpectrahedronProduct, state: LimitedMemoryState, step: Step
    ) -> LimitedMemoryState:
        """What is remembered, at the step's end and with the step itself if it tells anything."""
        here, there = step.start.evaluation.point, step.end.evaluation.point

        def carry(vector: Point) -> Point:
            return manifold.transport(here, there, vector)

        def tells(pair: tuple[Point, Point]) -> bool:
            lengths = manifold.norm(there, pair[0]) * manifold.norm(there, pair[1])
            return manifold.inner_product(there, *pair) > self.curvature * lengths

        last = step.move, combine(1.0, step.end.gradient, -1.0, carry(step.start.gradient))
        pairs = [*state.pairs, last]
        # Products change a little as vectors are carried along: old pairs are looked at again.
        kept = [pair for pair in ((carry(a), carry(b)) for a, b in pairs) if tells(pair)]
        moves, changes = ([pair[side] for pair in kept[-self.memory :]] for side in (0, 1))
        return replace(state, moves=_stacked(moves, there), changes=_stacked(changes, there))


def _newton_direction(
    manifold: SpectrahedronProduct, point: Point, state: LimitedMemoryState, gradient: Point
) -> Point:
    """−H·gradient, H being the inverse Hessian that the pairs tell of; −gradient without any."""
    pairs, turned, parts = list(state.pairs), gradient, []
    for move, change in reversed(pairs):
        curvature = manifold.inner_product(point, move, change)
        part = manifold.inner_product(point, move, turned) / curvature
        turned = combine(1.0, turned, -part, change)
        parts.append((curvature, part))
    if pairs:
        _, change = pairs[-1]
        turned = scale(parts[0][0] / manifold.inner_product(point, change, change), turned)
    for (move, change), (curvature, part) in zip(pairs, reversed(parts), strict=True):
        back = manifold.inner_product(point, change, turned) / curvature
        turned = combine(1.0, turned, part - back, move)
    return scale(-1.0, turned)


def _one(stacks: Point, number: int) -> Point:
    return tuple(stack[number] for stack in stacks)


def _stacked(vectors: list[Point], point: Point) -> Point:
    if not vectors:
        return tuple(np.zeros((0, *factor.shape)) for factor in point)
    return tuple(np.stack(parts) for parts in zip(*vectors, strict=True))
