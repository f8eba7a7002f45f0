"""How tightly inner problems are solved, and how far the costs they give are believed.

A residual ρ = ‖r‖/‖y‖ makes the cost too low by ½ rᵀA⁻¹r ≤ s ρ² with s = C‖y‖², the noise scale
(A ≥ 1/2C for the unconstrained problem), and the relative gradient wrong by about √(s/g) ρ.
s/g is at most one over the squared relative misfit: large where the data are fitted well. So:

1. The inner tolerance is tied to the outer gradient: √(s/g) ρ = factor · ‖grad‖/|g|. With a factor
   well below 1 a gradient is always mostly signal.
2. Two costs that differ by less than their noise s ρ² are not compared. The decrease is then taken
   from the slopes at both ends (the trapezoidal rule), which are right to first order by rule 1.
3. s is given, or else measured: in the course of a solve, or when a point is solved again more
   tightly, the rise of the cost over the fall of ρ² is a lower estimate of s, and the largest one
   seen is kept.

If a search still fails, `tightening` lowers ρ tenfold for good before failure is declared.
This file changes when these rules do.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from slrt_dask.errors import InvalidConfig
from slrt_dask.optim.problem import Evaluation

TIGHTER = 0.1
"""What `tightening` is multiplied by when a search fails within the noise."""


@dataclass(frozen=True)
class Accuracy:
    """The accuracy policy shared by all methods."""

    factor: float = 0.1
    """Relative error of the gradient that inner solves may cause."""
    loosest: float = 2e-2
    tightest: float = 1e-12
    noise_scale: float | None = None
    """s = C‖y‖² where the caller knows it; None to measure it."""
    rounding: float = 32.0
    """Rounding noise of a cost, in units of machine epsilon times the cost."""

    def __post_init__(self) -> None:
        if not 0.0 < self.tightest <= self.loosest < 1.0:
            raise InvalidConfig(
                f"tightest is {self.tightest} and loosest {self.loosest}; "
                "give 0 < tightest <= loosest < 1"
            )
        for name in ("factor", "rounding"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise InvalidConfig(f"{name} is {value}; give a finite number above 0")
        if self.noise_scale is not None and not 0.0 <= self.noise_scale < math.inf:
            raise InvalidConfig(
                f"noise_scale is {self.noise_scale}; give None or a finite number, at least 0"
            )

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

    def noise(self, evaluation: Evaluation, noise_scale: float) -> float:
        """How far the cost of an evaluation may be from g, in the units of the cost."""
        size = abs(evaluation.cost)
        inner = max(noise_scale, size) * evaluation.inner.residual**2
        return inner + self.rounding * sys.float_info.epsilon * size

    def certificate_tolerance(self, gap_tolerance: float, cost: float, noise_scale: float) -> float:
        """The residual at which the inner solve adds a tenth of gap_tolerance to the gap.

        The inner residual alone opens a gap of C‖r‖² = s ρ².
        """
        size = abs(cost)
        if size == 0.0:
            return self.loosest
        wanted = math.sqrt(0.1 * gap_tolerance * size / max(noise_scale, size))
        return min(max(wanted, self.tightest), self.loosest)


def measured_scale(loose: Evaluation, tight: Evaluation) -> float:
    """A lower estimate of the noise scale from two solves at one point; 0 where they tell nothing.

    A change within rounding of the cost is none.
    """
    shrunk = loose.inner.residual**2 - tight.inner.residual**2
    change = abs(tight.cost - loose.cost)
    if not (shrunk > 0.0 and change > 32.0 * sys.float_info.epsilon * abs(tight.cost)):
        return 0.0
    return change / shrunk
