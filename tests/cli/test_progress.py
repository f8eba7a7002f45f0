"""What is shown while a command works: a rewritten line on a terminal, little elsewhere."""

from __future__ import annotations

import io

from slrt_dask.cli.progress import StageLine
from slrt_dask.monitor import ProgressObserver
from slrt_dask.optim.records import IterationRecord


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(iteration, gap=None, rmse=None):
    return IterationRecord(
        iteration=iteration, cost=12.5, gradient_norm=0.25, paper_gap=gap, primal=gap, dual=gap,
        relative_gap=gap, violation=None, inner_iterations=1, inner_residual=0.1,
        inner_converged=True, sweeps=3, step=1.0, seconds=2.0, ranks=(2, 2), validation_rmse=rmse,
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


def test_an_observer_that_told_nothing_leaves_the_terminal_alone():
    assert shown(Terminal(), []) == ""


def test_the_stage_of_an_ingest_is_shown_on_a_terminal_and_cleared():
    stream = Terminal()
    line = StageLine(stream)
    line("read", 5, None)
    line("sort", 1, 4)
    line.clear()
    assert stream.getvalue() == "\r\x1b[2Kread 5\r\x1b[2Ksort  25 %\r\x1b[2K"


def test_the_stage_of_an_ingest_is_not_shown_elsewhere():
    stream = io.StringIO()
    line = StageLine(stream)
    line("read", 5, None)
    line.clear()
    assert stream.getvalue() == ""
