"""Laws of cutting and placing partitions, of rounds on a share, and of entries that come and go."""

from __future__ import annotations

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.operator import Operator, terms_of
from slrt_dask.dual.solve import ConjugateGradients
from slrt_dask.dual.working_set import partition_columns, resupported
from slrt_dask.dual.writing import partition_extra, partition_vector
from slrt_dask.engine.program import OneRound, Program, Sweep
from slrt_dask.engine.share import cut_at_slices
from slrt_dask.engine.watch import Place, assign_partitions
from slrt_dask.errors import MemoryBudgetExceeded, StateLost
from tests.engine.helpers import (
    ORDERS,
    SHAPES,
    dense_problem,
    local_engine,
    put_on_share,
    share_of,
)
from tests.oracles.dense import mode_product, random_problem

slabs = st.lists(st.integers(0, 12), min_size=1, max_size=60).map(
    lambda rows: np.array(sorted(rows))
)


# ---- cutting and placing ------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(slabs, st.integers(1, 9))
def test_cuts_cover_everything_once_in_whole_slices_of_about_equal_length(slab, pieces):
    cuts = cut_at_slices(slab, pieces)
    assert 1 <= len(cuts) <= pieces
    assert cuts[0][0] == 0
    assert cuts[-1][1] == len(slab)
    for (_, stop), (first, _) in itertools.pairwise(cuts):
        assert stop == first
        assert slab[stop - 1] < slab[first]
    longest = int(np.bincount(slab).max())
    for first, stop in cuts:
        assert 0 < stop - first <= len(slab) / pieces + 1 + longest


def places_with(threads):
    return [Place(f"worker {number}", count, None) for number, count in enumerate(threads)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=20),
    st.lists(st.integers(1, 8), min_size=1, max_size=6),
)
def test_every_partition_is_placed_once_and_no_worker_is_overloaded(counts, threads):
    assigned = assign_partitions(counts, places_with(threads))
    assert len(assigned) == len(threads)
    assert [number for part in assigned for number in part] == list(range(len(counts)))
    for part, own in zip(assigned, threads, strict=True):
        fair = sum(counts) * own / sum(threads)
        assert sum(counts[number] for number in part) <= fair + max(counts)


# ---- what a share holds -------------------------------------------------------------------------


@pytest.fixture
def share_with(store_of, tmp_path):
    """Make a share of a problem, cut in some way; with a vector `kept` if its places are known."""
    opened = []

    def make(order=3, *, parts=3, threads=2, slab_mode=None, streamed=False, **options):
        dense = dense_problem(order)
        store = store_of(dense.mask, dense.values, parts=parts, slab_mode=slab_mode)
        if streamed:
            options |= {"block_entries": 20, "directory": str(tmp_path)}
        opened.append(share_of(store, threads, **options))
        kept = np.sin(np.arange(dense.mask.size)).reshape(dense.mask.shape)
        put_on_share(opened[-1], "kept", kept)
        return opened[-1]

    yield make
    for share in opened:
        share.close()


@pytest.mark.parametrize("streamed", [False, True])
def test_blocks_together_are_the_store_less_an_offset_in_the_precision_asked_for(
    streamed, share_with
):
    share = share_with(streamed=streamed, offset=2.5, precision="float32")
    store = share.assignment.store
    for number in range(len(store.partitions)):
        columns, values = store.read_partition(number)
        found = partition_vector(share, number, "values")
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, (values - 2.5).astype(np.float32))
        np.testing.assert_array_equal(partition_columns(share, number), columns)
    assert {block.fresh("r").dtype for block in share.opened()} == {np.dtype("float32")}


