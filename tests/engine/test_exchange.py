"""Sums go up a tree of workers and messages down, whatever the order of events; nobody is stuck."""

from __future__ import annotations

import operator
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from slrt_dask.engine import exchange
from slrt_dask.engine.exchange import Mailbox, TreeExchange
from slrt_dask.errors import StateLost

ROUNDS = 4
PATIENCE = 10.0
"""Seconds after which a thread that should have ended has failed."""


class Waiting(Mailbox):
    """A mailbox that tells when somebody is about to wait for a part."""

    def __init__(self):
        super().__init__()
        self.asked = threading.Event()

    def take(self, letter):
        self.asked.set()
        return super().take(letter)


def in_background(call, *arguments):
    """Start a call; the future of its result. The thread does not keep a run from ending."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call, *arguments)
    pool.shutdown(wait=False)
    return future


def workers_of(count, run=1, mailboxes=None):
    boxes = mailboxes or {place: Mailbox() for place in range(count)}

    def send(place, letter, part):
        boxes[place].put(letter, part)

    return boxes, [TreeExchange(boxes[place], send, run, place, count) for place in range(count)]


def take_part(worker, parts, heard):
    """What one worker does in a run: its message is the total of the round before."""
    total = worker.spread(0 if worker.is_root else None)
    for part in parts:
        heard.append(total)
        total = worker.total(operator.add, part)
        total = worker.spread(total if worker.is_root else None)
    heard.append(total)


@pytest.mark.parametrize("fan_in", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_the_root_gets_the_sum_and_every_place_every_message_in_order(count, fan_in, monkeypatch):
    monkeypatch.setattr(exchange, "FAN_IN", fan_in)
    _, workers = workers_of(count)
    assert [worker.is_root for worker in workers] == [True] + [False] * (count - 1)
    parts = [[10**turn * (place + 1) for turn in range(ROUNDS)] for place in range(count)]
    heard = [[] for _ in workers]
    with ThreadPoolExecutor(count) as pool:
        futures = [
            pool.submit(take_part, worker, own, news)
            for worker, own, news in zip(reversed(workers), reversed(parts), reversed(heard),
                                         strict=True)
        ]  # fmt: skip
        for future in futures:
            future.result(PATIENCE)
    sums = [sum(own[turn] for own in parts) for turn in range(ROUNDS)]
    assert heard == [[0, *sums]] * count


def test_sums_are_made_in_the_same_order_whoever_comes_first(monkeypatch):
    monkeypatch.setattr(exchange, "FAN_IN", 3)
    found = set()
    for order in ([1, 2, 3], [3, 1, 2], [2, 3, 1]):
        _, workers = workers_of(4)
        for place in order:
            workers[place].total(operator.add, f"{place}")
        found.add(workers[0].total(operator.add, "0"))
    assert found == {"0123"}


def test_nobody_sends_to_more_than_its_children_and_its_parent(monkeypatch):
    monkeypatch.setattr(exchange, "FAN_IN", 2)
    sent = []
    boxes, count = {place: Mailbox() for place in range(7)}, 7

    def send(place, letter, part):
        sent.append((letter[3], place))
        boxes[place].put(letter, part)

    workers = [TreeExchange(boxes[place], send, 0, place, count) for place in range(count)]
    for worker in reversed(workers):
        worker.total(operator.add, 1)
    assert sorted(sent) == [(place, (place - 1) // 2) for place in range(1, 7)]
    sent.clear()
    for worker in workers:
        worker.spread("next" if worker.is_root else None)
    assert sorted(sent) == [((place - 1) // 2, place) for place in range(1, 7)]


def test_a_part_that_came_before_it_was_asked_for_is_kept():
    box = Mailbox()
    box.put((1, 0, "sum", 3), "early")
    assert box.take((1, 0, "sum", 3)) == "early"


def test_whoever_waits_gets_the_part_that_was_asked_for_and_no_other():
    box = Waiting()
    box.begin(1)
    waiting = in_background(box.take, (1, 2, "sum", 3))
    assert box.asked.wait(PATIENCE)
    for letter in ((1, 1, "sum", 3), (1, 2, "message", 3), (1, 2, "sum", 2), (2, 2, "sum", 3)):
        box.put(letter, "another")
    assert not waiting.done()
    box.put((1, 2, "sum", 3), "the one")
    assert waiting.result(PATIENCE) == "the one"


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda box: box.close("the driver has gone"), "the driver has gone"),
        (lambda box: box.give_up(1), "another run has begun"),
        (lambda box: box.begin(2), "another run has begun"),
    ],
    ids=["closed", "given up", "another begun"],
)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_nobody_waits_for_a_part_that_will_not_come(end, told, when):
    box = Waiting()
    box.begin(1)
    if when == "before":
        end(box)
    waiting = in_background(box.take, (1, 0, "sum", 1))
    assert box.asked.wait(PATIENCE)
    end(box)
    with pytest.raises(StateLost, match=told):
        waiting.result(PATIENCE)


def test_everybody_who_waits_is_told_that_a_run_is_over():
    boxes = {place: Waiting() for place in range(7)}
    _, workers = workers_of(7, mailboxes=boxes)
    heard = [[] for _ in workers]
    # Without the last worker no round can end.
    futures = [
        in_background(take_part, worker, [1, 2], news)
        for worker, news in zip(workers[:-1], heard, strict=False)
    ]
    for place in range(6):
        assert boxes[place].asked.wait(PATIENCE)
    for box in boxes.values():
        box.give_up(1)
    for place, future in enumerate(futures):
        with pytest.raises(StateLost):
            future.result(PATIENCE)
        assert len(heard[place]) <= 1


def test_parts_of_an_earlier_run_are_dropped():
    box = Mailbox()
    box.put((1, 0, "sum", 1), "old")
    box.put((2, 0, "sum", 1), "new")
    box.begin(2)
    box.put((1, 5, "sum", 1), "late")
    assert list(box._parts) == [(2, 0, "sum", 1)]
    with pytest.raises(StateLost, match="another run has begun"):
        box.take((1, 0, "sum", 1))
    assert box.take((2, 0, "sum", 1)) == "new"


def test_a_run_that_is_begun_late_does_not_bring_an_older_one_back():
    box = Mailbox()
    box.give_up(4)
    box.begin(3)
    box.put((3, 0, "sum", 1), "too late")
    box.put((5, 0, "sum", 1), "in time")
    assert box.take((5, 0, "sum", 1)) == "in time"
    with pytest.raises(StateLost):
        box.take((3, 0, "sum", 1))


def test_a_part_is_taken_once():
    box = Mailbox()
    box.begin(1)
    box.put((1, 0, "sum", 1), "once")
    assert box.take((1, 0, "sum", 1)) == "once"
    box.close("that was all")
    with pytest.raises(StateLost, match="that was all"):
        box.take((1, 0, "sum", 1))


def test_a_run_after_one_that_was_given_up_is_not_disturbed_by_it():
    boxes, first = workers_of(3, run=1)
    first[2].total(operator.add, 1000)  # a part that nobody fetches
    for box in boxes.values():
        box.begin(2)
    _, second = workers_of(3, run=2, mailboxes=boxes)
    first[1].total(operator.add, 1000)  # a worker that has not heard of it yet
    for worker in reversed(second[1:]):
        worker.total(operator.add, 1)
    assert second[0].total(operator.add, 1) == 3
