"""The demonstration runs from nothing, ends in a table and a picture, and its answer is good."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import slrt_dask
from slrt_dask import demo


def test_demo_prints_a_table_and_writes_a_picture(run_command, tmp_path):
    pytest.importorskip("matplotlib")
    output = tmp_path / "out"
    said = run_command("demo", "--output", output, "--keep", "--quiet")
    assert said.exit_code == 0, said.stderr
    for word in ("observed", "ranks", "iterations", "certificate", "test RMSE", "seconds"):
        assert f"\n  {word}" in said.stdout
    assert (output / "demo.png").read_bytes().startswith(b"\x89PNG")
    done = slrt_dask.load_completion(output / "run" / "completion")
    test = slrt_dask.open_store(output / "test")
    assert done.certificate.relative_gap < 0.005
    assert slrt_dask.evaluate(done, test).rmse < 0.05


def test_demo_without_matplotlib_says_how_to_get_the_picture(run_command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(demo, "SHAPE", (12, 12, 16))
    monkeypatch.setattr(demo, "RANKS", (4, 4, 4))
    monkeypatch.setattr(demo, "SHOWN_BAND", 11)
    said = run_command("demo", "--output", tmp_path / "out", "--quiet")
    assert said.exit_code == 0, said.stderr
    assert "pip install 'slrt-dask[plot]'" in said.stdout
    assert list((tmp_path / "out").iterdir()) == []


def test_the_scene_has_four_spectra_and_stays_in_its_range():
    scene = demo.scene()
    assert scene.shape == demo.SHAPE
    assert (scene.min() >= 0.0, scene.max()) == (True, 1.0)
    assert np.linalg.matrix_rank(scene.reshape(-1, demo.SHAPE[2]), tol=1e-8) == 4