@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
def test_held_out_entries_each_go_to_one_block(pieces, store_of):
    dense = dense_problem(3, fraction=0.2, seed=5)
    dense.mask[[0, 3, 7]] = False  # slices without observations, at both ends too
    held = ~dense.mask
    store = store_of(dense.mask, dense.values, parts=2, slab_mode=0)
    validation = store_of(held, np.ones(held.shape), slab_mode=2)
    share = share_of(store, pieces, validation=validation)
    places = np.concatenate([np.stack(block.queries) for block in share.opened()], axis=1)
    assert places.shape[1] == len(np.unique(places, axis=1).T) == held.sum()
    share.close()


def test_a_slice_that_is_too_long_for_streaming_is_refused_with_its_length(store_of):
    mask = np.zeros((4, 10, 10), dtype=bool)
    mask[0, 0, :5] = mask[1] = True
    store = store_of(mask, np.ones(mask.shape), slab_mode=0)
    with pytest.raises(MemoryBudgetExceeded, match=r"\b100 observations.*blocks of 20\b"):
        share_of(store, block_entries=20)


# ---- rounds -------------------------------------------------------------------------------------


class Rounds(Program):
    """Rounds are asked for one by one: nobody has to know how many there are."""

    def rounds(self):
        raise NotImplementedError

    def begin(self, block, total):
        block.fresh("calls")[:] = 1.0
        return self.add(block, total)

    def add(self, block, total):
        calls = block.changing("calls")
        calls += 1.0
        return (float(calls.sum()) + (0.0 if total is None else total[0]),)


BEGIN, ADD = Sweep(Rounds.begin), Sweep(Rounds.add)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("made", "asked"),
    [
        ([(1, 0)], (1, 0)),
        ([(1, 0), (1, 1)], (1, 1)),
        ([(1, 0), (1, 1)], (1, 0)),
        ([(1, 0)], (1, 2)),
        ([(1, 0)], (0, 0)),
        ([(1, 0), (5, 0)], (1, 1)),
        ([], (0, 1)),
    ],
)
def test_a_round_that_does_not_follow_the_last_one_is_lost_state(made, asked, streamed, share_with):
    share, program = share_with(streamed=streamed), Rounds()
    for run, number in made:
        share.sweep(run, number, program, BEGIN if number == 0 else ADD)
    with pytest.raises(StateLost):
        share.sweep(*asked, program, ADD)
    # The next run is not affected.
    share.sweep(9, 0, program, BEGIN)
    assert share.sweep(9, 1, program, ADD) == (3.0 * share.assignment.store.nnz,)


@pytest.mark.parametrize("streamed", [False, True])
def test_vectors_are_dropped_when_a_run_begins(streamed, share_with):
    share, program = share_with(streamed=streamed), Rounds()
    share.sweep(0, 0, program, BEGIN)
    share.sweep(1, 0, program, ADD)
    with pytest.raises(StateLost, match="calls"):
        share.sweep(2, 0, program, ADD, ("calls",))


@pytest.mark.parametrize("streamed", [False, True])
def test_sums_are_added_in_one_order_to_the_last_bit(streamed, share_with):
    share = share_with(threads=3, streamed=streamed)
    share.sweep(0, 0, Rounds(), BEGIN)
    sums = {share.sweep(run, 0, SumKept(), Sweep(SumKept.step)) for run in range(1, 20)}
    assert len(sums) == 1


class SumKept(OneRound):
    def step(self, block, total):
        return (float(block.vector("kept").sum()) + (0.0 if total is None else total[0]),)


@dataclass(frozen=True)
class Held(OneRound):
    """Its steps wait until they are let go; one of them fails first, if any is to."""

    began: threading.Semaphore
    go_on: threading.Event
    failing: list

    def step(self, block, total):
        self.began.release()
        if self.failing:
            self.failing.pop()
            raise ArithmeticError("one thread fails")
        assert self.go_on.wait(60)
        return (1.0,)


