"""A long fit tells of itself to whoever sits before it, once, and to nobody else."""

from __future__ import annotations

import io
import logging
import sys
import time

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask import live
from tests.cli.test_progress import Terminal, record

OPTIONS = {"C": 1.0, "max_iterations": 2, "threads": 1}
RANKS = (2, 2, 2)


@pytest.fixture(scope="module")
def store(store_of):
    tensor = slrt.low_rank_tensor((6, 5, 4), RANKS, seed=0)
    return store_of(np.random.default_rng(0).random(tensor.shape) < 0.8, tensor)


@pytest.fixture
def shown(monkeypatch):
    """What is shown on the standard error, by fits that are as good as long."""

    def of(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(live, "SECONDS_UNTOLD", 0.0)
        return stream

    return of


def test_on_a_terminal_a_long_fit_is_seen_and_ends_its_line(store, shown):
    terminal = shown(Terminal())
    slrt.complete(store, RANKS, **OPTIONS)
    assert "cost" in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\n")


def test_a_resumed_fit_is_seen_too(store, shown, tmp_path):
    def stop(record, state):
        if record.iteration == 1:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    stopping = type("Stopping", (), {"on_record": staticmethod(stop)})()
    slrt.complete(store, RANKS, **OPTIONS, run_directory=run, observers=[stopping])
    terminal = shown(Terminal())
    slrt.resume(run, threads=1)
    assert "cost" in terminal.getvalue()


def test_a_search_is_seen_trial_by_trial_and_its_line_ends_without_a_fit(store, shown):
    terminal = shown(Terminal())
    with live.told_where_seen(()) as observers:
        slrt.tune(store, C=1.0, threads=1, max_seconds=1e-3, observers=observers)
    assert "rmse" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")


@pytest.mark.parametrize("why", ["short", "asked", "no terminal", "other observers", "logged"])
def test_nothing_is_seen_of_a_fit_that_is(why, store, shown, monkeypatch):
    stream = shown(io.StringIO() if why == "no terminal" else Terminal())
    logger, handler = logging.getLogger("slrt_dask"), logging.NullHandler()
    observers = ()
    if why == "short":
        monkeypatch.setattr(live, "SECONDS_UNTOLD", 1000.0)
    if why == "asked":
        observers = None
    if why == "other observers":
        observers = [slrt.LiveProgress(stream=io.StringIO())]
    if why == "logged":
        monkeypatch.setattr(logger, "handlers", [handler])
        monkeypatch.setattr(logger, "level", logging.INFO)
        logger.manager._clear_cache()
    slrt.complete(store, RANKS, **OPTIONS, observers=observers)
    logger.manager._clear_cache()
    assert stream.getvalue() == ""


def test_what_lasts_longer_than_it_may_be_quiet_is_shown():
    terminal = Terminal()
    progress = slrt.LiveProgress(after=0.05, stream=terminal)
    progress.on_record(record(0), None)
    progress.on_end()
    assert terminal.getvalue() == ""
    time.sleep(0.06)
    progress.on_record(record(7), None)
    progress.on_end()
    progress.on_end()  # an end that is told twice is one
    assert "7  2 s" in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 1
