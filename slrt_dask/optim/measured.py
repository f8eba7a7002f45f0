"""A problem seen through one step of a method: every answer checked and every solve counted.

The counts live as long as the step; the method writes them into the state it returns. This file
changes when what is counted or refused does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slrt_dask.errors import NumericalBreakdown
from slrt_dask.optim.accuracy import TIGHTER, Accuracy, measured_scale
from slrt_dask.optim.manifold import Point, SpectrahedronProduct
from slrt_dask.optim.problem import AnyProblem, Evaluation

SETTLED = 3.0
"""A residual up to this many times the wanted one is not worth another solve."""


@dataclass(frozen=True)
class Linearised:
    """An evaluation with its gradients: all that first-order steps need to know of a point."""

    evaluation: Evaluation
    euclidean: Point
    """Euclidean gradient, K arrays (n_k, r_k)."""
    gradient: Point
    """Riemannian gradient, K arrays (n_k, r_k)."""
    gradient_norm: float


class MeasuredProblem:
    """Passes every question on to the problem; adds up effort; refuses values not finite.

    It also keeps the noise scale, which grows when a second solve shows more noise than assumed.
    """

    def __init__(self, problem: AnyProblem, accuracy: Accuracy, noise_scale: float) -> None:
        self.problem = problem
        self.accuracy = accuracy
        self.noise_scale = noise_scale
        self.inner_iterations = 0
        self.inner_converged = True
        self.hessian_products = 0

    @property
    def manifold(self) -> SpectrahedronProduct:
        """Where the points live."""
        return self.problem.manifold

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        """The problem's evaluation, its cost finite; the noise seen is noted."""
        evaluation: Evaluation = self.problem.evaluate(point, rtol=rtol, warm=warm)
        if self.accuracy.noise_scale is None:
            self.noise_scale = max(self.noise_scale, evaluation.inner.noise_scale)
        self.inner_iterations += evaluation.inner.iterations
        self.inner_converged &= evaluation.inner.converged
        if not math.isfinite(evaluation.cost):
            raise NumericalBreakdown(
                f"the cost is {evaluation.cost} after {evaluation.inner.iterations} inner "
                f"iterations (residual {evaluation.inner.residual}); check the data for values "
                "that are not finite, and C and the lambdas for extreme sizes"
            )
        return evaluation

    def linearise(self, evaluation: Evaluation) -> Linearised:
        """The evaluation with both its gradients, finite."""
        euclidean = self.problem.gradient(evaluation)
        for mode, part in enumerate(euclidean):
            if not np.isfinite(part).all():
                raise NumericalBreakdown(
                    f"the gradient of mode {mode} is not finite at a cost of {evaluation.cost}; "
                    "check the data and the weights for extreme sizes"
                )
        point = evaluation.point
        gradient = self.manifold.euclidean_to_riemannian_gradient(point, euclidean)
        norm = self.manifold.norm(point, gradient)
        return Linearised(evaluation, euclidean, gradient, norm)

    def hessian(self, at: Linearised, direction: Point, *, rtol: float) -> Point:
        """Riemannian Hessian along a horizontal direction."""
        self.hessian_products += 1
        product = self.problem.hessian(at.evaluation, direction, rtol=rtol)
        return self.manifold.euclidean_to_riemannian_hessian(
            at.evaluation.point, at.euclidean, product, direction
        )

    def begin(self, point: Point, warm: Evaluation | None = None) -> Linearised:
        """The first evaluation of a run, done twice where one solve tells nothing of the noise."""
        accuracy = self.accuracy
        evaluation = self.evaluate(point, rtol=accuracy.loosest, warm=warm)
        if accuracy.noise_scale is None and self.noise_scale == 0.0:
            evaluation = self.sharpen(evaluation)
        return self.renew(self.settle(self.linearise(evaluation), tightening=1.0), tightening=1.0)

    def refine(self, evaluation: Evaluation, *, rtol: float) -> Evaluation:
        """The same point solved again to rtol, unless it already is; the noise seen is noted."""
        if evaluation.inner.residual <= rtol:
            return evaluation
        refined = self.evaluate(evaluation.point, rtol=rtol, warm=evaluation)
        if not refined.inner.residual < evaluation.inner.residual:
            return evaluation
        if self.accuracy.noise_scale is None:
            self.noise_scale = max(self.noise_scale, measured_scale(evaluation, refined))
        return refined

    def sharpen(self, evaluation: Evaluation) -> Evaluation:
        """The same point solved to a tenth of its residual, to see how noisy its cost was."""
        residual = evaluation.inner.residual
        if residual <= self.accuracy.tightest:
            return evaluation
        return self.refine(evaluation, rtol=max(TIGHTER * residual, self.accuracy.tightest))

    def settle(self, start: Linearised, *, tightening: float) -> Linearised:
        """The same point, solved as tightly as its gradient's length asks for."""
        while True:
            wanted = self.inner_tolerance(start, tightening=tightening)
            residual = start.evaluation.inner.residual
            if residual <= SETTLED * wanted or not start.evaluation.inner.converged:
                return start
            refined = self.refine(start.evaluation, rtol=wanted)
            if refined is start.evaluation:
                return start
            start = self.linearise(refined)

    def renew(self, at: Linearised, *, tightening: float) -> Linearised:
        """The same point under the g of the next step; the very same where g is as it was."""
        rtol = self.inner_tolerance(at, tightening=tightening)
        renewed = self.problem.renew(at.evaluation, rtol=rtol)
        if renewed is None:
            return at
        self.inner_iterations += renewed.inner.iterations
        self.inner_converged &= renewed.inner.converged
        return self.settle(self.linearise(renewed), tightening=tightening)

    def inner_tolerance(self, start: Linearised, *, tightening: float) -> float:
        """The residual that steps from here are solved to."""
        cost = start.evaluation.cost
        return self.accuracy.inner_tolerance(
            start.gradient_norm, cost, self.noise_scale, tightening
        )

    def noise(self, evaluation: Evaluation) -> float:
        """How far the cost of an evaluation may be from g."""
        return self.accuracy.noise(evaluation, self.noise_scale)
