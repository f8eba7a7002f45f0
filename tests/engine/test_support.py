"""A block on other entries keeps what it held, in an order that does not tell how it came about."""

from __future__ import annotations

import numpy as np
import pytest
from slrt_dask.dual.inner import ConjugateGradient
from slrt_dask.engine.assignment import Assignment, Streaming
from slrt_dask.engine.file_block import FileBlock
from slrt_dask.engine.local import LocalEngine
from slrt_dask.engine.resting import MemoryBlock
from slrt_dask.engine.support import resupported

from slrt_dask.dual.operator import Factors
from slrt_dask.engine import prepare
from slrt_dask.engine.share import Share
from slrt_dask.errors import StateLost
from slrt_dask.kernels import sweeps
from tests.engine.helpers import SHAPES, dense_problem
from tests.oracles.dense import mode_product, random_problem


@pytest.fixture
def share_of(store_of, tmp_path, monkeypatch):
    """Make a share of a problem, cut in some way."""
    monkeypatch.setattr("slrt_dask.engine.assignment.SMALLEST_BLOCK", 2)
    opened = []

    def make(order=3, *, parts=1, threads=1, streamed=False, slab_mode=None, precision="float64"):
        dense = dense_problem(order)
        store = store_of(dense.mask, dense.values, parts=parts, slab_mode=slab_mode)
        streaming = Streaming(20, str(tmp_path)) if streamed else None
        numbers = tuple(range(len(store.partitions)))
        share = Share(Assignment(store, numbers, threads, precision, streaming=streaming))
        opened.append(share)
        put(share, "kept", np.sin(np.arange(dense.mask.size)).reshape(dense.mask.shape))
        return share

    yield make
    for share in opened:
        share.close()


def put(share, name, tensor):
    """Set a vector from a tensor, entries beyond the store's included."""
    for number in share.assignment.partitions:
        share.put_partition_vector(number, name, tensor[tuple(share.partition_columns(number))])


def entries(share, name="kept"):
    """Places (entries, K) in the order in which they are held, and a vector there."""
    numbers = share.assignment.partitions
    places = [np.stack(share.partition_columns(number), axis=1) for number in numbers]
    vectors = [share.partition_vector(number, name) for number in numbers]
    return np.concatenate(places), np.concatenate(vectors)


def add(share, places):
    """Add those places (entries, K) that lie in each block's slices, in the order given."""
    mode = share.assignment.store.slab_mode

    def change(contents, found):
        low, high = contents.block.slices
        inside = (places[:, mode] >= low) & (places[:, mode] < high)
        return None, tuple(places[inside].T)

    share.change_support(change)


def remove(share, tensor):
    """Leave out the entries at which a tensor of truth values is true."""
    share.change_support(lambda contents, found: (~tensor[contents.block.columns], None))


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
    slab_mode, precision, share_of
):
    share = share_of(slab_mode=slab_mode, precision=precision)
    before, kept = entries(share)
    values = entries(share, "values")[1]
    added = others(share)
    contents = share.blocks[0].contents()
    block, extra = resupported(contents, slab_mode, None, tuple(added.T))
    assert block.entries == len(before) + len(added)
    assert extra.sum() == len(added)
    places = np.stack(block.columns, axis=1)
    np.testing.assert_array_equal(places[~extra], before)
    assert sorted(map(tuple, places[extra])) == sorted(map(tuple, added))
    for name, wanted in (("kept", kept), ("values", values)):
        vector = block.vector(name)
        assert vector.dtype == precision
        np.testing.assert_array_equal(vector[~extra], wanted)
        assert not vector[extra].any()
    assert (np.diff(block.columns[slab_mode].astype(np.int64)) >= 0).all()
    assert (block.partition, block.position, block.slices) == (
        contents.block.partition, contents.block.position, contents.block.slices,
    )  # fmt: skip
    assert [column.dtype for column in block.columns] == [
        column.dtype for column in contents.block.columns
    ]


