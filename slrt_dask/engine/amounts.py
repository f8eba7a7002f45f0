"""What a plan adds up: the bytes of a worker by cause, and the size of what is held beside."""

from __future__ import annotations

from dataclasses import dataclass

RUNTIME_BYTES = 350 * 2**20
"""The interpreter with its libraries, after compiling the kernels: 327 MB were measured."""


@dataclass(frozen=True)
class CouplingSize:
    """How large a linear constraint is.

    rows : how many
    pieces : (first slice, one after the last, coefficients), for parts of the tensor
    """

    rows: int
    pieces: tuple[tuple[int, int, int], ...]

    def coefficients(self, slices: tuple[tuple[int, int], ...]) -> int:
        """How many coefficients some ranges of slices have, at most."""
        return sum(
            count
            for low, high, count in self.pieces
            if any(first < high and low < stop for first, stop in slices)
        )


@dataclass(frozen=True)
class WorkerBytes:
    """Bytes that one worker will hold in memory, by cause, and on its disk."""

    observations: int
    state: int
    fibre_sums: int
    buffers: int
    rows: int = 0
    runtime: int = RUNTIME_BYTES
    scratch: int = 0

    @property
    def total(self) -> int:
        """In memory."""
        sums = self.fibre_sums + self.rows
        return self.observations + self.state + sums + self.buffers + self.runtime
