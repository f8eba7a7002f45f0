"""From a store to a completion: one answer everywhere, and a clear word where there is none."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.errors import (
    InvalidConfig,
    InvalidInput,
    MemoryBudgetExceeded,
    SlrtError,
    StoreExists,
)
from slrt_dask.optim import StopReason
from slrt_dask.request import plan_of
from tests.oracles.dense import random_problem

SHAPES = {2: (9, 8), 3: (8, 6, 5), 4: (6, 4, 3, 4)}
RANKS = {2: (3, 2), 3: (3, 2, 1), 4: (2, 2, 1, 2)}


@pytest.fixture
def fit(tmp_path):
    """Complete a store; every run keeps its files under a directory of its own."""
    runs = iter(range(100))

    def complete(store, ranks, **options):
        options.setdefault("run_directory", tmp_path / f"run{next(runs)}")
        return slrt.complete(store, ranks, **{"C": 5.0, "threads": 1, **options})

    return complete


@pytest.fixture
def small(store_of):
    """A dense problem of an order and its store."""

    def make(order=3, *, parts=1, fraction=0.4, **options):
        dense = random_problem(
            SHAPES[order], RANKS[order], C=5.0, fraction=fraction, seed=6, **options
        )
        store = store_of(dense.mask, dense.values, parts=parts)
        return SimpleNamespace(dense=dense, store=store, ranks=RANKS[order])

    return make


def everywhere(shape):
    return np.indices(shape).reshape(len(shape), -1)


def predictions(done):
    return done.predict(everywhere(done.shape))


# ---- the answer -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rcg", "rtr"])
def test_with_full_ranks_the_certified_gap_closes(method, store_of, fit):
    shape = (20, 10, 6)
    dense = random_problem(shape, shape, C=2.0, fraction=0.3, seed=0)
    store = store_of(dense.mask, dense.values)
    done = fit(
        store, shape, C=2.0, lambdas=dense.lambdas, method=method, gap_tolerance=1e-6,
        gradient_tolerance=0.0, max_iterations=500,
    )  # fmt: skip
    assert done.stop_reason is StopReason.GAP
    assert done.certificate.relative_gap <= 1e-6
    # The bounds, computed again from the files, with singular values.
    Z = 2 * dense.C * (dense.values - predictions(done).reshape(shape)) * dense.mask
    bound = dense.certify(SimpleNamespace(dual=Z, point=done.factors)).dual
    assert bound <= done.certificate.primal * (1 + 1e-9)
    assert bound == pytest.approx(done.certificate.dual, rel=1e-4)


@pytest.mark.parametrize("method", ["rcg", "rtr"])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_answer_does_not_depend_on_partitions_or_threads(order, method, small, fit):
    found = []
    for parts, threads in ((1, 1), (5, 2)):
        made = small(order, parts=parts)
        # Well-conditioned, so that rounding does not change how many inner iterations are made.
        options = {"C": 0.3, "method": method, "max_iterations": 3, "threads": threads}
        done = fit(made.store, made.ranks, **options)
        found.append(predictions(done))
    one, other = found
    np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-8 * np.abs(one).max())


def test_a_cluster_gives_the_answer_of_this_process(process_client, small, fit):
    made = small(3, parts=3)
    options = {"C": 0.3, "max_iterations": 1, "gap_tolerance": 0.1}
    alone = fit(made.store, made.ranks, **options)
    together = fit(made.store, made.ranks, client=process_client, **options)
    wanted = predictions(alone)
    np.testing.assert_allclose(
        predictions(together), wanted, rtol=1e-8, atol=1e-8 * np.abs(wanted).max()
    )
    assert together.certificate.primal == pytest.approx(alone.certificate.primal, rel=1e-8)
    assert [r.cost for r in together.records] == pytest.approx([r.cost for r in alone.records])


def test_the_same_seed_gives_the_same_answer_whatever_the_type_of_ranks(small, fit):
    made = small(3)
    one, again = (
        fit(made.store, ranks, max_iterations=2, seed=3)
        for ranks in (made.ranks, np.array(made.ranks))
    )
    assert one.lambdas == (8.0, 6.0, 5.0)  # the modes' lengths, where nothing is given
    np.testing.assert_array_equal(predictions(one), predictions(again))


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**40])
def test_scaling_the_observations_scales_the_answer(scale, small, fit, store_of):
    made = small(3)
    plain = fit(made.store, made.ranks, max_iterations=3)
    larger = fit(store_of(made.dense.mask, scale * made.dense.values), made.ranks, max_iterations=3)
    np.testing.assert_allclose(predictions(larger) / scale, predictions(plain), rtol=1e-8)
    assert larger.certificate.relative_gap == pytest.approx(plain.certificate.relative_gap)


def test_only_the_product_of_C_and_lambda_matters(small, fit):
    made = small(3)
    one = fit(made.store, made.ranks, C=2.0, lambdas=(1.0, 2.0, 3.0), max_iterations=2)
    other = fit(made.store, made.ranks, C=0.5, lambdas=(4.0, 8.0, 12.0), max_iterations=2)
    np.testing.assert_allclose(predictions(one), predictions(other), rtol=1e-7, atol=1e-9)


def test_centring_fits_the_deviations_from_the_mean(small, fit, store_of):
    made = small(3)
    mean = made.dense.y.mean()
    centred = fit(made.store, made.ranks, center=True, max_iterations=2)
    moved = fit(store_of(made.dense.mask, made.dense.values - mean), made.ranks, max_iterations=2)
    assert centred.header.offset == pytest.approx(mean)
    np.testing.assert_allclose(predictions(centred), predictions(moved) + mean, rtol=1e-8)


def test_single_precision_gives_nearly_the_same_answer(small, fit):
    made = small(3, parts=2)
    double = fit(made.store, made.ranks, max_iterations=3)
    single = fit(made.store, made.ranks, max_iterations=3, precision="float32")
    wanted = predictions(double)
    np.testing.assert_allclose(predictions(single), wanted, atol=2e-3 * np.abs(wanted).max())
    assert single.certificate.gap >= 0.0


def test_single_precision_stops_rather_than_turning_in_circles(small, fit):
    made = small(3)
    done = fit(
        made.store, made.ranks, precision="float32", gap_tolerance=0.0, gradient_tolerance=0.0,
        max_iterations=60, max_seconds=10.0,
    )  # fmt: skip
    assert done.stop_reason in (
        StopReason.EXHAUSTED, StopReason.INNER_LIMIT, StopReason.ITERATIONS,
    )  # fmt: skip


# ---- records, stopping, running -------------------------------------------------------------


def test_records_are_one_row_an_iteration(small, fit):
    made = small(3)
    seen = []
    observer = SimpleNamespace(on_record=lambda record, state: seen.append(record))
    done = fit(
        made.store, made.ranks, gap_tolerance=0.0, gradient_tolerance=0.0, max_iterations=12,
        observers=[observer],
    )  # fmt: skip
    assert tuple(seen) == done.records
    assert [record.iteration for record in done.records] == list(range(13))
    costs = [record.cost for record in done.records]
    assert all(b <= a * (1 + 1e-9) for a, b in itertools.pairwise(costs))
    seconds = [record.seconds for record in done.records]
    assert seconds == sorted(seconds)
    known = [r.iteration for r in done.records if r.relative_gap is not None]
    assert known == [10, 12]
    assert done.records[-1].primal == done.certificate.primal
    assert all(record.ranks == made.ranks for record in done.records)
    assert done.stop_reason is StopReason.ITERATIONS


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_seconds": 1e-6}, StopReason.SECONDS),
        ({"max_iterations": 0}, StopReason.ITERATIONS),
        ({"gap_tolerance": 1.0}, StopReason.GAP),
        ({"gradient_tolerance": 0.1}, StopReason.GRADIENT),
    ],
)
def test_a_run_ends_for_the_reason_it_gives_and_has_a_certificate(options, reason, small, fit):
    made = small(3)
    options = {"gap_tolerance": 0.0, "gradient_tolerance": 0.0, **options}
    done = fit(made.store, made.ranks, **options)
    assert done.stop_reason is reason
    assert 0.0 <= done.certificate.relative_gap <= 1.0


@pytest.mark.parametrize("when", [0, 2])
def test_an_interrupt_gives_what_was_reached_and_keeps_its_checkpoint(when, small, fit, tmp_path):
    made = small(3)

    def stop(record, state):
        if record.iteration == when:
            raise KeyboardInterrupt

    done = fit(
        made.store, made.ranks, gap_tolerance=0.0, gradient_tolerance=0.0,
        run_directory=tmp_path / "r", observers=[SimpleNamespace(on_record=stop)],
    )  # fmt: skip
    assert done.stop_reason is StopReason.INTERRUPTED
    assert len(done.records) == when + 1
    assert np.isfinite(predictions(done)).all()
    assert done.certificate.gap >= 0.0
    newest = max((tmp_path / "r" / "checkpoints").iterdir())
    assert newest.name == f"{when:06d}"
    assert (newest / "state.bin").is_file()
    assert len(predictions(slrt.load_completion(tmp_path / "r" / "completion")))


def test_a_run_directory_holds_everything_about_the_run(small, fit, tmp_path):
    made = small(3)
    done = fit(made.store, made.ranks, max_iterations=3, run_directory=tmp_path / "run", seed=4)
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["observations"] == made.store.digest
    assert settings["settings"]["seed"] == 4
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["cost"] for line in lines] == [r.cost for r in done.records]
    loaded = slrt.load_completion(tmp_path / "run" / "completion")
    np.testing.assert_array_equal(predictions(loaded), predictions(done))


def test_a_run_directory_that_holds_something_is_refused(small, fit, tmp_path):
    made = small(3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("data")
    (tmp_path / "file").write_text("data")
    for name in ("full", "file"):
        with pytest.raises(StoreExists, match=name):
            fit(made.store, made.ranks, run_directory=tmp_path / name)
    (tmp_path / "empty").mkdir()
    fit(made.store, made.ranks, max_iterations=0, run_directory=tmp_path / "empty")


def test_validation_is_what_evaluate_finds(small, fit, store_of):
    for order in (2, 3, 4):
        made = small(order, parts=3)
        held = ~made.dense.mask
        values = np.random.default_rng(1).standard_normal(held.shape)
        validation = store_of(held, values, slab_mode=order - 1)
        done = fit(made.store, made.ranks, max_iterations=2, center=True, validation=validation)
        scores = slrt.evaluate(done, validation)
        assert done.records[-1].validation_rmse == pytest.approx(scores.rmse, rel=1e-10)


def test_validation_of_another_shape_is_refused(small, fit):
    with pytest.raises(InvalidInput, match=r"\(9, 8\).*\(8, 6, 5\)"):
        fit(small(3).store, RANKS[3], validation=small(2).store)


def test_a_limit_of_memory_is_kept_or_refused_before_anything_is_read(small, fit, tmp_path):
    made = small(3)
    with pytest.raises(MemoryBudgetExceeded, match="1 MB"):
        fit(made.store, made.ranks, memory_limit="1 MB", run_directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fit(made.store, made.ranks, memory_limit="8 GB", max_iterations=0)


def test_held_out_observations_are_part_of_the_memory_that_is_planned(small, fit, store_of):
    made = small(3)
    settings = FitSettings(ranks=made.ranks, C=5.0)
    just_enough = plan_of(made.store, settings, threads=1).largest.total
    fit(made.store, made.ranks, memory_limit=just_enough, max_iterations=0)
    validation = store_of(~made.dense.mask, np.ones(made.dense.mask.shape))
    with pytest.raises(MemoryBudgetExceeded):
        fit(
            made.store, made.ranks, memory_limit=just_enough, max_iterations=0,
            validation=validation,
        )  # fmt: skip


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "offending"),
    [
        ("ranks", (2, 2), "2"),
        ("ranks", (2, 2, 6), "6"),
        ("ranks", (2, -1, 2), "-1"),
        ("ranks", (2, 1.5, 2), "1.5"),
        ("ranks", 3, "3"),
        ("C", 0.0, "0.0"),
        ("C", float("nan"), "nan"),
        ("C", None, "None"),
        ("lambdas", (1.0, 2.0), r"\(1.0, 2.0\)"),
        ("lambdas", (1.0, -2.0, 1.0), "-2.0"),
        ("lambdas", 2.0, "2.0"),
        ("method", "newton", "newton"),
        ("precision", "float16", "float16"),
        ("gap_tolerance", -1.0, "-1.0"),
        ("gap_tolerance", "tight", "tight"),
        ("gradient_tolerance", float("nan"), "nan"),
        ("max_iterations", 2.5, "2.5"),
        ("max_seconds", 0.0, "0.0"),
        ("seed", -1, "-1"),
        ("threads", 0, "0"),
        ("memory_limit", "much", "much"),
    ],
)
def test_settings_that_cannot_be_used_are_named_and_leave_nothing_behind(
    name, value, offending, small, fit, tmp_path
):
    made = small(3)
    options = {"ranks": made.ranks, name: value}
    with pytest.raises((InvalidInput, InvalidConfig), match=offending):
        fit(made.store, options.pop("ranks"), run_directory=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# ---- unusual observations -------------------------------------------------------------------


def test_a_single_observation_is_fitted(fit, tmp_path):
    store = slrt.from_coo(tmp_path / "one", np.array([[2], [1], [0]]), np.array([3.0]), (4, 3, 2))
    for method in ("rcg", "rtr"):
        done = fit(store, (2, 2, 2), C=100.0, method=method, gap_tolerance=1e-6)
        assert done.predict([[2], [1], [0]])[0] == pytest.approx(3.0, rel=0.05)
        assert done.certificate.relative_gap <= 1e-3
        assert done.predict([[0], [0], [1]])[0] == 0.0


@pytest.mark.parametrize(
    ("value", "center", "method"),
    [(0.0, False, "rtr"), (0.0, True, "rcg"), (4.0, False, "rcg"), (4.0, True, "rtr")],
)
def test_constant_observations_are_fitted(value, center, method, small, fit, store_of):
    mask = small(3).dense.mask
    store = store_of(mask, np.full(mask.shape, value))
    done = fit(store, (2, 2, 2), C=100.0, center=center, method=method, max_iterations=30)
    found = done.predict(np.array(np.nonzero(mask)))
    np.testing.assert_allclose(found, value, atol=0.1 * value)
    assert 0.0 <= done.certificate.relative_gap <= 1.0
    if center or value == 0.0:
        np.testing.assert_allclose(predictions(done), value, atol=1e-9)
        assert done.certificate.primal == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("size", "method"), [(1e-150, "rcg"), (1e-60, "rtr"), (1e60, "rcg"), (1e150, "rtr")]
)
def test_extreme_values_are_fitted_or_refused(size, method, small, fit, store_of):
    made = small(3)
    plain = fit(made.store, made.ranks, max_iterations=3, method=method)
    store = store_of(made.dense.mask, size * made.dense.values)
    try:
        done = fit(store, made.ranks, max_iterations=3, method=method, max_seconds=20.0)
    except SlrtError:
        return
    # An answer, if there is one, is the answer of the same tensor in other units.
    wanted = predictions(plain)
    np.testing.assert_allclose(
        predictions(done) / size, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max()
    )
    assert done.certificate.relative_gap == pytest.approx(plain.certificate.relative_gap, abs=0.03)


@pytest.mark.parametrize("C", [1e-8, 1e8])
def test_extreme_weights_give_a_certified_answer(C, small, fit):
    made = small(3)
    done = fit(made.store, made.ranks, C=C, max_iterations=3)
    assert np.isfinite(predictions(done)).all()
    assert 0.0 <= done.certificate.relative_gap <= 1.0
    if C < 1.0:
        assert np.abs(predictions(done)).max() < 1e-4


def test_modes_of_length_one_are_allowed(fit, tmp_path):
    rng = np.random.default_rng(0)
    indices = np.array([np.zeros(6, dtype=int), np.arange(6), np.arange(6) % 3])
    store = slrt.from_coo(tmp_path / "flat", indices, rng.standard_normal(6), (1, 6, 3))
    done = fit(store, (1, 2, 2), max_iterations=2)
    assert np.isfinite(predictions(done)).all()


def test_a_fit_that_does_not_fit_in_memory_is_streamed_and_gives_the_same_answer(
    fit, store_of, monkeypatch, caplog
):
    monkeypatch.setattr("slrt_dask.engine.plan.SMALLEST_STREAMED_BLOCK", 500)
    monkeypatch.setattr("slrt_dask.engine.plan.LARGEST_STREAMED_BLOCK", 2000)
    rng = np.random.default_rng(3)
    mask = rng.random((40, 30, 25)) < 0.3
    values = np.sin(np.indices(mask.shape).sum(axis=0) / 9.0)
    store = store_of(mask, values)
    ranks, options = (4, 3, 3), {"C": 1.0, "max_iterations": 4, "threads": 2}
    needed = plan_of(store, FitSettings(ranks=ranks, C=1.0), threads=2).largest.total
    resident = fit(store, ranks, **options)
    with caplog.at_level("INFO", logger="slrt_dask"):
        streamed = fit(store, ranks, memory_limit=needed - 1, **options)
    assert "streamed from disk" in caplog.text
    np.testing.assert_allclose(predictions(streamed), predictions(resident), rtol=0, atol=1e-8)
    assert streamed.records[-1].cost == pytest.approx(resident.records[-1].cost, rel=1e-10)
