"""An offset per mode is subtracted before a fit and part of everything that the answer says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr

import slrt_dask as slrt
from slrt_dask.cli.supporting import resting_on_nothing
from slrt_dask.config import FitSettings
from slrt_dask.data import low_rank_tensor
from slrt_dask.errors import InvalidConfig, UnsupportedFormat
from slrt_dask.scoring import count_unsupported
from slrt_dask.show.report import report

SHAPE, RANKS = (12, 10, 8), (2, 2, 2)
FIT = {"C": 2.0, "threads": 1, "max_iterations": 4}


def additive(shape=SHAPE, seed=0):
    rng = np.random.default_rng(seed)
    return 3.0 + sum(np.meshgrid(*(rng.standard_normal(n) for n in shape), indexing="ij"))


def seen(shape=SHAPE, fraction=0.4, seed=1):
    return np.random.default_rng(seed).random(shape) < fraction


def places(shape=SHAPE):
    return np.indices(shape).reshape(len(shape), -1)


@pytest.fixture(scope="module")
def store(store_of):
    """Effects and low rank together; one slice of every mode was never observed."""
    mask = seen()
    mask[-1], mask[:, -1], mask[:, :, -1] = False, False, False
    return store_of(mask, additive() + low_rank_tensor(SHAPE, RANKS, seed=2, noise=0.1), parts=3)


@pytest.fixture(scope="module")
def done(store, tmp_path_factory):
    run = tmp_path_factory.mktemp("modes") / "run"
    return slrt.complete(store, RANKS, center="modes", run_directory=run, **FIT)


def offset_everywhere(done):
    return done.header.offset + sum(np.meshgrid(*done.effects, indexing="ij"))


def test_the_fit_is_that_of_what_the_offset_leaves(done, store, store_of):
    mask = np.zeros(SHAPE, dtype=bool)
    mask[tuple(store.indices())] = True
    values = np.zeros(SHAPE)
    values[mask] = store.values() - offset_everywhere(done)[tuple(store.indices())]
    rest = store_of(mask, values, parts=3, slab_mode=store.slab_mode)
    left = slrt.complete(rest, RANKS, center=False, **FIT)
    assert left.certificate.primal == pytest.approx(done.certificate.primal, rel=1e-6)
    np.testing.assert_allclose(
        np.asarray(done.to_dask()), np.asarray(left.to_dask()) + offset_everywhere(done), atol=1e-5
    )


@pytest.mark.parametrize("shape", [(20, 16), SHAPE, (7, 6, 5, 4)], ids=len)
def test_an_additive_tensor_is_predicted_where_pairs_were_never_seen(shape, store_of):
    values, mask = additive(shape), seen(shape)
    mask[:3, :4] = False  # of whose pairs nothing was observed, but of each index
    done = slrt.complete(
        store_of(mask, values), (1,) * len(shape), center="modes", **{**FIT, "C": 1e-6}
    )
    np.testing.assert_allclose(np.asarray(done.to_dask()), values, atol=1e-4 * np.ptp(values))


def test_predictions_chunks_and_exports_all_have_the_offset(done, tmp_path):
    found = done.predict(places()).reshape(SHAPE)
    np.testing.assert_allclose(np.asarray(done.to_dask((5, 4, 3))), found, rtol=1e-12)
    np.testing.assert_allclose(done.to_zarr(tmp_path / "whole")[...], found, rtol=1e-12)
    np.testing.assert_allclose(done.to_xarray().to_numpy(), found, rtol=1e-12)


def test_what_nothing_was_observed_about_is_the_offset_of_its_indices(done):
    nothing = done.rests_on_nothing(places())
    assert nothing.any()
    values = done.predict(places())
    np.testing.assert_allclose(values[nothing], offset_everywhere(done).ravel()[nothing])
    assert count_unsupported(done, places(), values) == np.count_nonzero(nothing)
    assert "2 of 9 predictions rest on nothing but the offset" in resting_on_nothing(2, 9, done)
    assert all(effect[-1] == 0.0 for effect in done.effects)
    assert done.predict([[n - 1] for n in SHAPE])[0] == done.header.offset


def test_errors_are_those_of_the_whole_prediction(store, store_of):
    truth = additive() + low_rank_tensor(SHAPE, RANKS, seed=2, noise=0.0)
    held_out = store_of(seen(seed=9) & ~seen(), truth)
    done = slrt.complete(store, RANKS, center="modes", validation=held_out, **FIT)
    errors = done.predict(held_out.indices()) - np.asarray(held_out.values())
    wanted = np.sqrt(np.mean(errors**2))
    assert done.records[-1].validation_rmse == pytest.approx(wanted, rel=1e-6)
    assert slrt.evaluate(done, held_out).rmse == pytest.approx(wanted)


def test_a_saved_model_keeps_its_offset(done, tmp_path):
    saved = done.save(tmp_path / "saved")
    np.testing.assert_array_equal(saved.predict(places()), done.predict(places()))
    for one, other in zip(saved.effects, done.effects, strict=True):
        np.testing.assert_array_equal(one, other)


def test_earlier_releases_refuse_models_with_such_an_offset_and_read_the_others(
    done, store, tmp_path
):
    def version(completion):
        return zarr.open_group(completion.path, mode="r").attrs["slrt"]["format_version"]

    plain = slrt.complete(store, RANKS, center=True, **FIT)
    assert (version(plain), version(done)) == (3, 4)
    assert plain.effects == ()
    altered = done.save(tmp_path / "altered")
    root = zarr.open_group(altered.path)
    root.attrs["slrt"] = {**root.attrs["slrt"], "format_version": 5}
    with pytest.raises(UnsupportedFormat, match="versions 3 and 4"):
        slrt.load_completion(altered.path)


def test_a_report_shows_the_offset(done, tmp_path):
    page = report(done, tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert "an offset per index of every mode were subtracted" in text
    assert "They are predicted as the offset of their modes." in text


@pytest.mark.parametrize(
    "constraint",
    [
        slrt.Nonnegative(),
        slrt.Bounds(0.0, 9.0),
        slrt.Hankel((3, 1, 1)),
        slrt.Linear.rising(SHAPE, 0),
    ],
    ids=["nonnegative", "bounds", "hankel", "linear"],
)
def test_constraints_are_refused_and_leave_nothing(constraint, store, tmp_path):
    with pytest.raises(InvalidConfig, match="takes no constraint"):
        slrt.complete(
            store, RANKS, C=1.0, center="modes", constraint=constraint, run_directory=tmp_path / "r"
        )
    assert not (tmp_path / "r").exists()
    with pytest.raises(InvalidConfig, match="takes no constraint"):
        FitSettings(ranks=RANKS, C=1.0, center="modes", constraint={"lower": 0.0})


@pytest.mark.parametrize("center", ["mode", 1, "mean"])
def test_other_centrings_are_refused(center, store):
    with pytest.raises(InvalidConfig, match="true, false, 'modes' or 'auto'"):
        slrt.complete(store, RANKS, C=1.0, center=center)


def test_settings_with_offsets_survive_json(store):
    settings = FitSettings(ranks=RANKS, C=1.0, center="modes")
    assert FitSettings(**{**json.loads(json.dumps(settings.to_dict())), "ranks": RANKS}) == settings
