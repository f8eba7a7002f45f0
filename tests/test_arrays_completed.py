"""Arrays are completed like stores of them, by `complete` and by the accessor of xarray."""

from __future__ import annotations

import gc
import inspect
import tempfile

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import InvalidInput
from slrt_dask.given import _check_seen

xarray = pytest.importorskip("xarray")
import slrt_dask.xarray  # noqa: E402 - registers the accessor

SHAPE = (9, 8, 7)
FIT = {"C": 1.0, "max_iterations": 3}
RANKS = (2, 2, 2)


@pytest.fixture(scope="module")
def tensor():
    values = slrt.low_rank_tensor(SHAPE, RANKS, seed=3)
    values[np.random.default_rng(4).random(SHAPE) < 0.5] = np.nan
    return values


@pytest.fixture(scope="module")
def expected(tensor, tmp_path_factory):
    store = slrt.from_array(tmp_path_factory.mktemp("store") / "store", tensor)
    return slrt.complete(store, RANKS, **FIT).to_dask().compute()


@pytest.fixture
def labelled(tensor):
    return xarray.DataArray(
        tensor,
        dims=("day", "site", "band"),
        coords={
            "day": np.datetime64("2024-01-01", "ns") + np.arange(9) * np.timedelta64(1, "D"),
            "site": list("abcdefgh"),
            "height": (("day", "site"), np.arange(72.0).reshape(9, 8)),
            "sensor": "x",
        },
        name="reflectance",
        attrs={"units": "1"},
    )


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Where temporary directories are made, to see which are left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def kinds_of(tensor):
    import dask.array as da
    import sparse

    seen = ~np.isnan(tensor)
    return {
        "numpy": tensor,
        "masked": np.ma.masked_invalid(tensor),
        "list": tensor.tolist(),
        "dask": da.from_array(tensor, chunks=4),
        "xarray": xarray.DataArray(tensor),
        "coo": sparse.COO(np.array(np.nonzero(seen)), tensor[seen], shape=SHAPE),
    }


@pytest.mark.parametrize("kind", ["numpy", "masked", "list", "dask", "xarray", "coo"])
def test_an_array_is_completed_like_a_store_of_it(tensor, expected, places, kind):
    done = slrt.complete(kinds_of(tensor)[kind], RANKS, **FIT)
    np.testing.assert_array_equal(done.to_dask().compute(), expected)
    lazy = done.to_dask()
    del done
    gc.collect()
    np.testing.assert_array_equal(lazy.compute(), expected)
    del lazy
    gc.collect()
    assert list(places.iterdir()) == []


def test_on_a_cluster_nothing_is_left_and_nothing_goes_too_early(
    tensor, expected, places, thread_client
):
    done = slrt.complete(kinds_of(tensor)["dask"], RANKS, client=thread_client, **FIT)
    gc.collect()
    np.testing.assert_allclose(done.to_dask().compute(), expected, atol=1e-10)
    assert not list(places.rglob("observations"))
    del done
    gc.collect()
    assert list(places.iterdir()) == []


def test_what_workers_do_not_see_is_refused(tmp_path, thread_client):
    _check_seen(str(tmp_path), thread_client)
    with pytest.raises(InvalidInput, match=r"3 of 3 workers do not see .* run_directory"):
        _check_seen(str(tmp_path / "elsewhere"), thread_client)


def test_a_run_of_an_array_can_be_resumed(tensor, expected, tmp_path):
    class Stop:
        def on_record(self, record, state):
            if record.iteration == 1:
                raise KeyboardInterrupt

    run = tmp_path / "run"
    stopped = slrt.complete(tensor, RANKS, run_directory=run, observers=[Stop()], **FIT)
    assert stopped.stop_reason.name == "INTERRUPTED"
    left = ("search", "observations-abc12345")  # by a process killed when it had made the run
    for name in left:
        (run / name).mkdir()
    np.testing.assert_array_equal(slrt.resume(run).to_dask().compute(), expected)
    assert not any((run / name).exists() for name in left)


def test_what_is_no_array_is_refused_with_a_remedy(labelled):
    with pytest.raises(InvalidInput, match="open_store"):
        slrt.complete("cube.slrt", RANKS)
    with pytest.raises(InvalidInput, match=r"reflectance.*dataset\['name'\]"):
        slrt.complete(labelled.to_dataset(), RANKS)


def test_arrays_where_a_store_has_to_be_are_refused_with_a_remedy(tensor):
    remedy = r"must be a store, not of type \w+; make one with slrt\.from_array"
    for given in (tensor, tensor.tolist(), "cube.slrt"):
        with pytest.raises(InvalidInput, match=f"the observations {remedy}"):
            slrt.tune(given)
        with pytest.raises(InvalidInput, match=f"the observations {remedy}"):
            slrt.plan(given, RANKS)
    with pytest.raises(InvalidInput, match=f"validation {remedy}"):
        slrt.complete(tensor, RANKS, validation=tensor, **FIT)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_accessor_keeps_what_was_observed_and_fills_the_rest(labelled, lazy, dtype):
    array = labelled.astype(dtype)
    array = array.chunk({"site": 3}) if lazy else array
    filled = array.slrt.complete(RANKS, **FIT)
    assert filled.chunks == array.chunks
    assert filled.dtype == array.dtype
    done = slrt.complete(array, RANKS, **FIT)
    model = done.to_xarray().values.astype(dtype)
    seen = ~np.isnan(array.values)
    assert filled.values[seen].tobytes() == array.values[seen].tobytes()
    np.testing.assert_array_equal(filled.values[~seen], model[~seen])
    everywhere = array.slrt.complete(RANKS, keep_observed=False, **FIT)
    np.testing.assert_array_equal(everywhere.values, model)
    for one in (filled, everywhere):
        assert one.name == "reflectance"
        xarray.testing.assert_identical(one.coords.to_dataset(), array.coords.to_dataset())
        assert one.attrs["units"] == "1"
        assert one.attrs["slrt_relative_gap"] == done.certificate.relative_gap


def test_the_accessor_fills_from_a_completion_of_the_same_shape_only(labelled):
    done = slrt.complete(labelled, RANKS, **FIT)
    assert not bool(labelled.slrt.filled_by(done).isnull().any())
    with pytest.raises(InvalidInput, match=r"\(8, 8, 7\)"):
        labelled[1:].slrt.filled_by(done)


def test_a_filled_array_can_be_written_by_xarray(labelled, tmp_path):
    filled = labelled.slrt.complete(RANKS, **FIT)
    filled.to_netcdf(tmp_path / "filled.nc")
    with xarray.open_dataarray(tmp_path / "filled.nc") as opened:
        np.testing.assert_array_equal(opened.attrs["slrt_ranks"], RANKS)
        xarray.testing.assert_equal(opened, filled)


def test_the_accessor_takes_what_complete_takes(labelled):
    accessor = dict(inspect.signature(labelled.slrt.complete).parameters)
    accessor.pop("keep_observed")
    own = dict(inspect.signature(slrt.complete).parameters)
    own.pop("store")
    assert accessor == own
