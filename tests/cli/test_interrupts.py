"""Ctrl-C promises no more than is kept, says how to go on, and is never lost or noisy."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from numba.core.compiler_lock import global_compiler_lock

import slrt_dask
from slrt_dask import pipeline
from slrt_dask.cli import fit_commands
from slrt_dask.cli.interrupts import SECONDS_TO_COMPILE, interrupts_noticed
from slrt_dask.request import Request
from tests.cli.conftest import FIT

ENDLESS = (*FIT, "--gap-tolerance", "0", "--threads", "1", "--max-iterations", "3")
PROMISE = "what was reached so far is kept"


class BrokenOff:
    """What an interrupt left half made."""

    def __del__(self):
        raise AttributeError("was never set")


def interrupted_in(where, name, monkeypatch, *, times=1):
    """Have SIGINT come at the beginning of a call, the first times that it is made."""
    called, calls = getattr(where, name), []

    def interrupted(*arguments, **named):
        calls.append(name)
        if len(calls) <= times:
            signal.raise_signal(signal.SIGINT)
        return called(*arguments, **named)

    monkeypatch.setattr(where, name, interrupted)


@pytest.mark.parametrize(
    ("where", "name"), [(Request, "fitting"), (fit_commands, "_fitted")], ids=["load", "start"]
)
def test_an_interrupt_before_anything_was_computed_says_so_and_leaves_nothing(
    where, name, run_command, store, tmp_path, monkeypatch
):
    interrupted_in(where, name, monkeypatch)
    said = run_command("fit", store.path, *ENDLESS, "--run", tmp_path / "run")
    assert said.exit_code == 130
    assert "nothing was computed yet, and nothing is kept\n" in said.stderr
    assert PROMISE not in said.stderr
    assert "resume" not in said.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_only_begun_is_said_to_go_on_and_does(
    run_command, store, tmp_path, monkeypatch
):
    interrupted_in(pipeline, "spectral_start", monkeypatch)
    run = tmp_path / "a run"
    said = run_command("fit", store.path, *ENDLESS, "--run", run)
    assert said.exit_code == 130
    assert PROMISE not in said.stderr
    assert f"slrt-dask resume '{run}' goes on\n" in said.stderr
    resumed = run_command("resume", run, "--quiet")
    assert resumed.exit_code == 0, resumed.stderr


def test_an_interrupt_while_an_iteration_is_judged_ends_with_a_result(
    run_command, store, tmp_path, monkeypatch
):
    interrupted_in(pipeline.Fit, "_validation_error", monkeypatch)
    run = tmp_path / "run"
    said = run_command("fit", store.path, *ENDLESS, "--validation", store.path, "--run", run)
    assert said.exit_code == 130
    assert f"slrt-dask resume {run} to go on" in said.stdout
    assert slrt_dask.load_completion(run).stop_reason.name == "INTERRUPTED"


def test_a_second_interrupt_ends_at_once_and_the_run_goes_on(
    run_command, store, tmp_path, monkeypatch
):
    def interrupting(self, record, state):
        signal.raise_signal(signal.SIGINT)

    interrupted_in(pipeline, "write_result", monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("slrt_dask.monitor.ProgressObserver.on_record", interrupting)
        said = run_command("fit", store.path, *ENDLESS, "--run", tmp_path / "run")
    assert said.exit_code == 130
    assert "interrupted again: ending at once" in said.stderr
    assert f"its checkpoints: slrt-dask resume {tmp_path / 'run'} goes on\n" in said.stderr
    assert run_command("resume", tmp_path / "run", "--quiet").exit_code == 0


def test_an_interrupt_that_a_destructor_discards_is_raised_again(
    run_command, store, tmp_path, monkeypatch
):
    class Discarding:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    begun = pipeline.spectral_start

    def discarding(*arguments):
        Discarding()
        return begun(*arguments)

    monkeypatch.setattr(pipeline, "spectral_start", discarding)
    said = run_command("fit", store.path, *ENDLESS, "--run", tmp_path / "run")
    assert said.exit_code == 130
    assert "Exception ignored" not in said.stderr
    assert len(slrt_dask.load_completion(tmp_path / "run").records) == 1


def test_what_an_interrupt_broke_off_falls_apart_quietly(run_command, store, tmp_path, monkeypatch):
    loud = []
    monkeypatch.setattr("sys.unraisablehook", loud.append)

    def breaking(*arguments):
        half_made = BrokenOff()
        signal.raise_signal(signal.SIGINT)
        return half_made

    monkeypatch.setattr(fit_commands, "_fitted", breaking)
    said = run_command("fit", store.path, *ENDLESS, "--run", tmp_path / "run")
    assert said.exit_code == 130
    assert not loud


def compile_interrupted(compiled):
    """Be interrupted as if in the middle of compiling; what is heard of it has to wait."""
    with global_compiler_lock:
        signal.raise_signal(signal.SIGINT)
        deadline = time.monotonic() + 4 * SECONDS_TO_COMPILE
        while time.monotonic() < deadline:
            pass
        compiled.append(True)
    threading.Event().wait(10.0)


def test_an_interrupt_waits_for_a_kernel_that_is_being_compiled():
    compiled = []
    with interrupts_noticed() as seen, pytest.raises(KeyboardInterrupt):
        compile_interrupted(compiled)
    assert compiled == [True]
    assert seen.count == 1
