"""A report says of a run what is so: its numbers are the run's, and it stands on its own."""

from __future__ import annotations

import base64
import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.constraints import Bounds
from slrt_dask.errors import InvalidInput, MissingDependency, StoreExists, StoreNotFound
from slrt_dask.show.facts import Facts
from slrt_dask.show.observed import Plane, look_through, planes_of
from slrt_dask.show.text import duration
from slrt_dask.usage import read_usage
from tests.show.conftest import HOSTILE, RANKS, SHAPE

OPTIONS = {"C": 1.0, "threads": 1, "gap_tolerance": 0.0}


def raising(iteration, error):
    """An observer that ends a fit, or does something else, at some iteration."""

    def on_record(record, state):
        if record.iteration == iteration:
            if callable(error) and not isinstance(error, type):
                error()
            else:
                raise error

    return SimpleNamespace(on_record=on_record)


def test_the_numbers_of_the_report_are_those_of_the_run(page, fitted, stores):
    run, done = fitted
    usage, certificate = read_usage(run), done.certificate
    wanted = {name: getattr(certificate, name) for name in ("primal", "dual", "gap", "violation")}
    wanted |= {
        "relative_gap": certificate.relative_gap,
        "observations": stores[0].nnz,
        "density": stores[0].nnz / np.prod(SHAPE),
        "iterations": done.records[-1].iteration,
        "validation_rmse": done.records[-1].validation_rmse,
        "wall": usage.wall,
        "peak": usage.places[0].peak,
        "planned": usage.places[0].planned,
    }
    assert {name: page.numbers[name] for name in wanted} == {n: {v} for n, v in wanted.items()}
    parts = [value for name, (value,) in page.numbers.items() if name.startswith("seconds ")]
    assert sum(parts) == pytest.approx(usage.wall, abs=1e-3)
    assert done.stop_reason.value in page.text
    assert " × ".join(map(str, RANKS)) in page.text


def test_the_report_fetches_nothing_runs_nothing_and_describes_its_pictures(page):
    assert page.source.startswith("<!DOCTYPE html>")
    kinds = {tag for tag, _ in page.tags}
    assert not kinds & {"script", "iframe", "object", "embed", "svg"}
    addresses = [a[key] for _, a in page.tags for key in ("src", "href", "srcset") if key in a]
    assert len(addresses) > 4
    assert all(address.startswith("data:") for address in addresses)
    assert not any(word in page.source for word in ("http:", "https:", "url("))
    assert not any(name.startswith("on") for _, a in page.tags for name in a)
    pictures = [a for tag, a in page.tags if tag == "img"]
    assert all(a["alt"] for a in pictures)
    for picture in pictures:
        drawn = base64.b64decode(picture["src"].partition(",")[2])
        assert ElementTree.fromstring(drawn).tag.endswith("svg")


def test_names_are_text_and_not_markup(page):
    assert "<script>" not in page.source
    assert f"Slice {HOSTILE}".replace("\x00", "�").replace("\x1b", "�") in page.text


def test_the_reader_is_warned(page, fitted, stores):
    values = np.asarray(stores[0].values().compute())
    assert f"{np.count_nonzero(values < 0)} observations" in page.text
    assert "1 of the 24 slices of row have no observation" in page.text
    assert fitted[1].stop_reason.value in page.text.split("did not converge. ")[1]
    facts = Facts(fitted[0])
    assert facts.unseen > 0
    assert f"{facts.unseen} have none on any of their fibres" in page.text
    assert "predicted as 0" not in page.text  # a constraint may predict something else
    assert facts.held_out == stores[1].nnz


def test_a_fit_with_nothing_to_warn_of_has_no_warning(store_of, tmp_path, shown):
    tensor = slrt.low_rank_tensor((10, 9, 8), (1, 1, 1), seed=2)
    store = store_of(np.ones(tensor.shape, dtype=bool), tensor)
    slrt.complete(store, (4, 4, 4), C=1e-3, threads=1, run_directory=tmp_path / "run")
    assert "To be aware of" not in shown(tmp_path / "run").text


@pytest.mark.parametrize(
    ("last", "held_out", "is_warned"),
    [(0.0229, 3200, False), (0.0229, 10**6, False), (0.03, 3200, True), (0.025, 100, False)],
)
def test_only_a_clear_rise_of_the_held_out_error_is_a_warning(
    fitted, record, last, held_out, is_warned
):
    facts = Facts(fitted[0])
    facts.records = [record(n, rmse=error) for n, error in enumerate((0.1, 0.02245, last))]
    facts.held_out = held_out
    assert facts.risen == ((0.02245, 1, last) if is_warned else None)


