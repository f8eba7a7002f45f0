"""From observations to the settings that predict held-out ones best."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from slrt_dask.arguments import Free
from slrt_dask.completion import TemporaryPlace
from slrt_dask.config import FitSettings
from slrt_dask.data.location import is_url, scratch_parent
from slrt_dask.data.store import ObservationStore
from slrt_dask.errors import InvalidInput, MemoryBudgetExceeded
from slrt_dask.monitor import describe_trial
from slrt_dask.optim.manifold import Point
from slrt_dask.recovery import persist
from slrt_dask.request import Request
from slrt_dask.runs import Start
from slrt_dask.tuning.candidate import Candidate, Freedom
from slrt_dask.tuning.search import Search, Tried
from slrt_dask.tuning.trials import Trials, settings_of

HELD_OUT = 0.1
"""The part of the observations that candidates are judged on."""
HELD_OUT_SEED = 1
FEWEST = 50
"""Observations of which some can be held out."""
MOST_TRIALS = 60
logger = logging.getLogger("slrt_dask")
Listener = Callable[[Tried], None]


@dataclass(frozen=True)
class Tuning:
    """What a search found.

    settings : the settings of the best candidate
    point : its factors, K matrices (n_k, r_k)
    history : all candidates, in the order in which they were tried
    held_out : how many observations they were judged on
    cut_short : whether a time limit ended the search
    """

    settings: FitSettings
    point: Point
    history: tuple[Tried, ...]
    held_out: int
    cut_short: bool = False

    @property
    def error(self) -> float:
        """Of the best candidate."""
        return min(tried.error for tried in self.history)

    @property
    def standard_error(self) -> float:
        """Of that error, were misfits normal."""
        return self.error / math.sqrt(2 * self.held_out)

    def __str__(self) -> str:
        strengths = min(self.history, key=lambda tried: tried.error).candidate.strengths
        products = ", ".join(f"{strength:.4g}" for strength in strengths)
        return (
            f"chosen among {len(self.history)} settings: ranks {self.settings.ranks}, "
            f"C·λ = ({products}), which predict {self.held_out:,} held-out observations with a "
            f"root mean square error of {self.error:.4g} ± {self.standard_error:.1g}"
            + (" (the time limit ended the search)" if self.cut_short else "")
        )

    def _repr_html_(self) -> str:
        from slrt_dask.notebook import tuning_html

        return tuning_html(self)

    @property
    def start(self) -> Start:
        """Where a fit with these settings begins."""
        return Start(self.point, str(self), self.to_table())

    def to_table(self) -> list[dict[str, Any]]:
        """One row per candidate, as JSON takes it."""
        return [
            {
                "ranks": list(tried.candidate.ranks),
                "strengths": list(tried.candidate.strengths),
                "error": tried.error,
                "iterations": tried.iterations,
                "sweeps": tried.sweeps,
                "seconds": tried.seconds,
            }
            for tried in self.history
        ]


def tuned(request: Request, free: Free, listeners: tuple[Listener, ...] = ()) -> Tuning:
    """Search from a request whose settings say what is fixed.

    Candidates are fitted without bounds and rows, which the chosen one then has to satisfy; a
    Hankel structure is part of every fit. They are judged on the request's held-out observations
    if it has any, or else on a tenth of its own.
    """
    structure = _structure(request.settings)
    with _divided(request) as divided:
        searched = replace(divided, settings=replace(request.settings, constraint=structure))
        lengths = _lengths(searched)
        shares = searched.settings.lambdas or tuple(map(float, lengths))
        freedom = Freedom(
            lengths, ranks=free.ranks, strength=free.C,
            shares=free.C and searched.settings.lambdas is None and structure is None,
        )  # fmt: skip
        first = Candidate.first(lengths, shares)
        if not free.ranks:
            first = replace(first, ranks=searched.settings.ranks)
        if not free.C:
            C = searched.settings.C
            first = replace(first, strengths=tuple(C * share for share in shares))
        allowed = request.settings.max_seconds
        until = math.inf if allowed is None else time.monotonic() + allowed
        history = _searched(searched, freedom, first, shares, listeners, until)
        assert divided.validation is not None
        best = min(history, key=lambda tried: tried.error)
        settings = settings_of(best.candidate, request.settings, shares)
        cut_short = time.monotonic() > until
        tuning = Tuning(settings, best.point, tuple(history), divided.validation.nnz, cut_short)
    logger.info("%s", tuning)
    return tuning


def _searched(
    request: Request,
    freedom: Freedom,
    first: Candidate,
    shares: tuple[float, ...],
    listeners: tuple[Listener, ...],
    until: float,
) -> list[Tried]:
    """All that was tried; when workers are lost the search begins again."""
    begun = replace(request, settings=settings_of(first, request.settings, shares))

    in_memory = begun.plan().in_memory

    def fits_in(settings: FitSettings) -> None:
        if replace(request, settings=settings).plan().in_memory != in_memory:
            raise MemoryBudgetExceeded("observations would have to leave memory for it")

    def attempt() -> list[Tried]:
        with begun.fitting() as fit:
            trials = Trials(fit, shares, fits_in)

            def heard(candidate: Candidate, warm: Tried | None) -> Tried | None:
                if warm is not None and time.monotonic() > until:
                    return None
                tried = trials.attempt(candidate, warm)
                if tried is not None:
                    logger.info("%s", describe_trial(tried))
                    for listener in listeners:
                        listener(tried)
                return tried

            search = Search(freedom, heard, MOST_TRIALS)
            search.run(first)
            return [replace(tried, held=None) for tried in search.history]

    return persist(
        attempt,
        request.connection,
        plan=begun.plan,
        reached=lambda: -1,
        events=[],
        remedy="start workers and search again",
    )


def _structure(settings: FitSettings) -> Any:
    """What of the constraints is part of every candidate."""
    tables = settings.constraint
    if isinstance(tables, dict):
        tables = (tables,)
    return next((table for table in tables or () if "tau" in table), None)


def _lengths(request: Request) -> tuple[int, ...]:
    tau = request.settings.tau or (1,) * request.store.order
    return tuple(n - t + 1 for n, t in zip(request.store.shape, tau, strict=True))


@contextlib.contextmanager
def _divided(request: Request) -> Iterator[Request]:
    """The request with held-out observations: those given, or some of its own."""
    if request.validation is not None:
        yield request
        return
    store: ObservationStore = request.store
    if store.nnz < FEWEST:
        raise InvalidInput(
            f"{store.nnz} observations are too few to hold some of them out and find ranks or C; "
            "give both"
        )
    if request.connection is not None and is_url(store.path):
        raise InvalidInput(
            f"{store.path} is a URL, and workers may not see what is held out on the disk of this "
            "machine; split the store yourself, and give one part as validation"
        )
    place = TemporaryPlace(scratch_parent(store.path) if request.connection else None)
    train, held_out = store.split(
        HELD_OUT, HELD_OUT_SEED, train_path=f"{place.path}/train", test_path=f"{place.path}/test"
    )
    yield replace(request, store=train, validation=held_out)
