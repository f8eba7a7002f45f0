"""Workers of one machine do pieces of each other's rounds, and nobody can tell from the answer."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.dual.offer_memory import Described
from slrt_dask.engine.cluster import ClusterEngine
from slrt_dask.engine.exchange import Mailbox
from slrt_dask.engine.helping import OFFER, Helping, beside
from slrt_dask.engine.seen_memory import OutOfSight, new_memory
from slrt_dask.errors import StateLost
from tests.engine import small_offers
from tests.engine.helpers import ORDERS, dense_problem, results


@pytest.fixture(scope="module")
def clients(open_client):
    """Workers that are processes of their own, by their number and that of each one's threads."""
    made = {}

    def client_of(workers=2, threads=1):
        if (workers, threads) not in made:
            options = {"threads_per_worker": threads, "processes": True}
            made[workers, threads] = open_client(n_workers=workers, **options)
        return made[workers, threads]

    yield client_of
    for client in made.values():
        client.close()
        client.cluster.close()


def solved(client, store, dense, **options):
    """The results with help and without, and how many pieces others did at the first worker."""
    found = {}
    for kind in ("helped", "alone"):
        client.run(small_offers.offer_small_pieces)
        if kind == "alone":
            client.run(small_offers.offer_nothing)
        with ClusterEngine(store, client, **options) as engine:
            if kind == "helped":
                first = engine._workers[0]
                client.run(small_offers.leave_all_to_others, workers=[first])
            found[kind] = results(engine, dense, validated=False, certified=False)
        if kind == "helped":
            pieces = client.run(small_offers.done_by_others, workers=[first])[first]
    client.run(small_offers.offer_nothing)
    return found["helped"], found["alone"], pieces


def assert_equal(helped, alone):
    assert helped.keys() == alone.keys()
    for name, value in helped.items():
        np.testing.assert_array_equal(value, alone[name], err_msg=name)


@pytest.mark.parametrize("order", ORDERS)
def test_help_does_not_change_the_last_bit(order, store_of, clients):
    dense = dense_problem(order)
    store = store_of(dense.mask, dense.values, parts=4)
    helped, alone, pieces = solved(clients(), store, dense)
    assert sum(pieces) > 0
    assert_equal(helped, alone)


@pytest.mark.parametrize(("workers", "threads"), [(3, 1), (2, 2)])
def test_any_number_of_workers_and_threads_help(workers, threads, store_of, clients):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=6)
    helped, alone, pieces = solved(clients(workers, threads), store, dense)
    assert sum(pieces) > 0
    assert_equal(helped, alone)


def test_numbers_of_single_precision_are_helped_with_too(store_of, clients):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=4)
    helped, alone, pieces = solved(clients(), store, dense, precision="float32")
    assert sum(pieces) > 0
    assert_equal(helped, alone)


@pytest.mark.parametrize(
    ("here", "place", "wanted"),
    [
        ((0, 1), 0, (1,)),
        ((0, 1), 1, (0,)),
        ((2, 5, 7), 5, (7, 2)),
        ((0, 1, 2, 3), 3, (0, 2)),
        ((4,), 4, ()),
    ],
)
def test_neighbours_are_next_to_each_other_in_a_circle(here, place, wanted):
    assert beside(place, here) == wanted


class Pair:
    """Two neighbours that write into each other's mailboxes."""

    def __init__(self, run=3):
        self.boxes, self.seen = (Mailbox(), Mailbox()), ({}, {})
        for box in self.boxes:
            box.begin(run)
        self.first, self.second = (
            Helping(self.boxes[n], self._send, run, n, (1 - n,), self.seen[n]) for n in (0, 1)
        )

    def _send(self, to, letter, part):
        self.boxes[to].put(letter, part)
        return True


def test_a_neighbour_sees_an_offer_and_writes_to_it():
    pair, (memory, content) = Pair(), new_memory(1000)
    content[:] = 7
    assert pair.second.heard() == []
    pair.first.offer(memory.whereabouts, "described")
    ((seen, described),) = pair.second.heard()
    assert described == "described"
    assert (seen == 7).all()
    seen[:] = 9
    assert (content == 9).all()
    assert pair.second.heard() == []


def test_memory_that_was_seen_before_is_not_opened_again():
    pair, (memory, content) = Pair(), new_memory(1000)
    pair.first.offer(memory.whereabouts, "first")
    ((seen, _),) = pair.second.heard()
    pair.boxes[1].begin(4)
    later = Helping(pair.boxes[1], pair._send, 4, 1, (0,), pair.seen[1])
    pair.boxes[1].put((4, 0, OFFER, 0), (memory.whereabouts, "second"))
    ((again, described),) = later.heard()
    assert described == "second"
    assert again is seen
    Helping(pair.boxes[1], pair._send, 5, 1, (2,), pair.seen[1])
    assert pair.seen[1] == {}, "of a worker that is no neighbour any more"
    assert content.size == seen.size


def test_an_offer_that_cannot_be_seen_is_none():
    pair, (memory, content) = Pair(), new_memory(1000)
    pair.first.offer(memory.whereabouts._replace(token=b"x" * 16), "elsewhere")
    assert pair.second.heard() == []
    assert content.size == 1000


def test_a_neighbour_that_cannot_be_told_is_not():
    def send(to, letter, part):
        raise OutOfSight

    memory, content = new_memory(1000)
    Helping(Mailbox(), send, 0, 0, (1,), {}).offer(memory.whereabouts, "unheard")
    assert content.size == 1000


def test_whoever_waits_for_an_offer_hears_that_the_run_is_over():
    pair = Pair()
    pair.first.check()
    pair.boxes[0].give_up(3)
    with pytest.raises(StateLost):
        pair.first.check()


def test_arrays_of_an_offer_do_not_overlap_and_begin_with_cache_lines():
    described = Described(
        pieces=3, starts=7, entries=11, kinds=("<i4", "<i8"), modes=((0, 1, 5),), runs=-1,
        numbers="<f4",
    )  # fmt: skip
    content = np.zeros(described.nbytes + 64, np.uint8)
    content = content[-content.ctypes.data % 64 :][: described.nbytes]
    laid = described.found_in(content)
    arrays = [laid.claims, laid.pieces, laid.starts, laid.energies, laid.x, laid.out, *laid.columns]
    for number, array in enumerate(arrays):
        assert array.ctypes.data % 64 == 0
        assert (array == 0).all(), "another one has been written to"
        array[...] = number + 1
    assert [laid.x.dtype, laid.columns[1].dtype] == [np.float32, np.int64]
    assert laid.columns[0].shape == (11,)
