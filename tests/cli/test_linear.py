"""Linear constraints on the command line: flags, tables of a file, and mistakes in either."""

from __future__ import annotations

import json

import numpy as np
import pytest

from slrt_dask.completion import load_completion
from slrt_dask.data import from_coo
from tests.cli.conftest import FIT, SHAPE


@pytest.fixture
def rows(tmp_path):
    """Sums along the first mode, in a store, and a store of what they are to be."""
    count, places = SHAPE[1] * SHAPE[2], np.indices(SHAPE).reshape(3, -1)
    numbers = np.ravel_multi_index(places[1:], SHAPE[1:])
    from_coo(tmp_path / "A", np.vstack([numbers, places]), np.ones(numbers.size), (count, *SHAPE))
    numbers = np.arange(count)
    from_coo(tmp_path / "b", [numbers, 0 * numbers], numbers / count, (count, 1))
    return tmp_path


def sums_of(run, **options):
    completion = load_completion(run)
    W = completion.to_dask(**options).compute(scheduler="synchronous")
    return W.sum(axis=0).reshape(-1), completion.certificate.violation


def test_flags_ask_for_rows(run_command, store, rows):
    said = run_command(
        "fit", store.path, *FIT, "--run", rows / "run", "--rows", rows / "A", "--bound",
        rows / "b", "--kind", "==", "--lower", "-3", "--max-iterations", "0",
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    wanted = np.arange(80) / 80
    sums, violation = sums_of(rows / "run")
    assert np.abs(sums - wanted).max() <= violation * (1 + 1e-6)
    np.testing.assert_allclose(sums_of(rows / "run", enforce=True)[0], wanted, atol=1e-10)
    written = json.loads((rows / "run" / "settings.json").read_text())["settings"]["constraint"]
    assert written[0]["lower"] == -3.0
    assert (written[1]["rows"], written[1]["kind"]) == (str(rows / "A"), "==")


@pytest.mark.parametrize(
    ("tables", "flags", "wanted"),
    [
        ('[{lower = -3}, {rows = "A", bound = "b", kind = "=="}]', (), np.arange(80) / 80),
        ('[{lower = -3}, {rows = "A", kind = "=="}]', ("--rows", "A", "--bound", "2"), 2.0),
        ('{rows = "A", bound = 1.5, kind = "=="}', (), 1.5),
    ],
    ids=["several tables", "flags win", "one table"],
)  # fmt: skip
def test_a_file_asks_for_rows_beside_it(
    tables, flags, wanted, run_command, store, rows, monkeypatch
):
    config = rows / "fit.toml"
    config.write_text(
        f'[fit]\nstore = "{store.path}"\nrun = "run"\nranks = [4, 4, 3]\nC = 0.1\n'
        f"max_iterations = 0\nconstraint = {tables}\n"
    )
    if flags:
        monkeypatch.chdir(rows)
    said = run_command("fit", "--config", config, *flags)
    assert said.exit_code == 0, said.stderr
    np.testing.assert_allclose(sums_of(rows / "run", enforce=True)[0], wanted, atol=1e-10)


def test_a_plan_counts_rows(run_command, store, rows):
    said = run_command("plan", store.path, "--ranks", "4,4,3", "--rows", rows / "A")
    assert said.exit_code == 0, said.stderr
    assert "linear rows" in said.stdout
    assert "80 rows" in said.stdout


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--rows", "nowhere"), 1, "no store at"),
        (("--rows", "A", "--bound", "nowhere"), 1, "no store at"),
        (("--rows", "A", "--bound", "nan"), 1, "b has the value nan"),
        (("--rows", "A", "--bound", "A"), 1, "b has shape (80, 12, 10, 8), A has 80 rows"),
        (("--rows", "b"), 1, "are for tensors of shape (1,)"),
        (("--rows", "A", "--kind", ">"), 2, "--kind"),
        (("--bound", "1"), 2, "give --rows too"),
        (("--rows", "A", "--method", "rtr"), 1, "'rtr' takes no linear rows"),
        (("--rows", "A", "--memory-limit", "1MB"), 1, "linear rows"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_no_run(
    flags, code, words, run_command, store, rows, monkeypatch
):
    monkeypatch.chdir(rows)
    said = run_command("fit", store.path, *FIT, "--run", "run", *flags)
    assert said.exit_code == code, said.stderr
    assert words in said.stderr
    assert "Traceback" not in said.stderr
    assert sorted(entry.name for entry in rows.iterdir()) == ["A", "b"]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ('{rows = "A", bounds = 1}', "no key 'bounds'; known keys are rows, bound, kind"),
        ('{rows = "A", kind = "="}', "kind is '='; give one of"),
        ('[{lower = 0}, "A"]', "give a table"),
        ("{rows = 3}", "A has shape ()"),
        ('[{lower = 0}, {upper = 1, where = "observed"}]', "cannot be combined"),
    ],
)
def test_a_mistake_in_a_table_is_named(tables, words, run_command, store, rows):
    config = rows / "fit.toml"
    config.write_text(
        f'[fit]\nstore = "{store.path}"\nrun = "run"\nranks = [4, 4, 3]\nC = 0.1\n'
        f"constraint = {tables}\n"
    )
    said = run_command("fit", "--config", config)
    assert said.exit_code == 1, said.stderr
    assert words in said.stderr
    assert "Traceback" not in said.stderr
    assert not (rows / "run").exists()


def test_bounds_everywhere_and_at_some_places_may_come_from_a_file(run_command, store, tmp_path):
    config = tmp_path / "fit.toml"
    config.write_text(
        f'[fit]\nstore = "{store.path}"\nrun = "run"\nranks = [4, 4, 3]\nC = 0.1\n'
        "max_iterations = 0\n"
        "constraint = [{lower = -3}, {upper = -0.5, where = [[0, 1], [2, 3], [4, 5]]}]\n"
    )
    said = run_command("fit", "--config", config)
    assert said.exit_code == 0, said.stderr
    W = load_completion(tmp_path / "run").to_dask(enforce=True).compute(scheduler="synchronous")
    assert W.min() >= -3.0
    assert W[[0, 1], [2, 3], [4, 5]].max() <= -0.5 + 1e-10
