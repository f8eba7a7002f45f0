"""What rounds of an inner solve are told, what they add up, and how a solve ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.operator import Matrix

NO_SUMS = np.zeros((0, 0))
CLEARLY = 4.0
"""How many times larger one ⟨r, r⟩ has to be than another to learn from their difference."""


@dataclass(frozen=True)
class InnerOutcome:
    """How a solve ended; x is the solution it left on the blocks, r = b − A x.

    sweeps : products with the operator that were made
    converged : whether ‖r‖ reached the tolerance within the iterations allowed
    missed : how much ½⟨b + r, x⟩ misses for every unit of ⟨r, r⟩, as seen on the way; at least that
    """

    iterations: int
    sweeps: int
    converged: bool
    b_dot_x: float
    r_dot_x: float
    x_dot_x: float
    r_dot_r: float
    missed: float = 0.0


@dataclass(frozen=True)
class Round:
    """What the blocks are to do next.

    phase : begin | residual | iterate | finish | resume | measure
    sums : complete fibre sums of the slab mode for the vector swept last
    before : α and β of a step that has left x and p to the one after it
    history : ⟨r, r⟩ before every iteration so far, and what each one added to ½⟨b + r, x⟩
    """

    phase: str
    sums: Matrix | None = None
    alpha: float = 0.0
    beta: float = 0.0
    before: tuple[float, float] | None = None
    iteration: int = 0
    sweeps: int = 0
    squared_residual: float = math.inf
    history: tuple[tuple[float, float], ...] = ()

    @property
    def left(self) -> tuple[float, float] | None:
        """α and β of this step, if it leaves x and p to the next one."""
        if self.phase == "iterate" and self.before is None:
            return self.alpha, self.beta
        return None


Sums = tuple[Matrix, NDArray[np.float64]]
"""Fibre sums of the slab mode, and scalars: after a sweep rr and, when all is added, ⟨r, Ar⟩;
after none rr, bx, rx, xx."""


def missed_value(history: tuple[tuple[float, float], ...], rr: float) -> float:
    """The most that a solve, stopped at some iteration, was seen to miss per unit of ⟨r, r⟩.

    history : see Round;  rr : ⟨r, r⟩ in the end. What an iteration with a residual hardly larger
    than the last one missed is not seen yet, so such ones are not asked.
    """
    missed, still = 0.0, 0.0
    for before, gained in reversed(history):
        still += gained
        if before > CLEARLY * rr:
            missed = max(missed, still / (before - rr))
    return missed
