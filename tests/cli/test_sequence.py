"""From a file to a completed tensor by commands, each taking up what the last one left."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import zarr

import slrt_dask
from slrt_dask.cli import index_files
from tests.cli.conftest import FIT, SHAPE


def test_the_whole_sequence_from_file_to_tensor(run_command, observations, tmp_path):
    cube, run = tmp_path / "cube", tmp_path / "run"
    made = run_command("ingest", observations, cube)
    assert made.exit_code == 0
    assert "12 × 10 × 8, 480 observed (50 %), 1 partition, mean " in made.stdout
    parts = run_command("split", cube, "--test", "0.2")
    assert [line.split(":")[0] for line in parts.stdout.splitlines()] == [
        f"{cube}-train",
        f"{cube}-test",
    ]
    fit = run_command(
        "fit", f"{cube}-train", *FIT, "--validation", f"{cube}-test", "--run", run, "--center"
    )
    assert fit.exit_code == 0, fit.stderr
    done = slrt_dask.load_completion(run / "completion")
    assert f"certificate  {done.certificate}" in fit.stdout
    assert f"stop         {done.stop_reason.value}" in fit.stdout
    assert str(run / "completion") in fit.stdout
    assert "gap" in fit.stderr
    assert "validation   RMSE" in fit.stdout
    scores = json.loads(run_command("evaluate", run, f"{cube}-test", "--json").stdout)
    assert scores["rmse"] == pytest.approx(done.records[-1].validation_rmse)
    wanted = np.array([[0, 3, 11], [0, 9, 4], [7, 0, 2]])
    np.save(tmp_path / "wanted.npy", wanted)
    predicted = run_command("predict", run, tmp_path / "wanted.npy", "-o", tmp_path / "found.npy")
    assert "3 predictions" in predicted.stdout
    exported = run_command("export", run, tmp_path / "all.zarr", "--chunks", "5,5,8")
    assert exported.exit_code == 0
    whole = zarr.open_array(tmp_path / "all.zarr", mode="r")
    assert (whole.shape, whole.chunks) == (SHAPE, (5, 5, 8))
    np.testing.assert_allclose(
        np.load(tmp_path / "found.npy"), np.asarray(whole[...])[tuple(wanted)], atol=1e-12
    )


def test_evaluate_prints_a_table(run_command, fitted, store):
    shown = run_command("evaluate", fitted[0], store.path, "--peak", "2")
    scores = slrt_dask.evaluate(
        slrt_dask.load_completion(fitted[0] / "completion"), store, peak=2.0
    )
    lines = dict(line.rsplit(maxsplit=1) for line in shown.stdout.splitlines() if "dB" not in line)
    assert float(lines["RMSE"]) == pytest.approx(scores.rmse, rel=1e-5)
    assert float(lines["MAE"]) == pytest.approx(scores.mae, rel=1e-5)
    assert float(lines["relative error"]) == pytest.approx(scores.relative_error, rel=1e-5)
    assert lines["count"] == "480"
    assert f"{20 * math.log10(2 / scores.rmse):.4g} dB" in shown.stdout


def test_a_completion_can_be_named_instead_of_its_run(run_command, fitted, store):
    by_run = run_command("evaluate", fitted[0], store.path)
    by_path = run_command("evaluate", fitted[0] / "completion", store.path)
    assert by_run.stdout == by_path.stdout != ""


def test_plan_says_whether_a_fit_fits(run_command, store):
    fits = run_command("plan", store.path, "--ranks", "4,4,3")
    assert fits.exit_code == 0
    assert fits.stdout.endswith("This fits.\n")
    tight = run_command("plan", store.path, "--ranks", "4,4,3", "--memory-limit", "1MB")
    assert tight.exit_code == 1
    assert "This does not fit" in tight.stdout


def test_quiet_fit_shows_no_progress(run_command, store, tmp_path):
    said = run_command("fit", store.path, *FIT, "--run", tmp_path / "run", "--quiet")
    assert (said.exit_code, said.stderr) == (0, "")


def test_verbose_shows_the_log_before_or_after_the_command(run_command, store, tmp_path):
    short = (*FIT, "--max-iterations", "0")
    after = run_command("fit", store.path, *short, "--run", tmp_path / "a", "-v")
    before = run_command("--verbose", "fit", store.path, *short, "--run", tmp_path / "b")
    for said in (after, before):
        assert "runtime" in said.stderr
        assert said.stderr.count("iteration    0") == 1
    assert "runtime" not in run_command("fit", store.path, *short, "--run", tmp_path / "c").stderr


WANTED = np.array([[0, 11, 5, 2], [9, 0, 5, 3], [7, 1, 0, 6]])


def wanted_file(directory, kind):
    path = directory / kind
    text = {
        "plain.csv": WANTED.T,
        "titled.csv": WANTED.T,
        "valued.csv": np.vstack([WANTED, WANTED[:1]]).T,
        "from_one.tns": WANTED.T + 1,
    }
    if kind in text:
        np.savetxt(
            path,
            text[kind],
            fmt="%d",
            delimiter=" " if path.suffix == ".tns" else ",",
            header="row,column,band" if kind == "titled.csv" else "a comment",
            comments="" if kind == "titled.csv" else "# ",
        )
    elif path.suffix == ".npy":
        np.save(path, WANTED.T if kind == "tall.npy" else WANTED)
    else:
        np.savez(path, indices=WANTED, values=np.zeros(4))
    return path


@pytest.mark.parametrize(
    "kind",
    ["plain.csv", "titled.csv", "valued.csv", "from_one.tns", "wide.npy", "tall.npy", "named.npz"],
)
@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz"])
def test_predict_reads_and_writes_every_kind_of_file(
    run_command, fitted, tmp_path, monkeypatch, kind, suffix
):
    monkeypatch.setattr(index_files, "BLOCK_ENTRIES", 3)
    output = tmp_path / f"found{suffix}"
    said = run_command("predict", fitted[0], wanted_file(tmp_path, kind), "-o", output)
    assert said.exit_code == 0, said.stderr
    expected = slrt_dask.load_completion(fitted[0] / "completion").predict(WANTED)
    if suffix == ".csv":
        table = np.loadtxt(output, delimiter=",", skiprows=1)
        np.testing.assert_array_equal(table[:, :3].T, WANTED)
        found = table[:, 3]
    elif suffix == ".npz":
        with np.load(output) as archive:
            np.testing.assert_array_equal(archive["indices"], WANTED)
            found = archive["values"]
    else:
        found = np.load(output)
    np.testing.assert_array_equal(found, expected)
    assert not list(tmp_path.glob("*.part"))


def test_predict_replaces_a_file_only_when_told_to(run_command, fitted, tmp_path):
    wanted, output = wanted_file(tmp_path, "plain.csv"), tmp_path / "found.csv"
    output.write_text("mine")
    refused = run_command("predict", fitted[0], wanted, "-o", output)
    assert (refused.exit_code, output.read_text()) == (1, "mine")
    assert run_command("predict", fitted[0], wanted, "-o", output, "--overwrite").exit_code == 0
    assert output.read_text().startswith("index_0,index_1,index_2,value\n")


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_predict_adds_the_support_of_every_entry_when_asked(run_command, fitted, tmp_path, suffix):
    output = tmp_path / f"found{suffix}"
    wanted = wanted_file(tmp_path, "plain.csv")
    said = run_command("predict", fitted[0], wanted, "-o", output, "--support")
    assert said.exit_code == 0, said.stderr
    expected = slrt_dask.load_completion(fitted[0]).support(WANTED)
    if suffix == ".csv":
        assert output.read_text().splitlines()[0].endswith(",support_0,support_1,support_2")
        found = np.loadtxt(output, delimiter=",", skiprows=1)[:, 4:].T
    else:
        with np.load(output) as archive:
            found = archive["support"]
    np.testing.assert_array_equal(found, expected)
    assert "rest on nothing" not in said.stdout


@pytest.mark.parametrize(
    ("names", "heads"),
    [
        (("y", "x"), "y,x,value,support_y,support_x"),
        (("index_0", "index_1"), "index_0,index_1,value,support_0,support_1"),
    ],
)
def test_columns_of_support_have_the_names_of_the_modes(tmp_path, names, heads):
    block = np.zeros((2, 3), np.int64), np.zeros(3), np.ones((2, 3), np.int64)
    index_files.write_predictions(str(tmp_path / "o.csv"), iter([block]), names, overwrite=False)
    assert (tmp_path / "o.csv").read_text().splitlines()[0] == heads


def test_predictions_that_rest_on_nothing_are_counted(run_command, tmp_path, monkeypatch):
    tensor = np.random.default_rng(0).random((8, 7, 6))
    tensor[2] = np.nan
    store = slrt_dask.from_array(tmp_path / "store", tensor)
    fit = ("--ranks", "2,2,2", "--C", "1", "--center", "--max-iterations", "1", "--quiet")
    assert run_command("fit", store.path, *fit, "--run", tmp_path / "run").exit_code == 0
    np.save(tmp_path / "wanted.npy", np.array([[2, 2, 3], [0, 5, 1], [1, 1, 1]]))
    wanted = tmp_path / "wanted.npy"
    said = run_command("predict", tmp_path / "run", wanted, "-o", tmp_path / "found.csv")
    assert "2 of 3 predictions rest on nothing" in said.stdout
    assert f"they are {store.mean:.6g}, as all such" in said.stdout
    missing = slrt_dask.from_array(tmp_path / "missing", np.where(np.isnan(tensor), 1.0, np.nan))
    predict, asked = slrt_dask.Completion.predict, []
    monkeypatch.setattr(
        slrt_dask.Completion,
        "predict",
        lambda self, places: asked.append(places.shape[1]) or predict(self, places),
    )
    said = run_command("evaluate", tmp_path / "run", missing.path, "--kind", "slices:0")
    assert "42 of 42 predictions rest on nothing" in said.stdout
    assert sum(asked) == 42
    said = run_command("evaluate", tmp_path / "run", store.path, "--json")
    scores = json.loads(said.stdout)
    assert scores["unsupported"] == 0
    assert 0.0 < scores["rmse_error"] < scores["rmse"]


def test_split_holds_whole_fibres_out_and_fit_is_patient(run_command, store, tmp_path):
    parts = ("--train-path", tmp_path / "train", "--test-path", tmp_path / "test")
    said = run_command("split", store.path, "--test", "0.2", "--kind", "fibres:2", *parts)
    assert said.exit_code == 0, said.stderr
    flags = ("--ranks", "4,4,3", "--C", "100", "--patience", "2", "--gap-tolerance", "0")
    flags += ("--validation", tmp_path / "test", "--quiet", "--threads", "1")
    said = run_command("fit", tmp_path / "train", *flags, "--run", tmp_path / "run")
    assert "its best point was kept" in said.stdout, said.stderr
    said = run_command("split", store.path, "--kind", "rows")
    assert said.exit_code == 1
    assert "'rows' is nothing that can be held out" in said.stderr
