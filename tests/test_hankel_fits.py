"""Hankel structure through the public interface: gaps are filled, runs go on, answers are kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import InvalidConfig, InvalidInput, NotYetAvailable, StoreCorrupt
from slrt_dask.hankel import STAGES, Hankel
from slrt_dask.optim import StopReason
from slrt_dask.optim.records import above_lowest, stage_begins, stages_of

LENGTH, GAP = 60, slice(24, 30)
SERIES = {"C": 1e4, "lambdas": (1.0, 1e-6), "method": "rcg", "max_iterations": 40}
TAU = Hankel((22, 1))


def series():
    time = np.arange(LENGTH)
    return (np.sin(0.21 * time) + 0.5 * np.sin(0.53 * time + 1.0))[:, None]


@pytest.fixture(scope="module")
def gappy(tmp_path_factory):
    """A series of two waves with a gap, and without its last samples."""
    mask = np.ones((LENGTH, 1), dtype=bool)
    mask[GAP] = mask[-4:] = False
    path = tmp_path_factory.mktemp("series") / "store"
    return slrt.from_coo(path, np.stack(np.nonzero(mask)), series()[mask], (LENGTH, 1))


@pytest.fixture(scope="module")
def filled(gappy):
    return slrt.complete(gappy, (4, 1), constraint=TAU, **SERIES)


def test_gaps_are_filled_and_the_next_samples_forecast(filled):
    completed, truth = np.asarray(filled.to_dask()), series()
    size = np.linalg.norm(truth[GAP])
    assert np.linalg.norm((completed - truth)[GAP]) < 0.05 * size
    assert np.linalg.norm((completed - truth)[-4:]) < 0.1 * np.linalg.norm(truth[-4:])
    # Without the structure nothing is known of a slice that was not observed.
    assert filled.certificate.violation < 0.05
    assert 0.0 <= filled.certificate.dual <= filled.certificate.primal


def test_costs_are_compared_within_a_stage(filled):
    stages = stages_of(filled.records)
    assert 1 < len(stages) <= len(STAGES)
    assert [row for stage in stages for row in stage] == list(filled.records)
    for stage in stages:
        costs = [row.cost for row in stage]
        assert costs == sorted(costs, reverse=True)
    for before, after in itertools.pairwise(stages):
        assert after[0].cost > before[-1].cost
    heights = dict(above_lowest(filled.records))
    assert set(stage_begins(filled.records)) <= set(heights)
    assert all(height > 0.0 for height in heights.values())
    assert heights[0] == stages[0][0].cost - min(row.cost for row in stages[0])


def test_the_answer_is_the_same_however_it_is_asked_for(filled, tmp_path):
    completed = np.asarray(filled.to_dask((7, 1)))
    places = np.array([[3, 59, 25, 3], [0, 0, 0, 0]])
    np.testing.assert_array_equal(filled.predict(places), completed[tuple(places)])
    written = filled.to_zarr(tmp_path / "dense")
    np.testing.assert_array_equal(written[...], completed)
    copy = filled.save(tmp_path / "copy")
    np.testing.assert_array_equal(np.asarray(copy.to_dask()), completed)
    assert slrt.load_completion(tmp_path / "copy").certificate == filled.certificate
    with pytest.raises(InvalidInput, match="nothing to enforce"):
        filled.to_dask(enforce=True)


def test_an_altered_chunk_is_refused(filled, tmp_path):
    copy = filled.save(tmp_path / "copy")
    (chunk,) = (path for path in (tmp_path / "copy/model/tensor/c").rglob("*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(bytes(content))
    with pytest.raises(StoreCorrupt, match="altered or lost"):
        copy.predict([[0], [0]])


def test_missing_rows_of_an_image_are_filled(tmp_path):
    x, y = np.meshgrid(np.arange(24), np.arange(8), indexing="ij")
    image = np.cos(0.6 * x + 0.3 * y) + np.cos(0.2 * x - 0.7 * y)
    mask = np.ones(image.shape, dtype=bool)
    mask[11:13] = False
    store = slrt.from_coo(tmp_path / "image", np.stack(np.nonzero(mask)), image[mask], image.shape)
    done = slrt.complete(
        store, (4, 2), C=1e3, lambdas=(1.0, 1e-4), constraint=Hankel((10, 1)), method="rcg",
        max_iterations=30,
    )  # fmt: skip
    error = (np.asarray(done.to_dask()) - image)[~mask]
    assert np.sqrt(np.mean(error**2)) < 0.1 * image.std()


def test_centred_fits_and_validation_are_in_the_units_of_the_data(gappy, tmp_path):
    moved = series() + 100.0
    shifted = slrt.from_coo(
        tmp_path / "shifted", gappy.indices().compute(),
        moved[tuple(gappy.indices().compute())], (LENGTH, 1),
    )  # fmt: skip
    held_out = np.stack([np.arange(24, 30), np.zeros(6, dtype=int)])
    validation = slrt.from_coo(tmp_path / "held", held_out, moved[tuple(held_out)], (LENGTH, 1))
    done = slrt.complete(
        shifted, (5, 1), constraint=TAU, center=True, validation=validation, **SERIES
    )
    error = done.records[-1].validation_rmse
    assert error == pytest.approx(slrt.evaluate(done, validation).rmse, rel=1e-3)
    assert error < 0.1


def test_a_run_interrupted_on_its_way_to_the_next_stage_goes_on_to_the_same_answer(
    plain, tmp_path, monkeypatch
):
    from slrt_dask.optim import loop

    options = {"C": 50.0, "max_iterations": 25, "constraint": Hankel(22), "checkpoint_every": 1000}
    whole = slrt.complete(plain, (3,), **options)
    moved = loop._moved

    def interrupted(*arguments):
        monkeypatch.setattr(loop, "_moved", moved)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_moved", interrupted)
    stopped = slrt.complete(plain, (3,), run_directory=tmp_path / "run", **options)
    assert stopped.stop_reason is StopReason.INTERRUPTED
    resumed = slrt.resume(tmp_path / "run")
    assert [row.cost for row in resumed.records] == [row.cost for row in whole.records]


def test_stages_end_at_the_smallest_and_a_number_is_used_as_it_is():
    assert Hankel((3, 1)).stages((2.0, 4.0)) == tuple(3.0 * stage for stage in STAGES)
    assert Hankel((3, 1), 0.5).stages((2.0, 4.0)) == (0.5,)
    assert Hankel((3, 1), deviation=0).stages((1.0,)) == (0.0,)


@pytest.mark.parametrize(
    ("tau", "deviation", "offending"),
    [((0, 1), "auto", "tau is"), ((2.5, 1), "auto", "tau is"), ((True, 1), "auto", "tau is"),
     ((2, 1), "never", "deviation is 'never'"), ((2, 1), -1.0, "deviation is -1"),
     ((2, 1), float("nan"), "deviation is nan"), (22, "some", "deviation is 'some'")],
)  # fmt: skip
def test_what_is_no_hankel_structure_is_refused(tau, deviation, offending):
    with pytest.raises(InvalidInput, match=offending):
        Hankel(tau, deviation)


@pytest.mark.parametrize(
    ("constraint", "kind", "offending"),
    [
        (Hankel((22,)), InvalidInput, "1 numbers"),
        (Hankel((61, 1)), InvalidInput, "61 in mode 0"),
        (Hankel((58, 1)), InvalidInput, "4"),
        ([TAU, slrt.Linear.rising((LENGTH, 1), 0)], NotYetAvailable, "linear"),
        ([TAU, TAU], InvalidInput, "twice"),
        ({"tau": [3, 1], "delta": 1}, InvalidConfig, "'delta'"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_tensor_is_refused(constraint, kind, offending, gappy):
    with pytest.raises(kind, match=offending):
        slrt.complete(gappy, (4, 1), constraint=constraint, **SERIES)


# ---- a plain series --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The series with its gaps as an array of one dimension."""
    samples = series()[:, 0]
    samples[GAP] = samples[-4:] = np.nan
    return slrt.from_array(tmp_path_factory.mktemp("plain") / "store", samples)


