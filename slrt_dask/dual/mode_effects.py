"""Main effects of the modes, estimated from observations where these are.

    y[i] = μ + Σ_k b_k[i_k] + noise,     b_k ~ N(0, τ_k²),     noise ~ N(0, σ²)

For given κ_k = σ²/τ_k² the effects are those of a ridge regression, the least of
Σ (y − μ − Σ_k b_k)² + Σ_k κ_k ‖b_k‖². An index with n observations is drawn towards zero by the
factor n/(n + κ_k), and one without any stays there. Backfitting mode by mode would need a pass over
the observations for each; conjugate gradients on the same equations change all at once, with a pass
an iteration, which sends Σ_k n_k numbers to the blocks and as many back.

The variances come from the data (empirical Bayes). With the degrees of freedom that the effects of
a mode take up, γ_k = Σ_i n_i/(n_i + κ_k), they are τ_k² = ‖b_k‖²/γ_k and σ² = Σ residual²/(m − 1 −
Σ_k γ_k), m being the number of observations; these are solved in turn with the effects. A mode
without effects has its κ grow until nothing is left of them.

With Huber's loss absurd observations must not decide on effects either: a value that lies further
than a limit from what is fitted counts as one just there, and that changes along with the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.holding_out import SINGLY, Kind, SquaredErrors
from slrt_dask.dual.offsets import Offset
from slrt_dask.dual.sampling import huber_roots
from slrt_dask.engine.base import Engine
from slrt_dask.engine.block import VALUES, Block
from slrt_dask.engine.program import OneRound, Program, Rounds, Sweep
from slrt_dask.kernels import additive

Numbers = NDArray[np.float64]
FIRST_SHRINKAGE = 5.0
"""κ before anything is known."""
LEAST_SHRINKAGE, MOST_SHRINKAGE = 1e-6, 1e9
"""Without any shrinkage constants could go from one mode to another; beyond the other nothing is
left of the effects."""
MOST_ROUNDS, SETTLED = 20, 1e-2
"""How often variances are estimated again, at most, and the change at which that ends."""
MOST_ITERATIONS = 200
LOOSE, TIGHT = 1e-3, 1e-10
"""Residuals of the equations, relative to their right side: on the way, and in the end."""


@dataclass(frozen=True)
class Layout:
    """Where the unknowns of each mode are in one vector, whose first is the mean."""

    shape: tuple[int, ...]

    @property
    def starts(self) -> NDArray[np.int64]:
        return 1 + np.cumsum((0, *self.shape[:-1]), dtype=np.int64)

    @property
    def size(self) -> int:
        return 1 + sum(self.shape)

    def split(self, unknowns: Numbers) -> list[Numbers]:
        """The parts of the modes."""
        return np.split(unknowns[1:], np.cumsum(self.shape[:-1]))

    def spread(self, first: float, of_modes: Numbers) -> Numbers:
        """A vector with one number for the mean, and one for all unknowns of each mode."""
        return np.concatenate([[first], np.repeat(of_modes, self.shape)])

    def joined(self, offset: Offset) -> Numbers:
        return np.concatenate([[offset.mean], *offset.effects])


@dataclass(frozen=True)
class ResidualSums(OneRound):
    """Sums of scale · y − model over the observations of every index, and the sum of squares.

    limit : the largest size that a residual counts with
    """

    layout: Layout
    unknowns: Numbers
    scale: float
    limit: float = math.inf

    def step(self, block: Block, total: Any) -> tuple[Numbers, float]:
        return _add_residuals(block, self.layout, self.unknowns, self.scale, self.limit, total)


def _add_residuals(
    block: Block, layout: Layout, unknowns: Numbers, scale: float, limit: float, total: Any
) -> tuple[Numbers, float]:
    sums, squares = total or (np.zeros(layout.size), 0.0)
    squares += additive.residual_sums(
        block.columns, layout.starts, unknowns, block.values, scale, limit, sums
    )
    return sums, squares


@dataclass(frozen=True)
class Fitted:
    """Unknowns, and XᵀX times them."""

    unknowns: Numbers
    image: Numbers


@dataclass(frozen=True)
class Solve(Program):
    """Solve (XᵀX + diag ridge) unknowns = right by conjugate gradients, a round an iteration.

    counts : the diagonal of XᵀX, for the preconditioner
    rtol : of the equations' residual, in the norm that the preconditioner makes natural
    """

    layout: Layout
    right: Numbers
    counts: Numbers
    ridge: Numbers
    start: Fitted
    rtol: float

    at_once = 8

    def rounds(self) -> Rounds:
        scales = self.counts + self.ridge
        goal = self.rtol**2 * float(self.right @ (self.right / scales))
        unknowns, image = self.start.unknowns, self.start.image
        residual = self.right - image - self.ridge * unknowns
        direction, before = np.zeros_like(residual), math.inf
        for _ in range(MOST_ITERATIONS):
            step = residual / scales
            length = float(residual @ step)
            if length <= goal:
                break
            direction = step + (length / before) * direction
            before = length
            moved, _ = yield Sweep(Solve._product, (direction,))
            along = length / float(direction @ (self.ridge * direction - moved))
            unknowns, image = unknowns + along * direction, image - along * moved
            residual = residual - along * (self.ridge * direction - moved)
        return Fitted(unknowns, image)

    def _product(self, block: Block, total: Any, direction: Numbers) -> tuple[Numbers, float]:
        """−XᵀX direction."""
        return _add_residuals(block, self.layout, direction, 0.0, math.inf, total)


@dataclass(frozen=True)
class Subtract(OneRound):
    """Take an additive model away from observations, and from those held out; counts the former."""

    layout: Layout
    unknowns: Numbers

    def step(self, block: Block, total: Any) -> tuple[int]:
        model = self.layout.starts, self.unknowns
        additive.subtract(block.columns, *model, block.changing(VALUES))
        if block.queries is not None and block.query_values is not None:
            additive.subtract(block.queries, *model, block.query_values)
        return (block.entries + (total[0] if total else 0),)


@dataclass(frozen=True)
class HeldOutErrors(OneRound):
    """Squares of held-out values as they are: the errors of what was subtracted from them.

    delta : δ of Huber's loss, which then takes the place of the square
    """

    kind: Kind = SINGLY
    delta: float | None = None

    def step(self, block: Block, total: Any) -> tuple[Any, Any]:
        counts, squares = total or (0.0, 0.0)
        if block.queries is None or block.query_values is None or not len(block.query_values):
            return counts, squares
        values = block.query_values.astype(np.float64, copy=False)
        if self.delta is not None:
            values = huber_roots(values, self.delta)
        errors = SquaredErrors.of(self.kind, block.queries, values, block.query_weights)
        return counts + errors.counts, squares + errors.squares


def held_out_errors(engine: Engine, kind: Kind, delta: float | None = None) -> SquaredErrors:
    """How well the offset that an engine's observations are without predicts those held out."""
    counts, squares = engine.run(HeldOutErrors(kind, delta))
    none = SquaredErrors.none()
    return SquaredErrors(none.counts + counts, none.squares + squares)


