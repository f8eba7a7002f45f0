"""What is asked of a pipeline is done as asked, or refused in a sentence before the fit."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slrt_dask.config import read_settings
from slrt_dask.errors import SlrtError

PIPELINES = Path(__file__).parent.parent / "pipelines"
TOML = PIPELINES / "video/video.toml"


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(PIPELINES))
    import command

    return command


@pytest.fixture
def video(monkeypatch, tmp_path):
    """The script's main, on a little video of its own."""
    monkeypatch.syspath_prepend(str(PIPELINES))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the script sets another
    np.save(tmp_path / "clip.npy", np.random.default_rng(0).random((8, 9, 10)))
    main = runpy.run_path(str(PIPELINES / "video/run.py"))["main"]
    return lambda *given: main([str(tmp_path / "clip.npy"), "--small", *given])


def test_what_is_given_in_a_command_wins_over_the_file(command):
    parser = command.parser("")
    plain = command.settings(parser.parse_args([]), TOML, (100, 100, 100))
    assert plain == read_settings(TOML)
    given = parser.parse_args(["--ranks", "4,5,6", "--C", "2", "--max-iterations", "3"])
    found = command.settings(given, TOML, (100, 100, 100))
    assert (found["ranks"], found["C"], found["max_iterations"]) == ((4, 5, 6), 2.0, 3)
    assert command.settings(parser.parse_args(["--auto"]), TOML, (9, 9, 9)) == {"ranks": "auto"}


