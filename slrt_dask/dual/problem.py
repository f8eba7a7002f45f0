"""The unconstrained dual problem: what g is at a point, its gradient and its Hessian.

    g(U) = max_Z ⟨Z, Y⟩ − ‖Z‖²/(4C) − Σ_k λ_k/2 ‖U_kᵀ Z_k‖²,     Z supported on the observations

The maximiser solves a linear system over the observations; it stays where the observations are and
is known here only by a handle. Everything else is small and lives on the driver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.holding_out import Kind, SquaredErrors
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.certificate import Bounds, Certificate
from slrt_dask.dual.lanczos import Spectrum, TopEigenvalues
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.sampling import ValidationErrors
from slrt_dask.dual.solve import ConjugateGradients, InnerOutcome, Residual
from slrt_dask.dual.start import ObservedRows
from slrt_dask.dual.sums import (
    DerivativeRowSums,
    HessianRightHandSide,
    NormOfObservations,
    RowMoments,
    RowSums,
)
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.errors import InvalidInput
from slrt_dask.optim.manifold import Point, SpectrahedronProduct

LARGEST_NORM = 1e40
MOST_INNER_ITERATIONS = 1000


@dataclass(frozen=True)
class InnerSummary:
    """How the inner solve behind an evaluation ended; relative to the observations.

    violation : by how much constraints were missed when multipliers were last looked at
    noise_scale : what the solve showed of how much a residual costs; see `optim.problem`
    """

    iterations: int
    residual: float
    converged: bool
    violation: float = 0.0
    noise_scale: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """What is known of g at a point: its value and the dual vector that gives it.

    rows : the multipliers of a linear constraint, which have their part in the dual vector
    """

    point: Point
    cost: float
    inner: InnerSummary
    dual: VectorHandle
    rows: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Correction:
    """W becomes (1 − drawn) W + drawn · (the middle of its bounds), plus `changes` where held."""

    changes: VectorHandle
    drawn: float


class DualProblem:
    """g on the product of spectrahedra, for the observations that an engine holds.

    cost_weight : C
    weights : the λ_k
    certificate_rtol : relative to the objective, the gap below which no certificate need be sharp
    """

    def __init__(
        self,
        engine: Engine,
        ranks: tuple[int, ...],
        *,
        cost_weight: float,
        weights: tuple[float, ...],
        certificate_rtol: float = 1e-5,
        max_inner_iterations: int = MOST_INNER_ITERATIONS,
    ) -> None:
        shape = engine.store.shape
        check_settings(shape, ranks, cost_weight, weights)
        if max_inner_iterations < 1:
            raise InvalidInput(f"max_inner_iterations is {max_inner_iterations}; give 1 or more")
        self.engine = engine
        self.cost_weight = cost_weight
        self.weights = weights
        self.sweeps = 0
        self._slab_mode = engine.store.slab_mode
        self._max_inner_iterations = max_inner_iterations
        self._manifold = SpectrahedronProduct(tuple(zip(shape, ranks, strict=True)))
        self._certificate_rtol = certificate_rtol
        self._eigenvalues = TopEigenvalues()
        self._norm = checked_norm(float(engine.run(NormOfObservations())))

    @property
    def manifold(self) -> SpectrahedronProduct:
        return self._manifold

    def reshape(self, ranks: tuple[int, ...]) -> None:
        self._manifold = self._manifold.with_ranks(ranks)

    @property
    def spectra(self) -> tuple[Spectrum, ...]:
        return self._eigenvalues.seen

    @property
    def shift(self) -> float:
        """1 / (2C), the multiple of the identity in the inner operator."""
        return 0.5 / self.cost_weight

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        """Solve the inner problem at a point to ‖r‖ ≤ rtol ‖y‖, from the dual of `warm`."""
        outcome, dual = self._solve(
            Factors.of(point),
            start=None if warm is None else warm.dual,
            tolerance=rtol * self._norm,
        )
        # Right for a truncated solve too: off by half of rᵀA⁻¹r only, and never too high.
        cost = 0.5 * (outcome.b_dot_x + outcome.r_dot_x)
        return Evaluation(point, cost, self._summary(outcome, self._norm), dual)

    def renew(self, evaluation: Evaluation, *, rtol: float) -> Evaluation | None:
        """None: without constraints there is nothing that could change between steps."""
        return None

    def settle(self, evaluation: Evaluation, *, rtol: float) -> Evaluation:
        return evaluation

    @property
    def looseness(self) -> float:
        return 1.0

    def next_stage(self) -> bool:
        return False

    def stay(self) -> None:
        """There is only one stage."""

    @property
    def notice(self) -> str:
        """What whoever reads the history should know of the problem; often nothing."""
        return ""

    @property
    def kept_vectors(self) -> tuple[VectorHandle, ...]:
        """Vectors that outlive an evaluation; a checkpoint has them beside its dual."""
        return ()

    def progress(self) -> dict[str, Any]:
        """What else has to be known to go on just so later: numbers, and arrays of them."""
        return {}

    def go_on(self, progress: dict[str, Any], kept: tuple[VectorHandle, ...]) -> None:
        """Take up where another one was, given what it kept."""

    def gradient(self, evaluation: Evaluation) -> Point:
        """∇_k g = −λ_k Z_k (Z_kᵀ U_k), K matrices (n_k, r_k)."""
        return self._weighted(self.row_sums(evaluation.dual, evaluation.point))

    def hessian(self, evaluation: Evaluation, direction: Point, *, rtol: float) -> Point:
        """The derivative of the gradient along a direction; one more solve of the same system."""
        factors, along = Factors.of(evaluation.point), Factors.of(direction)
        right_hand_side = self.engine.new_vector()
        norm = float(
            self.engine.run(
                HessianRightHandSide(
                    evaluation.dual.name, right_hand_side.name, factors, along, self.weights
                )
            )
        )
        _, dual_dot = self._solve(
            factors, start=None, tolerance=rtol * norm, right_hand_side=right_hand_side
        )
        self.sweeps += 3
        totals = self.engine.run(
            DerivativeRowSums(evaluation.dual.name, dual_dot.name, factors, along, self._slab_mode)
        )
        return self._weighted(totals)

    def certify(self, evaluation: Evaluation, *, rough: bool = False) -> Certificate:
        """Bounds on the distance to the global optimum, right however loose the inner solve is."""
        factors, self.sweeps = Factors.of(evaluation.point), self.sweeps + 1
        residual = self.engine.run(
            Residual(factors, self.weights, self.shift, evaluation.dual.name)
        )
        row_sums = self.row_sums(evaluation.dual, evaluation.point)
        bounds = Bounds.of(evaluation.point, row_sums, residual, self.cost_weight, self.weights)
        lower, upper = self._eigenvalues.bounds(
            lambda vectors: self.row_sums(evaluation.dual, vectors),
            evaluation.point,
            row_sums,
            lambda low, high: bounds.are_settled(low, high, self._certificate_rtol, rough),
        )
        return bounds.certificate(lower, upper)

    def validation_errors(
        self, evaluation: Evaluation, validation: ObservationStore, kind: Kind
    ) -> SquaredErrors:
        """Of held-out observations, which the blocks hold too; kind : what was held out."""
        factors = Factors.of(evaluation.point)
        program = ValidationErrors(evaluation.dual.name, factors, self.weights, kind)
        errors: SquaredErrors = self.engine.run(program)
        return errors

    def correction(self, evaluation: Evaluation) -> Correction | None:
        """What makes the answer satisfy a linear constraint; None where there is no such thing."""
        return None

    def row_sums(self, dual: VectorHandle | None, matrices: Point) -> Point:
        """Z_k (Z_kᵀ F_k) for K matrices F_k; the observed values take the place of Z if None."""
        self.sweeps += 1
        vector = self._observed() if dual is None else dual
        name = None if vector is None else vector.name
        totals: Point = self.engine.run(RowSums(name, Factors.of(matrices), self._slab_mode))
        return totals

    def observed_rows(self) -> ObservedRows | None:
        """What the pattern of observations does to the unfoldings' rows."""
        vector, ones, shape = self._observed(), self.engine.new_vector(), self.engine.store.shape
        name = None if vector is None else vector.name
        moments = self.engine.run(RowMoments(name, ones.name, shape))
        meetings = self.row_sums(ones, tuple(np.ones((length, 1)) for length in shape))
        rows = tuple(total[:, 0] for total in meetings)
        return ObservedRows(moments[: len(shape)], moments[len(shape) :], rows)

    def _observed(self) -> VectorHandle | None:
        """A vector in the place of the observed values where none is named; None for themselves."""
        return None

    def _solve(
        self,
        factors: Factors,
        *,
        start: VectorHandle | None,
        tolerance: float,
        right_hand_side: VectorHandle | None = None,
    ) -> tuple[InnerOutcome, VectorHandle]:
        solution = self.engine.new_vector()
        program = ConjugateGradients(
            factors,
            self.weights,
            self._slab_mode,
            self.shift,
            solution.name,
            None if start is None else start.name,
            None if right_hand_side is None else right_hand_side.name,
            tolerance,
            self._max_inner_iterations,
        )
        outcome: InnerOutcome = self.engine.run(program)
        self.sweeps += outcome.sweeps
        return outcome, solution

    def _weighted(self, totals: Point) -> Point:
        return tuple(-weight * t for weight, t in zip(self.weights, totals, strict=True))

    def _summary(self, outcome: InnerOutcome, norm: float) -> InnerSummary:
        residual = math.sqrt(outcome.r_dot_r) / norm if norm > 0.0 else 0.0
        noise_scale = outcome.missed * norm**2
        return InnerSummary(
            outcome.iterations, residual, outcome.converged, noise_scale=noise_scale
        )