def test_within_a_slice_the_stores_entries_come_first_then_the_others_by_index(share_of):
    share = share_of()
    add(share, others(share))
    contents = share.blocks[0].contents()
    places, mode = np.stack(contents.block.columns, axis=1), share.assignment.store.slab_mode
    for row in range(share.assignment.store.shape[mode]):
        inside = places[:, mode] == row
        extra = contents.extra[inside]
        assert (np.diff(extra.astype(int)) >= 0).all()
        new = list(map(tuple, places[inside][extra]))
        assert len(new) > 1
        assert new == sorted(new)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_order_does_not_tell_when_an_entry_was_added_or_how_blocks_are_cut(order, share_of):
    found = []
    for number, cut in enumerate(CUTS):
        share = share_of(order, **cut)
        assert len(share.blocks) >= max(cut["parts"], cut["threads"])
        added = np.random.default_rng(number).permutation(others(share))
        for batch in np.array_split(added, number + 1):
            add(share, batch)
        put(share, "after", np.cos(np.arange(np.prod(share.assignment.store.shape))).reshape(
            share.assignment.store.shape))  # fmt: skip
        found.append((*entries(share), entries(share, "after")[1]))
    for one in found[1:]:
        for part, wanted in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_an_entry_that_was_removed_and_added_again_is_where_it_was_but_forgotten(cut, share_of):
    share = share_of(**cut)
    added = others(share)
    add(share, added)
    put(share, "kept", np.ones(share.assignment.store.shape))
    before, _ = entries(share)
    leaving = np.zeros(share.assignment.store.shape, dtype=bool)
    leaving[tuple(added[::2].T)] = True
    remove(share, leaving)
    places, vector = entries(share)
    assert len(places) == len(before) - leaving.sum()
    assert not leaving[tuple(places.T)].any()
    assert vector.all()
    add(share, added[::2])
    places, vector = entries(share)
    np.testing.assert_array_equal(places, before)
    np.testing.assert_array_equal(vector, np.where(leaving[tuple(before.T)], 0.0, 1.0))
    number = share.assignment.partitions[0]
    extra = np.stack(share.partition_columns(number, extra=True), axis=1)
    assert set(map(tuple, extra)) <= set(map(tuple, added))


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_change_of_nothing_changes_nothing(cut, share_of):
    share = share_of(**cut)
    before = entries(share)
    share.change_support(lambda contents, found: (None, None))
    for one, other in zip(entries(share), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_files_of_blocks_that_were_made_anew_are_removed(share_of, tmp_path):
    share = share_of(parts=2, streamed=True)
    assert all(isinstance(block, FileBlock) for block in share.blocks)
    (scratch,) = tmp_path.iterdir()
    for _ in range(3):
        add(share, others(share, fraction=0.05))
        assert len([path for path in scratch.iterdir() if path.is_dir()]) == len(share.blocks)


@pytest.mark.parametrize("streamed", [False, True])
def test_blocks_have_to_be_numbered_again(streamed, share_of):
    share = share_of(parts=2, streamed=streamed)
    kind = FileBlock if streamed else MemoryBlock
    assert all(isinstance(block, kind) for block in share.blocks)
    store = share.assignment.store
    add(share, others(share))
    point = dense_problem(3).manifold.random_point(np.random.default_rng(0))
    program = ConjugateGradient(
        Factors.of(point), (1.0,) * 3, store.slab_mode, 0.1, "x", None, None, 0.0, 0
    )
    with pytest.raises(StateLost, match="not numbered"):
        share.contribute(program, program.first())


@pytest.mark.parametrize(("every_fibre", "tiles"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_products_on_other_entries_are_the_dense_ones(
    order, streamed, every_fibre, tiles, store_of, tmp_path, monkeypatch
):
    if not every_fibre:
        monkeypatch.setattr(prepare, "GENEROUS_FIBRES", 0)
    if tiles:
        for name in ("apply_slices", "apply_runs"):
            monkeypatch.setattr(sweeps, name, None)  # which nobody must need
    shape = SHAPES[order]
    dense = random_problem(shape, (2,) * order, fraction=0.1)
    store = store_of(dense.mask, dense.values, parts=2)
    rng = np.random.default_rng(2)
    point, x = dense.manifold.random_point(rng), rng.standard_normal(shape)
    streaming = Streaming(20, str(tmp_path)) if streamed else None
    with LocalEngine(store, threads=2, streaming=streaming, tiles=tiles) as engine:
        share = engine._share
        held = dense.mask.copy()

        def check():
            """r = y − A x on the entries held, which are the ones that should be."""
            engine.number_fibres()
            put(share, "start", x)
            program = ConjugateGradient(
                Factors.of(point), dense.lambdas, store.slab_mode, 0.1, "x", "start", None, 0.0, 0
            )
            engine.run(program)
            places, r = entries(share, "r")
            assert sorted(map(tuple, places)) == sorted(map(tuple, np.argwhere(held)))
            X = np.where(held, x, 0.0)
            image = 0.1 * X
            for mode, (U, weight) in enumerate(zip(point, dense.lambdas, strict=True)):
                image += weight * mode_product(X, U @ U.T, mode)
            np.testing.assert_allclose(r, (dense.values - image)[tuple(places.T)], atol=1e-12)

        added = others(share, fraction=0.1)
        assert len(added) > 3
        add(share, added)
        held[tuple(added.T)] = True
        check()
        leaving = np.zeros(shape, dtype=bool)
        leaving[tuple(added[::2].T)] = True
        remove(share, leaving)
        held &= ~leaving
        check()
