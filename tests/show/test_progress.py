"""Progress: one line in a terminal, lines elsewhere, charts in a notebook; only where wanted."""

from __future__ import annotations

import io
import logging
import sys
import time
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

import slrt_dask as slrt
from slrt_dask.show.progress import watched
from slrt_dask.tuning.candidate import Candidate
from slrt_dask.tuning.search import Tried
from tests.show.conftest import RANKS, Terminal

TRIAL = Tried(Candidate((2, 2), (1.0, 2.0)), 0.25, 3, 30, 0.5, (), number=1)


def shown(stream, records, **options):
    """What a stream gets of some iterations."""
    progress = slrt.LiveProgress(every=0.0, stream=stream, **options)
    for row in records:
        progress.on_record(row, None)
    progress.on_end()
    progress.on_end()  # a second end changes nothing
    return stream.getvalue()


def versions(text):
    """The versions of a line that is rewritten."""
    return [line.strip() for line in text.split("\r") if line.strip()]


def test_in_a_terminal_one_line_is_rewritten_and_keeps_what_was_measured(record, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [record(0), record(5, gap=0.02, rmse=0.5), record(6), record(7, ranks=(3, 2))]
    text = shown(Terminal(), rows)
    lines = versions(text)
    assert [line.split()[1] for line in lines[:4]] == ["0", "5", "6", "7"]
    assert ["gap   2.000 %  rmse 0.5" in line for line in lines[:4]] == [False, True, True, True]
    assert ["ranks (3, 2)" in line for line in lines[:4]] == [False, False, False, True]
    assert text.count("\n") == 1


def test_a_line_never_exceeds_a_narrow_terminal(record, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    lines = versions(shown(Terminal(), [record(5, gap=0.02)]))
    assert max(map(len, lines)) == 29


def test_elsewhere_rows_with_a_certificate_are_lines_and_ranks_are_in_them_once(record):
    rows = [
        record(0), record(1, gap=0.5), record(2, ranks=(3, 2)), record(3, gap=0.4, ranks=(3, 2)),
        record(4, gap=0.3, ranks=(3, 2)),
    ]  # fmt: skip
    lines = shown(io.StringIO(), rows).splitlines()
    assert [line.split()[:2] for line in lines] == [["iteration", n] for n in "134"]
    assert ["ranks (3, 2)" in line for line in lines] == [False, True, False]


def test_nothing_is_shown_of_what_ends_early(record):
    assert shown(Terminal(), []) == ""
    assert shown(Terminal(), [record(0, gap=0.5)], after=1000.0) == ""


def test_what_takes_longer_is_shown(record):
    terminal = Terminal()
    progress = slrt.LiveProgress(after=0.05, stream=terminal)
    progress.on_record(record(0), None)
    time.sleep(0.06)
    progress.on_record(record(7), None)
    assert versions(terminal.getvalue())[0].split()[:2] == ["iteration", "7"]


def test_stages_are_bars_in_a_terminal_which_are_cleared_in_the_end():
    terminal = Terminal()
    progress = slrt.LiveProgress(stream=terminal)
    progress("read", 5, None)
    for done in (0, 1, 4):
        progress("sort", done, 4)
    stages = [line.split(":")[0].split()[0] for line in versions(terminal.getvalue())]
    assert stages[0] == "read" or "5" in stages[0]
    assert "sort" in stages
    assert terminal.getvalue().endswith("\r")
    assert "\n" not in terminal.getvalue()


def test_short_stages_are_not_shown_elsewhere():
    stream = io.StringIO()
    progress = slrt.LiveProgress(stream=stream)
    for done in range(5):
        progress("read", done, 4)
    assert stream.getvalue() == ""


@pytest.fixture
def seen(monkeypatch):
    """A standard error that a fit finds."""

    def make(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return make


def fit(stores, observers=(), after=0.0):
    with watched(observers, after) as chosen:
        return slrt.complete(
            stores[0], RANKS, C=1.0, max_iterations=2, threads=1, observers=chosen or None
        )


def test_a_long_fit_is_seen_in_a_terminal_and_ends_its_line(stores, seen):
    terminal = seen(Terminal())
    fit(stores)
    assert "cost" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")


def test_a_search_that_ends_without_a_fit_ends_its_line(seen):
    terminal = seen(Terminal())
    with watched((), 0.0) as (progress,):
        progress.on_trial(TRIAL)
    assert "rmse 0.25" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")


@pytest.mark.parametrize("why", ["short", "asked", "no terminal", "other observers", "logged"])
def test_nothing_is_seen_of_a_fit_that_is(why, stores, seen, monkeypatch):
    stream = seen(io.StringIO() if why == "no terminal" else Terminal())
    logger = logging.getLogger("slrt_dask")
    if why == "logged":
        monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
        monkeypatch.setattr(logger, "level", logging.INFO)
        logger.manager._clear_cache()
    others = [slrt.LiveProgress(stream=io.StringIO())]
    observers = {"asked": None, "other observers": others}.get(why, ())
    fit(stores, observers, after=1000.0 if why == "short" else 0.0)
    logger.manager._clear_cache()
    assert stream.getvalue() == ""


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for a kernel and its display: all contents, by the place where they were shown."""
    places = []

    class Handle:
        def __init__(self, content):
            self.contents = [content]
            places.append(self.contents)

        def update(self, content, *, raw):
            self.contents.append(content)

    display = SimpleNamespace(display=lambda content, *, raw, display_id: Handle(content))
    shell = SimpleNamespace(kernel=True)
    module = SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return places


def test_a_notebook_sees_the_first_and_the_last_iteration_of_every_fit(notebook, record):
    progress = slrt.LiveProgress(every=1000.0)
    for _ in range(2):
        for iteration in range(3):
            progress.on_record(record(iteration, gap=0.1), None)
        progress.on_end()
    assert [len(contents) for contents in notebook] == [2, 2]
    for first, last in notebook:
        assert "iteration    0" in first["text/plain"]
        assert "iteration    2" in last["text/plain"]
        tree = ElementTree.fromstring(last["text/html"])
        assert len(tree.findall(".//img")) == 1


def test_a_search_is_drawn_trial_by_trial_before_its_fit(notebook, record):
    progress = slrt.LiveProgress()
    progress.on_trial(TRIAL)
    progress.on_record(record(0), None)
    progress.on_end()
    (contents,) = notebook
    assert "1 settings tried" in contents[0]["text/html"]
    assert "iteration    0" in contents[-1]["text/html"]
