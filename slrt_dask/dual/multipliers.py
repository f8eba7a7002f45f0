"""The method of multipliers: what happens to bounds and rows between inner solves.

The multipliers S of bounds are as large as the tensor, but zero wherever W keeps clear of its
bounds. So they are held on a working set of entries, which grows where a scan of W finds bounds
missed, and is pruned. For every U they have a proximal term −μ/2 ‖S − centre‖², and so have the
multipliers of rows; between steps the centre moves to S, and the term vanishes. At a fixed U,
`settle` moves it until it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slrt_dask.dual.certificate import own_part
from slrt_dask.dual.coupling import LinearRows, RowTotals, couple, scale_rows
from slrt_dask.dual.entries import MARKS, BoundVectors, EntryModel
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.operator import Operator
from slrt_dask.dual.rows import Rows, RowVector
from slrt_dask.dual.scan import Scan, ScanOutcome
from slrt_dask.dual.working_set import Places, bound_places, take_found
from slrt_dask.engine.base import Engine, VectorHandle
from slrt_dask.engine.block import Block
from slrt_dask.engine.program import OneRound
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.kernels import entries as passes

MOST_IDLE_SCANS = 8
"""Steps between scans, at most, while they find nothing."""
MOST_SETTLING = 500
LEAST_PENALTY = 1e-3
"""In units of 1/(2C): with less, the inner problem is as ill conditioned as without a penalty."""
LEAST_ROW_PENALTY = 1e-3
"""Of the rows of a linear constraint, in units of Σ_t λ_t, to begin with."""
EASY, HARD = 50, 100
"""Iterations of a solve that could do with a smaller penalty of rows, or wants a larger one."""
UNSOLVED = 4.0
"""How many times as large it gets where even the most iterations were too few."""
SLOW = 0.5
"""Multipliers that come closer by less than this factor are held back too much."""


@dataclass(frozen=True)
class Constrained:
    """What is asked of the completed tensor.

    bounds : on entries;  where : at which places, None for the observed entries
    everywhere : whether they hold for all entries
    linear : a linear constraint besides
    tolerance : by how much a bound may be missed without the entry being held
    most_extra : entries beside the observed ones that there is room for
    """

    bounds: BoundVectors
    where: Places | None = None
    everywhere: bool = False
    linear: LinearRows | None = None
    tolerance: float = 0.0
    most_extra: int | None = None


class Multipliers:
    """Multipliers' centre and penalties, and the working set, for an engine's blocks.

    model : the entry model as it is now;  rows : the linear constraint as it is now
    violation : by how much constraints were missed when multipliers were last looked at
    outside : how many observations lie outside the bounds
    """

    def __init__(
        self, engine: Engine, model: EntryModel, asked: Constrained, weights: tuple[float, ...]
    ) -> None:
        self.asked, self.violation, self.sweeps = asked, 0.0, 0
        self._engine, self._weights, self._missed = engine, weights, math.inf
        self._scan_in, self._idle_scans = 0, 1
        self._centre = engine.new_vector()
        self.model = replace(model, bounds=asked.bounds, centre=self._centre.name)
        engine.run(Clear((MARKS, self._centre.name)))
        engine.run(Mark(passes.OBSERVED + passes.BOUNDED))
        self.rows = None if asked.linear is None else self._coupled(asked.linear)
        if asked.where is not None:
            self._take(bound_places, asked.where)
        self.outside = int(engine.run(CountOutside(asked.bounds)))

    @property
    def _bounds(self) -> BoundVectors:
        assert self.model.bounds is not None
        return self.model.bounds

    @property
    def _most_penalty(self) -> float:
        """As large as what else the system has on its diagonal: beyond that it gets no easier."""
        return max(sum(self._weights), self.model.shift, self._bounds.penalty)

    # ---- between steps ------------------------------------------------------------------------

    def eased(self, converged: bool) -> bool:
        """Give rows a larger penalty if they kept a solve from ending; whether that was done.

        The centre stays: what a residual r is off in w, multipliers are off by r/μ, so that a
        centre from a solve that did not end would lead further away with every step. By how much
        constraints are missed is not known then.
        """
        if self.rows is None or converged or self.rows.penalty >= self._most_penalty:
            return False
        penalty = min(UNSOLVED * self.rows.penalty, self._most_penalty)
        self.rows, self.violation = replace(self.rows, penalty=penalty), math.inf
        return True

    def moved(
        self, operator: Operator, dual: str, rows: RowVector | None, iterations: int,
        rtol: float, norm: float,
    ) -> bool:  # fmt: skip
        """Move the centre to an evaluation's multipliers, and bring the working set up to date.

        rows, iterations : of the evaluation;  norm : of the observations
        Returns False if the evaluation is right as it is, to rtol.
        """
        target = self._engine.new_vector()
        squares = self._engine.run(MoveCentre(self.model, dual, target.name, rows))
        missed = self._bounds.penalty**2 * squares
        if self.rows is not None and rows is not None:
            way = rows - self.rows.centre
            missed += self.rows.penalty**2 * float(np.dot(way, way))
        found = self._grown(operator, dual) if self.asked.everywhere else 0
        self.violation = math.sqrt(missed) / norm if norm > 0.0 else 0.0
        if self.violation <= rtol and not found:
            return False
        self._centre, self.model = target, replace(self.model, centre=target.name)
        if self.rows is not None and rows is not None:
            stiffness = self._stiffness(iterations)
            penalty = min(stiffness * self.rows.penalty, self._most_penalty)
            self.rows = self.rows.around(rows, penalty)
        return True

    def _stiffness(self, iterations: int) -> float:
        """How to change the rows' penalty: less makes them hold sooner, and solves take longer."""
        slow, self._missed = self.violation > SLOW * self._missed, self.violation
        if iterations > HARD:
            return 2.0
        return 0.5 if slow and iterations < EASY else 1.0

    def loosen(self, iterations: int) -> None:
        """Have multipliers move faster, with less to hold them back, where solves are not hard."""
        hard = self.rows is not None and iterations > HARD
        if hard or self._bounds.penalty <= LEAST_PENALTY * self.model.shift:
            return
        bounds = replace(self._bounds, penalty=0.5 * self._bounds.penalty)
        self.model = replace(self.model, bounds=bounds)
        if self.rows is not None:
            self.rows = replace(self.rows, penalty=0.5 * self.rows.penalty)

    def look_everywhere(self) -> None:
        """Have the next move scan the tensor."""
        self._scan_in = 0

    def scanned(self, operator: Operator, dual: str) -> ScanOutcome:
        """Look through the whole tensor for bounds that are missed."""
        self.sweeps += 1
        outcome: ScanOutcome = self._engine.run(
            Scan(operator, dual, self._bounds, self.asked.tolerance)
        )
        return outcome

    def _grown(self, operator: Operator, dual: str) -> int:
        """Scan if that is due, and take what was found; how much that was."""
        if self._scan_in > 0:
            self._scan_in -= 1
            return 0
        found = self.scanned(operator, dual).found
        self._idle_scans = 1 if found else min(2 * self._idle_scans, MOST_IDLE_SCANS)
        self._scan_in = self._idle_scans - 1
        if found:
            self._take(take_found, self._centre.name, dual)
        return found

    def _coupled(self, linear: LinearRows) -> Rows:
        """Have the coefficients of a linear constraint on the shares, every row of length one."""
        mark = passes.BOUNDED if self.asked.everywhere else passes.COUPLED
        self._take(couple, linear.stores, mark=mark)
        sums, squares, sizes = self._engine.run(RowTotals(len(linear.lower)))
        # As stiff as bounds, but no stiffer than conjugate gradients can cope with: rows overlap.
        stiffest = LEAST_ROW_PENALTY * sum(self._weights)
        rows = linear.scaled(sums, squares, max(self._bounds.penalty, stiffest))
        factors = 1.0 / rows.lengths
        overlaps = self._engine.on_shares(scale_rows, factors, sizes * factors)
        return replace(rows, overlap=max(overlaps))

    def _take(self, task: Callable[..., int], *arguments: Any, mark: int = passes.BOUNDED) -> None:
        """Change the working set on every share; its new entries are numbered and marked."""
        extra, most = sum(self._engine.on_shares(task, *arguments)), self.asked.most_extra
        if most is not None and extra > most:
            raise MemoryBudgetExceeded(
                f"bounds have to be looked after at {extra:,} entries beside the observed ones; "
                f"there is room for {most:,}; raise the memory limit, or bound only "
                f"where='observed'"
            )
        number_fibres(self._engine)
        self._engine.run(Mark(mark))

    # ---- checkpoints --------------------------------------------------------------------------

    @property
    def kept_vectors(self) -> tuple[VectorHandle, ...]:
        return (self._centre,)

    def progress(self) -> dict[str, Any]:
        """What has to be known to go on just so later: numbers, and arrays of them."""
        rows = self.rows
        kept = {} if rows is None else {"rows_centre": rows.centre, "rows_penalty": rows.penalty}
        return {
            **kept,
            "penalty": self._bounds.penalty,
            "missed": self._missed,
            "violation": self.violation,
            "scan_in": self._scan_in,
            "idle_scans": self._idle_scans,
        }

    def go_on(self, progress: dict[str, Any], kept: tuple[VectorHandle, ...]) -> None:
        """Take up where another one was, given what it kept."""
        (self._centre,) = kept
        bounds = replace(self._bounds, penalty=progress["penalty"])
        self.model = replace(self.model, bounds=bounds, centre=self._centre.name)
        if self.rows is not None:
            self.rows = self.rows.around(progress["rows_centre"], progress["rows_penalty"])
        self._missed, self.violation = progress["missed"], progress["violation"]
        self._scan_in, self._idle_scans = int(progress["scan_in"]), int(progress["idle_scans"])
        self._engine.run(Mark(passes.BOUNDED))


