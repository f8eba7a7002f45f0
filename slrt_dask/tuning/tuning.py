"""From observations to the settings that predict held-out ones best."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

from slrt_dask.arguments import Free
from slrt_dask.config import MODES, FitSettings
from slrt_dask.data.holding_out import SINGLY, Kind
from slrt_dask.errors import MemoryBudgetExceeded
from slrt_dask.optim.manifold import Point
from slrt_dask.request import Request
from slrt_dask.runs import Start
from slrt_dask.tuning.candidate import FIRST_RANKS, Candidate, Freedom
from slrt_dask.tuning.dividing import divided
from slrt_dask.tuning.journal import Journal
from slrt_dask.tuning.offsets import OffsetsChoice, chosen_offsets, with_offsets
from slrt_dask.tuning.running import Listener, Searching
from slrt_dask.tuning.search import Tried
from slrt_dask.tuning.trials import settings_of

MOST_TRIALS = 60
logger = logging.getLogger("slrt_dask")


@dataclass(frozen=True)
class Tuning:
    """What a search found.

    settings : the settings of the best candidate
    point : its factors, K matrices (n_k, r_k)
    history : all candidates, in the order in which they were tried
    held_out : how many observations they were judged on
    kind : which observations were held out together;  why : and why these
    cut_short : whether a time limit ended the search
    offsets : whether modes have offsets of their own, where that was to be found
    seconds : that all trials took; at the same time they take them once
    events : what befell the search
    """

    settings: FitSettings
    point: Point
    history: tuple[Tried, ...]
    held_out: int
    kind: Kind = SINGLY
    why: str = ""
    cut_short: bool = False
    seconds: float = 0.0
    events: tuple[str, ...] = field(default=(), compare=False)
    offsets: OffsetsChoice | None = None

    @property
    def best(self) -> Tried:
        """The candidate with the least error."""
        return min(self.history, key=lambda tried: tried.error)

    @property
    def error(self) -> float:
        """Of the best candidate."""
        return self.best.error

    @property
    def standard_error(self) -> float:
        """Of that error: by how much it would differ on others that are held out in the same way.

        It does not tell of the choice: the least of many errors is too small by itself.
        """
        return self.best.standard_error

    def __str__(self) -> str:
        products = ", ".join(f"{strength:.4g}" for strength in self.best.candidate.strengths)
        count = len(self.history) + (len(self.offsets.others) if self.offsets else 0)
        return (
            f"chosen among {count} settings: ranks {self.settings.ranks}, "
            f"C·λ = ({products}), which predict {self.held_out:,} held-out observations with a "
            f"{self._measure} of {self.error:.4g} ± {self.standard_error:.1g}"
            + (f"; held out were {self.kind}, {self.why}" if self.why else "")
            + (f"; {self.offsets}" if self.offsets else "")
            + (" (the time limit ended the search)" if self.cut_short else "")
        )

    @property
    def _measure(self) -> str:
        if self.settings.huber is None:
            return "root mean square error"
        return f"root mean Huber loss (from {self.settings.huber:.4g})"

    def _repr_html_(self) -> str:
        from slrt_dask.show.html import tuning_html

        return tuning_html(self)

    @property
    def start(self) -> Start:
        """Where a fit with these settings begins."""
        held_out = {"count": self.held_out, "kind": self.kind.word, "why": self.why}
        offsets = None if self.offsets is None else self.offsets.to_table()
        return Start(self.point, str(self), self.to_table(), held_out, offsets, self.seconds)

    def to_table(self) -> list[dict[str, Any]]:
        """One row per candidate, as JSON takes it; last are those with the chosen offsets."""
        rows = [tried.to_row() for tried in self.history]
        if self.offsets is None:
            return rows
        chosen, other = ("modes", "mean") if self.offsets.used else ("mean", "modes")
        others = [tried.to_row() | {"center": other} for tried in self.offsets.others]
        return others + [row | {"center": chosen} for row in rows]


def tuned(
    request: Request,
    free: Free,
    listeners: tuple[Listener, ...] = (),
    journal: Journal | None = None,
    *,
    spent: float = 0.0,
) -> Tuning:
    """Search from a request whose settings say what is fixed.

    Candidates are fitted without bounds and rows, which the chosen one then has to satisfy; a
    Hankel structure is part of every fit. They are judged on the request's held-out observations
    if it has any, or else on a tenth of its own. What is in the journal is not tried again.
    spent : how much of the time limit is over already
    """
    journal = journal or Journal()
    structure = _structure(request.settings)
    with divided(request, free.held_out, journal.directory) as parts:
        settings = replace(request.settings, constraint=structure)
        parts = replace(parts, request=replace(parts.request, settings=settings))
        lengths = _lengths(parts.request)
        shares = settings.lambdas or tuple(map(float, lengths))
        freedom = Freedom(
            lengths, ranks=free.ranks, strength=free.C,
            shares=free.C and settings.lambdas is None and structure is None,
        )  # fmt: skip
        first = _first(parts.request, lengths, shares)
        if not free.ranks:
            first = replace(first, ranks=settings.ranks)
        if not free.C:
            first = replace(first, strengths=tuple(settings.C * share for share in shares))
        allowed = request.settings.max_seconds
        until = math.inf if allowed is None else time.monotonic() + allowed - spent
        events: list[str] = []
        search = Searching(parts, freedom, first, shares, listeners, until, journal, events)
        offsets = None
        if settings.center == MODES:
            search = with_offsets(search)
        elif free.center:
            search, offsets = chosen_offsets(search, MOST_TRIALS)
            logger.info("%s", offsets)
        history = search.persistently(MOST_TRIALS)
        assert parts.request.validation is not None
        best = min(history, key=lambda tried: tried.error)
        tuning = Tuning(
            settings_of(
                best.candidate,
                replace(request.settings, center=search.divided.request.settings.center),
                shares,
            ),
            best.point,
            tuple(history),
            parts.request.validation.nnz,
            parts.kind,
            parts.why,
            bool(search.put_off) or (offsets is not None and offsets.cut_short),
            search.journal.seconds + (offsets.seconds if offsets else 0.0),
            tuple(events),
            offsets,
        )
    logger.info("%s", tuning)
    return tuning


def seconds_spent(journal: Journal, free: Free) -> float:
    """That the trials of a search have taken so far, with the mean and with offsets."""
    return journal.seconds + (journal.beside(MODES).seconds if free.center else 0.0)


def _first(request: Request, lengths: tuple[int, ...], shares: tuple[float, ...]) -> Candidate:
    """Where a search begins: with the widest factors that leave the observations in memory.

    Where none do, with the widest that there is room for beside streamed ones.
    """
    streamed = None
    for rank in FIRST_RANKS:
        first = Candidate.first(lengths, shares, rank).scaled(1.0 / request.store.mean_weight)
        settings = settings_of(first, request.settings, shares)
        with contextlib.suppress(MemoryBudgetExceeded):
            if replace(request, settings=settings).plan().in_memory:
                return first
            streamed = streamed or first
    return streamed or first  # whose plan says what is missing


def _structure(settings: FitSettings) -> Any:
    """What of the constraints is part of every candidate."""
    tables = settings.constraint
    if isinstance(tables, dict):
        tables = (tables,)
    return next((table for table in tables or () if "tau" in table), None)


def _lengths(request: Request) -> tuple[int, ...]:
    tau = request.settings.tau or (1,) * request.store.order
    return tuple(n - t + 1 for n, t in zip(request.store.shape, tau, strict=True))