@pytest.mark.parametrize("fails", [False, True])
def test_a_round_is_over_only_when_all_threads_are_and_so_is_closing(fails, share_with):
    share = share_with(threads=3)
    program = Held(threading.Semaphore(0), threading.Event(), [None] * fails)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(share.sweep, 0, 0, program, Sweep(Held.step))
        for _ in range(3):
            assert program.began.acquire(timeout=60)
        closed = pool.submit(share.close)
        time.sleep(0.05)  # in which neither may end
        assert not answer.done()
        assert not closed.done()
        program.go_on.set()
        closed.result(timeout=60)
        if fails:
            with pytest.raises(ArithmeticError):
                answer.result(timeout=60)
        else:
            assert answer.result(timeout=60) == (3.0,)
    with pytest.raises(StateLost):
        share.sweep(1, 0, program, Sweep(Held.step))


# ---- other entries ------------------------------------------------------------------------------


def entries(share, name="kept"):
    """Places (entries, K) in the order in which they are held, and a vector there."""
    numbers = share.assignment.partitions
    places = [np.stack(partition_columns(share, number), axis=1) for number in numbers]
    return np.concatenate(places), np.concatenate(
        [partition_vector(share, number, name) for number in numbers]
    )


def extra_of(share):
    return np.concatenate([partition_extra(share, n) for n in share.assignment.partitions])


def change(share, added=None, leaving=None):
    """Add places (entries, K), and leave out those where a tensor of truth values is true."""
    mode = share.assignment.store.slab_mode

    def changed(block):
        keep = None if leaving is None else ~leaving[block.columns]
        if added is None:
            return resupported(block, mode, keep, None)
        low, high = block.slices
        inside = (added[:, mode] >= low) & (added[:, mode] < high)
        return resupported(block, mode, keep, tuple(added[inside].T))

    return share.change_support(changed)


def others(share, fraction=0.3, seed=5):
    """Places that the store does not hold, in any order."""
    held = np.zeros(share.assignment.store.shape, dtype=bool)
    held[tuple(entries(share, "values")[0].T)] = True
    rng = np.random.default_rng(seed)
    return rng.permutation(np.argwhere(~held & (rng.random(held.shape) < fraction)))


CUTS = [
    {"parts": 1, "threads": 1},
    {"parts": 1, "threads": 4},
    {"parts": 3, "threads": 1},
    {"parts": 3, "threads": 2, "streamed": True},
]


@pytest.mark.parametrize("slab_mode", [0, 1, 2])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_vectors_keep_their_numbers_and_are_zero_where_an_entry_is_new(
    slab_mode, precision, share_with
):
    share = share_with(slab_mode=slab_mode, precision=precision)
    before, kept = entries(share)
    values = entries(share, "values")[1]
    added = others(share)
    assert change(share, added) == len(added)
    extra, (places, _) = extra_of(share), entries(share)
    np.testing.assert_array_equal(places[~extra], before)
    assert sorted(map(tuple, places[extra])) == sorted(map(tuple, added))
    for name, wanted in (("kept", kept), ("values", values)):
        vector = entries(share, name)[1]
        assert vector.dtype == precision
        np.testing.assert_array_equal(vector[~extra], wanted)
        assert not vector[extra].any()
    # Within a slice the store's entries come first, then the others by their indices.
    assert (np.diff(places[:, slab_mode]) >= 0).all()
    for row in range(share.assignment.store.shape[slab_mode]):
        inside = places[:, slab_mode] == row
        assert (np.diff(extra[inside].astype(int)) >= 0).all()
        new = list(map(tuple, places[inside & extra]))
        assert new == sorted(new)


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_does_not_tell_when_an_entry_was_added_or_how_blocks_are_cut(order, share_with):
    found = []
    for number, cut in enumerate(CUTS):
        share = share_with(order, **cut)
        assert len(share.blocks) >= cut["threads"]
        added = np.random.default_rng(number).permutation(others(share))
        for batch in np.array_split(added, number + 1):
            change(share, batch)
        shape = share.assignment.store.shape
        put_on_share(share, "after", np.cos(np.arange(np.prod(shape))).reshape(shape))
        found.append((*entries(share), entries(share, "after")[1]))
    for one in found[1:]:
        for part, wanted in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_an_entry_that_was_removed_and_added_again_is_where_it_was_but_forgotten(cut, share_with):
    share = share_with(**cut)
    added = others(share)
    change(share, added)
    put_on_share(share, "kept", np.ones(share.assignment.store.shape))
    before = entries(share)
    assert change(share) == len(added)  # a change of nothing changes nothing
    for one, other in zip(entries(share), before, strict=True):
        np.testing.assert_array_equal(one, other)
    leaving = np.zeros(share.assignment.store.shape, dtype=bool)
    leaving[tuple(added[::2].T)] = True
    assert change(share, leaving=leaving) == len(added) - leaving.sum()
    places, vector = entries(share)
    assert not leaving[tuple(places.T)].any()
    assert vector.all()
    change(share, added[::2])
    places, vector = entries(share)
    np.testing.assert_array_equal(places, before[0])
    np.testing.assert_array_equal(vector, np.where(leaving[tuple(places.T)], 0.0, 1.0))


