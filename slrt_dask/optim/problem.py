"""The problem as the optimisers see it: what they ask of it, how accurately, and what they believe.

g(U) is the optimal value of an inner maximisation over dual variables. What is known of g at a
point is a value, an Evaluation: gradient, Hessian and certificate take it, so that nothing is
solved twice. Inner solves are truncated at a relative residual ρ = ‖r‖/‖y‖. The cost is then too
low by ½ rᵀA⁻¹r ≤ s ρ², with the noise scale s = C‖y‖² (A ≥ 1/2C for the unconstrained problem), and
the relative gradient is wrong by about √(s/g) ρ. s/g is at most one over the squared relative
misfit: large where the data are fitted well. So:

1. The inner tolerance is tied to the outer gradient: √(s/g) ρ = factor · ‖grad‖/|g|. With a factor
   well below 1 a gradient is always mostly signal.
2. Two costs that differ by less than their noise s ρ² are not compared. The decrease is then taken
   from the slopes at both ends (the trapezoidal rule), which are right to first order by rule 1.
3. s is measured: in the course of a solve, or when a point is solved again more tightly, the rise
   of the cost over the fall of ρ² is a lower estimate of s, and the largest one seen is kept.

If a search still fails, `tightening` lowers ρ tenfold for good before failure is declared.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from slrt_dask.errors import NumericalBreakdown
from slrt_dask.optim.manifold import Point, SpectrahedronProduct

TIGHTER = 0.1
"""What `tightening` is multiplied by when a search fails within the noise."""
NEAR_ENOUGH = 3.0
"""A residual up to this many times the wanted one is not worth another solve."""
ROUNDING = 32.0 * sys.float_info.epsilon
"""Rounding noise of a cost, relative to the cost."""


class InnerReport(Protocol):
    """How an inner solve ended.

    residual : ‖r‖ / ‖y‖ reached
    converged : False when the solve stopped before the tolerance it was asked for
    violation : by how much constraints are missed, relative to ‖y‖; 0 where there are none
    noise_scale : a lower estimate of s, measured during the solve; 0 if there is none
    """

    @property
    def iterations(self) -> int: ...
    @property
    def residual(self) -> float: ...
    @property
    def converged(self) -> bool: ...
    @property
    def violation(self) -> float: ...
    @property
    def noise_scale(self) -> float: ...


class Evaluation(Protocol):
    """What is known of g at a point; it may also carry an opaque dual.

    point : K factors (n_k, r_k)
    cost : the estimate of g, never above it except for rounding
    """

    @property
    def point(self) -> Point: ...
    @property
    def cost(self) -> float: ...
    @property
    def inner(self) -> InnerReport: ...


class Certificate(Protocol):
    """Bounds on the distance to the global optimum of the convex problem.

    primal : upper bound P, the primal objective at a feasible tensor
    dual : lower bound D, the dual objective
    gap : P − D, not negative except for rounding
    relative_gap : P − D relative to the size of the objective
    paper_gap : Σ λ_k/2 (σ_k² − ‖U_kᵀX_k‖²), bounds the gap when the inner solve is exact
    violation : by how much the tensor missed the constraint before it was made feasible
    complementarity : Σ |multiplier · (W − bound)|; 0 without constraints
    """

    @property
    def primal(self) -> float: ...
    @property
    def dual(self) -> float: ...
    @property
    def gap(self) -> float: ...
    @property
    def relative_gap(self) -> float: ...
    @property
    def paper_gap(self) -> float: ...
    @property
    def violation(self) -> float: ...
    @property
    def complementarity(self) -> float: ...


EvaluationType = TypeVar("EvaluationType", bound=Evaluation)


class Problem(Protocol[EvaluationType]):
    """Minimise g over a product of spectrahedra.

    The type parameter is the problem's own Evaluation: it gets back only what it gave out. When the
    time of a run is over, any method that computes may raise OutOfTime. The run then asks for a
    certificate, which must not raise it again, and at most for the evaluation of an earlier point.
    """

    @property
    def manifold(self) -> SpectrahedronProduct:
        """Where the points live."""

    def reshape(self, ranks: tuple[int, ...]) -> None:
        """Let points have these ranks from now on."""

    @property
    def sweeps(self) -> int:
        """Passes over the observations made so far, for whatever purpose."""

    def evaluate(self, point: Point, *, rtol: float, warm: EvaluationType | None) -> EvaluationType:
        """Solve the inner problem at point to ‖r‖ ≤ rtol ‖y‖, starting from the dual of warm."""

    def renew(self, evaluation: EvaluationType, *, rtol: float) -> EvaluationType | None:
        """The same point after an update of multipliers and working set; None without constraints.

        They change g between steps, as far as that makes a difference of more than rtol.
        """

    def settle(self, evaluation: EvaluationType, *, rtol: float) -> EvaluationType:
        """The same point with nothing left to renew, for the end of a run."""

    def gradient(self, evaluation: EvaluationType) -> Point:
        """Euclidean gradient of g, K arrays (n_k, r_k)."""

    def hessian(self, evaluation: EvaluationType, direction: Point, *, rtol: float) -> Point:
        """D∇g[direction], Euclidean, its inner solve to rtol relative to its right-hand side."""

    def certify(self, evaluation: EvaluationType, *, rough: bool = False) -> Certificate:
        """Bounds that are valid even for inexact inner solves.

        rough : whether they may be far apart where no tighter ones could close the gap
        """

    @property
    def looseness(self) -> float:
        """1 for the problem that was asked for; more for one that only leads to it."""

    def next_stage(self) -> bool:
        """Become the next problem on the way to the one asked for; False if this is it."""

    def stay(self) -> None:
        """Be the problem again that it was before `next_stage`."""


AnyProblem: TypeAlias = Problem[Any]
"""A problem as the optimisers see it: they never look inside an evaluation."""


@dataclass(frozen=True)
class Accuracy:
    """How tightly inner problems are solved, the same for all methods."""

    factor: float = 0.1
    """Relative error of the gradient that inner solves may cause."""
    loosest: float = 2e-2
    tightest: float = 1e-12

    def inner_tolerance(
        self, gradient_norm: float, cost: float, noise_scale: float, tightening: float = 1.0
    ) -> float:
        """The residual to solve to where the gradient is of this length.  In [tightest, loosest].

        tightening multiplies it, also where it would be at its loosest.
        """
        size = abs(cost)
        if size == 0.0:
            return self.loosest
        wanted = self.factor * gradient_norm / (math.sqrt(size) * math.sqrt(max(noise_scale, size)))
        return max(tightening * min(wanted, self.loosest), self.tightest)

    def certificate_tolerance(self, gap_tolerance: float, cost: float, noise_scale: float) -> float:
        """The residual at which the inner solve adds a tenth of gap_tolerance to the gap.

        The inner residual alone opens a gap of C‖r‖² = s ρ².
        """
        size = abs(cost)
        if size == 0.0:
            return self.loosest
        wanted = math.sqrt(0.1 * gap_tolerance * size / max(noise_scale, size))
        return min(max(wanted, self.tightest), self.loosest)


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
    """A problem during one step of a method: answers are checked, solves counted, noise measured.

    noise_scale : the largest estimate of s so far
    """

    def __init__(self, problem: AnyProblem, accuracy: Accuracy, noise_scale: float = 0.0) -> None:
        self.problem = problem
        self.accuracy = accuracy
        self.noise_scale = noise_scale
        self.inner_iterations = 0
        self.inner_converged = True

    @property
    def manifold(self) -> SpectrahedronProduct:
        """Where the points live."""
        return self.problem.manifold

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        """The problem's evaluation, its cost finite."""
        evaluation: Evaluation = self.problem.evaluate(point, rtol=rtol, warm=warm)
        self.noise_scale = max(self.noise_scale, evaluation.inner.noise_scale)
        self._count(evaluation.inner)
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
        product = self.problem.hessian(at.evaluation, direction, rtol=rtol)
        return self.manifold.euclidean_to_riemannian_hessian(
            at.evaluation.point, at.euclidean, product, direction
        )

    def begin(self, point: Point, warm: Evaluation | None = None) -> Linearised:
        """The first evaluation of a run, solved twice where the noise scale is still unknown."""
        self.manifold.validate(point)
        evaluation = self.evaluate(point, rtol=self.accuracy.loosest, warm=warm)
        if self.noise_scale == 0.0:
            evaluation = self.sharpen(evaluation)
        return self.renew(self.settle(self.linearise(evaluation), 1.0), 1.0)

    def refine(self, evaluation: Evaluation, *, rtol: float) -> Evaluation:
        """The same point solved to rtol, unless it already is or its residual falls no further."""
        if evaluation.inner.residual <= rtol:
            return evaluation
        refined = self.evaluate(evaluation.point, rtol=rtol, warm=evaluation)
        if not refined.inner.residual < evaluation.inner.residual:
            return evaluation
        shrunk = evaluation.inner.residual**2 - refined.inner.residual**2
        change = abs(refined.cost - evaluation.cost)
        if shrunk > 0.0 and change > ROUNDING * abs(refined.cost):
            self.noise_scale = max(self.noise_scale, change / shrunk)
        return refined

    def sharpen(self, evaluation: Evaluation) -> Evaluation:
        """The same point solved to a tenth of its residual, to see how noisy its cost was."""
        residual = evaluation.inner.residual
        if residual <= self.accuracy.tightest:
            return evaluation
        return self.refine(evaluation, rtol=max(TIGHTER * residual, self.accuracy.tightest))

    def settle(self, start: Linearised, tightening: float) -> Linearised:
        """The same point, solved as tightly as its gradient's length asks for."""
        while True:
            wanted = self.inner_tolerance(start, tightening)
            inner = start.evaluation.inner
            if inner.residual <= NEAR_ENOUGH * wanted or not inner.converged:
                return start
            refined = self.refine(start.evaluation, rtol=wanted)
            if refined is start.evaluation:
                return start
            start = self.linearise(refined)

    def renew(self, at: Linearised, tightening: float) -> Linearised:
        """The same point under the g of the next step; `at` itself where g has not changed."""
        renewed = self.problem.renew(at.evaluation, rtol=self.inner_tolerance(at, tightening))
        if renewed is None:
            return at
        self._count(renewed.inner)
        return self.settle(self.linearise(renewed), tightening)

    def decrease(
        self, start: Linearised, trial: Evaluation, move: Point
    ) -> tuple[float, Linearised | None]:
        """The cost at start less that at trial, which is start moved by a tangent vector.

        Costs are compared when they differ by more than their noise. Otherwise the mean slope along
        the move is integrated, and the gradients at the trial are returned as well.
        """
        difference = start.evaluation.cost - trial.cost
        if abs(difference) > self.noise(start.evaluation) + self.noise(trial):
            return difference, None
        end = self.linearise(trial)
        manifold, here, there = self.manifold, start.evaluation.point, trial.point
        slopes = manifold.inner_product(here, start.gradient, move)
        carried = manifold.transport(here, there, move)
        slopes += manifold.inner_product(there, end.gradient, carried)
        return -0.5 * slopes, end

    def inner_tolerance(self, start: Linearised, tightening: float) -> float:
        """The residual that steps from here are solved to."""
        return self.accuracy.inner_tolerance(
            start.gradient_norm, start.evaluation.cost, self.noise_scale, tightening
        )

    def facts(self, at: Linearised) -> dict[str, Any]:
        """The fields of a MethodState that a step from or to `at` determines."""
        return {
            "evaluation": at.evaluation,
            "euclidean": at.euclidean,
            "gradient": at.gradient,
            "gradient_norm": at.gradient_norm,
            "noise_scale": self.noise_scale,
            "inner_iterations": self.inner_iterations,
            "inner_converged": self.inner_converged,
        }

    def noise(self, evaluation: Evaluation) -> float:
        """How far the cost of an evaluation may be from g."""
        size = abs(evaluation.cost)
        return max(self.noise_scale, size) * evaluation.inner.residual**2 + ROUNDING * size

    def _count(self, inner: InnerReport) -> None:
        self.inner_iterations += inner.iterations
        self.inner_converged &= inner.converged
