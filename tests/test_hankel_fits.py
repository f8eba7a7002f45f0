"""Hankel structure through the public interface: gaps are filled, runs go on, answers are kept."""

from __future__ import annotations

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import InvalidConfig, InvalidInput, NotYetAvailable, StoreCorrupt
from slrt_dask.hankel import STAGES, Hankel

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


def test_the_answer_is_the_same_however_it_is_asked_for(filled, tmp_path):
    completed = np.asarray(filled.to_dask((7, 1)))
    places = np.array([[3, 59, 25, 3], [0, 0, 0, 0]])
    np.testing.assert_array_equal(filled.predict(places), completed[tuple(places)])
    written = filled.to_zarr(tmp_path / "dense")
    np.testing.assert_array_equal(written[...], completed)
    copy = filled.save(tmp_path / "copy")
    np.testing.assert_array_equal(np.asarray(copy.to_dask()), completed)
    assert slrt.load_completion(tmp_path / "copy").certificate == filled.certificate


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
    told = done.records[-1].validation_rmse
    assert told == pytest.approx(slrt.evaluate(done, validation).rmse, rel=1e-3)
    assert told < 0.1


@pytest.mark.parametrize("method", ["rcg", "rtr"])
def test_a_run_that_was_stopped_goes_on_to_the_same_answer(method, gappy, tmp_path):
    class Stop:
        def on_record(self, record, state):
            if record.iteration == 4:
                raise RuntimeError("stopped")

    options = {**SERIES, "method": method, "max_iterations": 7}
    whole = slrt.complete(gappy, (4, 1), constraint=TAU, **options)
    with pytest.raises(RuntimeError):
        slrt.complete(
            gappy, (4, 1), constraint=TAU, run_directory=tmp_path / "run", observers=[Stop()],
            **options,
        )  # fmt: skip
    resumed = slrt.resume(tmp_path / "run")
    assert [row.cost for row in resumed.records] == [row.cost for row in whole.records]
    np.testing.assert_array_equal(np.asarray(resumed.to_dask()), np.asarray(whole.to_dask()))


def test_the_plan_counts_the_embedding_and_refuses_what_does_not_fit(gappy):
    from slrt_dask.config import FitSettings
    from slrt_dask.errors import MemoryBudgetExceeded
    from slrt_dask.request import plan_of

    settings = FitSettings(ranks=(4, 1), C=1.0, constraint=TAU.to_dict())
    plan = plan_of(gappy, settings, threads=1)
    assert sum(worker.entries for worker in plan.workers) == 22 * 39
    assert "chunks" in str(plan)
    with pytest.raises(MemoryBudgetExceeded, match="raise the memory limit"):
        slrt.complete(gappy, (4, 1), constraint=TAU, memory_limit="1MB", **SERIES)


def test_stages_end_at_the_smallest_and_a_number_is_used_as_it_is():
    assert Hankel((3, 1)).stages((2.0, 4.0)) == tuple(3.0 * stage for stage in STAGES)
    assert Hankel((3, 1), 0.5).stages((2.0, 4.0)) == (0.5,)
    assert Hankel((3, 1), deviation=0).stages((1.0,)) == (0.0,)


@pytest.mark.parametrize(
    ("tau", "deviation", "told"),
    [((0, 1), "auto", "tau is"), ((2.5, 1), "auto", "tau is"), ((True, 1), "auto", "tau is"),
     ((2, 1), "never", "deviation is 'never'"), ((2, 1), -1.0, "deviation is -1"),
     ((2, 1), float("nan"), "deviation is nan")],
)  # fmt: skip
def test_what_is_no_hankel_structure_is_refused(tau, deviation, told):
    with pytest.raises(InvalidInput, match=told):
        Hankel(tau, deviation)


def test_what_does_not_fit_the_tensor_is_refused(gappy):
    with pytest.raises(InvalidInput, match="1 numbers"):
        slrt.complete(gappy, (4, 1), constraint=Hankel((22,)), **SERIES)
    with pytest.raises(InvalidInput, match="61 in mode 0"):
        slrt.complete(gappy, (4, 1), constraint=Hankel((61, 1)), **SERIES)
    with pytest.raises(InvalidInput, match="length of its windows"):
        slrt.complete(gappy, (4, 1), constraint=Hankel((58, 1)), **SERIES)
    with pytest.raises(NotYetAvailable, match="give it alone"):
        slrt.complete(gappy, (4, 1), constraint=[TAU, slrt.Nonnegative()], **SERIES)
    with pytest.raises(InvalidInput, match="nothing to enforce"):
        slrt.complete(gappy, (4, 1), constraint=TAU, **{**SERIES, "max_iterations": 0}).to_dask(
            enforce=True
        )
    with pytest.raises(InvalidConfig, match="no key 'delta'"):
        slrt.complete(gappy, (4, 1), constraint={"tau": [3, 1], "delta": 1}, **SERIES)
