"""A page says of a run what is so: its numbers are the run's, and it stands on its own."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import InvalidInput, StoreExists, StoreNotFound
from slrt_dask.reporting.facts import DRAWN, Standing
from slrt_dask.reporting.gathering import facts_of
from slrt_dask.usage import read_usage
from tests.reporting.conftest import RANKS, SHAPE


class Reader(HTMLParser):
    """The numbers of a page by name, its text, and whether its elements are closed in order."""

    def __init__(self, path):
        super().__init__()
        self.numbers, self.tags, self.words, self._open = {}, [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self._open.append(tag)
        given = dict(attributes)
        if tag == "data" and "data-name" in given:
            self.numbers.setdefault(given["data-name"], []).append(given["value"])

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, text):
        if "style" not in self._open:
            self.words.append(text)

    @property
    def text(self):
        return " ".join("".join(self.words).replace("\N{NO-BREAK SPACE}", " ").split())

    def number(self, name):
        (value,) = set(self.numbers[name])
        return float(value)


def test_the_numbers_of_the_page_are_those_of_the_run(page, fitted, stores):
    run, done = fitted
    read, usage = Reader(page), read_usage(run)
    for name, value in dataclasses.asdict(done.certificate).items():
        if name not in ("paper_gap", "complementarity"):
            assert read.number(name) == value, name
    assert read.number("observations") == stores[0].nnz
    assert read.number("density") == stores[0].nnz / np.prod(SHAPE)
    assert read.number("iterations") == done.records[-1].iteration
    errors = [record.validation_rmse for record in done.records if record.validation_rmse]
    assert read.number("validation_rmse") == errors[-1]
    assert read.numbers["ranks"] == [str(RANKS)]
    assert read.number("wall") == usage.wall
    assert read.number("peak") == usage.places[0].peak
    assert read.number("planned") == usage.places[0].planned
    parts = [float(v) for n, (v,) in read.numbers.items() if n.startswith("seconds ")]
    assert sum(parts) == pytest.approx(usage.wall, abs=1e-3)
    assert done.stop_reason.value in read.text


def test_the_page_stands_on_its_own_and_runs_nothing(page):
    read = Reader(page)
    kinds = {tag for tag, _ in read.tags}
    assert not kinds & {"script", "iframe", "object", "embed"}
    addresses = [a[key] for _, a in read.tags for key in ("src", "href", "srcset") if key in a]
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    content = page.read_text(encoding="utf-8")
    assert "http:" not in content
    assert "https:" not in content
    assert "url(" not in content
    assert not any(name.startswith("on") for _, a in read.tags for name in a)


def test_what_a_store_calls_itself_is_text_and_not_markup(page):
    assert "<b>band" not in page.read_text(encoding="utf-8")
    assert "<b>band & more</b> = 4" in Reader(page).text


def test_every_picture_and_drawing_is_described(page):
    read = Reader(page)
    drawn = [a for tag, a in read.tags if tag in ("img", "svg") or a.get("role") == "img"]
    assert len(drawn) > 8
    assert all(a.get("alt") or a.get("aria-label") for a in drawn)


def test_the_reader_is_warned(page, fitted, stores):
    text, facts = Reader(page).text, facts_of(fitted[0])
    values = np.asarray(stores[0].values().compute())
    assert facts.observed.outside == np.count_nonzero(values < 0) > 0
    assert f"{facts.observed.outside} observation" in text
    assert "1 of the 24 slices of row have no observation" in text
    places = np.indices(SHAPE).reshape(3, -1)
    share = fitted[1].rests_on_nothing(places).mean()
    assert facts.unseen / DRAWN == pytest.approx(share, abs=0.03)
    assert f"{facts.unseen} have none on any of their fibres" in text
    assert "predicted as 0" not in text
    assert "The fit did not converge. Stopped: the iteration limit was reached." in text


def test_a_fit_with_nothing_to_warn_of_has_no_warning(store_of, tmp_path):
    tensor = slrt.low_rank_tensor((10, 9, 8), (1, 1, 1), seed=2)
    store = store_of(np.ones(tensor.shape, dtype=bool), tensor)
    done = slrt.complete(store, (4, 4, 4), C=1e-3, threads=1, run_directory=tmp_path / "run")
    assert done.certificate.relative_gap <= 1e-3
    shown = Reader(slrt.report(tmp_path / "run", tmp_path / "report.html"))
    assert "To be aware of" not in shown.text


class Watching:
    """Looks at a run's facts while it is at work, and may end it then."""

    def __init__(self, run, when, error=None):
        self.run, self.when, self.error = run, when, error
        self.facts = None

    def on_record(self, record, state):
        if record.iteration == self.when:
            self.facts = facts_of(self.run)
            if self.error is not None:
                raise self.error


