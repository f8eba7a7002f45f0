"""Laws of cutting and placing partitions, and of rounds that are repeated or out of order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slrt_dask.engine.assignment import Assignment, cut_at_slices
from slrt_dask.engine.placement import Place, assign_partitions

from slrt_dask.engine.program import Finished, Program, run_rounds
from slrt_dask.engine.share import Share
from slrt_dask.errors import StateLost
from tests.engine.helpers import dense_problem

slabs = st.lists(st.integers(0, 12), min_size=1, max_size=60).map(
    lambda rows: np.array(sorted(rows))
)


@settings(max_examples=150, deadline=None)
@given(slabs, st.integers(1, 9))
def test_cuts_cover_everything_once_in_whole_slices(slab, pieces):
    cuts = cut_at_slices(slab, pieces)
    assert 1 <= len(cuts) <= pieces
    assert cuts[0][0] == 0
    assert cuts[-1][1] == len(slab)
    for (_, stop), (first, _) in itertools.pairwise(cuts):
        assert stop == first
        assert slab[stop - 1] < slab[first]
    assert all(first < stop for first, stop in cuts)


@settings(max_examples=100, deadline=None)
@given(slabs, st.integers(1, 9))
def test_a_cut_piece_exceeds_its_share_by_less_than_the_longest_slice(slab, pieces):
    longest = int(np.bincount(slab).max())
    for first, stop in cut_at_slices(slab, pieces):
        assert stop - first <= len(slab) / pieces + 1 + longest


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
    assert sorted(number for part in assigned for number in part) == list(range(len(counts)))
    assert all(list(part) == sorted(part) for part in assigned)
    # A worker's last partition went where it hurt least, so its load per thread is near the mean.
    most = (sum(counts) + (len(threads) - 1) * max(counts)) / sum(threads)
    for part, own in zip(assigned, threads, strict=True):
        assert sum(counts[number] for number in part) / own <= most + 1e-9


def test_equal_workers_with_equal_partitions_get_equally_many():
    for partitions, threads, wanted in [(12, [2, 2, 2], [4, 4, 4]), (9, [1, 2], [3, 6])]:
        assigned = assign_partitions([5] * partitions, places_with(threads))
        assert [len(part) for part in assigned] == wanted


@dataclass(frozen=True)
class CountUp(Program):
    """Adds up how often its step was called on each block, three rounds long."""

    def first(self):
        return 0

    def step(self, block, message, total):
        if message == "fail":
            raise ValueError("a step that cannot be done")
        calls = block.fresh("calls") if message == 0 else block.changing("calls")
        calls[:] = 1.0 if message == 0 else calls + 1.0
        before = total or (0.0, 0)
        return (before[0] + float(calls[0]), before[1] + block.entries)

    def advance(self, message, total):
        return Finished(total) if message == 2 else message + 1


@pytest.fixture
def held(store_of):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values, parts=3)
    share = Share(Assignment(store, tuple(range(len(store.partitions))), threads=2))
    yield share
    share.close()


@pytest.mark.parametrize("run", [0, 3])
def test_a_run_that_was_made_before_is_refused(held, run):
    held.begin(3)
    with pytest.raises(StateLost, match=f"run {run} was asked for after run 3"):
        held.begin(run)


def test_a_run_is_over_when_another_begins(held):
    program = CountUp()
    held.begin(1)
    first = held.contribute_to(1, program, 0)
    held.begin(5)
    with pytest.raises(StateLost, match="run 1 was given up for run 5"):
        held.contribute_to(1, program, 1)
    assert held.contribute_to(5, program, 0)[1] == first[1]


def test_vectors_are_dropped_when_a_run_begins(held):
    held.begin(1)
    held.contribute_to(1, CountUp(), 0)
    before = {name for block in held.blocks for name in block.block.vectors.names}
    held.begin(2, tuple(before - {"values"}))
    assert {name for block in held.blocks for name in block.block.vectors.names} == {"values"}


def test_a_round_that_failed_can_be_asked_for_again(held):
    program = CountUp()
    held.begin(1)
    held.contribute_to(1, program, 0)
    with pytest.raises(ValueError, match="cannot be done"):
        held.contribute_to(1, program, "fail")
    assert held.contribute_to(1, program, 1)[1] == held.assignment.store.nnz


def test_rounds_go_on_until_a_program_is_finished(held):
    total = run_rounds(CountUp(), held.contribute)
    assert total == (3.0 * len(held.blocks), held.assignment.store.nnz)


def test_blocks_together_are_the_store(held):
    store = held.assignment.store
    for number in range(len(store.partitions)):
        columns, values = store.read_partition(number)
        blocks = [resting.block for resting in held.blocks if resting.partition == number]
        np.testing.assert_array_equal(held.partition_vector(number, "values"), values)
        for mode, column in enumerate(columns):
            found = np.concatenate([block.columns[mode] for block in blocks])
            np.testing.assert_array_equal(found, column)


def test_an_offset_is_taken_from_every_value_and_precision_is_kept(store_of):
    dense = dense_problem(3)
    store = store_of(dense.mask, dense.values)
    share = Share(Assignment(store, (0,), 1, precision="float32", offset=2.5))
    wanted = (store.read_partition(0)[1] - 2.5).astype(np.float32)
    np.testing.assert_array_equal(share.partition_vector(0, "values"), wanted)
    assert share.blocks[0].block.fresh("r").dtype == np.float32
    share.close()


@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
def test_held_out_entries_each_go_to_one_block(pieces, store_of, monkeypatch):
    monkeypatch.setattr("slrt_dask.engine.assignment.SMALLEST_BLOCK", 1)
    dense = dense_problem(3, fraction=0.2, seed=5)
    dense.mask[[0, 3, 7]] = False  # slices without observations, at both ends too
    held = ~dense.mask
    store = store_of(dense.mask, dense.values, parts=2, slab_mode=0)
    validation = store_of(held, np.ones(held.shape), slab_mode=2)
    share = Share(
        Assignment(store, tuple(range(len(store.partitions))), pieces, validation=validation)
    )
    places = np.concatenate([np.stack(resting.block.queries) for resting in share.blocks], axis=1)
    assert places.shape[1] == held.sum()
    assert len(np.unique(places, axis=1).T) == held.sum()
    share.close()
