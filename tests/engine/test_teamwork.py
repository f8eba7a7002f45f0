"""Threads of a share make a round together: nothing twice, nothing left out, nobody stuck."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from slrt_dask.engine import chains
from slrt_dask.engine.program import Overlapping
from slrt_dask.engine.teamwork import OverlappingRound, Pieces, Tournament
from tests.engine.helpers import dense_problem, numbered_share
from tests.waiting import PATIENCE, begun, soon


@pytest.mark.parametrize("count", range(1, 10))
def test_parts_are_added_in_one_order_whoever_comes_first(count):
    found = set()
    for seed in range(12):
        order = list(range(count))
        random.Random(seed).shuffle(order)
        tournament = Tournament(count, lambda left, right: f"({left}{right})")
        completed = [tournament.arrive(place, str(place)) for place in order]
        assert completed == [False] * (count - 1) + [True]
        found.add(tournament.whole)
    (whole,) = found
    assert [int(place) for place in whole if place.isdigit()] == list(range(count))


@pytest.mark.parametrize("empty", list(itertools.product([False, True], repeat=3)))
def test_a_part_that_is_none_adds_nothing(empty):
    tournament = Tournament(3, lambda left, right: left + right)
    for place, is_empty in enumerate(empty):
        tournament.arrive(place, None if is_empty else [place])
    wanted = [place for place, is_empty in enumerate(empty) if not is_empty]
    assert (tournament.whole or []) == wanted


def test_every_piece_is_taken_once_and_one_s_own_first():
    pieces = Pieces(2)
    pieces.offer(0, ["a", "b"])
    pieces.offer(1, ["c"])
    assert pieces.take(1) == ((1, 0), "c")
    assert [pieces.take(1), pieces.take(0)] == [((0, 0), "a"), ((0, 1), "b")]
    assert pieces.take(0) is None
    assert pieces.take(1) is None


@pytest.mark.parametrize(
    ("end", "taken"),
    [
        (lambda pieces: pieces.offer(1, ["late"]), ((1, 0), "late")),
        (lambda pieces: pieces.offer(1, []), None),
        (lambda pieces: pieces.abandon(), None),
    ],
    ids=["a piece", "nothing", "abandoned"],
)
def test_whoever_has_nothing_to_do_waits_until_it_is_known_what_others_offer(end, taken):
    pieces, asked = Pieces(2), threading.Event()
    pieces.offer(0, [])

    def take():
        asked.set()
        return pieces.take(0)

    taking = begun(take)
    assert asked.wait(PATIENCE)
    end(pieces)
    assert taking.result(PATIENCE) == taken


def test_nothing_is_taken_of_a_round_that_was_abandoned():
    pieces = Pieces(1)
    pieces.abandon()
    pieces.offer(0, ["late"])
    assert pieces.take(0) is None


class SharedVisits:
    """The visits of a round in turns, each of every so many entries; see `SharedStep`."""

    def __init__(self, visits, places):
        self.follows, self._visits = visits.follows, visits
        self._blocks = [block for place in places for block in place.opened()]
        for block in self._blocks:
            block.fresh("first")[:] = 0.0
            block.fresh("visits")[:] = 0.0
        self._turns, self._left = itertools.count(), threading.Semaphore(visits.cuts - 1)
        self._done, self._given_up = threading.Event(), False
        self._follow_turns, self._visited = itertools.count(), []

    def step(self, thread):
        cuts, last = self._visits.cuts, False
        while not self._given_up and (cut := next(self._turns)) < cuts:
            for block in self._blocks:
                self._visits.fail_in(block, cut == cuts - 1)
                block.changing("first")[cut::cuts] += 1.0
            last = not self._left.acquire(blocking=False)
            if last:
                self._done.set()
        return last

    def total(self):
        return np.zeros(1), np.array([1000.0 * len(self._blocks) * self._visits.cuts])

    def follow(self, thread):
        assert self._done.wait(PATIENCE)
        while not self._given_up and (number := next(self._follow_turns)) < len(self._blocks):
            self._visited.append(self._visits.follow(self._blocks[number], None, None))

    def rest(self):
        return sum(self._visited)

    def give_up(self):
        self._given_up = True
        self._done.set()


@dataclass(frozen=True)
class Visits(Overlapping):
    """Counts, at every entry, how often each half came by; fails in a block if told so.

    cuts : how many turns first halves are cut into; 0 if threads do not share them
    follows : whether threads share second halves as well
    """

    failing: int = -1
    cuts: int = 0
    follows: bool = False

    def first(self):
        return None

    def fail_in(self, block, now=True):
        if block.partition == self.failing and now:
            raise ArithmeticError(f"block {block.partition}")

    def shared(self, message, places):
        return SharedVisits(self, places) if self.cuts else None

    def step(self, block, message, total):
        self.fail_in(block)
        block.fresh("visits")[:] = 0.0
        block.fresh("first")[:] = 1.0
        before = np.zeros(1) if total is None else total[1]
        return (np.zeros(1) if total is None else total[0]), before + 1000.0

    def follow(self, block, message, rest):
        starts = block.index.starts
        block.changing("visits")[starts[0] : starts[-1]] += 1.0
        visited = np.array([float(starts[-1] - starts[0])])
        return visited if rest is None else rest + visited

    def known_of(self, shared):
        return np.zeros(1)

    def told(self, message, shared):
        return message

    def advance(self, message, total):
        raise AssertionError("one round is enough")


CUTS = [(0, False), (1, False), (2, True), (9, False), (9, True)]
"""How many turns first halves are cut into, and whether second ones are shared too."""


@pytest.fixture
def share_with(store_of, monkeypatch):
    made, dense = [], dense_problem(3)
    small = store_of(dense.mask, dense.values, parts=4)

    def make(threads, smallest=1, store=small):
        monkeypatch.setattr(chains, "SMALLEST_PIECE", smallest)
        made.append(numbered_share(store, threads=threads))
        return made[-1]

    yield make
    for share in made:
        share.close()


@pytest.mark.parametrize("smallest", [1, 7, 10_000])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(("cuts", "follows"), CUTS)
def test_every_entry_is_visited_once_however_work_is_cut(
    threads, smallest, cuts, follows, share_with
):
    share = share_with(threads, smallest)
    for _ in range(3):
        _, rest = share.contribute(Visits(cuts=cuts, follows=follows), None)
        assert rest[0] == share.assignment.store.nnz + 1000.0 * len(share.blocks) * max(1, cuts)
        for number, name in itertools.product(share.assignment.partitions, ("first", "visits")):
            assert (share.partition_vector(number, name) == 1.0).all()


@pytest.mark.parametrize("failing", [0, 3])
@pytest.mark.parametrize(("cuts", "follows"), [(0, False), (5, False), (5, True)])
def test_an_error_in_one_thread_leaves_nobody_waiting(failing, cuts, follows, share_with):
    share = share_with(3)
    for _ in range(5):
        visits = Visits(failing, cuts, follows)
        with pytest.raises(ArithmeticError, match=f"block {failing}"):
            soon(share.contribute, visits, None)
    visits = Visits(cuts=cuts, follows=follows)
    _, rest = soon(share.contribute, visits, None)
    assert rest[0] % 1000.0 == share.assignment.store.nnz


@pytest.mark.parametrize(("cuts", "follows"), [(0, False), (5, False), (5, True)])
def test_an_interrupt_before_one_has_begun_leaves_nobody_waiting(
    cuts, follows, share_with, monkeypatch
):
    share, visits = share_with(3), Visits(cuts=cuts, follows=follows)
    monkeypatch.setattr(OverlappingRound, "take_part", _interrupted_as_first)

    def contribute():
        with pytest.raises(KeyboardInterrupt):
            share.contribute(visits, None)

    soon(contribute)
    monkeypatch.undo()
    _, rest = soon(share.contribute, visits, None)
    assert rest[0] % 1000.0 == share.assignment.store.nnz


def _interrupted_as_first(team, thread, take_part=OverlappingRound.take_part):
    if thread == 0:
        raise KeyboardInterrupt
    take_part(team, thread)


def test_pieces_become_finer_towards_the_end(share_with, store_of):
    full = np.ones((60, 3, 2))
    store = store_of(full > 0.0, full, parts=2)
    for chain in share_with(2, 5, store)._chains:
        sizes = [piece.index.starts[-1] - piece.index.starts[0] for piece in chain.pieces]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == 90
        assert sizes[-1] == 6
