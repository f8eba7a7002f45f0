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

from slrt_dask.engine import neighbours, seen_memory
from slrt_dask.engine.neighbours import Inbox, Outbox
from slrt_dask.engine.seen_memory import OutOfSight
from tests.engine.helpers import links_of_open_files

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


def open_rooms():
    """How many open files are memory that others may look at."""
    return sum("slrt-seen" in link for link in links_of_open_files())


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


# ---- rooms ----------------------------------------------------------------------------------


def test_what_is_made_in_a_room_is_not_copied(boxes):
    outbox, inbox = boxes
    room = outbox.room((100, 1000))
    room[:] = 1.0
    arrived, number = given(outbox, inbox, (room[:50], 7))
    np.testing.assert_array_equal(arrived, np.ones((50, 1000)))
    assert (number, outbox._content.size, inbox._rooms) == (7, 0, [])
    room[:] = 2.0  # by whoever knows that nobody looks
    np.testing.assert_array_equal(arrived, 2.0 * np.ones((50, 1000)))


def test_what_is_written_to_a_neighbours_room_by_mistake_does_not_reach_it(boxes):
    outbox, inbox = boxes
    room = outbox.room((100, 1000))
    room[:] = 1.0
    given(outbox, inbox, room)[:] = -1.0
    np.testing.assert_array_equal(room, np.ones((100, 1000)))


def test_a_part_that_is_not_all_in_rooms_is_copied(boxes):
    outbox, inbox = boxes
    room = outbox.room((100, 1000))
    room[:] = 1.0
    first, second = given(outbox, inbox, (room, LARGE))
    room[:] = 2.0
    np.testing.assert_array_equal(first, np.ones((100, 1000)))
    np.testing.assert_array_equal(second, LARGE)


def test_rooms_are_kept_apart_and_the_last_ones_open(boxes):
    outbox, inbox = boxes
    rooms = [outbox.room((100, 1000)) for _ in range(6)]
    for number, room in enumerate(rooms):
        room[:] = number
    arrived = [given(outbox, inbox, room) for room in rooms]
    for number, room in enumerate(arrived):
        np.testing.assert_array_equal(room, np.full((100, 1000), number))
    assert len(inbox._seen) == neighbours.REMEMBERED


def test_a_room_that_nobody_holds_is_no_more(boxes):
    outbox, inbox = boxes
    room = outbox.room((100, 1000))
    room[:] = 1.0
    with outbox.holding(room) as parcel:
        pass
    arrived = inbox.opened(parcel)
    file, part = f"/proc/self/fd/{parcel.pieces[0][0].file}", room[3:5]
    del room
    assert os.path.exists(file)  # for a part of it is held
    del part
    assert not os.path.exists(file)
    np.testing.assert_array_equal(arrived, np.ones((100, 1000)))  # whoever has it open keeps it
    with pytest.raises(OutOfSight):
        Inbox().opened(parcel)
    outbox.room((100, 1000))
    assert len(outbox._rooms) == 1


@pytest.mark.parametrize("rows", [1, neighbours.LARGEST // 8000 + 1])
def test_room_for_little_and_for_much_is_seen_by_nobody(rows, boxes):
    before = open_rooms()
    room = boxes[0].room((rows, 1000))
    assert room.shape == (rows, 1000)
    assert open_rooms() == before


def test_where_there_are_no_rooms_memory_is_made_elsewhere(boxes, monkeypatch):
    monkeypatch.delattr(seen_memory.os, "memfd_create")
    room = boxes[0].room((100, 1000))
    room[:] = 1.0
    assert boxes[0]._rooms == []


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
    with outbox.holding(LARGE) as parcel:
        ((whereabouts, first, size),) = parcel.pieces
        wrong = parcel._replace(pieces=((whereabouts._replace(**change), first, size),))
        with pytest.raises(OutOfSight):
            inbox.opened(wrong)
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
        parcel = eval(sender.stdout.readline(), vars(neighbours))
        np.testing.assert_array_equal(boxes[1].opened(parcel), LARGE)
        sender.kill()
    # What was opened before is still there; who opens it only now finds nothing.
    np.testing.assert_array_equal(boxes[1].opened(parcel), LARGE)
    with pytest.raises(OutOfSight):
        Inbox().opened(parcel)


def test_closed_boxes_hold_no_files(boxes):
    before = open_rooms()
    given(*boxes, LARGE)
    assert open_rooms() > before
    for box in boxes:
        box.close()
    assert open_rooms() == before


def test_without_such_files_everything_goes_through_sockets(boxes, monkeypatch):
    monkeypatch.delattr(seen_memory.os, "memfd_create")
    with boxes[0].holding(LARGE) as parcel:
        assert parcel is None


def test_where_no_memory_can_be_had_everything_goes_through_sockets(boxes, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(seen_memory.os, "memfd_create", refuse)
    with boxes[0].holding(LARGE) as parcel:
        assert parcel is None


def test_memory_that_cannot_be_mapped_leaves_no_file_open(boxes, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    before = open_rooms()
    monkeypatch.setattr(seen_memory.mmap, "mmap", refuse)
    with boxes[0].holding(LARGE) as parcel:
        assert parcel is None
    assert open_rooms() == before


def test_a_box_that_was_closed_opens_no_file_again(boxes):
    before = open_rooms()
    boxes[0].close()
    with boxes[0].holding(LARGE) as parcel:
        assert parcel is None
    assert open_rooms() == before


def test_a_pipe_in_the_place_of_the_memory_is_not_waited_at(boxes, tmp_path):
    def fail(*_):
        raise AssertionError("it waits for somebody to write")

    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(5)
    try:
        with boxes[0].holding(LARGE) as parcel, pytest.raises(OutOfSight):
            parcel.pieces[0][0]._replace(file=reading).opened()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.close(reading)
