"""What is shown while a command works: a rewritten line on a terminal, little elsewhere."""

from __future__ import annotations

import io
import itertools

import dask
import numpy as np
import pytest

import slrt_dask
from slrt_dask.lines import StageLine, readable_time
from slrt_dask.monitor import ProgressObserver
from slrt_dask.optim.records import IterationRecord


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(iteration, gap=None, rmse=None, ranks=(2, 2)):
    return IterationRecord(
        iteration=iteration, cost=12.5, gradient_norm=0.25, paper_gap=gap, primal=gap, dual=gap,
        relative_gap=gap, violation=None, inner_iterations=1, inner_residual=0.1,
        inner_converged=True, sweeps=3, step=1.0, seconds=2.0, ranks=ranks, validation_rmse=rmse,
    )  # fmt: skip


def shown(stream, records):
    observer = ProgressObserver(10, stream)
    for row in records:
        observer.on_record(row, None)
    observer.close()
    return stream.getvalue()


def test_on_a_terminal_one_line_is_rewritten_and_keeps_the_last_gap(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = shown(Terminal(), [record(0), record(5, gap=0.02, rmse=0.5), record(6)])
    lines = text.split("\r\x1b[2K")
    assert lines[0] == ""
    assert "gap" not in lines[1]
    assert "6/10" in lines[3]
    assert "gap 2 %  rmse 0.5" in lines[3]
    assert text.count("\n") == 1


def test_a_line_never_exceeds_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    text = shown(Terminal(), [record(5, gap=0.02)])
    assert len(text.removeprefix("\r\x1b[2K").rstrip("\n")) == 29


def test_elsewhere_only_rows_with_a_gap_are_told():
    text = shown(io.StringIO(), [record(0), record(10, gap=0.02), record(11)])
    assert text.startswith("iteration   10")
    assert text.count("\n") == 1


GROWN = [
    record(0), record(1, gap=0.5), record(2, ranks=(3, 2)), record(3, gap=0.4, ranks=(3, 2)),
    record(4, gap=0.3, ranks=(3, 2)), record(5, gap=0.2, ranks=(3, 3)),
]  # fmt: skip


def test_ranks_are_told_where_they_changed():
    lines = shown(io.StringIO(), GROWN).splitlines()
    assert [line.partition("ranks ")[2][:6] for line in lines] == ["", "(3, 2)", "", "(3, 3)"]


def test_on_a_terminal_ranks_stay_on_the_line_once_they_have_grown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = shown(Terminal(), GROWN).split("\r\x1b[2K")[1:]
    found = [line.partition("ranks ")[2][:6] for line in lines]
    assert found == ["", "", "(3, 2)", "(3, 2)", "(3, 2)", "(3, 3)"]


def test_an_observer_that_told_nothing_leaves_the_terminal_alone():
    assert shown(Terminal(), []) == ""


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_stage_is_shown_on_a_terminal_and_cleared(clock):
    stream = Terminal()
    line = StageLine(stream, clock)
    line("read", 5, None)
    line("sort", 1, 4)
    line("sort", 2, 4)  # too soon to be worth a word
    line("sort", 4, 4)
    line.clear()
    assert stream.getvalue() == ("\r\x1b[2Kread 5\r\x1b[2Ksort  25 %\r\x1b[2Ksort 100 %\r\x1b[2K")


def test_a_long_stage_says_how_long_the_rest_will_take(clock):
    stream = Terminal()
    line = StageLine(stream, clock)
    for clock.now, done in ((0.0, 0), (1.0, 1), (100.0, 10)):
        line("write", done, 40)
    assert stream.getvalue().split("\r\x1b[2K")[1:] == [
        "write   0 %",
        "write   2 %",
        "write  25 %, about 5 min left",
    ]


def test_elsewhere_a_line_is_written_now_and_then(clock):
    stream = io.StringIO()
    line = StageLine(stream, clock)
    for second in range(60):
        clock.now = float(second)
        line("read", second, 60)
    line.clear()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "read  17 %, about 50 s left"
    assert len(lines) == 5
    assert "\r" not in stream.getvalue()


def test_what_is_over_soon_is_not_told_elsewhere():
    stream = io.StringIO()
    line = StageLine(stream)
    for done in range(5):
        line("read", done, 4)
    line.clear()
    assert stream.getvalue() == ""


def test_times_are_said_as_people_say_them():
    assert [readable_time(t) for t in (4, 59, 90, 3600, 7800)] == [
        "4 s", "59 s", "2 min", "1 h 0 min", "2 h 10 min",
    ]  # fmt: skip


def told_by(work):
    """What a piece of work tells of itself, by stage, in order."""
    told = []
    work(lambda stage, done, total: told.append((stage, done, total)))
    return [
        (stage, [(done, total) for _, done, total in group])
        for stage, group in itertools.groupby(told, key=lambda row: row[0])
    ]


WORK = {
    "ingest": lambda done, store, place, progress: slrt_dask.from_file(
        place / "made", store[0], partition_entries=120, progress=progress
    ),
    "split": lambda done, store, place, progress: store[1].split(
        0.2, 0, place / "a", place / "b", progress=progress
    ),
    "evaluate": lambda done, store, place, progress: slrt_dask.evaluate(
        done, store[1], progress=progress
    ),
    "export": lambda done, store, place, progress: done.to_zarr(
        place / "dense", chunks=(4, 5, 8), progress=progress
    ),
}


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize("where", ["here", "cluster"])
def test_progress_never_goes_back_and_ends_at_all_of_it(
    fitted, observations, store, tmp_path, thread_client, kind, where
):
    done = slrt_dask.load_completion(fitted[0])
    computing = (
        thread_client.as_current() if where == "cluster" else dask.config.set(scheduler="threads")
    )
    with computing:
        stages = told_by(lambda told: WORK[kind](done, (observations, store), tmp_path, told))
    assert stages
    for stage, rows in stages:
        amounts, (total, *others) = [done for done, _ in rows], {total for _, total in rows}
        assert amounts == sorted(amounts), stage
        assert not others
        assert (amounts[0], amounts[-1]) == (0, total), stage
    if kind == "export":
        assert [total for _, total in stages[0][1]] == [6] * 7


COMMANDS = {
    "ingest": lambda run, source, store, place: (source, place / "made"),
    "split": lambda run, source, store, place: (
        store.path, "--train-path", place / "a", "--test-path", place / "b",
    ),
    "evaluate": lambda run, source, store, place: (run, store.path),
    "predict": lambda run, source, store, place: (run, source, "-o", place / "found.npy"),
    "export": lambda run, source, store, place: (run, place / "dense.zarr"),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_show_a_line_on_a_terminal_unless_quiet(
    run_command, fitted, observations, store, tmp_path, command, monkeypatch
):
    shown = []
    monkeypatch.setattr(StageLine, "__call__", lambda self, *row: shown.append(row))
    arguments = COMMANDS[command](fitted[0], observations, store, tmp_path)
    said = run_command(command, *arguments)
    assert (said.exit_code, bool(shown)) == (0, True), said.stderr
    shown.clear()
    (tmp_path / "quiet").mkdir()
    arguments = COMMANDS[command](fitted[0], observations, store, tmp_path / "quiet")
    said = run_command(command, *arguments, "--quiet")
    assert (said.exit_code, said.stderr, shown) == (0, "", [])


def test_an_export_for_xarray_is_opened_by_it(run_command, fitted, tmp_path):
    xarray = pytest.importorskip("xarray")
    said = run_command("export", fitted[0], tmp_path / "out.zarr", "--xarray")
    assert said.exit_code == 0, said.stderr
    with xarray.open_zarr(tmp_path / "out.zarr") as opened:
        expected = slrt_dask.load_completion(fitted[0]).to_dask().compute()
        np.testing.assert_array_equal(opened["completion"].values, expected)
