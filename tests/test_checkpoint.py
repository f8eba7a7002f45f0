"""Checkpoints are whole or not there, say what they belong to, and only the newest are kept."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from slrt_dask.checkpoint import CheckpointObserver, write_checkpoint
from slrt_dask.optim import ConjugateGradient, StopRules, TrustRegion, minimise
from tests.oracles.dense import random_problem

BINDING = {"observations": "abc", "settings": {"ranks": [2, 2]}}


@pytest.fixture(params=[ConjugateGradient(), TrustRegion()], ids=["rcg", "rtr"])
def state(request):
    """The state of a short run of each method."""
    problem = random_problem((6, 5), (2, 2))
    point = problem.manifold.random_point(np.random.default_rng(0))
    rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=2)
    return minimise(problem, request.param, point, rules).state


def test_a_checkpoint_holds_every_array_and_number_of_the_state(state, tmp_path):
    target = write_checkpoint(tmp_path, state, BINDING)
    with np.load(target / "state.npz", allow_pickle=False) as arrays:
        for mode, factor in enumerate(state.evaluation.point):
            np.testing.assert_array_equal(arrays[f"point_{mode}"], factor)
        for field in dataclasses.fields(state):
            value = getattr(state, field.name)
            if isinstance(value, tuple):
                for mode, part in enumerate(value):
                    np.testing.assert_array_equal(arrays[f"{field.name}_{mode}"], part)
    written = json.loads((target / "state.json").read_text())
    assert written["binding"] == BINDING
    assert written["state"]["iteration"] == state.iteration
    assert written["state"]["cost"] == state.evaluation.cost
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, (int, float)):
            assert written["state"][field.name] == value


def test_the_newest_two_are_kept_and_the_pointer_names_the_newest(state, tmp_path):
    for iteration in (1, 2, 7, 12):
        write_checkpoint(tmp_path, dataclasses.replace(state, iteration=iteration), BINDING)
        assert (tmp_path / "latest").read_text().strip() == f"{iteration:06d}"
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["000007", "000012", "latest"]


def test_a_write_that_was_cut_short_leaves_the_older_checkpoint(state, tmp_path, monkeypatch):
    write_checkpoint(tmp_path, dataclasses.replace(state, iteration=1), BINDING)

    def fail(*arguments, **options):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("slrt_dask.checkpoint.json.dump", fail)
        with pytest.raises(OSError, match="disk is full"):
            write_checkpoint(tmp_path, dataclasses.replace(state, iteration=2), BINDING)
    assert (tmp_path / "latest").read_text().strip() == "000001"
    assert not (tmp_path / "000002").exists()
    write_checkpoint(tmp_path, dataclasses.replace(state, iteration=2), BINDING)  # and again
    assert (tmp_path / "000002" / "state.json").is_file()


def test_a_repeated_iteration_replaces_its_checkpoint(state, tmp_path):
    for radius in (0.25, 0.5):
        changed = dataclasses.replace(state, step=radius)
        target = write_checkpoint(tmp_path, changed, BINDING)
    assert json.loads((target / "state.json").read_text())["state"]["step"] == 0.5


def test_the_observer_writes_after_every_iteration(tmp_path):
    problem = random_problem((6, 5), (2, 2))
    point = problem.manifold.random_point(np.random.default_rng(0))
    rules = StopRules(gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=3)
    observer = CheckpointObserver(tmp_path, BINDING)
    minimise(problem, ConjugateGradient(), point, rules, observers=[observer])
    assert (tmp_path / "checkpoints" / "latest").read_text().strip() == "000003"