def test_a_series_needs_no_second_mode(plain, tmp_path):
    options = {"C": 1e4, "method": "rcg", "max_iterations": 40}
    done = slrt.complete(plain, (4,), constraint=Hankel(22), **options)
    completed = np.asarray(done.to_dask())
    assert completed.shape == (LENGTH,)
    np.testing.assert_allclose(completed, series()[:, 0], atol=0.1)
    assert slrt.evaluate(done, plain).rmse < 0.05
    np.testing.assert_array_equal(done.predict([[3, 25]]), completed[[3, 25]])
    np.testing.assert_array_equal(done.to_zarr(tmp_path / "dense")[...], completed)


def test_a_fit_in_single_precision_is_nearly_the_same(plain):
    options = {"C": 1e2, "method": "rcg", "max_iterations": 15, "constraint": Hankel(22, 1e-2)}
    single, double = (
        np.asarray(slrt.complete(plain, (4,), precision=kind, **options).to_dask())
        for kind in ("float32", "float64")
    )
    np.testing.assert_allclose(single, double, atol=1e-2)


# ---- bounds ----------------------------------------------------------------------------------


def test_with_bounds_the_answer_obeys_them_and_what_was_observed_is_kept(plain, tmp_path):
    """Bounds that cut off the waves' tops: the fit stays below where it may not go."""
    options = {"C": 1e4, "method": "rcg", "max_iterations": 30, "center": True}
    both = [Hankel(22), slrt.Bounds(-1.3, 1.1)]
    free = slrt.complete(plain, (4,), constraint=Hankel(22), **options)
    held = slrt.complete(plain, (4,), constraint=both, run_directory=tmp_path / "run", **options)
    assert np.asarray(free.to_dask()).max() > 1.2
    completed = np.asarray(held.to_dask())
    assert completed.max() <= 1.1
    assert completed.min() >= -1.3
    np.testing.assert_array_equal(np.asarray(held.to_dask(enforce=True)), completed)
    assert held.certificate.dual <= held.certificate.primal
    assert held.certificate.primal >= free.certificate.dual
    again = slrt.load_completion(tmp_path / "run")
    np.testing.assert_array_equal(np.asarray(again.to_dask()), completed)


def test_the_embedding_is_never_held(tmp_path):
    """What a fit needs has the size of W, however much larger S is."""
    from slrt_dask.config import FitSettings
    from slrt_dask.request import plan_of

    places = np.arange(100) % np.array([[200], [200], [100]])
    store = slrt.from_coo(tmp_path / "store", places, np.ones(100), (200, 200, 100))
    hankel = Hankel((20, 20, 10))
    settings = FitSettings(ranks=(5, 5, 5), C=1.0, constraint=hankel.to_dict())
    needed = plan_of(store, settings, threads=2).largest.total
    dual_bytes = 8 * 20 * 20 * 10 * 181 * 181 * 91
    assert 20 * needed < dual_bytes