def subtract_effects(
    engine: Engine, loaded: float, offset: Offset | None = None, limit: float = math.inf
) -> Offset:
    """Have an engine's observations be without the offset of their modes; returns it.

    loaded : the number that was subtracted when they were loaded
    offset : if it is known; estimated from the observations otherwise
    limit : how far from what is fitted a value may count as being
    """
    layout = Layout(engine.store.shape)
    if offset is None:
        unknowns = estimated(engine, limit)
    else:
        unknowns = layout.joined(offset)
        unknowns[0] -= loaded
    engine.run(Subtract(layout, unknowns))
    if offset is not None:
        return offset
    return Offset(loaded + float(unknowns[0]), tuple(layout.split(unknowns)))


def estimated(engine: Engine, limit: float = math.inf) -> Numbers:
    """The unknowns (1 + Σ n_k,) for the observations that an engine holds."""
    normal = NormalEquations.of(engine, limit)
    fitted = Fitted(np.zeros(normal.layout.size), np.zeros(normal.layout.size))
    wanted = np.full(len(engine.store.shape), FIRST_SHRINKAGE)
    for _ in range(MOST_ROUNDS):
        before = wanted
        fitted = normal.solved(before, fitted, LOOSE)
        normal = normal.around(fitted)
        wanted = normal.shrinkage(before, fitted)
        if np.all(np.abs(np.log(wanted / before)) < SETTLED):
            break
    return normal.solved(wanted, fitted, TIGHT).unknowns


@dataclass(frozen=True)
class NormalEquations:
    """(XᵀX + diag κ) unknowns = Xᵀy, products with which are sums over observations.

    right, energy : Xᵀy and ‖y‖²
    counts : the diagonal of XᵀX: how many observations an unknown has a part in
    limit : how far from what was last fitted y may be; what is beyond is moved there
    """

    engine: Engine
    layout: Layout
    right: Numbers
    energy: float
    counts: Numbers
    limit: float = math.inf

    @classmethod
    def of(cls, engine: Engine, limit: float = math.inf) -> NormalEquations:
        layout = Layout(engine.store.shape)
        none = np.zeros(len(layout.shape))
        right, energy = engine.run(ResidualSums(layout, layout.spread(0.0, none), 1.0, limit))
        counts, _ = engine.run(ResidualSums(layout, layout.spread(-1.0, none), 0.0))
        return cls(engine, layout, np.array(right), float(energy), np.array(counts), limit)

    def around(self, fitted: Fitted) -> NormalEquations:
        """The equations for values that are within the limit of what is fitted."""
        if self.limit == math.inf:
            return self
        sums, squares = self.engine.run(ResidualSums(self.layout, fitted.unknowns, 1.0, self.limit))
        energy = float(fitted.unknowns @ (fitted.image + 2.0 * sums)) + float(squares)
        return replace(self, right=fitted.image + sums, energy=energy)

    def solved(self, shrinkage: Numbers, start: Fitted, rtol: float) -> Fitted:
        """The solution for some κ, from a start near it."""
        ridge = self.layout.spread(0.0, shrinkage)
        solve = Solve(self.layout, self.right, self.counts, ridge, start, rtol)
        found: Fitted = self.engine.run(solve)
        return Fitted(np.array(found.unknowns), np.array(found.image))

    def shrinkage(self, shrinkage: Numbers, fitted: Fitted) -> Numbers:
        """κ from the variances that effects and residuals tell of, given by which they were fitted.

        shrinkage : K numbers, as those returned
        """
        kept = self.counts / (self.counts + self.layout.spread(1.0, shrinkage))
        freedom = np.array([part.sum() for part in self.layout.split(kept)])
        squares = np.array([part @ part for part in self.layout.split(fitted.unknowns)])
        misfit = self.energy - float(fitted.unknowns @ (2.0 * self.right - fitted.image))
        noise = max(0.0, misfit) / max(1.0, self.counts[0] - 1.0 - float(freedom.sum()))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = np.where(squares > 0.0, noise * freedom / squares, MOST_SHRINKAGE)
        return np.clip(ratios, LEAST_SHRINKAGE, MOST_SHRINKAGE)
