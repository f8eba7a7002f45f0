"""What the optimisers ask of a problem, and nothing more.

g(U) is the optimal value of an inner maximisation over dual variables, solved to a relative
residual. A truncated solve gives a *lower* estimate of g, wrong by ½ rᵀA⁻¹r: second order in its
residual r, while the gradient is wrong to first order. What is known of g at a point is a value,
an Evaluation: gradient, Hessian and certificate take it, so nothing is solved twice.
This file changes when the contract between optimisers and problems does.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

from slrt_dask.optim.manifold import Point, SpectrahedronProduct


class InnerReport(Protocol):
    """How an inner solve ended."""

    @property
    def iterations(self) -> int:
        """Inner iterations spent on this solve."""

    @property
    def residual(self) -> float:
        """‖r‖ / ‖y‖ reached."""

    @property
    def converged(self) -> bool:
        """False when the solve stopped before the tolerance it was asked for."""

    @property
    def violation(self) -> float:
        """By how much constraints are missed, relative to ‖y‖; 0 where there are none."""

    @property
    def noise_scale(self) -> float:
        """At least so much of the cost was missing per ‖r‖²/‖y‖² on the way; 0 if not known."""


class Evaluation(Protocol):
    """What is known of g at a point; it may carry an opaque dual besides."""

    @property
    def point(self) -> Point:
        """K factors (n_k, r_k)."""

    @property
    def cost(self) -> float:
        """The estimate of g, never above it but for rounding."""

    @property
    def inner(self) -> InnerReport:
        """How the inner solve behind it ended."""


class Certificate(Protocol):
    """Bounds on the distance to the global optimum of the convex problem."""

    @property
    def primal(self) -> float:
        """Upper bound P: the primal objective at a feasible tensor."""

    @property
    def dual(self) -> float:
        """Lower bound D: the dual objective."""

    @property
    def gap(self) -> float:
        """P − D, not negative but for rounding."""

    @property
    def relative_gap(self) -> float:
        """P − D relative to the size of the objective."""

    @property
    def paper_gap(self) -> float:
        """Σ λ_k/2 (σ_k² − ‖U_kᵀX_k‖²): bounds the gap when the inner solve is exact."""

    @property
    def violation(self) -> float:
        """By how much the tensor missed the constraint before it was made feasible."""

    @property
    def complementarity(self) -> float:
        """Σ |multiplier · (W − bound)|; 0 without constraints."""


EvaluationType = TypeVar("EvaluationType", bound=Evaluation)


class Problem(Protocol[EvaluationType]):
    """Minimise g over a product of spectrahedra.

    The type parameter is the problem's own Evaluation: it gets back only what it gave out.
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
        """The same point under a g that has changed with what was learnt there; None if it has not.

        Constraints bring multipliers and a working set, which are brought up to date between steps,
        as far as that makes a difference of more than rtol.
        """

    def settle(self, evaluation: EvaluationType, *, rtol: float) -> EvaluationType:
        """The same with nothing left to renew: where no step is to follow."""

    def gradient(self, evaluation: EvaluationType) -> Point:
        """Euclidean gradient of g, K arrays (n_k, r_k)."""

    def hessian(self, evaluation: EvaluationType, direction: Point, *, rtol: float) -> Point:
        """D∇g[direction], Euclidean, its inner solve to rtol relative to its right-hand side."""

    def certify(self, evaluation: EvaluationType, *, rough: bool = False) -> Certificate:
        """Bounds that hold however loosely the inner problem was solved.

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
