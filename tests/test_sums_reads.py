"""Fibre sums of models are read piece by piece, as they are needed, and never altered ones."""

from __future__ import annotations

import json
import math
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import dask
import distributed
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import slrt_dask as slrt
from slrt_dask import completed_chunks, model_reads, sums_reads
from slrt_dask.dual import writing
from slrt_dask.engine.plan import RUNTIME_BYTES
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
            patch.setattr("slrt_dask.dual.numbering.GENEROUS_FIBRES", 0)
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
        sums_reads.forget(str(copy), done.header.digest)  # as if others had taken the room
    zarr.open_array(Path(copy, "model", writing.SUMS_ARRAY), mode="r+")[1] += 1.0
    with pytest.raises(StoreCorrupt, match="fibre_sums was altered"):
        model.sums_at(np.array([1]))
    model_reads.forget(str(copy), done.header.digest)


def test_a_check_that_was_broken_off_leaves_nothing_that_is_believed(done, reads, tmp_path):
    """What was read in it may have been altered, and put right again before the next one."""
    copy = shutil.copytree(done.path, tmp_path / "copy")
    model = model_reads.opened_model(str(copy), done.header.digest).model
    everything = np.arange(model.numbering.count)
    place = copy / "model" / writing.SUMS_ARRAY / "c"
    first, last = place / "0" / "0", place / str((len(everything) - 1) // ROWS) / "0"
    kept = first.read_bytes(), last.read_bytes()
    sums_reads.PIECES.most_bytes = 2**20
    first.unlink()
    last.write_bytes(kept[1][:5])
    with pytest.raises(StoreCorrupt, match="fibre_sums"):
        model.sums_at(everything)
    first.write_bytes(kept[0])
    last.write_bytes(kept[1])
    found = model.sums_at(everything)
    np.testing.assert_array_equal(found[:, : done.ranks[0]], whole_sums(done))
    model_reads.forget(str(copy), done.header.digest)


@pytest.mark.parametrize("shape", [(4, None), (None, 1), (None, None, 1)], ids=str)
def test_an_altered_shape_is_noticed_before_anything_is_read(shape, done, reads, tmp_path):
    copy = shutil.copytree(done.path, tmp_path / "copy")
    file = copy / "model" / writing.SUMS_ARRAY / "zarr.json"
    metadata = json.loads(file.read_text())
    known = (*metadata["shape"], None)
    metadata["shape"] = [new or old for new, old in zip(shape, known, strict=False)]
    file.write_text(json.dumps(metadata))
    with pytest.raises(StoreCorrupt, match="fibre_sums was"):
        model_reads.opened_model(str(copy), done.header.digest)


def test_threads_check_once_and_read_each_piece_once(done, opened, reads, monkeypatch):
    monkeypatch.setattr(sums_reads.PIECES, "most_bytes", 2**20)
    numbers, wanted = np.arange(opened.numbering.count), whole_sums(done)
    together = threading.Barrier(6)

    def ask():
        together.wait()
        return opened.sums_at(numbers)

    with ThreadPoolExecutor(6) as pool:
        answers = [asked.result() for asked in [pool.submit(ask) for _ in range(6)]]
    for found in answers:
        np.testing.assert_array_equal(found[:, : done.ranks[0]], wanted)
    assert len(reads) == len(set(reads)) == -(-len(numbers) // ROWS)


def test_what_is_kept_comes_first(done, opened, reads):
    """Or nothing that is kept would still be there when its turn comes."""
    numbers = np.arange(opened.numbering.count)
    opened.sums_at(numbers)
    reads.clear()
    opened.sums_at(numbers)
    assert len(reads) == -(-len(numbers) // ROWS) - 1


def test_the_room_follows_what_the_process_may_have(monkeypatch):
    monkeypatch.setattr(sums_reads, "MEMORY_LIMIT", 5 * 2**30)
    assert sums_reads._room() == (5 * 2**30 - 2 * RUNTIME_BYTES) // 4
    limited = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=2**30))
    monkeypatch.setattr(distributed, "get_worker", lambda: limited)
    assert sums_reads._room() == (2**30 - 2 * RUNTIME_BYTES) // 4
    limited.memory_manager.memory_limit = 2**20
    assert sums_reads._room() == 0
    limited.memory_manager.memory_limit = None
    assert sums_reads._room() == 0


def test_more_is_kept_where_there_is_room(done, opened, reads, monkeypatch):
    monkeypatch.setattr(sums_reads, "KEPT_PART", 1)
    opened.sums_at(np.arange(opened.numbering.count))
    assert model_reads.kept_bytes() >= sums_reads.PIECES.nbytes == whole_sums(done).nbytes


def test_a_fit_makes_room_for_itself(done, opened, store_of, monkeypatch):
    monkeypatch.setattr(sums_reads.PIECES, "most_bytes", 2**20)
    done.predict(np.zeros((len(done.shape), 1), dtype=int))
    assert model_reads.kept_bytes() > 0
    kept = []

    class Told:
        def on_record(self, record, state):
            kept.append(model_reads.kept_bytes())

    dense = random_problem((6, 5, 4), (2, 2, 1), C=1.0, fraction=0.5, seed=0)
    store = store_of(dense.mask, dense.values)
    slrt.complete(store, (2, 2, 1), max_iterations=0, C=1.0, threads=1, observers=[Told()])
    assert kept == [0]


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
        assert sizes == completed_chunks.chunk_sizes(shape, slab)


@pytest.mark.parametrize(
    ("shape", "runs"), [((5000, 4000, 1000), 1), ((5000, 1000, 4000), 1), ((1000,) * 4, 8)]
)
def test_the_sums_of_a_chunk_are_few_runs(shape, runs):
    """For sums are read in pieces of neighbours, and local ones are bounded as well."""
    sizes = completed_chunks.chunk_sizes(shape, 0, 10)
    assert math.prod(sizes) * 8 > completed_chunks.CHUNK_BYTES // 2
    # A run is as many neighbours as there are whole modes behind the last one that was cut.
    lengths = [size for size, whole in zip(sizes[1:], shape[1:], strict=True) if size < whole]
    assert math.prod(lengths[:-1]) == runs
    local = max(math.prod(sizes) // sizes[mode] for mode in range(1, len(shape)))
    assert 8 * 10 * local < 2 * completed_chunks.SUMS_BYTES


def test_chunks_that_need_no_sums_are_whole_slices(done, monkeypatch):
    monkeypatch.setattr(completed_chunks, "SUMS_BYTES", 8 * 4 * 3)
    assert done.to_dask().numblocks != (1,) * len(done.shape)
    assert done.support_map(0).numblocks == (1,) * len(done.shape)
    monkeypatch.setattr(completed_chunks, "SUMS_BYTES", 2**25)
    assert done.to_dask().numblocks == (1,) * len(done.shape)
