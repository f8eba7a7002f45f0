"""What notebooks show: well-formed, escaped, without scripts; and progress as it happens."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask import live
from slrt_dask.config import FitSettings
from slrt_dask.curves import MOST_POINTS, Line, chart, fit_curves, search_curves
from slrt_dask.data import html
from slrt_dask.optim.stopping import StopReason
from slrt_dask.request import plan_of
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried
from slrt_dask.tuning.tuning import Tuning
from tests.cli.test_progress import record

HOSTILE = "</div><script>alert('&\x00\x1b')</script>"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    tensor = slrt.low_rank_tensor((6, 5, 4), (2, 2, 2), seed=0)
    tensor[::2, ::2, 1] = np.nan
    return slrt.from_array(
        tmp_path_factory.mktemp("store") / "a<b>&c", tensor, dimension_names=(HOSTILE, "y", "z")
    )


@pytest.fixture(scope="module")
def done(store):
    return slrt.complete(store, (2, 2, 2), C=1.0, max_iterations=4, validation=store)


def trial(error):
    return Tried(Candidate((2, 2), (1.0, 2.0)), error, 3, 30, 0.5, ())


@pytest.fixture(scope="module")
def shown(store, done):
    history = tuple(trial(1.0 / number) for number in range(1, 20))
    settings = FitSettings(ranks=(2, 2, 2), C=1.0)
    told = live.LiveProgress(stream=io.StringIO())
    for row in done.records:
        told.on_record(replace(row, event=HOSTILE), None)
    told(HOSTILE, 1, 3)
    return {
        "store": store,
        "completion": done,
        "plan": plan_of(store, settings),
        "tuning": Tuning(settings, (), history, 10),
        "progress": told,
    }


@pytest.mark.parametrize("kind", ["store", "completion", "plan", "tuning", "progress"])
def test_html_is_well_formed_and_nothing_in_it_runs(shown, kind):
    tree = ElementTree.fromstring(shown[kind]._repr_html_())
    tags = {element.tag.split("}")[-1] for element in tree.iter()}
    assert not tags & {"script", "style", "iframe", "object", "link", "img"}
    for element in tree.iter():
        assert not any(name.startswith("on") or "href" in name for name in element.attrib)


def text_of(one):
    return " ".join(ElementTree.fromstring(one._repr_html_()).itertext())


def test_hostile_names_are_shown_and_not_obeyed(shown):
    visible = "</div><script>alert('&\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}')</script>"
    for kind in ("store", "completion", "progress"):
        assert visible in text_of(shown[kind]), kind
    assert "a<b>&c" in text_of(shown["store"])


def test_tables_say_what_matters(shown, done, store):
    text = text_of(done)
    assert done.stop_reason.value in text
    assert f"{100 * done.certificate.relative_gap:.3g} %" in text
    assert "validation RMSE" in text
    assert f"{store.nnz:,}" in text_of(store)
    assert "this process" in text_of(shown["plan"])
    assert "fits" in text_of(shown["plan"])
    best = text_of(shown["tuning"])
    assert "and 7 worse ones" in best
    assert f"{1 / 19:.5g}" in best


def test_a_searched_completion_tells_of_the_search_and_not_of_a_failure(store):
    done = slrt.complete(store, max_seconds=0.2)
    assert done.stop_reason is StopReason.CHOSEN
    (chosen,) = (line for line in str(done).splitlines() if "chosen among" in line)
    assert f"ranks {done.ranks}" in chosen
    assert " ± " in chosen
    for text in (str(done), text_of(done)):
        assert chosen.strip() in text
        assert "An open gap is to be expected" in text
    assert "iterations)" not in str(done)


def test_an_open_gap_is_only_expected_where_factors_were_chosen(done):
    assert "to be expected" not in str(done)
    assert f"{len(done.records) - 1} iterations)" in str(done)


def drawn(points, **options):
    """The commands of a curve, and its chart."""
    svg = ElementTree.fromstring(chart("a", [Line("b", 0, points)], size=(270, 150), **options))
    return svg.find("g[@class='line colour0']/path").attrib["d"], svg


@pytest.mark.parametrize("count", [1, 2, MOST_POINTS, 5 * MOST_POINTS + 3])
@pytest.mark.parametrize("lowest", [1e-300, 0.0, -1.0])
def test_a_curve_stays_in_its_chart_and_keeps_its_ends(count, lowest):
    points = [(float(x), lowest + x) for x in range(count)]
    path, _ = drawn(points, logarithmic=True)
    pairs = np.array([pair.split() for pair in re.split("[ML]", path)[1:]], dtype=float)
    assert 1 <= len(pairs) <= MOST_POINTS + 1
    assert (pairs >= 0).all()
    assert (pairs <= (270, 150)).all()
    assert (np.diff(pairs[:, 0]) >= 0).all()
    if count > 1:
        assert pairs[0, 0] < pairs[-1, 0]


def test_what_cannot_be_drawn_is_left_out():
    assert chart("a", [Line("b", 0, [(0.0, float("nan")), (1.0, float("inf"))])]) == ""
    assert fit_curves([]) == search_curves([]) == ""


def test_a_curve_does_not_go_on_where_something_else_begins():
    path, svg = drawn([(float(x), 1.0 + x) for x in range(9)], begins=(3.0, 7.0))
    assert [1 + part.count("L") for part in path.split("M")[1:]] == [3, 4, 2]
    assert len(svg.findall("line[@class='level']")) == 2


def test_escaped_text_is_xml_whatever_it_is():
    text = "".join(map(chr, (*range(0x300), 0xD800, 0xFFFE, 0xFFFF, 0x1F600)))
    assert ElementTree.fromstring(f"<a>{html.escaped(text)}</a>").text


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for a kernel's display: everything that was shown, and how it was updated."""
    places = []

    class Handle:
        def __init__(self, content):
            self.contents = [content]
            places.append(self)

        def update(self, content, *, raw):
            assert raw
            self.contents.append(content)

    def display(content, *, raw, display_id):
        assert raw
        assert display_id
        return Handle(content)

    monkeypatch.setattr(live, "_in_notebook", lambda: True)
    monkeypatch.setattr(live, "load", lambda name: SimpleNamespace(display=display))
    return places


