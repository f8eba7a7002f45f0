"""Workers on one machine send each other letters through pipes; others cannot."""

from __future__ import annotations

import os
import queue
import subprocess
import sys

import numpy as np
import pytest

from slrt_dask.engine import post as post_module
from slrt_dask.engine.neighbours import Outbox
from slrt_dask.engine.post import LONGEST, Post, opened_post
from slrt_dask.engine.seen_memory import OutOfSight
from slrt_dask.errors import StateLost
from tests.engine.helpers import links_of_open_files

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux's /proc")
PATIENCE = 10.0
"""Seconds after which a letter that should have come has not."""
LETTER = (1, 0, "sum", 2)


class Office:
    """A post, what has come to it, and what it said when it failed."""

    def __init__(self, seen=True):
        self.came, self.failures, self.seen = queue.Queue(), queue.Queue(), seen
        self.post = Post(self.take, self.take_parcel, self.failures.put)

    def take(self, letter, part):
        self.came.put((letter, part, None))

    def take_parcel(self, letter, parcel, answer):
        self.came.put((letter, None, parcel))
        answer(self.seen)


@pytest.fixture
def offices():
    made = []

    def make(**options):
        made.append(Office(**options))
        return made[-1]

    yield make
    for office in made:
        office.post.close()


def open_at(*posts):
    """How many open files are these posts' pipes; other threads of the process have files too."""
    pipes = [f"pipe:[{post.address[2]}]" for post in posts]
    return sum(links_of_open_files().count(pipe) for pipe in pipes)


def refuse(*_):
    raise AssertionError("nothing of this kind should come")


def unwanted():
    raise StateLost("another run has begun")


def test_letters_arrive_in_order_and_with_their_arrays(offices):
    one, other = offices(), offices()
    for number in range(100):
        part = {"scalars": np.arange(4.0) * number, "phase": "iterate"}
        assert one.post.send(other.post.address, (1, number, "sum", 0), part)
    for number in range(100):
        letter, part, parcel = other.came.get(timeout=PATIENCE)
        assert (letter, part["phase"], parcel) == ((1, number, "sum", 0), "iterate", None)
        np.testing.assert_array_equal(part["scalars"], np.arange(4.0) * number)
    assert one.came.empty()


@pytest.mark.parametrize("part", [np.zeros(LONGEST), b"x" * LONGEST], ids=["array", "bytes"])
def test_what_is_too_long_for_a_letter_is_not_sent(part, offices):
    one, other = offices(), offices()
    assert not one.post.send(other.post.address, LETTER, part)
    assert one.post.send(other.post.address, LETTER, "short")
    assert other.came.get(timeout=PATIENCE)[1] == "short"


def test_a_pipe_that_is_full_takes_no_more_and_nobody_waits_at_it(offices):
    held = queue.Queue()
    one = offices()
    slow = Post(lambda *part: held.get(timeout=PATIENCE), refuse, lambda reason: None)
    part, sent = "x" * 3000, 0
    while one.post.send(slow.address, LETTER, part):
        sent += 1
    assert sent >= 10
    for _ in range(sent):
        held.put(True)
    slow.close()


def test_whoever_sends_a_parcel_waits_until_it_was_taken(offices):
    one, other, outbox = offices(), offices(), Outbox()
    with outbox.holding(np.arange(100_000.0)) as parcel:
        assert one.post.send_parcel(other.post.address, LETTER, parcel, unwanted)
        assert other.came.get(timeout=PATIENCE) == (LETTER, None, parcel)
    outbox.close()


def test_a_parcel_that_cannot_be_seen_is_told(offices):
    one, blind = offices(), offices(seen=False)
    with pytest.raises(OutOfSight):
        one.post.send_parcel(blind.post.address, LETTER, (), unwanted)


def test_a_sender_that_cannot_be_answered_ends_the_run(offices):
    one, other = offices(), offices()
    process, number, inode, token = one.post.address
    one.post.address = (process, number, inode + 1, token)  # as it is seen from elsewhere
    with pytest.raises(StateLost, match="another run"):
        one.post.send_parcel(other.post.address, LETTER, (), unwanted)
    assert "cannot be answered" in other.failures.get(timeout=PATIENCE)


