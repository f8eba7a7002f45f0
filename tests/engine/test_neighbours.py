"""Workers on one machine give each other large parts through memory; others through sockets."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from slrt_dask.engine import neighbours
from slrt_dask.engine.neighbours import Inbox, Outbox, OutOfSight

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="files without a name are Linux's"
)
LARGE = np.arange(100_000.0)


@dataclass(frozen=True)
class Message:
    phase: str
    sums: np.ndarray


@pytest.fixture
def boxes():
    outbox, inbox = Outbox(), Inbox()
    yield outbox, inbox
    outbox.close()
    inbox.close()


def given(outbox, inbox, part):
    with outbox.holding(part) as parcel:
        return inbox.opened(parcel)


@pytest.mark.parametrize(
    "part",
    [
        LARGE,
        np.asfortranarray(LARGE.reshape(100, 1000)),
        LARGE.astype(np.float32),
    ],
    ids=["flat", "fortran", "single"],
)
def test_arrays_arrive_as_they_were_and_may_be_changed(part, boxes):
    arrived = given(*boxes, part)
    np.testing.assert_array_equal(arrived, part)
    assert arrived.dtype == part.dtype
    assert arrived.flags.writeable
    assert arrived.flags.aligned
    before = part.copy()
    arrived[:] = -1.0
    np.testing.assert_array_equal(part, before)


def test_room_is_used_again_when_nobody_holds_what_was_in_it(boxes):
    first = given(*boxes, LARGE)
    view = first.reshape(100, -1)[7:]
    place = first.ctypes.data
    del first
    second = given(*boxes, 2.0 * LARGE)
    assert second.ctypes.data != place  # for it is still looked at
    np.testing.assert_array_equal(view, LARGE.reshape(100, -1)[7:])
    del view
    third = given(*boxes, 3.0 * LARGE)
    assert third.ctypes.data == place
    np.testing.assert_array_equal(second, 2.0 * LARGE)
    np.testing.assert_array_equal(third, 3.0 * LARGE)
    longer = given(*boxes, np.concatenate([LARGE, LARGE]))
    assert len(boxes[1]._rooms) == 1  # room of other sizes is not kept for ever
    np.testing.assert_array_equal(longer[: len(LARGE)], LARGE)


def test_a_part_can_be_looked_at_where_it_is(boxes):
    outbox, inbox = boxes
    with outbox.holding((LARGE, "text")) as parcel:
        seen, text = inbox.seen(parcel)
        np.testing.assert_array_equal(seen, LARGE)
        assert (text, seen.flags.writeable, seen.flags.aligned) == ("text", False, True)
    with outbox.holding((2.0 * LARGE, "text")):  # in the same memory
        np.testing.assert_array_equal(seen, 2.0 * LARGE)


def test_memory_that_somebody_looks_at_can_be_let_go(boxes):
    outbox, inbox = boxes
    with outbox.holding(LARGE) as parcel:
        seen = inbox.seen(parcel)
    longer = np.concatenate([LARGE, LARGE])
    np.testing.assert_array_equal(given(outbox, inbox, longer), longer)  # in other memory
    inbox.close()
    outbox.close()
    np.testing.assert_array_equal(seen, LARGE)


def test_structures_arrive_with_all_their_arrays(boxes):
    part = (Message("iterate", LARGE), np.arange(3), LARGE[::-1].copy(), 0.5)
    arrived = given(*boxes, part)
    assert (arrived[0].phase, arrived[3]) == ("iterate", 0.5)
    for got, sent in ((arrived[0].sums, LARGE), (arrived[1], part[1]), (arrived[2], part[2])):
        np.testing.assert_array_equal(got, sent)


def test_what_has_arrived_outlives_the_next_part_and_the_box(boxes):
    outbox, inbox = boxes
    first = given(outbox, inbox, LARGE)
    longer = given(outbox, inbox, np.concatenate([LARGE, -LARGE]))  # for which there was no room
    shorter = given(outbox, inbox, 2.0 * LARGE)
    outbox.close()
    np.testing.assert_array_equal(first, LARGE)
    np.testing.assert_array_equal(longer[len(LARGE) :], -LARGE)
    np.testing.assert_array_equal(shorter, 2.0 * LARGE)


@pytest.mark.parametrize("entries", [100, neighbours.LARGEST // 8 + 1])
def test_small_parts_and_huge_ones_make_no_detour(entries, boxes):
    with boxes[0].holding((np.zeros(entries), "text")) as parcel:
        assert parcel is None


@pytest.mark.parametrize(
    "change",
    [
        {"process": 2**22 + 1},
        {"file": 0},
        {"length": 64},
        {"token": b"x" * 16},
    ],
    ids=lambda change: next(iter(change)),
)
def test_memory_that_is_not_what_the_parcel_says_is_out_of_sight(change, boxes):
    outbox, inbox = boxes
    names = ("process", "file", "length", "token", "pickled", "sizes")
    with outbox.holding(LARGE) as parcel:
        described = dict(zip(names, parcel, strict=True)) | change
        with pytest.raises(OutOfSight):
            inbox.opened(tuple(described.values()))
        np.testing.assert_array_equal(inbox.opened(parcel), LARGE)


SENDER = """
import sys, numpy as np
from slrt_dask.engine.neighbours import Outbox
with Outbox().holding(np.arange(100_000.0)) as parcel:
    print(repr(parcel), flush=True)
    sys.stdin.read()
"""


def test_another_process_is_seen_and_nothing_is_left_of_it_when_it_is_killed(boxes):
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SENDER], stdin=pipe, stdout=pipe) as sender:
        parcel = eval(sender.stdout.readline())
        np.testing.assert_array_equal(boxes[1].opened(parcel), LARGE)
        sender.kill()
    # What was opened before is still there; who opens it only now finds nothing.
    np.testing.assert_array_equal(boxes[1].opened(parcel), LARGE)
    with pytest.raises(OutOfSight):
        Inbox().opened(parcel)


def test_closed_boxes_hold_no_files(boxes):
    before = len(os.listdir("/proc/self/fd"))
    given(*boxes, LARGE)
    assert len(os.listdir("/proc/self/fd")) > before
    for box in boxes:
        box.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_such_files_everything_goes_through_sockets(boxes, monkeypatch):
    monkeypatch.delattr(neighbours.os, "memfd_create")
    with boxes[0].holding(LARGE) as parcel:
        assert parcel is None


def test_where_no_memory_can_be_had_everything_goes_through_sockets(boxes, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(neighbours.os, "memfd_create", refuse)
    with boxes[0].holding(LARGE) as parcel:
        assert parcel is None


def test_memory_that_cannot_be_mapped_leaves_no_file_open(boxes, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(neighbours.mmap, "mmap", refuse)
    with boxes[0].holding(LARGE) as parcel:
        assert parcel is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_box_that_was_closed_opens_no_file_again(boxes):
    before = len(os.listdir("/proc/self/fd"))
    boxes[0].close()
    with boxes[0].holding(LARGE) as parcel:
        assert parcel is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pipe_in_the_place_of_the_memory_is_not_waited_at(boxes, tmp_path):
    def fail(*_):
        raise AssertionError("it waits for somebody to write")

    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(5)
    try:
        with boxes[0].holding(LARGE) as parcel, pytest.raises(OutOfSight):
            boxes[1].opened((parcel[0], reading, *parcel[2:]))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.close(reading)
