"""Ctrl-C ends a fit with what it has, a second one at once; and what is left is said."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

import slrt_dask
from slrt_dask import interrupts, pipeline
from slrt_dask.cli import fit_commands
from slrt_dask.engine.base import LocalEngine
from slrt_dask.engine.program import Program, Sweep
from slrt_dask.engine.share import Assignment
from slrt_dask.request import Request
from tests.cli.conftest import FIT

ENDLESS = (*FIT, "--gap-tolerance", "0", "--threads", "1", "--max-iterations", "3")


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def interrupted_in(where, name, monkeypatch, *, times=1):
    """Have Ctrl-C come at the beginning of a call, once or more often, when it is first made."""
    called, calls = getattr(where, name), []

    def interrupted(*arguments, **named):
        calls.append(name)
        if len(calls) == 1:
            for _ in range(times):
                ctrl_c()
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
    assert "resume" not in said.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "times"),
    [("spectral_start", 1), ("write_result", 1), ("Fit._validation_error", 2)],
    ids=["only begun", "result", "twice"],
)
def test_a_fit_that_ends_at_once_goes_on_when_it_is_resumed(
    name, times, run_command, store, tmp_path, monkeypatch
):
    run = tmp_path / "a run"
    asked = ("--validation", store.path, "--run", run)
    with monkeypatch.context() as patch:
        where, _, method = name.rpartition(".")
        where = getattr(pipeline, where) if where else pipeline
        interrupted_in(where, method, patch, times=times)
        said = run_command("fit", store.path, *ENDLESS, *asked)
    assert said.exit_code == 130
    assert f"slrt-dask resume '{run}' goes on\n" in said.stderr
    assert not (run / "completion").exists()
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


def test_the_first_interrupt_sets_a_flag_and_the_second_is_raised():
    before = signal.getsignal(signal.SIGINT)
    with interrupts.interrupts_deferred():
        interrupts.check()
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.check()  # it is seen once
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before
    assert not interrupts.REQUESTED.is_set()


def test_other_threads_do_not_take_interrupts_over():
    def deferring():
        with interrupts.interrupts_deferred():
            found.append(signal.getsignal(signal.SIGINT))

    found = []
    thread = threading.Thread(target=deferring)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


class Endless(Program):
    """Rounds without an end; Ctrl-C comes in the middle of the third."""

    def __init__(self):
        self.swept, self.ended = [], 0

    def rounds(self):
        number = 0
        while True:
            number += 1
            yield Sweep(Endless._step, (number,))
            self.ended += 1

    def _step(self, block, total, number):
        self.swept.append(number)
        if number == 3:
            ctrl_c()
        return (np.ones(1),)


def test_an_interrupt_in_a_round_is_raised_after_it(store):
    everything = tuple(range(len(store.partitions)))
    program = Endless()
    with (
        LocalEngine(Assignment(store, everything, threads=1)) as engine,
        interrupts.interrupts_deferred(),
        pytest.raises(KeyboardInterrupt),
    ):
        engine.run(program)
    assert (max(program.swept), program.ended) == (3, 3)