# ---- programs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clear(OneRound):
    """Make vectors of zeros."""

    names: tuple[str, ...]

    def step(self, block: Block, total: Any) -> int:
        for name in self.names:
            block.fresh(name)[:] = 0.0
        return 0


@dataclass(frozen=True)
class Mark(OneRound):
    """Mark entries that have no mark yet, as what they are."""

    mark: int

    def step(self, block: Block, total: Any) -> int:
        marks = block.changing(MARKS)
        # Entries beyond the store's may be there from an earlier problem; none is observed.
        own = np.where(block.extra, self.mark & ~passes.OBSERVED, self.mark)
        marks[:] = np.where(marks == 0.0, own, marks)
        return 0


@dataclass(frozen=True)
class CountOutside(OneRound):
    """How many observed values lie outside bounds that hold for them."""

    bounds: BoundVectors

    def step(self, block: Block, total: Any) -> int:
        places, both = block.columns[self.bounds.mode], passes.OBSERVED + passes.BOUNDED
        meant = (block.vector(MARKS).astype(np.int64) & both) == both
        lower, upper = self.bounds.lower[places], self.bounds.upper[places]
        outside = (block.values < lower) | (block.values > upper)
        return int(np.count_nonzero(meant & outside)) + (total or 0)


@dataclass(frozen=True)
class MoveCentre(OneRound):
    """Leave the multipliers of `dual` under `target`; how far they are from the centre, squared.

    rows : the multipliers of a linear constraint that are part of `dual`
    """

    model: EntryModel
    dual: str
    target: str
    rows: RowVector | None = None

    def step(self, block: Block, total: Any) -> float:
        own = own_part(block, self.model, self.dual, self.rows)
        squares = passes.multipliers(self.model.of(block), own, block.fresh(self.target))
        return float(squares) + (total or 0.0)