def test_a_run_under_way_or_killed_is_shown_as_far_as_it_came(stores, tmp_path, shown):
    run, seen = tmp_path / "run", []

    def look():
        seen.append(shown(run).text)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        slrt.complete(stores[0], RANKS, run_directory=run, observers=[raising(2, look)], **OPTIONS)
    assert "being completed" in seen[0]
    assert "under way" in seen[0]
    killed = shown(run)
    assert killed.numbers["iterations"] == {2.0}
    assert "not yet completed" in killed.text
    assert f"slrt-dask resume {run} goes on" in killed.text
    assert "There is no result yet" in killed.text
    assert "at least" in killed.text


def test_a_run_that_was_resumed_and_killed_says_that_its_result_is_old(stores, tmp_path, shown):
    run = tmp_path / "run"
    stop = raising(2, KeyboardInterrupt)
    slrt.complete(stores[0], RANKS, run_directory=run, observers=[stop], **OPTIONS)
    with pytest.raises(RuntimeError):
        slrt.resume(run, threads=1, observers=[raising(4, RuntimeError("killed"))])
    assert "the result of an earlier part" in shown(run).text


def test_slices_are_those_of_the_completed_tensor(fitted, cube):
    facts = Facts(fitted[0], modes=(2, 0))
    whole = np.asarray(fitted[1].to_dask().compute())
    assert [plane.fixed for plane, _, _ in facts.slices] == [((1, n),) for n in (5, 10, 15)]
    for plane, observed, completed in facts.slices:
        ((_, column),) = plane.fixed
        turned = np.transpose if plane.axes == (2, 0) else np.asarray
        np.testing.assert_allclose(completed, turned(whole[:, column]), atol=1e-12)
        seen = np.isfinite(observed)
        np.testing.assert_array_equal(observed[seen], turned(cube[:, column])[seen])


def test_a_completion_without_a_run_has_a_report_too(fitted, tmp_path, shown):
    copied = shown(fitted[1].save(tmp_path / "copied"))
    assert copied.numbers["primal"] == {fitted[1].certificate.primal}
    assert "observations" not in copied.numbers
    assert shown(tmp_path / "copied").numbers == copied.numbers
    assert "observations" in shown(fitted[1]).numbers


def test_a_run_without_its_observations_or_its_times_says_so(stores, tmp_path, shown):
    train = tmp_path / "train"
    shutil.copytree(stores[0].path, train)
    run = tmp_path / "run"
    slrt.complete(slrt.open_store(train), RANKS, C=1.0, max_iterations=1, run_directory=run)
    shutil.rmtree(train)
    (run / "usage.json").unlink()
    page = shown(run)
    assert str(train) in page.text.split("The observations are not shown: ")[1][:200]
    assert "wall" not in page.numbers


def test_a_searched_fit_shows_the_search_and_the_time_of_both(searched, shown):
    run, _ = searched
    search = json.loads((run / "search.json").read_text())
    text, facts = shown(run).text, Facts(run)
    assert f"All {len(search['tried'])} settings tried" in text
    assert f"Chosen among {len(search['tried'])} settings" in text
    assert facts.seconds == search["seconds"] + facts.usage.wall
    assert f"It took {duration(facts.seconds)}: the search" in text


@pytest.mark.parametrize(
    ("shape", "constraint", "words", "formula"),
    [
        ((40,), slrt.Hankel(12), "A series of 40 samples", "H(W)"),
        ((14, 11), slrt.Bounds(-1.0, 1.0, where="observed"), "A matrix of 14 × 11", "−1 ≤ W ≤ 1"),
        ((6, 5, 4, 3), None, "A tensor of 6 × 5 × 4 × 3", "W = W1 + W2 + W3 + W4"),
    ],
)
def test_every_order_has_a_report(shape, constraint, words, formula, store_of, tmp_path, shown):
    waves = np.sin(0.4 * np.arange(np.prod(shape))).reshape(shape)
    mask = np.arange(waves.size).reshape(shape) % 7 != 0
    done = slrt.complete(
        store_of(mask, waves), (2,) * len(shape), C=10.0, constraint=constraint, threads=1,
        max_iterations=30 if len(shape) == 1 else 3, run_directory=tmp_path / "run",
    )  # fmt: skip
    page = shown(tmp_path / "run")
    assert page.text.startswith(words)
    assert formula in page.text
    begins = Facts(tmp_path / "run").stage_begins
    assert bool(begins) == (len(shape) == 1)
    assert (f"The fit went through {len(begins) + 1} stages" in page.text) == bool(begins)
    assert done.stop_reason.value in page.text


