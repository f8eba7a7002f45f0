"""Settings from a file: flags win, paths are relative to the file, mistakes are named."""

from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def directory(store, tmp_path):
    """A directory with a copy of the store, and a place beside it to work in."""
    shutil.copytree(store.path, tmp_path / "there" / "cube")
    (tmp_path / "here").mkdir()
    return tmp_path


def settings_file(directory, **changes):
    values = {
        "store": "cube",
        "run": "run",
        "ranks": [4, 4, 3],
        "C": 0.1,
        "max_iterations": 3,
        **changes,
    }
    path = directory / "there" / "fit.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    path.write_text("[fit]\n" + "\n".join(lines) + "\n")
    return path


def test_a_file_alone_is_enough_and_its_paths_are_relative_to_it(
    run_command, directory, monkeypatch
):
    monkeypatch.chdir(directory / "here")
    said = run_command("fit", "--config", settings_file(directory, gap_tolerance=0.0))
    assert said.exit_code == 0, said.stderr
    written = json.loads((directory / "there" / "run" / "settings.json").read_text())
    assert written["settings"]["ranks"] == [4, 4, 3]
    assert written["settings"]["max_iterations"] == 3
    assert list((directory / "here").iterdir()) == []


def test_flags_win_over_the_file(run_command, directory, monkeypatch):
    monkeypatch.chdir(directory / "here")
    said = run_command(
        "fit", "--config", settings_file(directory, center=True),
        "--max-iterations", "1", "--ranks", "2,2,2", "--run", "elsewhere", "--no-center",
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    written = json.loads((directory / "here" / "elsewhere" / "settings.json").read_text())
    chosen = written["settings"]
    assert (chosen["max_iterations"], chosen["ranks"], chosen["center"]) == (1, [2, 2, 2], False)
    assert chosen["C"] == 0.1
    assert not (directory / "there" / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": [4, 4, 3]}, "fit.rank, which is unknown"),
        ({"ranks": 4}, "one number per mode, not 4"),
        ({"ranks": "many"}, "ranks is 'many'"),
        ({"gap_tolerance": "small"}, "gap_tolerance is 'small'"),
        ({"store": 3}, "fit.store to 3"),
        ({"method": "magic"}, "method is 'magic'"),
    ],
)
def test_a_mistake_in_the_file_is_named(run_command, directory, changes, words):
    said = run_command("fit", "--config", settings_file(directory, **changes))
    assert said.exit_code == 1
    assert said.stderr.startswith("error: ")
    assert words in said.stderr
    assert not (directory / "there" / "run").exists()


def test_what_neither_file_nor_flags_say_is_a_usage_error(run_command, directory):
    said = run_command("fit", "--config", settings_file(directory, run=None))
    assert said.exit_code == 2
    assert "--run is missing" in said.stderr


@pytest.mark.parametrize(
    ("given", "center"),
    [
        (("--center",), True),
        (("--center", "mean"), True),
        (("--center", "modes"), "modes"),
        (("--center=modes", "--no-center"), False),
        ((), "modes"),
    ],
)
def test_centring_has_a_word_or_stands_alone(given, center, run_command, directory, monkeypatch):
    monkeypatch.chdir(directory / "here")
    file = settings_file(directory, center="modes", max_iterations=0, ranks=[2, 2, 2], store=None)
    # The store comes last: what follows --center may be it.
    said = run_command(
        "fit", "--config", file, "--quiet", "--run", "run", *given, directory / "there" / "cube"
    )
    assert said.exit_code == 0, said.stderr
    written = json.loads((directory / "here" / "run" / "settings.json").read_text())
    assert written["settings"]["center"] == center


def test_offsets_can_be_left_open_and_other_words_are_named(run_command, directory, monkeypatch):
    monkeypatch.chdir(directory / "here")
    file = settings_file(directory, center="auto", ranks=[2, 2, 2], max_iterations=1)
    said = run_command("fit", "--config", file, "--quiet", "--threads", "1")
    assert said.exit_code == 0, said.stderr
    assert "offsets per mode were" in said.stdout
    refused = run_command("fit", "--config", file, "--center=median")
    assert refused.exit_code == 2
    assert "'median' is none of mean, modes, auto" in refused.stderr
    refused = run_command("fit", "--config", file, "--center", "modes", "--nonnegative")
    assert refused.exit_code == 1
    assert "takes no constraint" in refused.stderr
