"""Fibre sums of models are read piece by piece, as they are needed, and never altered ones."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slrt_dask as slrt
from slrt_dask import completed_chunks, model_reads, sums_reads
from slrt_dask.dual import writing
from slrt_dask.errors import StoreCorrupt
from tests.oracles.dense import random_problem

ROWS = 3
"""Of a piece."""
CASES = {
    "order 2": ((14, 11), (3, 2), {}),
    "order 3": ((12, 6, 5), (3, 2, 1), {}),
    "order 4": ((7, 4, 3, 4), (3, 2, 1, 2), {}),
    "known fibres": ((12, 6, 5), (3, 2, 1), {"fraction": 0.08}),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def done(request, store_of, tmp_path_factory):
    shape, ranks, options = request.param
    fraction = options.get("fraction", 0.3)
    dense = random_problem(shape, ranks, C=5.0, fraction=fraction, seed=1)
    store = store_of(dense.mask, dense.values, parts=2, slab_mode=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "CHUNK_BYTES", ROWS * 8 * ranks[0])
        if fraction < 0.1:
            patch.setattr("slrt_dask.engine.prepare.GENEROUS_FIBRES", 0)
        run = tmp_path_factory.mktemp("run") / "run"
        yield slrt.complete(store, ranks, C=5.0, max_iterations=1, run_directory=run)


@pytest.fixture
def reads(monkeypatch):
    """The rows of sums that were read, of which only the last piece is kept."""
    found = []

    def counted(group, name, first=0, stop=None):
        found.append((first, stop))
        return writing.read_rows(group, name, first, stop)

    monkeypatch.setattr(sums_reads, "read_rows", counted)
    monkeypatch.setattr(sums_reads, "KEPT_PART", 2**62)
    monkeypatch.setattr(sums_reads.PIECES, "most_bytes", 0)
    return found


@pytest.fixture
def opened(done, reads):
    """The model, of which nothing has been read yet; one thread looks at it."""
    model_reads.forget(done.path, done.header.digest)
    with dask.config.set(scheduler="synchronous"):
        yield model_reads.opened_model(done.path, done.header.digest).model
    model_reads.forget(done.path, done.header.digest)


def whole_sums(done):
    name = writing.SUMS_ARRAY
    return writing.read_array(f"{done.path}/model", name, done.header.checksums[name])


def test_any_rows_are_those_of_the_whole_and_zero_beyond(done, opened, reads):
    sums = whole_sums(done)
    assert opened.numbering.count == len(sums) > 3 * ROWS
    numbers = np.random.default_rng(0).integers(0, len(sums) + 1, 50, dtype=np.int32)
    numbers[:2] = len(sums), 0
    found = opened.sums_at(numbers)
    wanted = np.vstack([sums, np.zeros_like(sums[:1])])[numbers]
    np.testing.assert_array_equal(found[:, : sums.shape[1]], wanted)
    assert not found[:, sums.shape[1] :].any()
    assert opened.sums_at(numbers[:0]).shape == (0, found.shape[1])
    assert max(stop - first for first, stop in reads) <= ROWS


def test_only_pieces_that_are_needed_are_read_once_all_were_checked(done, opened, reads):
    count = opened.numbering.count
    opened.sums_at(np.array([0]))
    assert sorted(reads[: -(-count // ROWS)]) == [
        (first, min(first + ROWS, count)) for first in range(0, count, ROWS)
    ]
    reads.clear()
    opened.sums_at(np.array([ROWS, ROWS + 1, count]))
    assert reads == [(ROWS, 2 * ROWS)]
    assert sums_reads.PIECES.nbytes <= ROWS * 8 * done.ranks[0]


def test_predictions_and_chunks_do_not_depend_on_what_is_kept(done, opened, reads, monkeypatch):
    places = np.indices(done.shape).reshape(len(done.shape), -1)
    found, whole = done.predict(places), done.to_dask((2,) * len(done.shape)).compute()
    monkeypatch.setattr(sums_reads.PIECES, "most_bytes", 2**20)
    model_reads.forget(done.path, done.header.digest)
    np.testing.assert_array_equal(done.predict(places), found)
    reads.clear()
    np.testing.assert_array_equal(done.to_dask((2,) * len(done.shape)).compute(), whole)
    assert not reads
    np.testing.assert_allclose(found.reshape(done.shape), whole, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("checked", [False, True], ids=["before the first look", "afterwards"])
def test_a_number_that_is_altered_is_noticed(checked, done, reads, tmp_path):
    copy = shutil.copytree(done.path, tmp_path / "copy")
    model = model_reads.opened_model(str(copy), done.header.digest).model
    if checked:
        model.sums_at(np.array([0, model.numbering.count - 1]))
    import zarr

    zarr.open_array(Path(copy, "model", writing.SUMS_ARRAY), mode="r+")[1] += 1.0
    with pytest.raises(StoreCorrupt, match="fibre_sums was altered"):
        model.sums_at(np.array([1]))
    model_reads.forget(str(copy), done.header.digest)


@given(
    st.lists(st.integers(1, 5000), min_size=2, max_size=5).map(tuple), st.data(),
    st.integers(1, 64),
)  # fmt: skip
def test_default_chunks_and_their_sums_are_bounded(shape, data, width):
    slab = data.draw(st.integers(0, len(shape) - 1))
    sizes = completed_chunks.chunk_sizes(shape, slab, width)
    assert all(1 <= size <= length for size, length in zip(sizes, shape, strict=True))
    cells = math.prod(sizes)
    assert 8 * cells <= completed_chunks.CHUNK_BYTES
    assert 8 * width * (cells // sizes[slab]) <= completed_chunks.SUMS_BYTES
    if 8 * width * (math.prod(shape) // shape[slab]) <= completed_chunks.SUMS_BYTES:
        others = [k for k in range(len(shape)) if k != slab]
        whole = math.prod(shape[k] for k in others) <= completed_chunks.CHUNK_BYTES // 8
        assert not whole or all(sizes[k] == shape[k] for k in others)