def test_a_run_under_way_or_killed_is_shown_as_far_as_it_came(stores, tmp_path):
    run = tmp_path / "run"
    watching = Watching(run, 4, RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        slrt.complete(
            stores[0], RANKS, C=1.0, threads=1, run_directory=run, observers=[watching],
            gap_tolerance=0.0,
        )  # fmt: skip
    assert watching.facts.standing is Standing.UNDER_WAY
    assert [record.iteration for record in watching.facts.records] == [0, 1, 2, 3, 4]
    facts = facts_of(run)
    assert facts.standing is Standing.STOPPED
    assert facts.iterations == 4
    assert facts.usage.wall > 0.0
    assert all(picture.completed is None for picture in facts.pictures)
    shown = Reader(slrt.report(run, tmp_path / "report.html"))
    assert "not yet completed" in shown.text
    assert f"slrt-dask resume {run} goes on" in shown.text
    assert "There is no result yet" in shown.text


def test_a_run_that_was_resumed_and_killed_says_that_its_result_is_old(stores, tmp_path):
    run = tmp_path / "run"
    options = {"C": 1.0, "threads": 1, "gap_tolerance": 0.0, "run_directory": run}
    stop = SimpleNamespace(on_record=lambda record, _: _raise_at(record, 2, KeyboardInterrupt))
    slrt.complete(stores[0], RANKS, observers=[stop], **options)
    assert facts_of(run).standing is Standing.ENDED
    with pytest.raises(RuntimeError):
        slrt.resume(run, threads=1, observers=[Watching(run, 5, RuntimeError("killed"))])
    facts = facts_of(run)
    assert (facts.standing, facts.iterations) == (Standing.STOPPED, 5)
    assert facts.stop_reason is None
    assert "the result of an earlier part" in Reader(slrt.report(run, tmp_path / "r.html")).text


def _raise_at(record, iteration, kind):
    if record.iteration == iteration:
        raise kind


def test_slices_are_those_of_the_completed_tensor(fitted, cube):
    facts = facts_of(fitted[0], modes=(2, 0))
    whole = np.asarray(fitted[1].to_dask().compute())
    assert [picture.plane.fixed for picture in facts.pictures] == [((1, n),) for n in (5, 10, 15)]
    for picture in facts.pictures:
        ((_, column),) = picture.plane.fixed
        np.testing.assert_allclose(picture.completed, whole[:, column].T, atol=1e-12)
        seen = np.isfinite(picture.observed)
        np.testing.assert_array_equal(picture.observed[seen], cube[:, column].T[seen])


def test_a_completion_without_a_run_has_a_page_too(stores, fitted, tmp_path):
    copied = fitted[1].save(tmp_path / "copied")
    shown = Reader(slrt.report(copied, tmp_path / "copied.html"))
    assert shown.number("primal") == fitted[1].certificate.primal
    assert "The settings were not kept" in shown.text
    by_path = Reader(slrt.report(tmp_path / "copied", tmp_path / "by-path.html"))
    assert by_path.numbers == shown.numbers
    of_run = Reader(slrt.report(fitted[1], tmp_path / "of-run.html"))
    assert of_run.number("observations") == stores[0].nnz


def test_a_run_whose_observations_are_gone_says_so(stores, tmp_path):
    train = tmp_path / "train"
    shutil.copytree(stores[0].path, train)
    slrt.complete(
        slrt.open_store(train), RANKS, C=1.0, max_iterations=1, threads=1,
        run_directory=tmp_path / "run",
    )  # fmt: skip
    shutil.rmtree(train)
    shown = Reader(slrt.report(tmp_path / "run", tmp_path / "report.html"))
    said = shown.text.split("The observations are not shown: ")[1]
    assert str(train) in said[:200]
    facts = facts_of(tmp_path / "run")
    assert [picture.observed for picture in facts.pictures] == [None] * 3
    assert all(np.isfinite(picture.completed).all() for picture in facts.pictures)


def test_a_run_of_an_earlier_release_has_a_page_without_times(fitted, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(fitted[0], run)
    (run / "usage.json").unlink()
    assert "was not kept" in Reader(slrt.report(run, tmp_path / "report.html")).text


def test_a_searched_fit_tells_of_the_search(stores, tmp_path):
    run = tmp_path / "run"
    slrt.complete(
        stores[0], (2, 2, 2), C="auto", lambdas=(1.0, 1.0, 1.0), threads=1, run_directory=run,
        max_iterations=5,
    )  # fmt: skip
    tried = json.loads((run / "search.json").read_text())["tried"]
    shown = Reader(slrt.report(run, tmp_path / "report.html"))
    assert f"All {len(tried)} settings tried" in shown.text
    assert f"Chosen among {len(tried)} settings" in shown.text
    keys = [a["class"] for tag, a in shown.tags if a.get("class", "").startswith("key colour")]
    assert keys.count("key colour1") > 0
    assert "tried best so far" in " ".join(shown.words)


@pytest.mark.parametrize(
    ("shape", "ranks", "constraint", "words"),
    [
        ((40,), (2,), slrt.Hankel(12, deviation=0.01), "A series of 40 samples"),
        ((14, 11), (2, 2), slrt.Bounds(-1.0, 1.0, where="observed"), "A matrix of 14 × 11"),
        ((6, 5, 4, 3), (2, 2, 2, 2), None, "A tensor of 6 × 5 × 4 × 3"),
    ],
)
def test_every_order_has_a_page(shape, ranks, constraint, words, store_of, tmp_path):
    waves = np.sin(0.4 * np.arange(np.prod(shape))).reshape(shape)
    mask = np.random.default_rng(1).random(shape) < 0.7
    slrt.complete(
        store_of(mask, waves), ranks, C=1.0, constraint=constraint, max_iterations=3, threads=1,
        run_directory=tmp_path / "run",
    )  # fmt: skip
    shown = Reader(slrt.report(tmp_path / "run", tmp_path / "report.html"))
    assert shown.text.startswith(words)
    assert ("H(W)" in shown.text) == (len(shape) == 1)
    assert ("−1 ≤ W ≤ 1" in shown.text) == (len(shape) == 2)


def test_a_page_is_not_written_over_unasked(page, fitted, tmp_path):
    with pytest.raises(StoreExists, match="already exists"):
        slrt.report(fitted[0], page)
    assert slrt.report(fitted[0], page, overwrite=True) == page
    assert [path.name for path in page.parent.iterdir()] == [page.name]


@pytest.mark.parametrize(
    ("run", "path", "options", "error", "said"),
    [
        ("nowhere", "new.html", {}, StoreNotFound, "neither a run nor a completion"),
        (None, "", {}, InvalidInput, "is a directory"),
        (None, "no/such/place.html", {}, InvalidInput, "there is no directory"),
        (None, "new.html", {"modes": (0, 3)}, InvalidInput, "two different ones from 0 to 2"),
        (None, "new.html", {"modes": (1, 1)}, InvalidInput, "two different ones"),
    ],
)
def test_what_cannot_be_done_is_said(run, path, options, error, said, fitted, tmp_path):
    with pytest.raises(error, match=re.escape(said)):
        slrt.report((run and tmp_path / run) or fitted[0], tmp_path / path, **options)
    assert list(tmp_path.iterdir()) == []
