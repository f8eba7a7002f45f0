"""What notebooks show is well formed, escaped, without scripts, and says what matters."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.optim.stopping import StopReason
from slrt_dask.request import plan_of
from slrt_dask.show.html import render
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried
from slrt_dask.tuning.tuning import Tuning
from tests.show.conftest import HOSTILE

KINDS = ("store", "completion", "searched", "plan", "tuning", "progress")


@pytest.fixture(scope="module")
def displayed(stores, fitted, searched, record):
    settings = FitSettings(ranks=(2, 2, 2), C=1.0)
    trials = tuple(
        Tried(Candidate((2, 2), (1.0, 2.0)), 1.0 / number, 3, 30, 0.5, ())
        for number in range(1, 20)
    )
    progress = slrt.LiveProgress(stream=io.StringIO())
    for iteration in range(3):
        progress.on_record(record(iteration, event=HOSTILE), None)
    return {
        "store": stores[0],
        "completion": fitted[1],
        "searched": searched[1],
        "plan": plan_of(stores[0], settings),
        "tuning": Tuning(settings, (), trials, 10),
        "progress": progress,
    }


def tree_of(one):
    return ElementTree.fromstring(one._repr_html_())


def text_of(one):
    return " ".join(" ".join(tree_of(one).itertext()).split())


@pytest.mark.parametrize("kind", KINDS)
def test_html_is_well_formed_and_nothing_in_it_runs_or_is_fetched(displayed, kind):
    for element in tree_of(displayed[kind]).iter():
        assert element.tag not in ("script", "style", "iframe", "object", "link")
        assert not any(name.startswith("on") or "href" in name for name in element.attrib)
        assert element.attrib.get("src", "data:").startswith("data:")


@pytest.mark.parametrize("kind", ["store", "completion", "progress"])
def test_names_are_shown_as_text(displayed, kind):
    visible = HOSTILE.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert visible.replace("\x1b", "\N{REPLACEMENT CHARACTER}") in text_of(displayed[kind])


def test_any_text_can_be_shown():
    text = "".join(map(chr, (*range(0x300), 0xD800, 0xFFFE, 0xFFFF, 0x1F600)))
    options = {"trials": 0, "last_trial": "", "search_chart": "", "chart": "", "events": []}
    assert ElementTree.fromstring(render("progress", line=text, **options)) is not None


def test_tables_say_what_matters(displayed, stores):
    done = displayed["completion"]
    text = text_of(done)
    assert done.stop_reason.value in text
    assert f"{100 * done.certificate.relative_gap:.3g} %" in text
    assert f"{done.records[-1].validation_rmse:.6g}" in text
    assert f"{stores[0].nnz:,}" in text_of(stores[0])
    assert "this process" in text_of(displayed["plan"])
    tuning = text_of(displayed["tuning"])
    assert "and 7 worse ones" in tuning
    assert f"{1 / 19:.5g}" in tuning


def test_a_searched_completion_shows_the_search_and_expects_an_open_gap(displayed):
    done, plain = displayed["searched"], displayed["completion"]
    assert done.stop_reason is StopReason.CHOSEN
    (chosen,) = (line for line in str(done).splitlines() if "chosen among" in line)
    for text in (str(done), text_of(done)):
        assert chosen.strip() in text
        assert "An open gap is to be expected" in text
    assert "to be expected" not in str(plain)
    assert f"{len(plain.records) - 1} iterations)" in str(plain)