def test_slices_are_named_by_their_coordinates(cube, tmp_path, shown):
    xarray = pytest.importorskip("xarray")
    days = np.datetime64("2024-03-01") + np.arange(SHAPE[2])
    array = xarray.DataArray(cube, dims=("row", "column", "day"), coords={"day": days})
    store = slrt.from_array(tmp_path / "store", array)
    slrt.complete(store, RANKS, C=1.0, max_iterations=1, threads=1, run_directory=tmp_path / "run")
    assert "Slice day 2024-03-05 (index 4)" in shown(tmp_path / "run").text


def test_a_report_is_not_written_over_unless_asked_to(fitted, tmp_path):
    page = slrt.report(fitted[0], tmp_path / "report.html")
    with pytest.raises(StoreExists, match=str(page)):
        slrt.report(fitted[0], page)
    assert slrt.report(fitted[0], page, overwrite=True) == page
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(
    ("run", "path", "options", "error", "value"),
    [
        ("nowhere", "new.html", {}, StoreNotFound, "nowhere"),
        (None, "", {}, InvalidInput, "is a directory"),
        (None, "no/such/place.html", {}, InvalidInput, "no/such"),
        (None, "new.html", {"modes": (0, 3)}, InvalidInput, r"\(0, 3\)"),
        (None, "new.html", {"modes": (1, 1)}, InvalidInput, r"\(1, 1\)"),
    ],
)
def test_what_cannot_be_reported_is_refused(run, path, options, error, value, fitted, tmp_path):
    with pytest.raises(error, match=value):
        slrt.report((run and tmp_path / run) or fitted[0], tmp_path / path, **options)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_there_is_no_report_but_a_remedy(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"slrt-dask\[plot\]"):
        slrt.report(fitted[0], tmp_path / "report.html")
    assert "<img" not in fitted[1]._repr_html_()


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((145, 145, 200), (0, 1)), ((3, 256, 256), (1, 2)), ((300, 120, 160), (1, 2)),
        ((3, 3, 500, 600), (2, 3)), ((80, 60), (0, 1)), ((5000,), (0,)),
    ],
)  # fmt: skip
def test_cells_are_few_and_their_middles_are_entries_of_the_tensor(shape, axes):
    for plane in planes_of(shape):
        assert plane.axes == axes
        assert np.prod(plane.cells) <= 192**2
        places = plane.places()
        assert places.shape == (len(shape), np.prod(plane.cells))
        assert (places >= 0).all()
        assert (places < np.array(shape)[:, None]).all()
        cells = [places[mode] // step for mode, step in zip(axes, plane.steps, strict=True)]
        assert len(np.unique(np.stack(cells), axis=1).T) == places.shape[1]


def test_cells_hold_the_means_of_what_was_observed_in_them(store_of):
    random = np.random.default_rng(0)
    values = random.standard_normal((10, 9, 6))
    mask = random.random(values.shape) < 0.3
    mask[:, 4] = False
    plane = Plane(values.shape, (0, 1), ((2, 3),), (3, 4))
    found = look_through(store_of(mask, values, parts=4), (plane,), Bounds(-0.5, 0.8))
    seen = values[mask]
    assert found.outside == np.count_nonzero((seen < -0.5) | (seen > 0.8))
    assert (found.lowest, found.highest) == (seen.min(), seen.max())
    assert found.empty == (0, 1, 0)
    known = np.where(mask, values, np.nan)[:, :, 3]
    for row, column in np.ndindex(4, 3):
        part = known[3 * row :, 4 * column :][:3, :4]
        part = part[np.isfinite(part)]
        wanted = part.mean() if part.size else np.nan
        np.testing.assert_allclose(found.cells[0][row, column], wanted)


@pytest.mark.parametrize(
    ("given", "formula", "where"),
    [
        ({"lower": 0.0}, "W ≥ 0", "at every entry"),
        ({"upper": [1.0, 2.0, 3.0], "mode": 1}, "W ≤ u", "at every entry, along mode 1"),
        ({"lower": 0.0, "upper": 2.0, "where": np.eye(3, dtype=int)[:, :2]}, "0 ≤ W ≤ 2",
         "at 2 entries"),
    ],
)  # fmt: skip
def test_bounds_are_shown_as_a_formula_and_in_words(
    given, formula, where, store_of, tmp_path, shown
):
    store = store_of(np.ones((4, 3, 3), dtype=bool), np.ones((4, 3, 3)))
    bounds = slrt.Bounds(**given)
    slrt.complete(store, (1, 1, 1), C=1.0, constraint=bounds, max_iterations=1, threads=1,
                  run_directory=tmp_path / "run")  # fmt: skip
    text = shown(tmp_path / "run").text
    assert f", {formula}" in text
    assert f"{formula} {where}" in text
