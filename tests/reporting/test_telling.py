"""What a page tells of times, stages, slices and errors, and what it warns of, is so."""

from __future__ import annotations

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.optim.stages import stage_begins
from slrt_dask.reporting.concerns import concerns
from slrt_dask.reporting.gathering import facts_of
from slrt_dask.reporting.wording import duration
from tests.reporting.conftest import RANKS, SHAPE
from tests.reporting.test_page import Reader


def said(seconds):
    return duration(seconds).replace("\N{NO-BREAK SPACE}", " ")


def test_the_time_of_a_searched_fit_is_that_of_the_whole(stores, tmp_path):
    run = tmp_path / "run"
    slrt.complete(stores[0], (2, 2, 2), C="auto", lambdas=(1.0, 1.0, 1.0), threads=1,
                  run_directory=run, max_iterations=5)  # fmt: skip
    search = json.loads((run / "search.json").read_text())
    facts = facts_of(run)
    assert facts.search.took == search["seconds"] > 0.0
    assert search["seconds"] >= sum(row["seconds"] for row in search["tried"])  # one by one
    assert facts.seconds == search["seconds"] + facts.usage.wall
    shown = Reader(slrt.report(run, tmp_path / "report.html")).text
    assert f"It took {said(facts.seconds)}: the search for its settings" in shown
    assert f"{said(facts.search.took)} of it for the search" in shown


def with_errors(facts, *errors):
    """The facts of a fit with these errors on held-out observations, one per iteration."""
    first = facts.records[0]
    records = tuple(
        dataclasses.replace(first, iteration=number, validation_rmse=error)
        for number, error in enumerate(errors)
    )
    return dataclasses.replace(facts, records=records)


@pytest.mark.parametrize(
    ("last", "held_out", "is_told"),
    [(0.0229, 3200, False), (0.0229, 10**6, False), (0.03, 3200, True), (0.025, 100, False)],
)
def test_only_a_clear_rise_of_the_held_out_error_is_told(fitted, last, held_out, is_told):
    facts = dataclasses.replace(facts_of(fitted[0]), held_out=held_out)
    told = [text for text in concerns(with_errors(facts, 0.1, 0.02245, last)) if "best at" in text]
    assert len(told) == is_told
    for text in told:
        assert "iteration 1 " in text
        assert "--patience" in text
        assert "smaller" not in text


def test_held_out_observations_are_counted(fitted, stores):
    assert facts_of(fitted[0]).held_out == stores[1].nnz


def test_slices_are_named_by_their_coordinates(cube, tmp_path):
    xarray = pytest.importorskip("xarray")
    days = np.datetime64("2024-03-01") + np.arange(SHAPE[2])
    places = {"band": ("column", list("abcdefghijklmnopqrst")), "day": days}
    array = xarray.DataArray(cube, dims=("row", "column", "day"), coords=places)
    store = slrt.from_array(tmp_path / "store", array)
    slrt.complete(store, RANKS, C=1.0, max_iterations=1, threads=1, run_directory=tmp_path / "run")
    text = Reader(slrt.report(tmp_path / "run", tmp_path / "day.html")).text
    assert "Slice day 2024-03-05 (index 4)" in text
    facts = facts_of(tmp_path / "run")
    assert facts.place_name(1, 5) == "column = 5"
    wavelengths = {"row": np.linspace(400.0, 1000.0, SHAPE[0]).astype(np.float32)}
    assert dataclasses.replace(facts, labels=wavelengths).place_name(0, 1) == (
        "row 426.087 (index 1)"
    )


def test_a_killed_run_took_at_least_what_its_history_says(stores, tmp_path):
    run, killed = tmp_path / "run", tmp_path / "killed"
    copying = SimpleNamespace(
        on_record=lambda record, _: record.iteration == 3 and shutil.copytree(run, killed)
    )
    slrt.complete(stores[0], RANKS, C=1.0, threads=1, run_directory=run, observers=[copying],
                  max_iterations=4)  # fmt: skip
    facts = facts_of(killed)
    assert facts.seconds >= facts.records[-1].seconds
    assert facts.is_longer
    assert not facts_of(run).is_longer


def test_the_stages_of_a_hankel_fit_are_marked(store_of, tmp_path):
    samples = np.arange(40)
    slrt.complete(
        store_of(samples % 7 != 0, np.sin(0.4 * samples)), (2,), C=10.0, threads=1,
        constraint=slrt.Hankel(12), max_iterations=30, run_directory=tmp_path / "run",
    )  # fmt: skip
    begins = stage_begins(facts_of(tmp_path / "run").records)
    assert begins
    shown = Reader(slrt.report(tmp_path / "run", tmp_path / "report.html"))
    assert f"The fit went through {len(begins) + 1} stages" in shown.text
    assert "cost above the lowest of its stage" in shown.text
    (curve,) = (a["aria-label"] for _, a in shown.tags if "cost" in a.get("aria-label", ""))
    assert "lowest of its stage" in curve
