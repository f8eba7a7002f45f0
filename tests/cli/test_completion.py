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


def test_zsh_script_answers_whether_it_is_being_loaded_or_was(run_command):
    script = run_command("completion", "zsh").stdout
    assert "if [[ $zsh_eval_context[-1] == (loadautofunc|shfunc) ]]; then" in script


@pytest.fixture
def program_that_offers(tmp_path):
    """A directory with a program of our name that gives the answer it is made with."""

    def make(answer):
        program = tmp_path / "slrt-dask"
        program.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
        program.chmod(0o755)
        return tmp_path

    return make


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_every_tab_in_a_new_zsh_is_answered(run_command, program_that_offers):
    place = program_that_offers(r"plain\nresume\n_\nplain\nreport\n_")
    (place / "_slrt-dask").write_text(run_command("completion", "zsh").stdout)
    line = f"""
        fpath=({place} $fpath); path=({place} $path)
        compadd() {{ print offered $completions }}; compdef() {{ print registered }}
        autoload -Uz _slrt-dask; words=(slrt-dask re); CURRENT=2
        _slrt-dask; _slrt-dask; _slrt-dask; source {place}/_slrt-dask"""
    told = subprocess.run(["zsh", "-fc", line], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["offered resume report"] * 3 + ["registered"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_shows_descriptions_beyond_their_commas(run_command, program_that_offers):
    place = program_that_offers(r"plain,tune\tSearch, and show\nplain,export\tWrite\n")
    (place / "script.fish").write_text(run_command("completion", "fish").stdout)
    line = (
        f"set PATH {place} $PATH; source {place}/script.fish; complete --do-complete 'slrt-dask '"
    )
    told = subprocess.run(["fish", "-Nc", line], capture_output=True, text=True, check=True)
    assert sorted(told.stdout.splitlines()) == ["export\tWrite", "tune\tSearch, and show"]
