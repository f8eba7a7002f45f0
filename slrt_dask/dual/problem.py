"""The dual problem: what g is at a point, its gradient, its Hessian, and how far it can be off.

    g(U) = max_x Σ_e [ what z and s are worth there ] − Σ_t λ_t/2 ‖U_tᵀ X_k‖²,     x = z + s

The maximiser solves the inner problem (`entries.py`, `solve.py`, `box_solve.py`); it stays where
the observations are and is known here only by a handle. Everything else is small and lives on the
driver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.holding_out import Kind, SquaredErrors
from slrt_dask.data.store import ObservationStore
from slrt_dask.dual.box_solve import AlternatingSolve, BoxSolve
from slrt_dask.dual.certificate import Bounds, Certificate, Measure, Products, captured
from slrt_dask.dual.entries import EntryModel
from slrt_dask.dual.feasible import Answer, Correction, Feasible
from slrt_dask.dual.lanczos import Spectrum, TopEigenvalues
from slrt_dask.dual.multipliers import MOST_SETTLING, SLOW, Constrained, Multipliers
from slrt_dask.dual.operator import Factors, Operator, terms_of
from slrt_dask.dual.rows import Rows
from slrt_dask.dual.sampling import ValidationErrors
from slrt_dask.dual.solve import ConjugateGradients, InnerOutcome, TimeLimit
from slrt_dask.dual.start import ObservedRows
from slrt_dask.dual.sums import (
    DerivativeRowSums,
    HessianRightHandSide,
    Limited,
    ObservationSize,
    Resistances,
    RowMoments,
    RowSums,
)
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.errors import InvalidInput
from slrt_dask.optim.manifold import Point, SpectrahedronProduct

LARGEST_NORM = 1e40
MOST_INNER_ITERATIONS = 1000
PATIENCE = 20
"""How many times as many iterations the alternation may take."""
ROWS_TIGHTER = 0.25
"""To this part of their tolerance solves with rows are made: multipliers multiply a residual."""
STEP = 1.9
"""Of the length at which a step down the slope could go up again, times two."""
CERTIFICATE_SECONDS = 1.0
"""For which the eigenvalues of a certificate are looked for when the time of a fit is over."""
ROW_ROUNDING = 1e-10
"""By how much of the data's size a row may be missed after a repair."""


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


