"""A completion answers for every entry, in every form, and never from altered files."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import slrt_dask as slrt
from slrt_dask.data.layout import read_header, read_partition
from slrt_dask.errors import InvalidInput, SlrtError, StoreCorrupt, StoreExists, StoreNotFound
from tests.oracles.dense import mode_product, random_problem

CASES = {
    "order 2": ((9, 8), (3, 2), False, {}),
    "order 3, centred": ((8, 6, 5), (3, 2, 2), True, {}),
    "order 4": ((7, 4, 3, 4), (2, 2, 1, 2), False, {}),
    "order 3, known fibres": ((8, 6, 5), (2, 2, 1), True, {"fraction": 0.06, "slab_mode": 2}),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def done(request, store_of, tmp_path_factory):
    shape, ranks, center, options = request.param
    fraction = options.get("fraction", 0.25)
    dense = random_problem(shape, ranks, C=5.0, fraction=fraction, seed=1)
    mask = dense.mask
    mask[-1] = False  # a slice that holds nothing, beyond the last partition
    store = store_of(mask, dense.values + 3.0, parts=3, slab_mode=options.get("slab_mode"))
    with pytest.MonkeyPatch.context() as patch:
        if fraction < 0.1:
            patch.setattr("slrt_dask.dual.numbering.GENEROUS_FIBRES", 0)
        yield slrt.complete(
            store, ranks, C=5.0, center=center, max_iterations=3,
            run_directory=tmp_path_factory.mktemp("run") / "run",
        )  # fmt: skip


@pytest.fixture(scope="module")
def plain(store_of, tmp_path_factory):
    """One small completion for the tests that need no particular one."""
    dense = random_problem((8, 6, 5), (3, 2, 1), C=5.0, fraction=0.3, seed=1)
    store = store_of(dense.mask, dense.values, parts=2)
    directory = tmp_path_factory.mktemp("run") / "run"
    return slrt.complete(store, (3, 2, 1), C=5.0, max_iterations=2, run_directory=directory)


def dual_tensor(done):
    Z = np.zeros(done.shape)
    header = read_header(f"{done.path}/dual")
    for number in range(len(header.partitions)):
        columns, values = read_partition(f"{done.path}/dual", header, number)
        Z[columns] = values
    return Z


KNOWN = {}


def dense_formula(done):
    """offset + Σ_k λ_k Z ×_k U_k U_kᵀ, everything formed; once for each completion."""
    if done.path not in KNOWN:
        KNOWN[done.path] = formed(done)
    return KNOWN[done.path]


def formed(done):
    Z = dual_tensor(done)
    parts = (
        weight * mode_product(Z, U @ U.T, mode)
        for mode, (U, weight) in enumerate(zip(done.factors, done.lambdas, strict=True))
    )
    return done.header.offset + sum(parts)


def everywhere(shape):
    return np.indices(shape).reshape(len(shape), -1)


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def test_predictions_are_the_dense_formula_in_any_order_and_company(done):
    places, wanted = everywhere(done.shape), dense_formula(done).reshape(-1)
    found = done.predict(places)
    close(found, wanted)
    chosen = np.random.default_rng(0).integers(0, places.shape[1], 40)  # with repetitions
    close(done.predict(places[:, chosen]), wanted[chosen])
    close(done.predict(places[:, chosen[:1]]), wanted[chosen[:1]])
    for given in (places.astype(np.uint8), tuple(places.astype(np.int32)), places.tolist()):
        np.testing.assert_array_equal(done.predict(given), found)
    assert done.predict(places[:, :0]).shape == (0,)


def test_a_place_of_which_nothing_was_observed_is_the_offset(done):
    observed = dual_tensor(done) != 0
    nothing = np.ones(done.shape, dtype=bool)
    for mode in range(observed.ndim):
        nothing &= ~observed.any(axis=mode, keepdims=True)
    assert nothing.any()
    assert (done.predict(np.array(np.nonzero(nothing))) == done.header.offset).all()


@pytest.mark.parametrize("seed", range(2))
def test_every_chunking_gives_the_same_tensor(done, seed):
    rng = np.random.default_rng(seed)
    chunks = tuple(int(rng.integers(2, length + 3)) for length in done.shape)
    lazy, whole = done.to_dask(chunks), dense_formula(done)
    assert (lazy.shape, lazy.dtype) == (done.shape, np.float64)
    close(lazy.compute(), whole)
    close(lazy[1:, ..., -1].compute(), whole[1:, ..., -1])


def test_all_exports_agree(done, tmp_path):
    whole = done.to_dask().compute()
    close(whole, dense_formula(done))
    written = done.to_zarr(tmp_path / "dense", chunks=(3,) * len(done.shape))
    close(np.asarray(zarr.open_array(tmp_path / "dense")[...]), whole)
    assert written.attrs["slrt"]["complete"] is True
    assert written.attrs["slrt"]["certificate"]["primal"] == done.certificate.primal
    np.testing.assert_array_equal(done.to_xarray().values, whole)


def test_what_workers_have_written_elsewhere_is_not_taken_for_an_export(plain, process_client):
    with process_client.as_current(), pytest.raises(InvalidInput, match="they do not see memory:"):
        plain.to_zarr("memory://unseen.zarr")
    with pytest.raises(FileNotFoundError):
        zarr.open_array("memory://unseen.zarr", mode="r")


def test_names_and_coordinates_of_the_input_come_back(tmp_path):
    xarray = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    values = rng.standard_normal((6, 5, 4))
    values[rng.random(values.shape) < 0.5] = np.nan
    labels = {"time": np.arange(5) * 10, "band": list("abcd")}
    array = xarray.DataArray(values, dims=("row", "time", "band"), coords=labels)
    store = slrt.from_array(tmp_path / "store", array)
    done = slrt.complete(store, (2, 2, 2), C=1.0, max_iterations=1, run_directory=tmp_path / "run")
    labelled = done.to_xarray()
    assert labelled.dims == ("row", "time", "band")
    np.testing.assert_array_equal(labelled["time"], labels["time"])
    np.testing.assert_array_equal(labelled["band"], labels["band"])
    assert labelled.attrs == done.header.described()


@pytest.mark.parametrize(
    ("indices", "named"),
    [
        ([[8], [0], [0]], "8 in mode 0"),
        ([[0], [-1], [0]], "-1 in mode 1"),
        (
            [[0, 0], [0, 0], [0, 5]],
            r"query 1 \(the first is query 0\) has index \(0, 0, 5\), of which 5 in mode 2 is out "
            r"of range for the shape \(8, 6, 5\)",
        ),
        (np.array([[2**63], [0], [0]], dtype=np.uint64), "9223372036854775808"),
        (np.zeros((3, 2)), "float64"),
        (np.zeros((3, 2), dtype=bool), "bool"),
        (np.array([["a"], ["b"], ["c"]]), "<U1"),
        (np.zeros((2, 4), dtype=int), r"\(2, 4\)"),
        (np.zeros((4, 3), dtype=int), r"\(4, 3\)"),
        ((1, 2, 3), r"\(3,\)"),
        (5, r"\(\)"),
        ([[0, 1], [0], [0]], "indices"),
    ],
)
def test_indices_that_cannot_be_used_are_named(plain, indices, named):
    with pytest.raises(InvalidInput, match=named):
        plain.predict(indices)


@pytest.mark.parametrize("chunks", [(2, 2), (0, 2, 2), (-1, 2, 2), (2, 2, 2, 2)])
def test_chunks_that_cannot_be_used_are_named(plain, chunks):
    with pytest.raises(InvalidInput, match="chunks must be 3 positive numbers"):
        plain.to_dask(chunks)


def test_saving_and_loading_keeps_everything(done, tmp_path):
    saved = done.save(tmp_path / "saved")
    assert str(tmp_path / "saved") == saved.path
    loaded = slrt.load_completion(tmp_path / "saved")
    for one in (saved, loaded):
        for mine, its in zip(done.factors, one.factors, strict=True):
            np.testing.assert_array_equal(mine, its)
        for name in ("shape", "ranks", "lambdas", "C", "records", "stop_reason", "certificate"):
            assert getattr(one, name) == getattr(done, name)
        places = everywhere(done.shape)
        np.testing.assert_array_equal(one.predict(places), done.predict(places))
    assert repr(loaded) == repr(done)


def test_the_completion_of_a_run_is_loaded_by_the_path_of_either(plain):
    run = Path(plain.path).parent
    assert (run / "settings.json").exists()
    for path in (run, str(run), plain.path, f"file://{run}"):
        loaded = slrt.load_completion(path)
        assert (loaded.path, loaded.header.digest) == (plain.path, plain.header.digest)


def test_a_run_without_a_completion_is_reported(plain, tmp_path):
    shutil.copytree(Path(plain.path).parent, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "completion")
    with pytest.raises(StoreNotFound, match=r"has no completion: .*resume .*run goes on"):
        slrt.load_completion(tmp_path / "run")


@pytest.mark.parametrize("reached", ["directory", "group"])
def test_a_run_with_half_a_completion_is_to_be_resumed_which_makes_it(reached, plain, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(Path(plain.path).parent, run)
    whole = (run / "completion" / "zarr.json").read_text()
    if reached == "group":
        metadata = json.loads(whole) | {"attributes": {"slrt": {"complete": False}}}
        (run / "completion" / "zarr.json").write_text(json.dumps(metadata))
    else:
        shutil.rmtree(run / "completion")
        (run / "completion").mkdir()
    with pytest.raises(StoreCorrupt, match=f"half a completion: .*slrt-dask resume {run} goes on"):
        slrt.load_completion(run)
    done = slrt.resume(run)
    assert slrt.load_completion(run).certificate == done.certificate


def test_a_completion_is_never_written_over_another(plain, tmp_path):
    plain.save(tmp_path / "saved")
    with pytest.raises(StoreExists, match="saved"):
        plain.save(tmp_path / "saved")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("data")
    for write in (plain.save, plain.to_zarr):
        with pytest.raises(StoreExists, match="other"):
            write(tmp_path / "other")
    assert (tmp_path / "other" / "precious").read_text() == "data"
    close(
        slrt.load_completion(tmp_path / "saved").predict([[0], [0], [0]]), plain.predict([[0]] * 3)
    )


def test_what_is_not_a_completion_is_refused(plain, tmp_path, store_of):
    with pytest.raises(StoreNotFound, match=r"no run or completion at .*nowhere"):
        slrt.load_completion(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreNotFound, match=r"no run or completion at .*empty"):
        slrt.load_completion(tmp_path / "empty")
    with pytest.raises(SlrtError, match="not a completion"):
        slrt.load_completion(f"{plain.path}/dual")


def files_of(path):
    return sorted(str(p.relative_to(path)) for p in Path(path).rglob("*") if p.is_file())


def answers(done, places):
    """All that a completion can be asked: values, and how many observations are behind them."""
    return np.vstack([done.predict(places), done.support(places), done.rests_on_nothing(places)])


def verdict(path, places, wanted):
    """Whether a saved completion says what it should, is refused, or something worse."""
    try:
        found = answers(slrt.load_completion(path), places)
    except SlrtError:
        return "refused"
    except Exception as error:
        return f"an error of another kind, {type(error).__name__}"
    return "the same" if np.array_equal(found, wanted) else "other numbers"


def verdicts(done, directory, alter):
    """The verdict on a copy for each file, after that file was altered."""
    places = everywhere(done.shape)
    wanted, found = answers(done, places), {}
    for number, name in enumerate(files_of(done.path)):
        copy = directory / f"copy{number}"
        shutil.copytree(done.path, copy)
        alter(copy / name)
        found[name] = verdict(copy, places, wanted)
    return found


def test_a_completion_that_lost_any_file_is_refused(plain, tmp_path):
    found = verdicts(plain, tmp_path, Path.unlink)
    # The one file whose loss loses nothing: what the model group says of itself.
    kept = {name: said for name, said in found.items() if said != "refused"}
    assert kept in ({}, {"model/zarr.json": "the same"})


def test_a_completion_with_an_altered_byte_is_refused_or_says_the_same(plain, tmp_path):
    def alter(file):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0x10
        file.write_bytes(bytes(content))

    found = verdicts(plain, tmp_path, alter)
    wrong = {name: said for name, said in found.items() if said not in ("refused", "the same")}
    assert wrong == {}


@pytest.mark.parametrize("target", ["model/factors_0", "model/fibre_sums", "dual/p00001/values"])
def test_an_altered_number_is_called_corruption(plain, tmp_path, target):
    copy = tmp_path / "copy"
    shutil.copytree(plain.path, copy)
    array = zarr.open_array(copy / target, mode="r+")
    array[0] = np.asarray(array[0]) + 1e-9
    with pytest.raises(StoreCorrupt, match="copy"):
        slrt.load_completion(copy).predict(everywhere(plain.shape))


@pytest.mark.parametrize("change", ["unfinished", "certificate", "version"])
def test_an_unfinished_or_altered_header_is_refused(plain, tmp_path, change):
    copy = tmp_path / "copy"
    shutil.copytree(plain.path, copy)
    metadata = json.loads((copy / "zarr.json").read_text())
    block = metadata["attributes"]["slrt"]
    if change == "unfinished":
        metadata["attributes"]["slrt"] = {"complete": False}
    elif change == "certificate":
        block["certificate"]["dual"] = block["certificate"]["primal"]
    else:
        block["format_version"] = 999
    (copy / "zarr.json").write_text(json.dumps(metadata))
    named = {"unfinished": "not marked complete", "certificate": "altered", "version": "999"}
    with pytest.raises(SlrtError, match=named[change]):
        slrt.load_completion(copy)


def test_an_opened_completion_notices_that_its_path_holds_another_one(plain, store_of, tmp_path):
    dense = random_problem((8, 6, 5), (1, 1, 1), C=1.0, fraction=0.3, seed=7)
    store = store_of(dense.mask, dense.values)
    other = slrt.complete(
        store, (1, 1, 1), C=1.0, max_iterations=0, run_directory=tmp_path / "other"
    )
    opened = plain.save(tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved")
    other.save(tmp_path / "saved")
    with pytest.raises(StoreCorrupt, match="another model"):
        opened.predict([[0], [0], [0]])
    lazy = opened.to_dask()
    with pytest.raises(StoreCorrupt, match="another model"):
        lazy.compute()


def test_an_unsaved_completion_takes_its_directory_with_it(store_of):
    dense = random_problem((8, 6, 5), (1, 1, 1), C=1.0, fraction=0.3, seed=7)
    done = slrt.complete(store_of(dense.mask, dense.values), (1, 1, 1), C=1.0, max_iterations=0)
    path = Path(done.path)
    assert path.is_dir()
    assert np.isfinite(done.predict([[0], [0], [0]])).all()
    del done
    gc.collect()
    assert not path.parent.exists()


UNSAVED = """
import sys
import slrt_dask
store = slrt_dask.open_store(sys.argv[1])
done = slrt_dask.complete(store, (1, 1, 1), C=1.0, max_iterations=0)
print(done.path)
"""


def test_a_program_that_ends_leaves_no_directory_and_no_warning(store_of):
    dense = random_problem((8, 6, 5), (1, 1, 1), C=1.0, fraction=0.3, seed=7)
    store = store_of(dense.mask, dense.values)
    command = [sys.executable, "-W", "error", "-c", UNSAVED, store.path]
    root = Path(__file__).parents[1]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert finished.stderr == ""
    assert not os.path.exists(finished.stdout.strip())


def test_worker_processes_predict_the_same(plain, process_client):
    places = everywhere(plain.shape)
    with process_client.as_current():
        found = plain.predict(places)
        lazy = plain.to_dask((3, 3, 3)).compute()
    np.testing.assert_array_equal(found, plain.predict(places))
    close(lazy, dense_formula(plain))


def test_the_attributes_are_those_of_the_fit(plain):
    assert plain.shape == (8, 6, 5)
    assert plain.ranks == (3, 2, 1)
    assert plain.C == 5.0
    assert plain.lambdas == (8.0, 6.0, 5.0)
    assert plain.certificate.relative_gap >= 0.0
    assert "8 × 6 × 5" in repr(plain)
    assert plain.stop_reason.value in repr(plain)
    assert [record.iteration for record in plain.records] == [0, 1, 2]
    for mode, (factor, length) in enumerate(zip(plain.factors, plain.shape, strict=True)):
        assert factor.shape == (length, plain.ranks[mode])
        assert np.linalg.norm(factor) == pytest.approx(1.0)
