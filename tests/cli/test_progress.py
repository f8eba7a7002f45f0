"""Work that takes long reports its progress, from none of it to all, and commands show that."""

from __future__ import annotations

import itertools

import dask
import pytest

import slrt_dask

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
    done, calls = slrt_dask.load_completion(fitted[0]), []
    computing = (
        thread_client.as_current() if where == "cluster" else dask.config.set(scheduler="threads")
    )
    with computing:
        WORK[kind](done, (observations, store), tmp_path, lambda *call: calls.append(call))
    assert calls
    for stage, group in itertools.groupby(calls, key=lambda call: call[0]):
        _, amounts, totals = zip(*group, strict=True)
        assert list(amounts) == sorted(amounts), stage
        assert (amounts[0], amounts[-1], {*totals}) == (0, totals[0], {totals[0]}), stage


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
def test_commands_show_progress_unless_quiet(
    run_command, fitted, observations, store, tmp_path, command, monkeypatch
):
    calls = []
    monkeypatch.setattr(slrt_dask.LiveProgress, "__call__", lambda self, *call: calls.append(call))
    for place, quiet in ((tmp_path / "shown", ()), (tmp_path / "quiet", ("--quiet",))):
        place.mkdir()
        calls.clear()
        said = run_command(command, *COMMANDS[command](fitted[0], observations, store, place),
                           *quiet)  # fmt: skip
        assert (said.exit_code, bool(calls)) == (0, not quiet), said.stderr
    assert said.stderr == ""