def checked_norm(norm: float) -> float:
    """Refuse data so large or small that products of four of them leave the range of a float."""
    if norm != 0.0 and not 1.0 / LARGEST_NORM <= norm <= LARGEST_NORM:
        raise InvalidInput(
            f"the observations have norm {norm:.3g}; rescale the values so that it lies between "
            f"{1.0 / LARGEST_NORM:g} and {LARGEST_NORM:g}"
        )
    return norm


def check_settings(
    shape: tuple[int, ...], ranks: tuple[int, ...], cost_weight: float, weights: tuple[float, ...]
) -> None:
    if len(ranks) != len(shape):
        raise InvalidInput(
            f"{len(ranks)} ranks were given for a tensor of order {len(shape)}; give one per mode"
        )
    for mode, (rank, length) in enumerate(zip(ranks, shape, strict=True)):
        if not 1 <= rank <= length:
            raise InvalidInput(
                f"rank {rank} of mode {mode} is not between 1 and the mode's length {length}"
            )
    if not (math.isfinite(cost_weight) and cost_weight > 0.0):
        raise InvalidInput(f"C must be a positive number, not {cost_weight}")
    if len(weights) != len(shape) or not all(math.isfinite(w) and w > 0.0 for w in weights):
        raise InvalidInput(
            f"lambdas must be {len(shape)} positive numbers, one per mode, not {weights}"
        )
