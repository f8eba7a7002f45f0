"""The file of streamed blocks: exact, gone with its process, and clear about a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slrt_dask.engine.block import Block, Buffers, MemoryArrays
from slrt_dask.engine.program import OneRound, Sweep
from slrt_dask.engine.spill import ROOMS, FileBlock, ScratchFile, read_ahead
from slrt_dask.errors import ScratchFull, StateLost
from tests.engine.helpers import dense_problem, share_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path):
    made = ScratchFile(str(tmp_path))
    yield made
    made.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 50)), max_size=40),
    st.sampled_from(["float64", "float32", "int32", "uint16"]),
)
def test_what_was_written_last_is_read_and_slots_are_used_again(steps, dtype):
    """Each step writes an array of some length anew under a name, or drops it if it is empty."""
    made, held = ScratchFile(None), {}
    for number, (name, count) in enumerate(steps):
        if name in held:
            made.give_back(held[name][0], held.pop(name)[1].nbytes)
        if count:
            values = np.random.default_rng(number).integers(0, 60_000, 3 * count).astype(dtype)
            held[name] = made.slot(values[::3].nbytes), values[::3]
            made.write(*held[name])  # which does not lie in one piece
        for first, values in held.values():
            room = np.empty(len(values), dtype)
            made.read(first, room)
            np.testing.assert_array_equal(room, values)
    for first, values in held.values():
        made.give_back(first, values.nbytes)
        assert made.slot(values.nbytes) == first
    made.close()


MAKE_AND_WAIT = """
import sys
import numpy as np
from slrt_dask.engine.program import OneRound, Sweep
from slrt_dask.engine.spill import ScratchFile
made = ScratchFile(sys.argv[1])
made.write(made.slot(80), np.ones(10))
print("made", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_no_file(tmp_path):
    command = [sys.executable, "-c", MAKE_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout.readline() == b"made\n"
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_says_how_much_was_needed_and_where(number, file, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", full)
    if number == errno.EIO:  # other trouble is passed on
        with pytest.raises(OSError, match=os.strerror(number)):
            file.write(0, np.ones(1000))
        return
    with pytest.raises(ScratchFull, match=r"\b8000\b") as caught:
        file.write(0, np.ones(1000))
    assert str(tmp_path) in str(caught.value)
    assert "temporary-directory" in str(caught.value)


class Double(OneRound):
    """Doubles a vector; the sum of the values, which it leaves alone."""

    def step(self, block, total):
        vector = block.fresh("x")
        vector[:] = 2.0 * block.values
        return (float(block.values.sum()) + (0.0 if total is None else total[0]),)


def test_a_disk_that_is_full_in_a_round_is_the_error_of_the_round(store_of, tmp_path, monkeypatch):
    dense, write, left = dense_problem(3), os.pwrite, [3]
    store = store_of(dense.mask, dense.values, parts=3)

    def filling(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "full")
        return write(*arguments)

    share = share_of(store, 2, block_entries=20, directory=str(tmp_path))
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", filling)
            with pytest.raises(ScratchFull):
                share.sweep(0, 0, Double(), Sweep(Double.step))
        (total,) = share.sweep(1, 0, Double(), Sweep(Double.step))  # there is room again
    finally:
        share.close()
    assert total == pytest.approx(dense.y.sum())


# ---- reading ahead ------------------------------------------------------------------------------


@pytest.fixture
def resting(file):
    """Seven blocks in a file, whose values are their number."""
    blocks = []
    for number in range(7):
        held = {"values": np.full(number + 1, float(number)), "v0": np.zeros(number + 1)}
        blocks.append(
            FileBlock(Block(MemoryArrays(held), number + 1, 0, (number, number + 1)), file)
        )
    return blocks


def swept(blocks, pool, change):
    rooms = [Buffers() for _ in range(ROOMS)]
    with contextlib.closing(read_ahead(blocks, rooms, Buffers(), pool)) as ahead:
        for block in ahead:
            change(block)
    return rooms


def test_what_was_never_written_is_lost_state(resting, file):
    with pytest.raises(StateLost, match="v7"):
        resting[0].open().vector("v7")
    with pytest.raises(StateLost):
        file.read(0, np.empty(10_000))


def test_blocks_come_in_order_and_what_is_changed_of_them_is_kept(resting):
    def add(block):
        change = block.changing("v0")
        change += block.values + 1.0

    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            rooms = swept(resting, pool, add)
    for number, at_rest in enumerate(resting):
        np.testing.assert_array_equal(at_rest.open().vector("v0"), 3.0 * (number + 1.0))
    # However many blocks there are, a thread has room for a few: one read, one computed, one
    # written, each with the two vectors.
    assert sum(room.nbytes for room in rooms) <= ROOMS * 2 * 8 * 7


def test_the_next_block_is_read_while_one_is_computed(resting, file, monkeypatch):
    read, computing = file.read, [threading.Event() for _ in range(len(resting) + 1)]
    computing[0].set()

    def read_meanwhile(first, room):
        assert computing[room.size - 1].wait(10), "it was read before the one before was computed"
        read(first, room)

    def compute(block):
        computing[block.entries].set()
        assert float(block.values[0]) == block.entries - 1

    monkeypatch.setattr(file, "read", read_meanwhile)
    with ThreadPoolExecutor(2) as pool:
        swept(resting, pool, compute)


@pytest.mark.parametrize("where", ["sweep", "file"])
def test_nothing_is_at_work_on_the_files_when_a_sweep_has_failed(where, resting, file, monkeypatch):
    working, read, reading_ahead = [], file.read, threading.Event()

    def slow(first, room):
        working.append(None)
        if room.size == 5:
            reading_ahead.set()
            time.sleep(0.2)
        read(first, room)
        working.pop()
        if where == "file" and room.size == 4:
            raise OSError(errno.EIO, "broken")

    def fail(block):
        block.changing("v0")[:] = block.values
        if where == "sweep" and block.entries == 4:
            assert reading_ahead.wait(10)
            raise ArithmeticError

    monkeypatch.setattr(file, "read", slow)
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises((ArithmeticError, OSError)):
            swept(resting, pool, fail)
        assert not working