def test_only_our_own_ranks_are_cut_to_the_data(command, video, tmp_path):
    ours = command.settings(command.parser("").parse_args([]), TOML, (100, 100, 5))
    assert ours["ranks"] == (15, 15, 5)
    with pytest.raises(SlrtError, match="rank 500 of mode 2"):
        video("--ranks", "5,5,500")
    (tmp_path / "own.toml").write_text("[fit]\nranks = [5, 5, 500]\nC = 1.0\n")
    with pytest.raises(SlrtError, match="rank 500 of mode 2"):
        video("--config", str(tmp_path / "own.toml"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--workers", "0"], "--workers: '0': give a whole number, at least 1"),
        (["--seed", "-1"], "--seed: '-1': give a whole number, at least 0"),
        (["--max-iterations", "x"], "--max-iterations: 'x': give a whole number"),
        (["--ranks", "5,x,5"], "--ranks: '5,x,5': give whole numbers, at least 1, as in 5,5,3"),
        (["--ranks", "5,0,5"], "--ranks: '5,0,5': give whole numbers"),
        (["--C", "-2"], "--C: '-2': give a positive number"),
        (["--observed", "1.5"], "--observed: '1.5': give a share between 0 and 1"),
        (["--output", __file__], "test_pipeline_commands.py is a file; give a directory"),
        (["--output", f"{__file__}/deeper"], "test_pipeline_commands.py is a file"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_a_sentence(given, words, video, capsys):
    with pytest.raises(SystemExit) as ended:
        video(*given)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('max_iterations = "10"', "max_iterations is '10'; give a whole number"),
        ("ranks = 5", "ranks"),
        ('ranks = "many"', "ranks"),
        ('ranks = ["a", 5, 5]', "ranks"),
        ('C = "ten"', "C "),
        ('lambdas = "x"', "lambda"),
        ("lambdas = 3", "lambda"),
        ('huber = "x"', "Huber"),
        ('store = "cube"', "sets fit.store, which a pipeline makes itself"),
    ],
)
def test_settings_of_a_file_that_cannot_be_are_refused_in_a_sentence(line, words, video, tmp_path):
    wanted = {"ranks": "ranks = [2, 2, 2]", "C": "C = 1.0", line.split(" ")[0]: line}
    (tmp_path / "own.toml").write_text("\n".join(["[fit]", *wanted.values()]))
    with pytest.raises(SlrtError, match=words):
        video("--config", str(tmp_path / "own.toml"))


def test_pictures_that_cannot_be_drawn_are_refused_before_the_fit(video, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("slrt_dask.complete", lambda *a, **k: pytest.fail("it fitted"))
    with pytest.raises(SlrtError, match=r"matplotlib is not installed; install slrt-dask\[plot\]"):
        video()


@pytest.mark.parametrize("script", ["video/run.py", "hyperspectral/run.py", "series/traffic.py"])
def test_data_of_another_order_are_refused_in_a_sentence(script, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(PIPELINES))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    np.save(tmp_path / "flat.npy", np.ones((5, 6)))
    main = runpy.run_path(str(PIPELINES / script))["main"]
    with pytest.raises(SlrtError, match=r"the data have shape \(5, 6\); give"):
        main([str(tmp_path / "flat.npy")])
    if script == "series/traffic.py":
        with pytest.raises(SlrtError, match="--hide has day 99; the last one is 27"):
            main(["--small", "--hide", "3,99"])


def test_ratings_take_no_argument_that_they_have_no_use_for(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(PIPELINES))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    main = runpy.run_path(str(PIPELINES / "ratings/run.py"))["main"]
    for given in (["--missing", "3"], ["--key", "zzz"]):
        with pytest.raises(SystemExit):
            main(["--small", *given])
        assert f"unrecognized arguments: {given[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script", ["toy/run.py", "hyperspectral/run.py", "video/run.py", "ratings/run.py",
               "series/series.py", "series/image.py", "series/traffic.py"],
)  # fmt: skip
def test_an_interrupt_while_importing_is_reported_in_a_line(script, tmp_path):
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    ended = subprocess.run(
        [sys.executable, str(PIPELINES / script)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr.strip() == "interrupted"
    assert ended.returncode == -signal.SIGINT


def test_progress_is_shown_unless_it_is_to_be_quiet(video, capsys, tmp_path):
    video("--ranks", "2,2,2", "--max-iterations", "2", "--output", str(tmp_path))
    shown = capsys.readouterr()
    assert "iteration    2" in shown.err
    assert "What the fit will need" in shown.out
    video("--ranks", "2,2,2", "--max-iterations", "2", "--output", str(tmp_path), "--quiet")
    assert capsys.readouterr().err == ""


def test_settings_that_are_worse_than_the_mean_are_reported_with_what_to_try(
    video, capsys, tmp_path
):
    # Noise, which nothing predicts better than its mean.
    video("--C", "1e4", "--output", str(tmp_path), "--quiet")
    told = capsys.readouterr().out
    assert "Nearer to the truth is the mean: RMSE" in told
    assert "try --auto" in told


def test_a_search_is_reported_and_drawn_in_the_place_of_iterations(video, capsys, tmp_path):
    video("--auto", "--output", str(tmp_path), "--quiet")
    told = capsys.readouterr().out
    assert "chosen among" in told
    assert "a search of" in told
    assert "try --auto" not in told
    assert (tmp_path / "video-search.png").exists()
    assert not (tmp_path / "video-convergence.png").exists()


def test_stores_that_are_kept_can_be_fitted_with_the_file_of_the_pipeline(video, tmp_path):
    from click.testing import CliRunner

    from slrt_dask.cli import main

    kept = tmp_path / "kept"
    video("--keep", str(kept), "--output", str(tmp_path), "--quiet", "--max-iterations", "1")
    own = TOML.read_text().replace("[15, 15, 15]", "[3, 3, 3]").replace("40", "2")
    (tmp_path / "own.toml").write_text(own)
    ended = CliRunner().invoke(main, [
        "fit", "--config", str(tmp_path / "own.toml"), str(kept / "train"),
        "--validation", str(kept / "test"), "--run", str(tmp_path / "run"), "--quiet",
    ])  # fmt: skip
    assert ended.exit_code == 0, ended.output


def test_an_interrupted_pipeline_leaves_its_pictures_and_the_exit_code_of_an_interrupt(tmp_path):
    given = ["--ranks", "4,4,4", "--max-iterations", "100000", "--output", str(tmp_path)]
    np.save(tmp_path / "clip.npy", np.random.default_rng(0).random((40, 40, 40)))
    script = [sys.executable, str(PIPELINES / "video/run.py"), str(tmp_path / "clip.npy")]
    with subprocess.Popen(
        [*script, "--C", "1e6", *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert "iteration" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        printed, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "ending the fit" in told
    assert "interrupted by the user" in printed
    assert (tmp_path / "video-frames.png").exists()
