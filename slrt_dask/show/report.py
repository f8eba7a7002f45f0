"""One page about a run: how good it is, what to be careful about, how it went and what it took."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from slrt_dask.data.location import is_url, normal_path
from slrt_dask.engine.plan import RUNTIME_BYTES
from slrt_dask.errors import InvalidInput, StoreExists
from slrt_dask.runs import replace_file
from slrt_dask.show import figures
from slrt_dask.show.facts import DRAWN, Facts
from slrt_dask.show.html import render
from slrt_dask.show.text import lengths
from slrt_dask.tuning.candidate import Candidate

if TYPE_CHECKING:
    from slrt_dask.completion import Completion

MOST_ROWS = 60
"""Of the history in its table; of a longer one every so many iterations are shown."""


def report(
    run: str | os.PathLike[str] | Completion,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    modes: tuple[int, int] | None = None,
) -> Path:
    """Write one HTML page about a run; returns its path.

    run : a run directory, whether the run has ended, is under way or was killed, but not before
        its search for settings has ended; or a completion
    path : of the page; a new file, unless `overwrite`
    modes : the two modes that slices of the answer show; those of the most similar lengths if None

    The page stands on its own: it fetches nothing and runs nothing. Observations are read once, a
    partition at a time, and the answer is computed where it is shown only. matplotlib draws it,
    from the extra `plot`.
    """
    target = new_page(path, overwrite=overwrite)
    figures.check_can_draw()
    facts = Facts(run, modes)
    page = render(
        "report",
        facts=facts,
        settings={} if facts.settings is None else asdict(facts.settings),
        charts=list(_charts(facts)),
        slices=list(_slices(facts)),
        history=[*facts.records[: -1 : -(-len(facts.records) // MOST_ROWS)], *facts.records[-1:]],
        drawn=DRAWN,
        runtime_bytes=RUNTIME_BYTES,
        made=f"{datetime.now().astimezone():%Y-%m-%d at %H:%M %Z}".strip(),
    )
    replace_file(target, page)
    return target


def new_page(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The path for a page, if it can be written there."""
    if is_url(os.fspath(path)):
        raise InvalidInput(f"the page {os.fspath(path)} would be at a URL; give a local path")
    target = Path(normal_path(path))
    if target.is_dir():
        raise InvalidInput(f"{target} is a directory; give the path of a file, such as report.html")
    if target.exists() and not overwrite:
        raise StoreExists(
            f"{target} already exists; choose another path, or replace it with --overwrite "
            "(overwrite=True)"
        )
    if not target.parent.is_dir():
        raise InvalidInput(f"there is no directory {target.parent}; make it, or check the path")
    return target


def _charts(facts: Facts) -> Iterator[tuple[str, str]]:
    """Descriptions and images of how the fit and the search went."""
    if len(facts.records) > 1:
        tolerance = None if facts.settings is None else facts.settings.gap_tolerance
        drawn = figures.convergence_figure(
            facts.records, gap_tolerance=tolerance, error_name=facts.error_name
        )
        yield "Convergence by iteration", figures.data_uri(drawn)
    if facts.search is not None:
        rows = [SimpleNamespace(candidate=Candidate.of_row(r), **_error(r)) for r in facts.tried]
        others = [row for row in facts.search.tried if row not in facts.tried]
        pale = [SimpleNamespace(candidate=Candidate.of_row(r), **_error(r)) for r in others]
        search: Any = figures.tuning_figure(rows, others=pale)  # type: ignore[arg-type]
        yield "Error of every setting tried, and the best so far", figures.data_uri(search)


def _error(row: dict[str, Any]) -> dict[str, float]:
    return {"error": float(row["error"])}


def _slices(facts: Facts) -> Iterator[tuple[str, str, str, str]]:
    """Of everything that is shown: its name, its modes, a note about its cells, and its image."""
    for plane, observed, completed in facts.slices:
        modes = " × ".join(facts.mode_name(mode) for mode in plane.axes)
        note = ""
        if max(plane.steps) > 1:
            note = (
                f"A cell stands for {lengths(plane.steps)} entries: for the mean of those "
                "observed, and for the completed entry in their middle."
            )
        if len(plane.axes) == 1:
            nothing = np.full(plane.cells, np.nan)
            drawn = figures.series_figure(
                nothing if observed is None else observed,
                nothing if completed is None else completed,
            )
            figures.stretch(drawn, plane.steps[0])
            yield "The series", modes, note, figures.data_uri(drawn)
        else:
            fixed = ", ".join(facts.place_name(mode, index) for mode, index in plane.fixed)
            name = f"Slice {fixed}" if fixed else "The matrix"
            yield name, modes, note, figures.data_uri(figures.part_figure(observed, completed))
