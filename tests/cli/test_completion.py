"""A shell is told what may come next: commands, options, shells, and where it completes paths."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.testing import CliRunner

from slrt_dask.cli import main


@pytest.fixture
def offered():
    """What bash is told for a line whose last word is being typed: pairs of kind and word."""

    def ask(*words):
        environment = {
            "_SLRT_DASK_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["slrt-dask", *words]),
            "COMP_CWORD": str(len(words)),
        }
        told = CliRunner(env=environment).invoke(main, prog_name="slrt-dask")
        return [tuple(line.split(",", 1)) for line in told.stdout.split()]

    return ask


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_program_by_its_name(run_command, shell):
    shown = run_command("completion", shell)
    assert shown.exit_code == 0
    assert f"_SLRT_DASK_COMPLETE={shell}_complete" in shown.stdout
    assert "slrt-dask" in shown.stdout


def test_a_shell_that_is_not_known_is_refused_with_those_that_are(run_command):
    refused = run_command("completion", "ksh")
    assert refused.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in refused.stderr


def test_commands_options_and_choices_are_completed(offered):
    assert offered("re") == [("plain", "resume"), ("plain", "report")]
    assert ("plain", "--ranks") in offered("fit", "--ra")
    assert offered("completion", "f") == [("plain", "fish")]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("ingest", "cu"), "file"),
        (("fit", "cu"), "dir"),
        (("fit", "cube", "--config", "cu"), "file"),
        (("fit", "cube", "--run", "fi"), "dir"),
        (("resume", "fi"), "dir"),
        (("report", "fi"), "dir"),
        (("evaluate", "first", "cu"), "dir"),
        (("predict", "first", "wa"), "file"),
    ],
)
def test_paths_are_left_to_the_shell(offered, words, kind):
    assert offered(*words) == [(kind, words[-1])]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_understands_the_script(run_command):
    script = run_command("completion", "bash").stdout
    line = f"{script}\ncomplete -p slrt-dask"
    told = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert told.stdout.strip().endswith("slrt-dask")