class DualProblem:
    """g on the product of spectrahedra, for the observations that an engine holds.

    cost_weight : C;  weights : the λ of the terms
    delta : δ of Huber's loss; infinite for the squared misfit
    weighted : whether the observations have weights
    constrained : what is asked of the completed tensor; None if nothing is
    alternating : whether z and the multipliers are solved for in turn, which takes much longer
    certificate_rtol : relative to the objective, the gap below which no certificate need be sharp
    """

    def __init__(
        self,
        engine: Engine,
        ranks: tuple[int, ...],
        *,
        cost_weight: float,
        weights: tuple[float, ...],
        delta: float = math.inf,
        weighted: bool = False,
        constrained: Constrained | None = None,
        alternating: bool = False,
        certificate_rtol: float = 1e-5,
        max_inner_iterations: int = MOST_INNER_ITERATIONS,
    ) -> None:
        shape = engine.store.shape
        check_settings(shape, ranks, cost_weight, weights)
        if not delta > 0.0:
            raise InvalidInput(f"delta must be a positive number, not {delta}")
        if max_inner_iterations < 1:
            raise InvalidInput(f"max_inner_iterations is {max_inner_iterations}; give 1 or more")
        self.engine, self.weights, self.terms = engine, weights, terms_of(weights)
        self._manifold = SpectrahedronProduct(
            tuple((shape[term.mode], rank) for term, rank in zip(self.terms, ranks, strict=True))
        )
        self._alternating = alternating and constrained is not None
        self._max_inner_iterations = max_inner_iterations
        self._certificate_rtol = certificate_rtol
        self._eigenvalues = TopEigenvalues()
        self._sweeps = 0
        plain = EntryModel(cost_weight, delta, weighted=weighted)
        # With Huber's loss, ‖y‖ would loosen all solves where there are a few absurd values.
        loss, self._observed, self._least_weight = engine.run(ObservationSize(plain))
        self._norm = checked_norm(math.sqrt(loss * engine.store.nnz / self._observed))
        self._plain, self.multipliers = plain, None
        if constrained is not None:
            if constrained.tolerance:
                size = self._norm / math.sqrt(engine.store.nnz)
                constrained = replace(constrained, tolerance=constrained.tolerance * size)
            self.multipliers = Multipliers(engine, plain, constrained, weights)
        self._diagonal: VectorHandle | None = None

    # ---- what it is ---------------------------------------------------------------------------

    @property
    def manifold(self) -> SpectrahedronProduct:
        return self._manifold

    def reshape(self, ranks: tuple[int, ...]) -> None:
        self._manifold = self._manifold.with_ranks(ranks)

    @property
    def model(self) -> EntryModel:
        """The entries' boxes and diagonal, as they are now."""
        return self._plain if self.multipliers is None else self.multipliers.model

    @property
    def rows(self) -> Rows | None:
        return None if self.multipliers is None else self.multipliers.rows

    @property
    def has_multipliers(self) -> bool:
        """Whether multipliers move between steps, and entries are held besides the observed."""
        return self.multipliers is not None

    @property
    def cost_weight(self) -> float:
        return self.model.cost_weight

    @property
    def sweeps(self) -> int:
        return self._sweeps + (0 if self.multipliers is None else self.multipliers.sweeps)

    @property
    def spectra(self) -> tuple[Spectrum, ...]:
        return self._eigenvalues.seen

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
        outside = 0 if self.multipliers is None else self.multipliers.outside
        return f"{outside:,} observations lie outside the bounds" if outside else ""

    def operator(self, point: Point) -> Operator:
        """L at a point."""
        return Operator.of(self.terms, point, self.engine.store.slab_mode)

    # ---- g and its derivatives ----------------------------------------------------------------

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        """Solve the inner problem at a point to a residual of rtol ‖y‖, from the dual of `warm`."""
        operator, solution = self.operator(point), self.engine.new_vector()
        start = None if warm is None else warm.dual.name
        tolerance, most = rtol * self._norm, self._max_inner_iterations
        program: ConjugateGradients | BoxSolve
        if not self.model.boxed:
            shift, diagonal = self.model.shift, self._weights_diagonal()
            program = ConjugateGradients(
                operator,
                shift,
                solution.name,
                tolerance,
                most,
                start,
                diagonal=diagonal,
                seconds=self.engine.seconds_left,
            )
        else:
            solve = AlternatingSolve if self._alternating else BoxSolve
            rows = self.rows
            overlap = 0.0 if rows is None else rows.overlap
            tolerance *= 1.0 if rows is None else ROWS_TIGHTER
            stiffest = max(self.model.stiffest, self.model.shift / self._least_weight)
            stiffest += 0.0 if rows is None else rows.penalty
            program = solve(
                operator, self.model, solution.name, tolerance,
                most * (PATIENCE if self._alternating else 1),
                STEP / (stiffest + operator.norm * (1.0 + overlap)), start, rows,
                None if warm is None else warm.rows, self.engine.seconds_left,
            )  # fmt: skip
        outcome: InnerOutcome = self.engine.run(program)
        self._sweeps += outcome.sweeps
        return Evaluation(point, outcome.cost, self._summary(outcome, warm), solution, outcome.rows)

    def _summary(self, outcome: InnerOutcome, warm: Evaluation | None) -> InnerSummary:
        residual = math.sqrt(outcome.r_dot_r) / self._norm if self._norm > 0.0 else 0.0
        known = self.multipliers is not None and warm is not None
        violation = self.multipliers.violation if known and self.multipliers else 0.0
        noise_scale = outcome.missed * self._norm**2
        return InnerSummary(outcome.iterations, residual, outcome.converged, violation, noise_scale)

    def gradient(self, evaluation: Evaluation) -> Point:
        """∇_t g = −λ_t X_k (X_kᵀ U_t), matrices (n_k, r_t)."""
        return self._weighted(self.row_sums(evaluation.dual, evaluation.point))

    def hessian(self, evaluation: Evaluation, direction: Point, *, rtol: float) -> Point:
        """The derivative of the gradient along a direction; one more solve, on the free entries.

        Entries that are held at their box stay there for small steps, unless one is about to leave.
        """
        if self.rows is not None:
            raise InvalidInput("the trust region does not take linear rows; use method='rcg'")
        operator, along = self.operator(evaluation.point), Factors.of(direction)
        right, moved = self.engine.new_vector(), self.engine.new_vector()
        diagonal = self._weights_diagonal()
        if self.model.boxed:
            free = self.engine.new_vector()
            self.engine.run(Resistances(self.model, evaluation.dual.name, free.name))
            diagonal = free.name
        derivative = operator.derivative(along)
        norm = self.engine.run(HessianRightHandSide(evaluation.dual.name, right.name, derivative))
        outcome = self.engine.run(
            ConjugateGradients(
                operator, self.model.shift, moved.name, rtol * float(norm),
                self._max_inner_iterations, right_hand_side=right.name, diagonal=diagonal,
                seconds=self.engine.seconds_left,
            )
        )  # fmt: skip
        self._sweeps += 3 + outcome.sweeps
        totals = self.engine.run(
            DerivativeRowSums(evaluation.dual.name, moved.name, operator, along)
        )
        return self._weighted(totals)

    def row_sums(self, dual: VectorHandle | None, matrices: Point) -> Point:
        """X_k (X_kᵀ F_t) for matrices F_t; the observed values take the place of X if None."""
        self._sweeps += 1
        vector = self._start_vector() if dual is None else dual
        name = None if vector is None else vector.name
        totals: Point = self.engine.run(RowSums(name, self.operator(matrices)))
        return totals

    def observed_rows(self) -> ObservedRows | None:
        """What the pattern of observations does to the unfoldings' rows."""
        vector, ones, shape = (
            self._start_vector(),
            self.engine.new_vector(),
            self.engine.store.shape,
        )
        name = None if vector is None else vector.name
        moments = self.engine.run(RowMoments(name, ones.name, shape))
        of_terms = tuple(np.ones((shape[term.mode], 1)) for term in self.terms)
        meetings = tuple(total[:, 0] for total in self.row_sums(ones, of_terms))
        counts, squares = moments[: len(shape)], moments[len(shape) :]
        modes = [term.mode for term in self.terms]
        return ObservedRows(
            tuple(counts[mode] for mode in modes), tuple(squares[mode] for mode in modes), meetings
        )

    def _start_vector(self) -> VectorHandle | None:
        """What a start sees in the place of the observed values; None for themselves.

        With Huber's loss none of them is larger than δ.
        """
        if not math.isfinite(self.model.delta):
            return None
        limited = self.engine.new_vector()
        self.engine.run(Limited(self.model.delta, limited.name))
        return limited

    def _weights_diagonal(self) -> str | None:
        """The diagonal as a vector, where observations have weights."""
        if not self.model.weighted:
            return None
        if self._diagonal is None:
            self._diagonal = self.engine.new_vector()
            unbounded = EntryModel(self.model.cost_weight, weighted=True)
            self.engine.run(Resistances(unbounded, "values", self._diagonal.name))
        return self._diagonal.name

    def _weighted(self, totals: Point) -> Point:
        return tuple(-term.weight * t for term, t in zip(self.terms, totals, strict=True))

    # ---- multipliers, between steps -----------------------------------------------------------

    def renew(self, evaluation: Evaluation, *, rtol: float) -> Evaluation | None:
        """The evaluation under the g of the next step; None if that is the same."""
        multipliers = self.multipliers
        if multipliers is None:
            return None
        before = dict(vars(multipliers))
        try:
            if not multipliers.eased(evaluation.inner.converged) and not multipliers.moved(
                self.operator(evaluation.point), evaluation.dual.name, evaluation.rows,
                evaluation.inner.iterations, rtol, self._norm,
            ):  # fmt: skip
                return None
            return self.evaluate(evaluation.point, rtol=rtol, warm=evaluation)
        except BaseException:  # the evaluation that is kept belongs to the multipliers before
            vars(multipliers).update(before)
            raise

    def settle(self, evaluation: Evaluation, *, rtol: float) -> Evaluation:
        """The evaluation with multipliers that move no more, and no bound missed anywhere."""
        last, multipliers = math.inf, self.multipliers
        if multipliers is None:
            return evaluation
        for _ in range(MOST_SETTLING):
            multipliers.look_everywhere()
            renewed = self.renew(evaluation, rtol=rtol)
            if renewed is None:
                return evaluation
            evaluation = renewed
            violation = evaluation.inner.violation
            if math.isfinite(violation):  # or nothing was moved
                if evaluation.inner.converged and violation > SLOW * last:
                    multipliers.loosen(evaluation.inner.iterations)
                last = violation
        return evaluation

    @property
    def kept_vectors(self) -> tuple[VectorHandle, ...]:
        """Vectors that outlive an evaluation; a checkpoint has them besides its dual."""
        return () if self.multipliers is None else self.multipliers.kept_vectors

    def progress(self) -> dict[str, Any]:
        """What else has to be known to go on just so later: numbers, and arrays of them."""
        return {} if self.multipliers is None else self.multipliers.progress()

    def go_on(self, progress: dict[str, Any], kept: tuple[VectorHandle, ...]) -> None:
        """Take up where another one was, given what it kept."""
        if self.multipliers is not None:
            self.multipliers.go_on(progress, kept)

    # ---- certificate and answer ---------------------------------------------------------------

    def certify(self, evaluation: Evaluation, *, rough: bool = False) -> Certificate:
        """Bounds on the distance to the global optimum, right however loose the inner solve is."""
        products = self._measured(evaluation)
        row_sums = self.row_sums(evaluation.dual, evaluation.point)
        answer = Answer.of(
            self.engine.store.shape, self._observed, self.model, self.terms, products,
            evaluation.point, row_sums,
        )  # fmt: skip
        violation, slack, worth = products.violation, products.slack, 0.0
        if self.multipliers is None:
            primal = answer.objective
        else:
            if self.multipliers.asked.everywhere:
                violation = max(violation, self._scanned(evaluation))
            primal = self._feasible_objective(answer, products, violation)
            if self.rows is not None and evaluation.rows is not None:
                violation = max(violation, self.rows.violation(products.rows))
                slack += self.rows.slack(products.rows, evaluation.rows)
                worth = self.rows.worth(evaluation.rows)
        bounds = Bounds(
            primal,
            0.5 * products.energy,
            products.overlap + worth,
            captured(evaluation.point, row_sums),
            self.weights,
            1.0 / products.largest if products.largest > 0.0 else math.inf,
        )
        lower, upper = self._eigenvalues.bounds(
            lambda vectors: self.row_sums(evaluation.dual, vectors),
            evaluation.point,
            row_sums,
            lambda low, high: bounds.are_settled(low, high, self._certificate_rtol, rough),
            TimeLimit(self.engine.seconds_left + CERTIFICATE_SECONDS),
        )
        return bounds.certificate(lower, upper, violation, slack)

    def correction(self, evaluation: Evaluation) -> Correction | None:
        """What makes the answer satisfy a linear constraint; None where there is no such thing."""
        if self.rows is None or self.multipliers is None:
            return None
        self._measured(evaluation)
        everywhere = self.multipliers.asked.everywhere
        found = self._feasible(self._scanned(evaluation) if everywhere else 0.0)
        return None if found is None else found.correction(self.engine)

    def validation_errors(
        self, evaluation: Evaluation, validation: ObservationStore, kind: Kind
    ) -> SquaredErrors:
        """Of held-out observations, which the blocks hold too; kind : what was held out.

        With Huber's loss of theirs: absurd ones among them must not decide either.
        """
        operator, delta = self.operator(evaluation.point), self.model.delta
        program = ValidationErrors(evaluation.dual.name, operator, kind, delta)
        errors: SquaredErrors = self.engine.run(program)
        return errors

    def _measured(self, evaluation: Evaluation) -> Products:
        self._sweeps += 1
        products: Products = self.engine.run(
            Measure(
                self.operator(evaluation.point), self.model, evaluation.dual.name, evaluation.rows
            )
        )
        return products

    def _scanned(self, evaluation: Evaluation) -> float:
        """By how much a bound is missed anywhere."""
        assert self.multipliers is not None
        operator = self.operator(evaluation.point)
        return self.multipliers.scanned(operator, evaluation.dual.name).violation

    def _feasible_objective(self, answer: Answer, products: Products, violation: float) -> float:
        """The objective at the answer once it satisfies all constraints, or more than that."""
        assert self.model.bounds is not None
        if self.rows is None:
            return answer.moved_inside(self.model.bounds, violation, products.middle_misfit)
        found = self._feasible(violation)
        return math.inf if found is None else answer.repaired(found)

    def _feasible(self, violation: float) -> Feasible | None:
        """A tensor near the one measured last that satisfies everything; None if none is found."""
        assert self.rows is not None
        tolerance = ROW_ROUNDING * self._norm / math.sqrt(self.engine.store.nnz)
        return Feasible.of(self.engine, self.model, self.rows, violation, tolerance)


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