def test_nobody_waits_for_an_answer_that_is_not_wanted_any_more(offices, monkeypatch):
    monkeypatch.setattr(post_module, "LOOK_SECONDS", 0.01)
    one, answers = offices(), queue.Queue()
    silent = Post(refuse, lambda letter, parcel, answer: answers.put(answer), refuse)
    with pytest.raises(StateLost, match="another run"):
        one.post.send_parcel(silent.address, LETTER, (), unwanted)
    # An answer that comes after all is of no interest, and does no harm.
    answers.get(timeout=PATIENCE)(True)
    assert one.post.send(one.post.address, LETTER, "part")
    assert one.came.get(timeout=PATIENCE)[1] == "part"
    silent.close()


@pytest.mark.parametrize("change", ["process", "file", "inode"])
def test_a_pipe_that_is_not_what_the_address_says_is_out_of_sight(change, offices, tmp_path):
    one, other = offices(), offices()
    process, number, inode, token = other.post.address
    with open(tmp_path / "file", "w") as file:
        wrong = {
            "process": (2**22 + 1, number, inode, token),
            "file": (process, file.fileno(), inode, token),
            "inode": (process, number, inode + 1, token),
        }[change]
        before = open_at(other.post)
        with pytest.raises(OutOfSight):
            one.post.send(wrong, LETTER, "part")
        assert (before, open_at(other.post)) == (2, 2)  # to read it, and to keep it open
    assert other.came.empty()


def test_whoever_writes_to_a_post_that_was_closed_is_told(offices):
    one, other = offices(), offices()
    assert one.post.send(other.post.address, LETTER, "before")
    other.post.close()
    with pytest.raises(StateLost, match="gone"):
        one.post.send(other.post.address, LETTER, "after")


def test_a_closed_post_leaves_no_files_and_sends_nothing(offices):
    one, other = Office(), Office()
    assert one.post.send(other.post.address, LETTER, "part")
    assert open_at(one.post, other.post) == 5
    for office in (one, other, one):
        office.post.close()
    assert open_at(one.post, other.post) == 0
    with pytest.raises(OutOfSight):
        one.post.send(other.post.address, LETTER, "part")


def test_what_is_not_a_letter_ends_the_post_and_says_so(offices):
    one = offices()
    file = os.open(f"/proc/self/fd/{one.post.address[1]}", os.O_WRONLY)
    os.write(file, b"\0" * 64)
    os.close(file)
    assert "cannot be read" in one.failures.get(timeout=PATIENCE)
    assert one.came.empty()


def test_a_system_without_such_pipes_has_no_post(monkeypatch):
    made, pipe2 = [], os.pipe2

    def noted(flags):
        reading, writing = pipe2(flags)
        made.append(os.readlink(f"/proc/self/fd/{reading}"))
        return reading, writing

    monkeypatch.setattr(post_module.os, "pipe2", noted)
    monkeypatch.setattr(post_module.os, "open", lambda *_: (_ for _ in ()).throw(OSError()))
    assert opened_post(refuse, refuse, refuse) is None
    monkeypatch.delattr(post_module.os, "pipe2")
    assert opened_post(refuse, refuse, refuse) is None
    monkeypatch.undo()
    (pipe,) = made
    assert pipe not in links_of_open_files()


OTHER = """
import sys
from slrt_dask.engine.post import Post
post = Post(print, print, print)
print(repr(post.address), flush=True)
address = eval(sys.stdin.readline())
assert post.send(address, (7, 1, "sum", 1), "from afar")
sys.stdin.read()
"""


def test_another_process_is_reached_and_its_end_is_noticed(offices):
    one, pipe = offices(), subprocess.PIPE
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        address = eval(process.stdout.readline())
        process.stdin.write(f"{one.post.address!r}\n")
        process.stdin.flush()
        assert one.came.get(timeout=PATIENCE) == ((7, 1, "sum", 1), "from afar", None)
        assert one.post.send(address, LETTER, "part")
        process.kill()
        process.wait()
        with pytest.raises(StateLost, match="gone"):
            one.post.send(address, LETTER, "part")