def test_a_notebook_sees_the_first_and_the_last_iteration_and_not_all_between(notebook, store):
    progress = slrt.LiveProgress(every=1000.0)
    done = slrt.complete(store, (2, 2, 2), C=1.0, max_iterations=4, observers=[progress])
    (place,) = notebook
    assert len(place.contents) == 2
    assert "iteration    0" in place.contents[0]["text/plain"]
    last = done.records[-1].iteration
    assert f"iteration {last:4d}" in place.contents[-1]["text/plain"]
    ElementTree.fromstring(place.contents[-1]["text/html"])


def test_without_a_limit_every_iteration_is_drawn(notebook, store):
    progress = slrt.LiveProgress(every=0.0)
    done = slrt.complete(store, (2, 2, 2), C=1.0, max_iterations=3, observers=[progress])
    assert len(notebook[0].contents) == len(done.records) + 1


def test_a_search_is_drawn_trial_by_trial_before_its_fit(notebook, store):
    progress = slrt.LiveProgress()
    slrt.complete(store, max_seconds=0.2, observers=[progress])
    (place,) = notebook
    assert "settings tried" in place.contents[0]["text/html"]
    assert "gradient norm" in place.contents[-1]["text/html"]


def test_another_fit_is_drawn_in_a_place_of_its_own(notebook):
    progress = slrt.LiveProgress(every=0.0)
    for _ in range(2):
        for iteration in range(3):
            progress.on_record(record(iteration), None)
        progress.on_end()
    assert [len(place.contents) for place in notebook] == [4, 4]


def test_stages_are_a_bar_that_ends_full(notebook, store, tmp_path):
    store.split(0.2, 0, tmp_path / "a", tmp_path / "b", progress=slrt.LiveProgress(every=0.0))
    (place,) = notebook
    assert place.contents[-1]["text/plain"] == "write 100 %"
    assert "width:100.0%" in place.contents[-1]["text/html"]


def test_elsewhere_there_are_lines(store):
    stream = io.StringIO()
    slrt.complete(
        store, (2, 2, 2), C=1.0, max_iterations=2, observers=[slrt.LiveProgress(stream=stream)]
    )
    assert stream.getvalue().startswith("iteration    2")
    assert "<" not in stream.getvalue()
