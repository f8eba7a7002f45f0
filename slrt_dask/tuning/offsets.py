"""Whether modes have offsets of their own: judged on held-out observations, before the search.

First the offsets alone have to predict those better than the mean does, or there is nothing to
them. What they then leave to low rank may still be fitted worse than the whole: so the path along
the strengths is followed with the mean and with the offsets, and the search goes on where the lower
error was. Trials of both are kept in journals, so that a search which is taken up decides the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from slrt_dask.config import MODES
from slrt_dask.dual.mode_effects import held_out_errors, subtract_effects
from slrt_dask.dual.offsets import Offset
from slrt_dask.recovery import persist
from slrt_dask.tuning.running import Searching
from slrt_dask.tuning.search import Tried

WORTH = 1e-2
"""By what part of itself the error has to fall for offsets to be used."""
WITH_MEAN, WITH_OFFSETS = "with the mean", "with offsets per mode"


@dataclass(frozen=True)
class Alone:
    """How well held-out observations are predicted without any low rank.

    mean, modes : errors of the mean, and of the offsets;  offset : these offsets
    """

    mean: float
    modes: float
    offset: Offset


@dataclass(frozen=True)
class OffsetsChoice:
    """Whether offsets per mode are used, and why.

    alone : errors of the mean and of the offsets by themselves
    errors : the least along the path, with the mean and with the offsets; None if not followed
    others : what was tried along the path that was not taken;  seconds : and how long that took
    cut_short : whether a time limit came before the path with the offsets
    """

    used: bool
    alone: tuple[float, float]
    errors: tuple[float, float] | None = None
    others: tuple[Tried, ...] = ()
    seconds: float = 0.0
    cut_short: bool = False

    def __str__(self) -> str:
        if self.cut_short:
            return "offsets per mode were not tried, for want of time"
        mean, modes = self.errors or self.alone
        if self.used:
            return f"offsets per mode were used: held-out error {modes:.4g} instead of {mean:.4g}"
        what = "" if self.errors else " of the offsets alone"
        return (
            f"offsets per mode were not used: held-out error{what} {modes:.4g}, with the mean "
            f"{mean:.4g}"
        )

    def to_table(self) -> dict[str, Any]:
        """As JSON takes it."""
        named = {"mean": self.alone[0], "modes": self.alone[1]}
        path = self.errors and {"mean": self.errors[0], "modes": self.errors[1]}
        return {"used": self.used, "alone": named, "path": path}


def with_offsets(searching: Searching) -> Searching:
    """The search with offsets per mode, which are estimated here, once for all trials."""
    return _with_modes(searching, _alone(searching))


def chosen_offsets(searching: Searching, most_trials: int) -> tuple[Searching, OffsetsChoice]:
    """The search to go on with, of one that subtracts the mean; and why it is that."""
    alone = _alone(searching)
    errors_alone = alone.mean, alone.modes
    if not alone.modes < (1.0 - WORTH) * alone.mean:
        return searching, OffsetsChoice(False, errors_alone)
    offsets = _with_modes(searching, alone)
    journals = searching.journal, searching.journal.beside(MODES)
    searching = replace(searching, beside=journals[1], centring=WITH_MEAN)
    offsets = replace(offsets, journal=journals[1], beside=journals[0], centring=WITH_OFFSETS)
    paths = [searching.persistently(most_trials, path_only=True)]
    if time.monotonic() > searching.until and not offsets.journal.tried:
        return searching, OffsetsChoice(False, errors_alone, cut_short=True)
    paths.append(offsets.persistently(most_trials, path_only=True))
    mean, modes = (min(tried.error for tried in path) for path in paths)
    used = modes < (1.0 - WORTH) * mean
    taken, left = (offsets, 0) if used else (searching, 1)
    seconds = (searching, offsets)[left].journal.seconds
    return taken, OffsetsChoice(used, errors_alone, (mean, modes), tuple(paths[left]), seconds)


def _with_modes(searching: Searching, alone: Alone) -> Searching:
    request = searching.divided.request
    settings = replace(request.settings, center=MODES)
    request = replace(request, settings=settings, offset=alone.offset)
    return replace(searching, divided=replace(searching.divided, request=request))


def _alone(searching: Searching) -> Alone:
    """What the mean and the offsets of the observations say of those held out."""
    request = searching.begun
    centred = replace(request, settings=replace(request.settings, center=True))
    delta = request.settings.huber

    def attempt() -> Alone:
        with centred.fitting() as fit:
            mean = held_out_errors(fit.engine, searching.divided.kind, delta).rmse
            offset = subtract_effects(fit.engine, fit.offset.mean, limit=centred.limit)
            modes = held_out_errors(fit.engine, searching.divided.kind, delta).rmse
        return Alone(mean, modes, offset)

    return persist(
        attempt,
        centred.connection,
        plan=centred.plan,
        reached=lambda: 0,
        events=searching.events,
        remedy="start workers and search again",
        unit="trial",
    )
