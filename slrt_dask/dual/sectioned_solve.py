"""The inner solve where the slab mode's fibre sums are too large to be held at once.

Fibres are cut into sections. A product with the operator is then made section by section: whatever
makes the vector that is swept, the sums of a section's fibres (`prepare`), and, when those are
complete, its part of the product (`sample`); only then the other modes, on whole slices (`local`).
Sums never leave memory, and only one section's are held. What is computed is the same as in
`inner.py`, in as many iterations; entries are read once more in each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.dual.inner import SWEEPING, ConjugateGradient, let_go
from slrt_dask.dual.inner_rounds import NO_SUMS, Round, Sums
from slrt_dask.dual.operator import Matrix, add_crossing, add_local
from slrt_dask.engine.block import Block, Vector
from slrt_dask.engine.program import Finished
from slrt_dask.kernels import vectors


@dataclass(frozen=True)
class SolvePart:
    """What the blocks are to do next of a round that would be one if all sums were held.

    whole : that round
    work : prepare | sample | local; or end, where nothing is swept
    sums : complete fibre sums of the section
    scalars : what the round's parts have added up so far
    """

    whole: Round
    work: str
    section: int = 0
    sums: Matrix | None = None
    scalars: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class SectionedConjugateGradient(ConjugateGradient):
    """The same solve in sections, of which there are so many.

    Of the rounds of `ConjugateGradient` only those that sweep nothing are made as they are (`end`);
    of the others its pieces, with a w that is complete by then (`_completed`). Sums of sections use
    the same two rooms in turns: every worker has sampled a section before the next is prepared.
    """

    sections: int

    def first(self) -> Any:
        return self._begun(super().first())

    def _begun(self, whole: Round) -> SolvePart:
        return SolvePart(whole, "prepare" if self._sweeps(whole) else "end")

    def _sweeps(self, whole: Round) -> bool:
        """Whether a round ends with a product with the operator."""
        begins = whole.phase == "begin" and self.start is not None
        return begins or (whole.phase in SWEEPING and self.max_iterations > 0)

    def section(self, message: SolvePart) -> int | None:
        return message.section if message.work in ("prepare", "sample") else None

    def shared(self, message: Any, places: Any) -> None:
        """Threads go through their own blocks: what is shared in turns has all sums at hand."""
        return

    # ---- on a block, or a section of it -----------------------------------------------------

    def step(self, block: Block, message: Any, total: Sums | None) -> Sums:
        if message.work == "prepare":
            swept, rr = self._prepared(block, message.whole)
            return self._sweep(block, swept, rr, total, message.section)
        if message.work == "end":
            return super().step(block, message.whole, total)
        if message.work == "sample":
            swept, w = block.vector(self._swept_name(message.whole)), block.fresh("w")
            np.multiply(swept, self.shift, out=w)
            add_crossing(block, self.factors, self.weights, message.sums, w)
        return (NO_SUMS, np.zeros(4)) if total is None else total

    def _prepared(self, block: Block, whole: Round) -> tuple[Vector, float]:
        """What is swept in this round, and ⟨r, r⟩."""
        if whole.phase == "begin":
            let_go(block)
            return self._started(block)
        if whole.phase != "iterate":
            return self._residual(block, whole)
        r = block.changing("r")
        if whole.before is not None:
            return r, self._conjugate_step(block, whole)
        moved = (block.changing("s"), self._completed(block, whole))
        return r, vectors.residual_step(r, *moved, whole.alpha, whole.beta)

    def _completed(self, block: Block, message: Round) -> Vector:
        return block.vector("w")  # samples and local products have made all of it

    def _swept_name(self, whole: Round) -> str:
        return self.solution if whole.phase == "begin" and self.start is not None else "r"

    def follow(
        self, block: Block, message: Any, rest: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        scalars = np.zeros(4)
        if message.work == "local":
            swept, w = block.vector(self._swept_name(message.whole)), block.changing("w")
            scalars[1] = add_local(block, self.factors, self.factors, self.weights, swept, w)
        return scalars if rest is None else rest + scalars

    # ---- between rounds ---------------------------------------------------------------------

    def advance(self, message: Any, total: Sums) -> Any:
        sums, scalars = total
        added = tuple((np.array(message.scalars) + scalars).tolist())
        if message.work == "prepare":
            return replace(message, work="sample", sums=sums, scalars=added)
        if message.work == "sample":
            following = message.section + 1
            work = "prepare" if following < self.sections else "local"
            section = following % self.sections
            return replace(message, work=work, section=section, sums=None, scalars=added)
        ahead = super().advance(message.whole, (NO_SUMS, np.array(added)))
        return ahead if isinstance(ahead, Finished) else self._begun(ahead)

    def sent(self, message: Any) -> Any:
        return replace(message, whole=super().sent(message.whole), sums=None)

    def told(self, message: Any, shared: Matrix) -> Any:
        return replace(message, sums=shared) if message.work == "sample" else message


def in_sections(solve: ConjugateGradient, sections: int) -> ConjugateGradient:
    """The same solve with the slab mode's fibres in so many sections."""
    if sections == 1:
        return solve
    settings = {field.name: getattr(solve, field.name) for field in fields(solve)}
    return SectionedConjugateGradient(**settings, sections=sections)
