"""The dual problem with bounds on entries: W ≥ lower, W ≤ upper, everywhere or where it is asked.

    g(U) = max ⟨Z, Y⟩ − ‖Z‖²/(4C) + ⟨S⁺, lower⟩ − ⟨S⁻, upper⟩ − Σ_k λ_k/2 ‖U_kᵀ (Z + S)_k‖²

and with rows of a linear constraint, lower ≤ A W ≤ upper, whose multipliers s add ⟨s, bounds⟩ to
it and Aᵀ s to Z + S.

S, the multipliers, is as large as the tensor but zero wherever W keeps clear of its bounds. So it
is kept on a working set of entries, which grows where a scan of W finds bounds missed, and is
pruned. For every U the multipliers get a proximal term, −μ/2 ‖S − centre‖², which makes the inner
problem as well conditioned as it is without bounds; between steps the centre moves to S (the method
of multipliers), and the term vanishes. At a fixed U, `settle` moves it until it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from slrt_dask.dual.alternation import AlternatingSolve
from slrt_dask.dual.bounded_certificate import BoundedCertificates
from slrt_dask.dual.bounds import (
    MARKS,
    BoundVectors,
    Clear,
    CountOutside,
    Mark,
    MoveCentre,
)
from slrt_dask.dual.coupling import LinearRows, RowTotals, couple, scale_rows
from slrt_dask.dual.newton import BoundedSolve
from slrt_dask.dual.newton_steps import BoundedOutcome
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.operator import Factors
from slrt_dask.dual.problem import Evaluation, InnerSummary
from slrt_dask.dual.rows import Rows
from slrt_dask.dual.working_set import Places, bound_places, take_found
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.errors import InvalidInput, MemoryBudgetExceeded
from slrt_dask.kernels.bounds import BOUNDED, COUPLED, OBSERVED
from slrt_dask.optim.manifold import Point

MOST_IDLE_SCANS = 8
"""Steps between scans, at most, while they find nothing."""
MOST_SETTLING = 500
LEAST_PENALTY = 1e-3
"""In units of 1/(2C): with less, the inner problem is as ill conditioned as without a penalty."""
LEAST_ROW_PENALTY = 1e-3
"""Of the rows of a linear constraint, in units of Σ_k λ_k, to begin with."""
PATIENCE = 20
"""How many times as many iterations the alternation may take."""
EASY, HARD = 50, 100
"""Iterations of a solve that could do with a smaller penalty of rows, or wants a larger one."""
UNSOLVED = 4.0
"""How many times as large it gets where even the most iterations were too few."""
SLOW = 0.5
"""Multipliers that come closer by less than this factor are held back too much."""


class BoundedProblem(BoundedCertificates):
    """g with bounds, for the observations that an engine holds.

    where : places at which the bounds hold; None for the observed entries
    everywhere : whether they hold for all entries
    bound_tolerance : by how much, relative to the data's size, a bound may be missed without the
        entry being looked after
    most_extra : entries beside the observed ones that there is room for
    linear : a linear constraint besides
    alternating : whether z and the multipliers are solved for in turn, which takes much longer
    """

    def __init__(
        self,
        engine: Engine,
        ranks: tuple[int, ...],
        *,
        cost_weight: float,
        weights: tuple[float, ...],
        bounds: BoundVectors,
        where: Places | None = None,
        everywhere: bool = False,
        bound_tolerance: float = 0.0,
        most_extra: int | None = None,
        linear: LinearRows | None = None,
        alternating: bool = False,
        certificate_rtol: float = 1e-5,
        max_inner_iterations: int = 1000,
    ) -> None:
        super().__init__(
            engine,
            ranks,
            cost_weight=cost_weight,
            weights=weights,
            certificate_rtol=certificate_rtol,
            max_inner_iterations=max_inner_iterations,
        )
        self.bounds = bounds
        self.centre = engine.new_vector()
        self._alternating = alternating
        self._missed = math.inf
        self._violation = 0.0
        """What constraints were missed by when multipliers were last looked at."""
        self._everywhere = everywhere
        self._bound_tolerance = bound_tolerance * self._norm / math.sqrt(engine.store.nnz)
        self._scan_in, self._idle_scans = 0, 1
        self._most_extra = most_extra
        engine.run(Clear((MARKS, self.centre.name)))
        engine.run(Mark(OBSERVED + BOUNDED))
        self.rows = None if linear is None else self._coupled(linear)
        if where is not None:
            self._take(bound_places, where)
        (self.outside,) = engine.run(CountOutside(bounds))

    def evaluate(self, point: Point, *, rtol: float, warm: Evaluation | None) -> Evaluation:
        solution = self.engine.new_vector()
        solve, patience = (AlternatingSolve, PATIENCE) if self._alternating else (BoundedSolve, 1)
        outcome: BoundedOutcome = self.engine.run(
            solve(
                Factors.of(point),
                self.weights,
                self._slab_mode,
                2.0 * self.cost_weight,
                self.bounds,
                solution.name,
                None if warm is None else warm.dual.name,
                self.centre.name,
                rtol * self._norm,
                patience * self._max_inner_iterations,
                self.rows,
                None if warm is None else warm.rows,
            )
        )
        self.sweeps += outcome.sweeps
        residual = math.sqrt(outcome.r_dot_r) / self._norm if self._norm > 0.0 else 0.0
        violation = 0.0 if warm is None else self._violation
        inner = InnerSummary(outcome.iterations, residual, outcome.converged, violation)
        return Evaluation(point, outcome.cost, inner, solution, outcome.rows)

    def hessian(self, evaluation: Evaluation, direction: Point, *, rtol: float) -> Point:
        raise InvalidInput("the trust region has no Hessian with bounds; use method='rcg'")

    # ---- multipliers and working set ---------------------------------------------------------

    def renew(self, evaluation: Evaluation, *, rtol: float) -> Evaluation | None:
        """Move the multipliers' centre and bring the working set up to date."""
        if self._can_be_eased(evaluation):
            return self._eased(evaluation, rtol)
        moved, missed = self._multipliers(evaluation)
        found = self._grown(evaluation) if self._everywhere else 0
        self._violation = violation = missed / self._norm if self._norm > 0.0 else 0.0
        if violation <= rtol and not found:
            return None
        self.centre = moved
        if self.rows is not None and evaluation.rows is not None:
            stiffness = self._stiffness(evaluation.inner, violation)
            penalty = min(stiffness * self.rows.penalty, self._most_penalty)
            self.rows = self.rows.around(evaluation.rows, penalty)
        return self._again(evaluation, rtol)

    def _can_be_eased(self, evaluation: Evaluation) -> bool:
        """Whether rows kept a solve from ending, and there is a penalty with which it is easier."""
        if self.rows is None or evaluation.inner.converged:
            return False
        return self.rows.penalty < self._most_penalty

    def _eased(self, evaluation: Evaluation, rtol: float) -> Evaluation:
        """The evaluation solved once more, with a larger penalty of rows.

        The centre stays: what a residual r is off in w, multipliers are off by r/μ, so that a
        centre from a solve that did not end would lead further away with every step. By how much
        constraints are missed is not known then.
        """
        assert self.rows is not None
        penalty = min(UNSOLVED * self.rows.penalty, self._most_penalty)
        self.rows = replace(self.rows, penalty=penalty)
        self._violation = math.inf
        return self._again(evaluation, rtol)

    @property
    def _most_penalty(self) -> float:
        """As large as what else the system has on its diagonal: beyond that it gets no easier."""
        return max(sum(self.weights), self.shift, self.bounds.penalty)

    def _again(self, evaluation: Evaluation, rtol: float) -> Evaluation:
        renewed = self.evaluate(evaluation.point, rtol=rtol, warm=evaluation)
        return replace(renewed, inner=replace(renewed.inner, violation=self._violation))

    def _stiffness(self, inner: InnerSummary, violation: float) -> float:
        """How to change the rows' penalty: less makes them hold sooner, and solves take longer."""
        slow, self._missed = violation > SLOW * self._missed, violation
        if inner.iterations > HARD:
            return 2.0
        return 0.5 if slow and inner.iterations < EASY else 1.0

    def settle(self, evaluation: Evaluation, *, rtol: float) -> Evaluation:
        """The evaluation with multipliers that move no more, and no bound missed anywhere."""
        last = math.inf
        for _ in range(MOST_SETTLING):
            self._scan_in = 0
            renewed = self.renew(evaluation, rtol=rtol)
            if renewed is None:
                return evaluation
            evaluation = renewed
            violation = evaluation.inner.violation
            if math.isfinite(violation):  # or nothing was moved
                if evaluation.inner.converged and violation > SLOW * last:
                    self._loosen(evaluation.inner)
                last = violation
        return evaluation

    def _loosen(self, inner: InnerSummary) -> None:
        """Have multipliers move faster, with less to hold them back, where solves are not hard."""
        hard = self.rows is not None and inner.iterations > HARD
        if hard or self.bounds.penalty <= LEAST_PENALTY * self.shift:
            return
        self.bounds = replace(self.bounds, penalty=0.5 * self.bounds.penalty)
        if self.rows is not None:
            self.rows = replace(self.rows, penalty=0.5 * self.rows.penalty)

    @property
    def notice(self) -> str:
        return f"{self.outside:,} observations lie outside the bounds" if self.outside else ""

    @property
    def kept_vectors(self) -> tuple[VectorHandle, ...]:
        return (self.centre,)

    def progress(self) -> dict[str, Any]:
        centre = {} if self.rows is None else {"rows_centre": self.rows.centre}
        return {
            **centre,
            "penalty": self.bounds.penalty,
            "missed": self._missed,
            "violation": self._violation,
            "rows_penalty": 0.0 if self.rows is None else self.rows.penalty,
            "scan_in": self._scan_in,
            "idle_scans": self._idle_scans,
        }

    def go_on(self, progress: dict[str, Any], kept: tuple[VectorHandle, ...]) -> None:
        if self.rows is not None:
            self.rows = self.rows.around(progress["rows_centre"], progress["rows_penalty"])
            self._missed = progress["missed"]
        self._violation = progress["violation"]
        self.bounds = replace(self.bounds, penalty=progress["penalty"])
        self._scan_in, self._idle_scans = int(progress["scan_in"]), int(progress["idle_scans"])
        (self.centre,) = kept
        self.engine.run(Mark(BOUNDED))

    def _multipliers(self, evaluation: Evaluation) -> tuple[VectorHandle, float]:
        """The multipliers of an evaluation, and what their way from the centre is worth in W."""
        target = self.engine.new_vector()
        (squares,) = self.engine.run(
            MoveCentre(
                evaluation.dual.name,
                self.centre.name,
                target.name,
                self.bounds,
                2.0 * self.cost_weight,
                evaluation.rows,
            )
        )
        missed = self.bounds.penalty**2 * squares
        if self.rows is not None and evaluation.rows is not None:
            way = evaluation.rows - self.rows.centre
            missed += self.rows.penalty**2 * float(np.dot(way, way))
        return target, math.sqrt(missed)

    def _grown(self, evaluation: Evaluation) -> int:
        """Scan if that is due, and take what was found; how much that was."""
        if self._scan_in > 0:
            self._scan_in -= 1
            return 0
        found = self._scanned(evaluation).found
        self._idle_scans = 1 if found else min(2 * self._idle_scans, MOST_IDLE_SCANS)
        self._scan_in = self._idle_scans - 1
        if found:
            self._take(take_found, self.centre.name, evaluation.dual.name)
        return found

    def _coupled(self, linear: LinearRows) -> Rows:
        """Have the coefficients of a linear constraint on the shares, every row of length one."""
        self._take(couple, linear.stores, mark=BOUNDED if self._everywhere else COUPLED)
        sums, squares = self.engine.run(RowTotals(len(linear.lower)))
        # As stiff as bounds, but no stiffer than conjugate gradients can cope with: rows overlap.
        stiffest = LEAST_ROW_PENALTY * sum(self.weights)
        rows = linear.scaled(sums, squares, max(self.bounds.penalty, stiffest))
        self.engine.on_shares(scale_rows, 1.0 / rows.lengths)
        return rows

    def _take(self, task: Callable[..., int], *arguments: Any, mark: int = BOUNDED) -> None:
        """Change the working set on every share; its new entries are numbered and marked."""
        extra = sum(self.engine.on_shares(task, *arguments))
        if self._most_extra is not None and extra > self._most_extra:
            raise MemoryBudgetExceeded(
                f"bounds have to be looked after at {extra:,} entries beside the observed ones; "
                f"there is room for {self._most_extra:,}; raise the memory limit, or bound only "
                f"where='observed'"
            )
        number_fibres(self.engine)
        self.engine.run(Mark(mark))
