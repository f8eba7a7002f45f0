"""Certificates of problems with bounds and rows: the answer is made feasible first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slrt_dask.dual.bounds import BoundedProducts, BoundVectors, MeasureBounded, Mix
from slrt_dask.dual.certificate import Bounds, Certificate, captured
from slrt_dask.dual.feasible import Answer, Middle
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.problem import Correction, DualProblem, Evaluation
from slrt_dask.dual.repair import Repair, Repaired
from slrt_dask.dual.rows import Rows
from slrt_dask.dual.scan import Scan, ScanOutcome
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.optim.manifold import Point

ROW_ROUNDING = 1e-10
"""By how much of the data's size a row may be missed after a repair."""


@dataclass(frozen=True)
class _Feasible:
    """A feasible tensor: one repaired, drawn towards another where its bounds ask for that.

    change, inner : the repairs of both
    """

    repair: Repaired
    change: VectorHandle
    drawn: float = 0.0
    middle: Middle | None = None
    inner: VectorHandle | None = None

    @property
    def parts(self) -> tuple[Repaired, float, Middle | None]:
        return self.repair, self.drawn, self.middle

    def joined(self, engine: Engine) -> VectorHandle:
        """One vector of changes for both."""
        if self.inner is not None:
            engine.run(Mix(self.change.name, self.inner.name, self.drawn))
        return self.change


class BoundedCertificates(DualProblem):
    """The part of a problem with constraints that certifies and corrects its answers."""

    bounds: BoundVectors
    rows: Rows | None
    _everywhere: bool
    _bound_tolerance: float

    def certify(self, evaluation: Evaluation, *, rough: bool = False) -> Certificate:
        """Bounds on the distance to the optimum, the answer having been made feasible."""
        products = self._measured(evaluation)
        violation, slack, worth = products.violation, products.slack, 0.0
        if self._everywhere:
            violation = max(violation, self._scanned(evaluation).violation)
        row_sums = self.row_sums(evaluation.dual, evaluation.point)
        primal = self._feasible_primal(evaluation, row_sums, products, violation)
        if self.rows is not None and evaluation.rows is not None:
            measured = self.rows.measure(products.rows, evaluation.rows)
            violation, slack = max(violation, measured.missed), slack + measured.slack
            worth = self.rows.worth(evaluation.rows)
        parts = Bounds(
            primal,
            products.z_dot_z / (4 * self.cost_weight),
            products.overlap + worth,
            captured(evaluation.point, row_sums),
            self.weights,
        )
        lower, upper = self._eigenvalues.bounds(
            lambda vectors: self.row_sums(evaluation.dual, vectors),
            evaluation.point,
            row_sums,
            lambda low, high: parts.are_settled(low, high, self._certificate_rtol, rough),
        )
        return parts.certificate(lower, upper, violation, slack)

    def _measured(self, evaluation: Evaluation) -> BoundedProducts:
        self.sweeps += 1
        products: BoundedProducts = self.engine.run(
            MeasureBounded(
                evaluation.dual.name,
                Factors.of(evaluation.point),
                self.weights,
                self.bounds,
                2.0 * self.cost_weight,
                evaluation.rows,
            )
        )
        return products

    def _feasible_primal(
        self, evaluation: Evaluation, row_sums: Point, products: BoundedProducts, violation: float
    ) -> float:
        """The objective at the answer once it satisfies all constraints, or more than that."""
        store = self.engine.store
        answer = Answer.of(
            evaluation.point, row_sums, store.shape, store.nnz, self.cost_weight, self.weights
        )
        if self.rows is None:
            return answer.moved_inside(products, self.bounds, violation)
        found = self._feasible(self.rows, violation)
        return math.inf if found is None else answer.repaired(*found.parts)

    def correction(self, evaluation: Evaluation) -> Correction | None:
        if self.rows is None:
            return None
        self._measured(evaluation)
        violation = self._scanned(evaluation).violation if self._everywhere else 0.0
        found = self._feasible(self.rows, violation)
        if found is None:
            return None
        return Correction(found.joined(self.engine), found.drawn)

    def _feasible(self, rows: Rows, violation: float) -> _Feasible | None:
        """What makes the tensor that was measured last satisfy everything; None if that fails.

        violation : by how much bounds are missed where no entry is held
        """
        tolerance = ROW_ROUNDING * self._norm / math.sqrt(self.engine.store.nnz)
        change = self.engine.new_vector()
        repair = self.engine.run(Repair(self.bounds, rows, change.name, "w"))
        outside = max(violation, -repair.slack)
        if not repair.missed <= tolerance:
            return None
        if outside <= 0.0:
            return _Feasible(repair, change)
        inner = self.engine.new_vector()
        inside = self.engine.run(Repair(self.bounds, rows, inner.name, None))
        margin = min(inside.slack, self.bounds.margin)
        if not inside.missed <= tolerance or margin <= 0.0:
            return None
        middle = Middle.of(self.bounds, self.engine.store.shape, inside)
        return _Feasible(repair, change, outside / (outside + margin), middle, inner)

    def _scanned(self, evaluation: Evaluation) -> ScanOutcome:
        self.sweeps += 1
        outcome: ScanOutcome = self.engine.run(
            Scan(
                evaluation.dual.name,
                Factors.of(evaluation.point),
                self.weights,
                self.bounds,
                self._bound_tolerance,
            )
        )
        return outcome
