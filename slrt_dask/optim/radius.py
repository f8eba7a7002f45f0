"""How a trust region answers to the agreement of model and cost: accept, shrink, grow.

This file changes when that policy does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slrt_dask.errors import InvalidConfig


@dataclass(frozen=True)
class RadiusPolicy:
    """The standard rule: a quarter of the radius below a quarter, twice above three quarters."""

    accept_above: float = 0.1
    """The ratio of measured to predicted decrease that a step needs."""
    longest: float = 1.0
    """Largest radius per factor, in units of the factor's norm."""
    first_fraction: float = 0.25
    """First radius as a part of the largest."""

    def __post_init__(self) -> None:
        if not 0.0 < self.accept_above < 0.25:
            raise InvalidConfig(f"accept_above is {self.accept_above}; give a number in (0, 0.25)")
        if not (self.longest > 0.0 and 0.0 < self.first_fraction <= 1.0):
            raise InvalidConfig(
                f"longest is {self.longest} and first_fraction {self.first_fraction}; "
                "give longest > 0 and first_fraction in (0, 1]"
            )

    def largest(self, factors: int) -> float:
        """The largest radius on a product of this many factors."""
        return self.longest * math.sqrt(factors)

    def first(self, factors: int) -> float:
        """The radius at the start."""
        return self.first_fraction * self.largest(factors)

    def after(self, radius: float, ratio: float, *, on_boundary: bool, factors: int) -> float:
        """The radius after a step with this ratio of measured to predicted decrease."""
        if ratio < 0.25:
            return 0.25 * radius
        if ratio > 0.75 and on_boundary:
            return min(2.0 * radius, self.largest(factors))
        return radius


def regularised_ratio(measured: float, predicted: float, cost: float) -> float:
    """measured / predicted, drawn towards 1 where both are within rounding of the cost."""
    rounding = 1e3 * math.ulp(1.0) * abs(cost)
    return (measured + rounding) / (max(predicted, 0.0) + rounding) if rounding else 1.0
