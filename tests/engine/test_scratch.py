"""Files of blocks at rest: gone with their process, exact, and clear about what went wrong."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slrt_dask.engine.scratch import Room, ScratchDirectory, read_file, remove_abandoned, write_file

from slrt_dask.engine import scratch
from slrt_dask.errors import ScratchFull, StateLost

ROOT = Path(__file__).parents[2]
MAKE_AND_WAIT = """
import sys
from slrt_dask.engine.scratch import ScratchDirectory
made = ScratchDirectory(sys.argv[1])
(made.path / "b00000").mkdir()
(made.path / "b00000" / "values").write_bytes(b"many")
print(made.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def in_a_process(tmp_path):
    """A process that holds a scratch directory until it is killed or told to end."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_AND_WAIT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_directory_is_gone_when_it_is_closed(tmp_path):
    made = ScratchDirectory(str(tmp_path / "new" / "place"))
    assert made.path.parent == tmp_path / "new" / "place"
    (made.path / "b00000").mkdir()
    write_file(made.path / "b00000" / "values", np.arange(5.0))
    made.close()
    assert list((tmp_path / "new" / "place").iterdir()) == []


def test_without_a_place_it_is_where_temporary_files_are(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = ScratchDirectory(None)
    assert made.path.parent == tmp_path
    made.close()


def test_what_a_killed_process_left_is_removed_by_the_next_one(in_a_process, tmp_path):
    process, left = in_a_process
    assert (left / "b00000" / "values").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left.exists()
    made = ScratchDirectory(str(tmp_path))
    assert list(tmp_path.iterdir()) == [made.path]
    made.close()


def test_what_a_living_process_uses_is_left_alone(in_a_process, tmp_path):
    _, used = in_a_process
    mine = ScratchDirectory(str(tmp_path))
    assert (used / "b00000" / "values").read_bytes() == b"many"
    assert remove_abandoned(tmp_path) == []
    assert sorted(tmp_path.iterdir()) == sorted([used, mine.path])
    mine.close()
    assert list(tmp_path.iterdir()) == [used]


def test_what_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "lock").touch()
    (tmp_path / f"{scratch.PREFIX}unlocked").mkdir()
    assert remove_abandoned(tmp_path) == []
    assert (tmp_path / "precious" / "lock").exists()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=4),
    st.sampled_from(["float64", "float32", "int32", "uint16"]),
)
def test_what_was_written_last_is_read(tmp_path_factory, counts, dtype):
    file = tmp_path_factory.mktemp("written") / "v1"
    for count in sorted(counts):
        values = np.random.default_rng(count).integers(0, 60_000, count).astype(dtype)
        write_file(file, values)
        room = np.empty(count, dtype)
        read_file(file, room)
        np.testing.assert_array_equal(room, values)


def test_values_that_do_not_lie_side_by_side_are_written_in_their_order(tmp_path):
    write_file(tmp_path / "v1", np.arange(20.0)[::3])
    room = np.empty(7)
    read_file(tmp_path / "v1", room)
    np.testing.assert_array_equal(room, np.arange(20.0)[::3])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_how_much_was_needed_and_what_to_do(number, tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def write(self, view):
            raise OSError(number, os.strerror(number))

    directory = tmp_path / "slrt-scratch-x" / "b00000"
    directory.mkdir(parents=True)
    monkeypatch.setattr(scratch, "open", lambda *_, **__: Full(), raising=False)
    with pytest.raises(ScratchFull) as caught:
        write_file(directory / "values", np.ones(1000))
    sentence = str(caught.value)
    assert str(directory.parent) in sentence
    assert "is full" in sentence
    assert "8000 more were needed" in sentence
    assert "temporary-directory" in sentence
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_disk_that_is_really_full_is_noticed(tmp_path):
    (tmp_path / "v1").symlink_to("/dev/full")
    with pytest.raises(ScratchFull, match="is full"):
        write_file(tmp_path / "v1", np.ones(10))


def test_other_trouble_with_a_disk_is_passed_on(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "nowhere" / "v1", np.ones(3))


def test_a_short_write_is_gone_on_with(tmp_path, monkeypatch):
    true_open = open

    class Slow:
        """Takes at most 7 bytes at a time, as a system may."""

        def __init__(self, *arguments, **options):
            self.file = true_open(*arguments, **options)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, view):
            return self.file.write(view[:7])

        def readinto(self, view):
            return self.file.readinto(view[:5])

    monkeypatch.setattr(scratch, "open", Slow, raising=False)
    write_file(tmp_path / "v1", np.arange(10.0))
    room = np.empty(10)
    read_file(tmp_path / "v1", room)
    np.testing.assert_array_equal(room, np.arange(10.0))


def test_a_file_that_is_missing_or_shorter_is_lost_state(tmp_path):
    with pytest.raises(StateLost, match="'v7' is not held"):
        read_file(tmp_path / "v7", np.empty(3))
    write_file(tmp_path / "v7", np.ones(2))
    with pytest.raises(StateLost, match="shorter"):
        read_file(tmp_path / "v7", np.empty(3))


def test_room_hands_out_distinct_arrays_and_uses_them_again():
    room = Room(10)
    first, second = room.array("f8", 10), room.array("f8", 4)
    other = room.array("i4", 7)
    assert (first.shape, second.shape, other.dtype) == ((10,), (4,), np.int32)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(first, other)
    assert room.nbytes == 10 * (8 + 8 + 4)
    room.take_back()
    again, more = room.array(np.float64, 3), room.array(np.float64, 10)
    assert np.shares_memory(again, first)
    assert np.shares_memory(more, second)
    assert room.nbytes == 10 * (8 + 8 + 4)
