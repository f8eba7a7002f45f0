"""The program explains itself, quickly."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

import slrt_dask
from slrt_dask.cli import main

COMMANDS = (
    "demo", "ingest", "split", "plan", "tune", "fit", "resume", "report", "evaluate", "predict",
    "export", "certificates", "completion",
)  # fmt: skip
HEAVY = ("numpy", "zarr", "dask", "distributed", "numba", "matplotlib")


def test_help_shows_the_usual_sequence_and_all_commands(run_command):
    shown = run_command("--help")
    assert shown.exit_code == 0
    assert "slrt-dask fit cube-train --ranks 10,10,5 --C 1000 --run first" in shown.stdout
    listed = [line.split()[0] for line in shown.stdout.split("Commands:")[1].splitlines() if line]
    assert tuple(listed) == COMMANDS
    assert tuple(main.commands) == COMMANDS


def test_what_commands_do_is_listed_in_whole_lines(run_command):
    listed = run_command("--help").stdout.split("Commands:\n")[1].splitlines()
    assert len(listed) == len(COMMANDS)  # none goes on in a second line
    assert [line for line in listed if "..." in line] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_explained(command):
    options = [one for one in main.commands[command].params if isinstance(one, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_an_example_of_it(run_command, command):
    shown = run_command(command, "--help")
    assert shown.exit_code == 0
    assert f"slrt-dask {command}" in shown.stdout.split("Example")[1]


def test_help_of_ingest_names_every_kind_of_file_that_it_takes(run_command):
    from slrt_dask.data.files import READERS

    shown = " ".join(run_command("ingest", "--help").stdout.split())
    kinds = {kind.removesuffix(".gz") for kind in READERS} - {".zarr"} | {"zarr directories"}
    assert sorted(kind for kind in kinds if kind not in shown) == []


@pytest.mark.parametrize(
    "command", ["plan", "tune", "fit", "resume", "report", "evaluate", "predict", "export"]
)
def test_commands_that_compute_share_the_options_of_where(run_command, command):
    shown = run_command(command, "--help").stdout
    for option in ("--scheduler", "--workers", "--threads", "--memory-limit", "--tls"):
        assert option in shown


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("fit", "no trial that was finished is made twice"),
        ("report", "whose search for settings has ended"),
        ("tune", "with --run, the same again goes on"),
    ],
)
def test_help_promises_no_more_than_is_kept(run_command, command, words):
    assert words in " ".join(run_command(command, "--help").stdout.split())


def test_version_is_that_of_the_package(run_command):
    assert slrt_dask.__version__ in run_command("--version").stdout


def test_importing_the_program_imports_nothing_heavy():
    code = f"import slrt_dask.cli, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
