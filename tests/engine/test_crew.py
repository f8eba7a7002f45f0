"""Threads that take part together: all of them, each once, and none is left behind."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from slrt_dask.engine import crew as crew_module
from slrt_dask.engine.crew import Crew

PATIENCE = 10.0
"""Seconds after which something that should have ended has failed."""


@pytest.fixture(params=[0, 300], ids=["asleep at once", "looking"])
def crew_of(request, monkeypatch):
    monkeypatch.setattr(crew_module, "OFFERS", request.param)
    made = []

    def make(others):
        made.append(Crew(others))
        return made[-1]

    yield make
    for crew in made:
        crew.close()


def soon(call, *arguments):
    """The result of a call that must not hang."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *arguments).result(PATIENCE)


@pytest.mark.parametrize(("others", "parts"), [(0, 1), (1, 2), (3, 4), (3, 2), (3, 1), (2, 0)])
def test_as_many_take_part_as_there_are_parts(others, parts, crew_of):
    crew = crew_of(others)

    def take_parts():
        for _ in range(200):
            taken = []
            crew.run(taken.append, parts)
            assert sorted(taken) == list(range(parts))

    soon(take_parts)


def test_all_are_at_work_at_one_time_and_the_caller_is_the_first(crew_of):
    crew, together, threads = crew_of(2), threading.Barrier(3), {}

    def take_part(number):
        together.wait(PATIENCE)
        threads[number] = threading.current_thread()

    crew.run(take_part, 3)
    assert threads[0] is threading.current_thread()
    assert len(set(threads.values())) == 3
    before = dict(threads)
    crew.run(take_part, 3)
    assert threads == before


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_is_raised_when_all_have_ended(failing, crew_of):
    crew, abandoned, ended = crew_of(2), threading.Event(), []

    def take_part(number):
        if number == failing:
            abandoned.set()  # as whoever fails does: see `teamwork.OverlappingRound`
            raise ArithmeticError(f"part {number}")
        assert abandoned.wait(PATIENCE)
        ended.append(number)

    for _ in range(3):
        ended.clear()
        with pytest.raises(ArithmeticError, match=f"part {failing}"):
            soon(crew.run, take_part, 3, abandoned.set)
        assert sorted(ended) == [number for number in range(3) if number != failing]
        abandoned.clear()
    taken = []
    soon(crew.run, taken.append, 3)
    assert sorted(taken) == [0, 1, 2]


@pytest.mark.parametrize("place", ["_wait_for_all", "_tell"])
def test_an_interrupt_of_whoever_waits_or_begins_leaves_nobody_at_work(place, crew_of, monkeypatch):
    crew, caller, abandoned, begun, ended = crew_of(1), [], [], [], []
    original = getattr(crew, place)

    def interrupted(*arguments):
        if threading.current_thread() is caller[0] and not abandoned:
            raise KeyboardInterrupt
        return original(*arguments)

    def take_part(number):
        if number:
            begun.append(number)
            deadline = time.monotonic() + PATIENCE
            while not abandoned and time.monotonic() < deadline:
                time.sleep(0)
            ended.append(number)

    def run():
        caller.append(threading.current_thread())
        with pytest.raises(KeyboardInterrupt):
            crew.run(take_part, 2, lambda: abandoned.append(True))
        return begun == ended

    monkeypatch.setattr(crew, place, interrupted)
    assert soon(run)
    assert abandoned
    monkeypatch.undo()
    taken = []
    soon(crew.run, taken.append, 2)
    assert sorted(taken) == [0, 1]


def test_nothing_of_a_task_is_kept(crew_of):
    class Task:
        def take_part(self, number):
            pass

    crew, task = crew_of(2), Task()
    crew.run(task.take_part, 3)
    seen = weakref.ref(task)
    del task
    gc.collect()
    assert seen() is None


def test_threads_end_when_a_crew_is_closed(crew_of):
    before, crew = set(threading.enumerate()), crew_of(3)
    assert set(threading.enumerate()) <= before  # none before they are needed
    crew.run(lambda number: None, 4)
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    crew.close()
    assert not any(thread.is_alive() for thread in started)
    crew.close()
