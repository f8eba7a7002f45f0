"""The methods: conjugate gradients, limited-memory quasi-Newton, and the trust region.

The first two search along a line and are written as the choice of the next direction; the third
minimises a quadratic model within a radius. All on the manifold, with the names of `manifold`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from slrt_dask.optim.line_search import DescentState, LineDescent, Trial
from slrt_dask.optim.manifold import Point, SpectrahedronProduct, combine, scale
from slrt_dask.optim.problem import (
    TIGHTER,
    Accuracy,
    AnyProblem,
    Evaluation,
    Linearised,
    MeasuredProblem,
)
from slrt_dask.optim.records import MethodState

# ---- conjugate gradients, Hestenes–Stiefel with restarts ------------------------------------


@dataclass(frozen=True)
class ConjugateGradient(LineDescent):
    """Riemannian conjugate gradients; restarts when |⟨grad, last grad⟩| exceeds ‖grad‖²."""

    def _turn(
        self,
        manifold: SpectrahedronProduct,
        before: DescentState,
        trial: Trial,
        end: Linearised,
        at: Linearised,
    ) -> DescentState:
        """The next direction: −grad + max(0, β) · the last one transported, or just −grad."""
        here, there, gradient = before.evaluation.point, at.evaluation.point, at.gradient
        downhill = scale(-1.0, gradient)
        last_gradient = manifold.transport(here, there, before.gradient)
        overlap = abs(manifold.inner_product(there, gradient, last_gradient))
        if overlap > at.gradient_norm**2:
            return replace(before, direction=downhill)
        last_direction = manifold.transport(here, there, trial.direction)
        change = combine(1.0, gradient, -1.0, last_gradient)
        curvature = manifold.inner_product(there, last_direction, change)
        if not curvature > 0.0:
            return replace(before, direction=downhill)
        beta = manifold.inner_product(there, gradient, change) / curvature
        turned = combine(1.0, downhill, max(0.0, beta), last_direction)
        slope = manifold.inner_product(there, gradient, turned)
        return replace(before, direction=turned if slope < 0.0 else downhill)


# ---- limited-memory quasi-Newton (L-BFGS) ---------------------------------------------------

STEEPNESS = 1e-8
"""A direction is taken if the cost falls along it at this part of its fall down the gradient."""
CURVATURE = 1e-4
"""The least cosine between a move and the change of the gradient for the pair to be kept: below it
what inner solves leave open decides."""


Pair = tuple[Point, Point]
"""A move and the change of the gradient over it."""


@dataclass(frozen=True)
class LimitedMemory(LineDescent):
    """Riemannian L-BFGS.

    The last moves and changes of the gradient are transported to every new point, and the two-loop
    recursion applies the inverse Hessian that they define. Its direction has a natural length, so
    that the first trial of a search is nearly always the last.
    """

    memory: int = 8
    """How many steps are remembered."""

    def _turn(
        self,
        manifold: SpectrahedronProduct,
        before: DescentState,
        trial: Trial,
        end: Linearised,
        at: Linearised,
    ) -> DescentState:
        here, there = before.evaluation.point, end.evaluation.point

        def carry(vector: Point) -> Point:
            return manifold.transport(here, there, vector)

        def is_curved(pair: Pair) -> bool:
            lengths = manifold.norm(there, pair[0]) * manifold.norm(there, pair[1])
            return manifold.inner_product(there, *pair) > CURVATURE * lengths

        old = zip(zip(*before.moves, strict=True), zip(*before.changes, strict=True), strict=True)
        change = combine(1.0, end.gradient, -1.0, carry(before.gradient))
        carried = [(carry(a), carry(b)) for a, b in [*old, (trial.move, change)]]
        # Products change a little in transport, so that old pairs are checked again.
        pairs = [pair for pair in carried if is_curved(pair)][-self.memory :]
        direction = _newton_direction(manifold, there, pairs, at.gradient)
        slope = manifold.inner_product(there, at.gradient, direction)
        steepest = at.gradient_norm * manifold.norm(there, direction)
        if not (pairs and slope < -STEEPNESS * steepest):
            return replace(before, direction=scale(-1.0, at.gradient), moves=(), changes=())
        moves, changes = (
            tuple(np.stack(parts) for parts in zip(*vectors, strict=True))
            for vectors in zip(*pairs, strict=True)
        )
        return replace(before, direction=direction, moves=moves, changes=changes)


def _newton_direction(
    manifold: SpectrahedronProduct, point: Point, pairs: list[Pair], gradient: Point
) -> Point:
    """−H·gradient, H being the inverse Hessian of the pairs; −gradient without any."""
    turned, parts = gradient, []
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


# ---- trust region ---------------------------------------------------------------------------

ACCEPT_ABOVE = 0.1
"""The ratio of measured to predicted decrease that a step needs."""
LARGEST_RADIUS, FIRST_RADIUS = 1.0, 0.25
"""In units of √K, the norm of a point."""
SMALLEST_RADIUS = 1e-12
"""Below this a move no longer changes factors of norm one."""
MODEL_RESIDUAL = 0.1
"""The largest relative residual of a model's solution; near the optimum ‖grad‖/|g| instead."""
PRODUCT_FACTOR = 0.1
"""Inner tolerance of a Hessian product, relative to the model's residual."""
MAX_PRODUCTS = 100


@dataclass(frozen=True, kw_only=True)
class TrustRegionState(MethodState):
    """The common state, and what the trust region remembers."""

    radius: float
    ratio: float = 1.0
    """Measured over predicted decrease of the last step, refused or not; 1 at the start."""


