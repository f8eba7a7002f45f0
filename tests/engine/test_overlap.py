"""A step's second half is made once on every block, wherever sums travel meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from slrt_dask.engine.assignment import Streaming
from slrt_dask.engine.exchange import Mailbox, TreeExchange

from slrt_dask.engine import chains, exchange
from slrt_dask.engine.program import Finished, Overlapping, add_into, run_rounds
from slrt_dask.errors import StateLost
from tests.engine.helpers import dense_problem, numbered_share


@dataclass(frozen=True)
class TwoHalves(Overlapping):
    """Three rounds; blocks are told the large sum of the round before, and count the halves.

    The rest has the first halves, the slices of second ones, and what is known of the large sum.
    """

    def first(self):
        return 0

    def step(self, block, message, total):
        turn = message if message == 0 else message[0]
        if turn == 0:
            block.fresh("told")[:] = 0.0
        else:
            block.changing("told")[:] = message[1][0]
        shared, rest = total or (np.zeros(1), np.zeros(3))
        return shared + block.entries * (turn + 1), rest + np.array([1.0, 0.0, 0.0])

    def follow(self, block, message, rest):
        # After the first half, of which it sees what that wrote.
        told = float(block.vector("told")[0])
        slices = len(block.index.starts) - 1
        return (np.zeros(3) if rest is None else rest) + np.array([0.0, slices * (1.0 + told), 0.0])

    def known_of(self, shared):
        return np.array([0.0, 0.0, float(shared[0])])

    def sent(self, message):
        return message if message == 0 else (message[0], None)

    def told(self, message, shared):
        return message[0], shared

    def advance(self, message, total):
        turn = message if message == 0 else message[0]
        return Finished((turn, *total)) if turn == 2 else (turn + 1, total[0])


@pytest.fixture
def share_of(store_of, tmp_path, monkeypatch):
    monkeypatch.setattr(chains, "SMALLEST_PIECE", 3)
    made = []
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=5)

    def make(partitions=None, streamed=False, threads=2):
        streaming = Streaming(1000, str(tmp_path)) if streamed else None
        made.append(numbered_share(store, partitions, threads=threads, streaming=streaming))
        return made[-1]

    yield make
    for share in made:
        share.close()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_what_is_handed_over_and_what_is_left_are_the_whole_sum(share_of, streamed, threads):
    share, program, handed = share_of(streamed=streamed, threads=threads), TwoHalves(), []
    for message in (0, (1, np.array([5.0]))):
        handed.clear()
        shared, rest = share.contribute(program, message)
        left = share.contribute(program, message, handed.append)
        assert len(handed) == 1
        assert handed[0] == shared
        np.testing.assert_array_equal(left + program.known_of(shared), rest)


def in_a_tree(shares):
    """Run the program on several shares as workers do; the root's outcome."""
    boxes = [Mailbox() for _ in shares]

    def send(place, letter, part):
        boxes[place].put(letter, part)

    def work(place):
        tree = TreeExchange(boxes[place], send, 1, place, len(shares))
        return run_rounds(TwoHalves(), shares[place].contribute, tree)

    with ThreadPoolExecutor(len(shares)) as pool:
        outcome, *_ = pool.map(work, range(len(shares)))
    return outcome


@pytest.mark.parametrize("fan_in", [1, 4])
@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (1, 4), (2, 1), (2, 2), (3, 1)])
def test_workers_together_are_one(workers, threads, fan_in, share_of, monkeypatch):
    monkeypatch.setattr(exchange, "FAN_IN", fan_in)
    alone = share_of(threads=1)
    turn, shared, rest = run_rounds(TwoHalves(), alone.contribute)
    entries, blocks = alone.assignment.store.nnz, len(alone.blocks)
    slices = len(np.unique(np.concatenate([block.block.columns[0] for block in alone.blocks])))
    assert alone.assignment.store.slab_mode == 0
    assert (turn, float(shared[0])) == (2, 3.0 * entries)
    # Both halves on every block; the second one told the sum of the round before.
    assert list(rest) == [blocks, slices * (1.0 + 2.0 * entries), 3.0 * entries]
    held = alone.assignment.partitions
    found = in_a_tree([share_of(held[place::workers], threads=threads) for place in range(workers)])
    assert (found[0], float(found[1][0]), list(found[2])) == (turn, float(shared[0]), list(rest))


def test_whoever_waits_for_a_sum_that_travels_is_told_when_it_will_not_come():
    box = Mailbox()
    tree = TreeExchange(box, lambda *parts: None, 1, 0, 2)
    wait = tree.share(add_into, np.ones(3), lambda total: None)
    box.close("its worker has gone")
    with pytest.raises(StateLost, match="its worker has gone"):
        wait()
