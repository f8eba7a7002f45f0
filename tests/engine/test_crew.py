"""Threads that take part together: all of them, each once, and none is left behind."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref

import pytest

from slrt_dask.engine import crew as crew_module
from slrt_dask.engine.crew import Crew
from slrt_dask.errors import StateLost
from tests.waiting import PATIENCE, begun, soon


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


@pytest.mark.parametrize("place", ["before it is told", "before others wake", "waiting"])
def test_an_interrupt_leaves_nobody_at_work(place, crew_of, monkeypatch):
    crew, caller, abandoned, started, ended = crew_of(1), [], [], [], []
    soon(crew.run, lambda number: None, 2)

    def interrupts():
        return threading.current_thread() is caller[0] and not abandoned

    def tell(row, original=crew._tell):
        if place == "before it is told" and interrupts():
            raise KeyboardInterrupt
        if place == "before others wake" and interrupts():
            crew._counters[row, 0] += 1
            raise KeyboardInterrupt
        original(row)

    def wait_for_all(original=crew._wait_for_all):
        if place == "waiting" and interrupts():
            raise KeyboardInterrupt
        original()

    def take_part(number):
        if number:
            started.append(number)
            deadline = time.monotonic() + PATIENCE
            while not abandoned and time.monotonic() < deadline:
                time.sleep(0)
            ended.append(number)

    def run():
        caller.append(threading.current_thread())
        with pytest.raises(KeyboardInterrupt):
            crew.run(take_part, 2, lambda: abandoned.append(True))
        return started == ended

    with monkeypatch.context() as patching:
        patching.setattr(crew, "_tell", tell)
        patching.setattr(crew, "_wait_for_all", wait_for_all)
        assert soon(run)
    assert abandoned
    assert bool(started) == (place != "before it is told")
    taken = []
    soon(crew.run, taken.append, 2)
    assert sorted(taken) == [0, 1]


def test_a_second_interrupt_while_others_are_told_to_end_leaves_nobody_at_work(crew_of):
    crew, abandoned, ended, asked = crew_of(1), threading.Event(), [], []

    def take_part(number):
        if number == 0:
            raise KeyboardInterrupt
        assert abandoned.wait(PATIENCE)
        ended.append(number)

    def abandon():
        asked.append(True)
        if len(asked) == 1:
            raise KeyboardInterrupt
        abandoned.set()

    def run():
        with pytest.raises(KeyboardInterrupt):
            crew.run(take_part, 2, abandon)
        return list(ended)

    assert soon(run) == [1]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_task_is_kept(fails, crew_of):
    class Task:
        def take_part(self, number):
            if fails and number:
                raise ArithmeticError

    crew, task = crew_of(2), Task()
    with contextlib.suppress(ArithmeticError):
        crew.run(task.take_part, 3)
    seen = weakref.ref(task)
    del task
    gc.collect()
    assert seen() is None


def test_threads_are_started_when_they_are_needed_and_end_with_the_crew(crew_of):
    crew = crew_of(3)
    assert not crew._threads
    soon(crew.run, lambda number: None, 2)
    assert list(crew._threads) == [1]
    taken = []
    soon(crew.run, taken.append, 4)
    assert sorted(taken) == [0, 1, 2, 3]
    started = list(crew._threads.values())
    assert len(started) == 3
    soon(crew.close)
    assert not any(thread.is_alive() for thread in started)
    soon(crew.close)
    with pytest.raises(StateLost, match="sent away"):
        soon(crew.run, taken.append, 2)


def test_a_crew_is_closed_when_its_part_is_over(crew_of):
    crew, go_on, ended = crew_of(1), threading.Event(), []

    def take_part(number):
        assert go_on.wait(PATIENCE)
        ended.append(number)

    running = begun(crew.run, take_part, 2)
    while not crew._threads:
        time.sleep(0)
    closing = begun(crew.close)
    with pytest.raises(TimeoutError):
        closing.result(0.05)
    go_on.set()
    closing.result(PATIENCE)
    running.result(PATIENCE)
    assert sorted(ended) == [0, 1]