@dataclass(frozen=True)
class TrustRegion:
    """The Riemannian trust region with truncated conjugate gradients."""

    accuracy: Accuracy = field(default_factory=Accuracy)

    def init(
        self, problem: AnyProblem, point: Point, warm: Evaluation | None = None
    ) -> TrustRegionState:
        """The state at a starting point."""
        measured = MeasuredProblem(problem, self.accuracy)
        start = measured.begin(point, warm)
        radius = FIRST_RADIUS * (LARGEST_RADIUS * math.sqrt(len(point)))
        return TrustRegionState(**measured.facts(start), radius=radius)

    def step(self, problem: AnyProblem, state: TrustRegionState) -> TrustRegionState:
        """Minimise the model, compare with the cost, move or stay, and set the next radius."""
        measured = MeasuredProblem(problem, self.accuracy, state.noise_scale)
        manifold, here = measured.manifold, state.evaluation.point
        move, predicted, on_boundary = _model_step(measured, state)
        rtol = measured.inner_tolerance(state, state.tightening)
        trial = measured.evaluate(manifold.retraction(here, move), rtol=rtol, warm=state.evaluation)
        decrease, end = measured.decrease(state, trial, move)
        ratio = _ratio(decrease, predicted, state.evaluation.cost)
        next_state = replace(state, iteration=state.iteration + 1, step=0.0, ratio=ratio)
        if ratio < 0.25:
            next_state = replace(next_state, radius=0.25 * state.radius)
        elif ratio > 0.75 and on_boundary:
            largest = LARGEST_RADIUS * math.sqrt(len(here))
            next_state = replace(next_state, radius=min(2.0 * state.radius, largest))
        if ratio > ACCEPT_ABOVE:
            end = measured.settle(end or measured.linearise(trial), state.tightening)
            end = measured.renew(end, state.tightening)
            length = manifold.norm(here, move)
            return replace(next_state, **measured.facts(end), step=length)
        if state.ratio <= ACCEPT_ABOVE:  # refused twice in a row: is it the noise after all?
            sharper = measured.sharpen(state.evaluation)
            next_state = replace(next_state, evaluation=sharper)
        return self._stay(measured, next_state, predicted, rtol)

    def _stay(
        self, problem: MeasuredProblem, state: TrustRegionState, predicted: float, rtol: float
    ) -> TrustRegionState:
        """A step was refused: where noise may have decided, solve more tightly; or give up.

        A refusal well above the noise only shrinks the radius, as for an exact cost.
        """
        at: Linearised = state
        if predicted <= 2.0 * problem.noise(state.evaluation) or state.radius < SMALLEST_RADIUS:
            if rtol <= self.accuracy.tightest:
                at = problem.renew(state, state.tightening)
                state = replace(state, exhausted=at is state)
            else:
                tightening = state.tightening * TIGHTER
                at = problem.renew(problem.settle(state, tightening), tightening)
                radius = max(state.radius, SMALLEST_RADIUS**0.5)
                state = replace(state, tightening=tightening, radius=radius)
        return replace(state, **problem.facts(at))


def _ratio(measured: float, predicted: float, cost: float) -> float:
    """measured / predicted, drawn towards 1 where both are within rounding of the cost."""
    rounding = 1e3 * math.ulp(1.0) * abs(cost)
    return (measured + rounding) / (max(predicted, 0.0) + rounding) if rounding else 1.0


def _model_step(problem: MeasuredProblem, state: TrustRegionState) -> tuple[Point, float, bool]:
    """Minimise ⟨grad, η⟩ + ½⟨η, Hη⟩ over ‖η‖ ≤ radius, as accurately as a step needs.

    Steihaug–Toint: conjugate gradients on Hη = −grad, left at the boundary or where curvature is
    not positive. Returns η, by how much the model falls, and whether η is on the boundary.
    """
    manifold, point, cost = problem.manifold, state.evaluation.point, abs(state.evaluation.cost)
    rtol = min(MODEL_RESIDUAL, state.gradient_norm / cost if cost else 0.0)
    product_rtol = max(PRODUCT_FACTOR * rtol, problem.accuracy.tightest)

    def dot(a: Point, b: Point) -> float:
        return manifold.inner_product(point, a, b)

    move = bent = manifold.zero_vector(point)  # η and Hη
    residual = state.gradient
    direction = scale(-1.0, residual)
    size = first_size = dot(residual, residual)
    on_boundary = False
    for _ in range(min(MAX_PRODUCTS, manifold.dim)):
        if not size > rtol**2 * first_size:
            break
        product = problem.hessian(state, direction, rtol=product_rtol)
        curvature = dot(direction, product)
        length = size / curvature if curvature > 0.0 else math.inf
        # the t ≥ 0 with ‖η + t d‖ = radius
        inside = max(state.radius**2 - dot(move, move), 0.0)
        along = dot(move, direction)
        limit = inside / (along + math.sqrt(along**2 + dot(direction, direction) * inside))
        on_boundary = length >= limit
        length = min(length, limit)
        move = combine(1.0, move, length, direction)
        bent = combine(1.0, bent, length, product)
        if on_boundary:
            break
        # projecting again keeps rounding from leaving the horizontal space
        residual = manifold.projection(point, combine(1.0, residual, length, product))
        size, last_size = dot(residual, residual), size
        direction = combine(-1.0, residual, size / last_size, direction)
    return move, -(dot(state.gradient, move) + 0.5 * dot(move, bent)), on_boundary