def scratch_bytes(directory):
    """The sizes of files without a name that this process has open in a directory."""
    sizes = 0
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{number}"
        if os.path.islink(link) and os.readlink(link).startswith(f"{directory}/#"):
            sizes += os.stat(link).st_size
    return sizes


def test_scratch_files_do_not_grow_with_every_change_of_entries(share_with, tmp_path):
    share = share_with(streamed=True)
    change(share, others(share, fraction=0.5))
    most = scratch_bytes(tmp_path)
    assert most > 0
    mask = np.zeros(share.assignment.store.shape, dtype=bool)
    rng = np.random.default_rng(0)
    for _ in range(30):
        leaving = rng.random(mask.shape) < 0.3
        leaving[tuple(entries(share)[0][~extra_of(share)].T)] = False
        change(share, leaving=leaving)
        change(share, others(share, fraction=0.2, seed=rng))
    assert scratch_bytes(tmp_path) <= 2 * most


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_products_on_other_entries_are_the_dense_ones(order, streamed, store_of, tmp_path):
    shape = SHAPES[order]
    dense = random_problem(shape, (2,) * order, fraction=0.1)
    store = store_of(dense.mask, dense.values, parts=2)
    rng = np.random.default_rng(2)
    point, x = dense.manifold.random_point(rng), rng.standard_normal(shape)
    options = {"block_entries": 20, "directory": str(tmp_path)} if streamed else {}
    operator = Operator.of(terms_of(dense.lambdas), point, store.slab_mode)
    program = ConjugateGradients(operator, 0.1, "x", np.inf, 0, start="start")
    with local_engine(store, 2, **options) as engine:
        held = dense.mask.copy()

        def check():
            """r = y − A x on the entries held, which are the ones that should be."""
            engine.on_shares(put_on_share, "start", x)
            with pytest.raises(StateLost):
                engine.run(program)  # fibres have no numbers yet
            number_fibres(engine)
            engine.run(program)
            ((places, r),) = engine.on_shares(entries, "r")
            assert sorted(map(tuple, places)) == sorted(map(tuple, np.argwhere(held)))
            X = np.where(held, x, 0.0)
            image = 0.1 * X
            for mode, (U, weight) in enumerate(zip(point, dense.lambdas, strict=True)):
                image += weight * mode_product(X, U @ U.T, mode)
            np.testing.assert_allclose(r, (dense.values - image)[tuple(places.T)], atol=1e-12)

        (added,) = engine.on_shares(others, 0.1)
        assert len(added) > 3
        engine.on_shares(change, added)
        held[tuple(added.T)] = True
        engine.on_shares(put_on_share, "start", x)
        check()
        leaving = np.zeros(shape, dtype=bool)
        leaving[tuple(added[::2].T)] = True
        engine.on_shares(change, None, leaving)
        held &= ~leaving
        check()
