"""Solvers for systems of the tensor's size, each a course of products that it asks for.

    A = d + K,    d diagonal,    K = H* M⁻¹ H

A solver is a generator: it yields a tensor p, is sent K p, and returns a Solution. So it says
nothing of where products are made. Residuals are measured as rᵀ P⁻¹ r, P being the preconditioner.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.hankel.observed import Tensor
from slrt_dask.dual.solve import TimeLimit

Course = Generator[Tensor, Tensor, "Solution"]
PROPORTION = 1.0
"""Bounds are let go of when they pull harder than this times what is left to be done inside."""


@dataclass(frozen=True)
class System:
    """A x = b, or the minimum of ½xᵀAx − bᵀx within bounds.

    diagonal : d;  preconditioner : P, diagonal as well
    free : entries that may change; None for all
    lower, upper : bounds of the entries, None for none
    """

    diagonal: Tensor
    preconditioner: Tensor
    right_hand_side: Tensor
    free: NDArray[np.bool_] | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None

    @property
    def size(self) -> float:
        """bᵀ P⁻¹ b."""
        b = self.right_hand_side
        return float(np.vdot(b, b / self.preconditioner))

    def solver(
        self, start: Tensor | None, tolerance: float, max_iterations: int, limit: TimeLimit
    ) -> Course:
        """The course of the solver that fits, to a residual of `tolerance`."""
        solve = conjugate_gradients if self.lower is None else proportioned_gradients
        return solve(self, start, tolerance, max_iterations, limit)


@dataclass(frozen=True)
class Solution:
    """x and r = b − A x, whose P-norm (of what bounds do not explain of it) is `error`."""

    x: Tensor
    residual: Tensor
    error: float
    iterations: int
    sweeps: int
    converged: bool


def conjugate_gradients(
    system: System, start: Tensor | None, tolerance: float, max_iterations: int, limit: TimeLimit
) -> Course:
    """Preconditioned conjugate gradients."""
    x, r, sweeps = np.zeros_like(system.right_hand_side), system.right_hand_side.copy(), 0
    if start is not None:
        x, sweeps = start.copy(), 1
        r -= system.diagonal * x + (yield x)
    scaling = 1.0 / system.preconditioner
    if system.free is not None:
        scaling, r = np.where(system.free, scaling, 0.0), np.where(system.free, r, 0.0)
    z = scaling * r
    p, rz = z, float(np.vdot(r, z))
    iterations = 0
    while rz > tolerance**2 and iterations < max_iterations and not limit.is_over:
        image = system.diagonal * p + (yield p)
        if system.free is not None:
            image = np.where(system.free, image, 0.0)
        alpha = rz / float(np.vdot(p, image))
        x += alpha * p
        r -= alpha * image
        z = scaling * r
        before, rz = rz, float(np.vdot(r, z))
        p = z + (rz / before) * p
        iterations, sweeps = iterations + 1, sweeps + 1
    return Solution(x, r, max(rz, 0.0) ** 0.5, iterations, sweeps, rz <= tolerance**2)


class _Scaled:
    """The system in the variables P^½ x, where the preconditioner is the identity."""

    def __init__(self, system: System) -> None:
        assert system.lower is not None
        assert system.upper is not None
        self.root = np.sqrt(system.preconditioner)
        self.diagonal = system.diagonal
        self.b = system.right_hand_side / self.root
        self.lower, self.upper = system.lower * self.root, system.upper * self.root
        self.sweeps = 0

    def product(self, p: Tensor) -> Generator[Tensor, Tensor, Tensor]:
        self.sweeps += 1
        plain = p / self.root
        return (self.diagonal * plain + (yield plain)) / self.root

    def split(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient where x may move both ways, and where it pulls x off a bound."""
        low, high = x <= self.lower, x >= self.upper
        free = np.where(low | high, 0.0, gradient)
        pulling = np.where(low, np.minimum(gradient, 0.0), 0.0)
        pulling = np.where(high & ~low, np.maximum(gradient, 0.0), pulling)
        return free, pulling

    def room(self, x: Tensor, direction: Tensor) -> float:
        """How far x − α·direction stays within the bounds."""
        with np.errstate(divide="ignore", invalid="ignore"):
            down = np.where(direction > 0.0, (x - self.lower) / direction, np.inf)
            up = np.where(direction < 0.0, (x - self.upper) / direction, np.inf)
        return float(min(down.min(), up.min()))

    def returned(self, x: Tensor, system: System) -> Tensor:
        """x in its own variables; what is at a bound is there to the last bit."""
        assert system.lower is not None
        assert system.upper is not None
        plain = np.clip(x / self.root, system.lower, system.upper)
        plain = np.where(x <= self.lower, system.lower, plain)
        return np.where(x >= self.upper, system.upper, plain)

    def clipped(self, x: Tensor) -> Tensor:
        return np.clip(x, self.lower, self.upper)


def proportioned_gradients(
    system: System, start: Tensor | None, tolerance: float, max_iterations: int, limit: TimeLimit
) -> Course:
    """Conjugate gradients on the entries off their bounds, steps across bounds, and off them.

    (Dostál's MPRGP: conjugate gradients while the bounds pull little; where a step meets a bound,
    a projected gradient step of fixed length; where bounds pull hard, a step off them.)
    """
    scaled = _Scaled(system)
    x = scaled.clipped(np.zeros_like(scaled.b) if start is None else start * scaled.root)
    gradient = (yield from scaled.product(x)) - scaled.b
    free, pulling = scaled.split(x, gradient)
    p, steepest, iterations = free, 1.0, 0
    while (error := float(np.vdot(free, free) + np.vdot(pulling, pulling)) ** 0.5) > tolerance:
        if iterations >= max_iterations or limit.is_over:
            break
        proportional = np.vdot(pulling, pulling) <= PROPORTION**2 * np.vdot(free, free)
        direction = p if proportional else pulling
        image = yield from scaled.product(direction)
        curvature = float(np.vdot(direction, image))
        steepest = max(steepest, 1.1 * curvature / float(np.vdot(direction, direction)))
        alpha, room = float(np.vdot(gradient, direction)) / curvature, scaled.room(x, direction)
        x, gradient = _moved(scaled, x, gradient, direction, image, min(alpha, room))
        crossing = proportional and alpha > room
        if crossing:
            x = scaled.clipped(x - scaled.split(x, gradient)[0] / steepest)
            gradient = (yield from scaled.product(x)) - scaled.b
        free, pulling = scaled.split(x, gradient)
        p = free
        if proportional and not crossing:
            p = free - (float(np.vdot(free, image)) / curvature) * direction
        iterations += 1
    return Solution(
        scaled.returned(x, system), -gradient * scaled.root, error, iterations, scaled.sweeps,
        error <= tolerance,
    )  # fmt: skip


def _moved(
    scaled: _Scaled, x: Tensor, gradient: Tensor, direction: Tensor, image: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    return scaled.clipped(x - alpha * direction), gradient - alpha * image
