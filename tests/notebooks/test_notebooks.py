"""Notebooks run from top to bottom, and are kept without outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def python_of(cell):
    """The cell's source without lines for the notebook itself, such as %matplotlib."""
    lines = "".join(cell["source"]).splitlines()
    return "\n".join("" if line.startswith("%") else line for line in lines)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(path):
    for cell in code_cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(path)):
        exec(compile(python_of(cell), f"{path.name}[{number}]", "exec"), namespace)
    assert namespace["done"].certificate.relative_gap < 0.01
    assert namespace["scores"].rmse < 0.3 * namespace["spread"]
    assert list(tmp_path.iterdir()) == []
