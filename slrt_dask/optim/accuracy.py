"""How tightly inner problems are solved, and how far the costs they give are believed.

An inner residual ρ = ‖r‖/‖y‖ leaves the gradient wrong by about √a ρ |g| and the cost too low by
at most a ρ² |g|, where a = C‖y‖²/g for the unconstrained problem: r is weighed by A⁻¹ ≤ 2C, and
g ≥ C times the squared misfit, so a is at most one over the squared relative misfit.
Two rules follow.

1. The inner tolerance is tied to the outer gradient, ρ = factor · ‖grad‖/|g|, so that with
   factor · √a well below 1 a gradient is always mostly signal.
2. Two costs that differ by less than their noise are not compared. The decrease is then taken from
   the slopes at both ends (the trapezoidal rule), which are right to first order by rule 1.

If a search still fails, `tightening` lowers ρ tenfold for good before failure is declared: that
covers a problem whose a is larger than assumed here. This file changes when these rules do.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.problem import Evaluation


@dataclass(frozen=True)
class Accuracy:
    """The accuracy policy shared by all methods."""

    factor: float = 0.01
    """Inner tolerance per unit of relative gradient norm."""
    loosest: float = 1e-2
    tightest: float = 1e-12
    amplification: float = 100.0
    """The a above: 100 assumes a misfit of a tenth of the data."""
    rounding: float = 32.0
    """Rounding noise of a cost, in units of machine epsilon times the cost."""

    def __post_init__(self) -> None:
        if not 0.0 < self.tightest <= self.loosest < 1.0:
            raise InvalidConfig(
                f"tightest is {self.tightest} and loosest {self.loosest}; "
                "give 0 < tightest <= loosest < 1"
            )
        for name in ("factor", "amplification", "rounding"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise InvalidConfig(f"{name} is {value}; give a finite number above 0")

    def inner_tolerance(self, gradient_norm: float, cost: float, tightening: float) -> float:
        """The residual to solve to where the gradient is of this length.  In [tightest, loosest].

        tightening multiplies it, also where it would be at its loosest.
        """
        relative = gradient_norm / abs(cost) if cost else math.inf
        wanted = tightening * min(self.factor * relative, self.loosest)
        return max(wanted, self.tightest)

    def tighter(self, tightening: float, rtol: float) -> float | None:
        """The next tightening after this one, or None when rtol is at its tightest."""
        return None if rtol <= self.tightest else 0.1 * tightening

    def noise(self, evaluation: Evaluation) -> float:
        """How far the cost of an evaluation may be from g, in the units of the cost."""
        residual = evaluation.inner.residual
        relative = self.amplification * residual**2 + self.rounding * sys.float_info.epsilon
        return relative * abs(evaluation.cost)

    def certificate_tolerance(self, gap_tolerance: float) -> float:
        """The residual at which the inner solve adds a tenth of gap_tolerance to the gap.

        The inner residual alone opens a gap of C‖r‖², that is a ρ² relative to g.
        """
        wanted = math.sqrt(0.1 * gap_tolerance / self.amplification)
        return min(max(wanted, self.tightest), self.loosest)
