"""Fits to weighted observations: a weight multiplies the misfit of its observation."""

from __future__ import annotations

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.engine.base import LocalEngine
from slrt_dask.engine.share import Assignment
from slrt_dask.errors import InvalidInput, NotYetAvailable
from slrt_dask.optim.stopping import StopReason
from slrt_dask.posing import problem_of

SHAPES = {2: (14, 11), 3: (9, 8, 7), 4: (5, 6, 4, 5)}
KINDS = {
    "plain": {},
    "Huber": {"loss": slrt.Huber(0.3)},
    "bounds": {"constraint": slrt.Nonnegative()},
    "float32": {"precision": "float32"},
}
QUICK = {"C": 0.2, "max_iterations": 8, "threads": 2, "observers": None}


class Data:
    """Noisy observations of a low-rank tensor, each with a weight between 0.2 and 5."""

    def __init__(self, directory, order):
        self.shape, self.ranks, self.directory = SHAPES[order], (2,) * order, directory
        random = np.random.default_rng(order)
        tensor = slrt.low_rank_tensor(self.shape, self.ranks, seed=1, noise=0.3)
        self.indices = np.array(np.nonzero(random.random(self.shape) < 0.5))
        self.values = tensor[tuple(self.indices)]
        self.weights = np.exp(random.uniform(np.log(0.2), np.log(5.0), self.values.size))

    def store(self, weights=None, name="store", **options):
        place = self.directory / f"{name}{len(list(self.directory.iterdir()))}"
        return slrt.from_coo(
            place, self.indices, self.values, self.shape, weights=weights, **options
        )


@pytest.fixture(params=SHAPES)
def data(request, tmp_path):
    return Data(tmp_path, request.param)


@pytest.fixture
def cube(tmp_path):
    return Data(tmp_path, 3)


def agree(one, other, rtol=1e-10):
    places = np.indices(one.shape).reshape(len(one.shape), -1)
    for left, right in zip(one.factors, other.factors, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=rtol)
    np.testing.assert_allclose(one.predict(places), other.predict(places), rtol=0, atol=10 * rtol)
    costs = [[record.cost for record in done.records] for done in (one, other)]
    np.testing.assert_allclose(*costs, rtol=rtol)
    assert one.certificate.primal == pytest.approx(other.certificate.primal, rel=rtol)
    assert one.certificate.dual == pytest.approx(other.certificate.dual, rel=rtol)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_weights_are_a_larger_C(data, kind):
    options = {**QUICK, **KINDS[kind]}
    weighted = slrt.complete(data.store(np.full(data.values.size, 3.0)), data.ranks, **options)
    plain = slrt.complete(data.store(), data.ranks, **{**options, "C": 3.0 * QUICK["C"]})
    agree(weighted, plain, 1e-4 if kind == "float32" else 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_all_weights_may_be_scaled_with_C(data, kind):
    options = {**QUICK, **KINDS[kind]}
    one = slrt.complete(data.store(data.weights), data.ranks, **options)
    other = slrt.complete(
        data.store(7.0 * data.weights), data.ranks, **{**options, "C": QUICK["C"] / 7.0}
    )
    agree(one, other, 1e-4 if kind == "float32" else 1e-10)
    assert (one.C, other.C) == (0.2, 0.2 / 7.0)


@pytest.mark.parametrize("kind", ["plain", "Huber", "bounds"])
def test_three_equal_observations_are_one_of_weight_three(data, kind):
    """Of a third of the entries there are three observations, whose mean is the value."""
    thrice = np.arange(data.values.size) % 3 == 0
    copies = [np.flatnonzero(thrice)] * 2 + [np.arange(data.values.size)]
    values = [data.values[copies[0]] + 0.5, data.values[copies[0]] - 0.5, data.values]
    repeated = slrt.from_coo(
        data.directory / "repeated", data.indices[:, np.concatenate(copies)],
        np.concatenate(values), data.shape, weights=np.ones(sum(map(len, copies))),
        duplicates="mean",
    )  # fmt: skip
    options = {**QUICK, **KINDS[kind]}
    once = data.store(np.where(thrice, 3.0, 1.0))
    agree(*(slrt.complete(store, data.ranks, **options) for store in (repeated, once)), 1e-9)


@pytest.mark.parametrize("method", ["lbfgs", "rcg", "rtr"])
def test_the_answer_is_the_optimum_of_the_weighted_objective(data, method):
    """At the optimum over all multiples of W the objective is C Σ w (Y − W) Y."""
    options = {"C": 0.2, "method": method, "gap_tolerance": 1e-4, "observers": None}
    done = slrt.complete(data.store(data.weights), data.shape, **options)
    assert done.stop_reason is StopReason.GAP
    left = data.values - done.predict(data.indices)
    objective = 0.2 * float(data.weights @ (left * data.values))
    assert done.certificate.primal == pytest.approx(objective, rel=1e-3)
    unweighted = 0.2 * float(left @ data.values)
    assert abs(unweighted / objective - 1.0) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_in_files_and_partitions_change_nothing(cube, kind):
    """However the observations are cut and wherever they are, a problem is the same."""
    options = {**KINDS[kind]}
    loss, constraint = options.get("loss"), options.get("constraint")
    settings = FitSettings(
        cube.ranks, C=0.2, huber=None if loss is None else loss.delta,
        constraint=None if constraint is None else constraint.to_dict(),
        precision=options.get("precision", "float64"),
    )  # fmt: skip
    point, found = None, []
    for partition_entries, block_entries in ((10_000, None), (60, None), (60, 30)):
        store = cube.store(cube.weights, partition_entries=partition_entries)
        assignment = Assignment(
            store, tuple(range(len(store.partitions))), 2, settings.precision,
            block_entries=block_entries, smallest_block=20,
        )  # fmt: skip
        with LocalEngine(assignment) as engine:
            number_fibres(engine)
            problem = problem_of(engine, settings, 0.0)
            point = point or problem.manifold.random_point(np.random.default_rng(0))
            evaluation = problem.evaluate(point, rtol=1e-7, warm=None)
            certificate = problem.certify(evaluation)
            gradient = np.concatenate([g.ravel() for g in problem.gradient(evaluation)])
            found.append((evaluation.cost, certificate.primal, certificate.dual, *gradient))
    rtol = 1e-3 if kind == "float32" else 1e-5
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=rtol, atol=rtol)


def test_two_workers_find_the_answer_of_one_process(cube, process_client):
    store = cube.store(cube.weights, partition_entries=60)
    options = {key: QUICK[key] for key in ("C", "max_iterations", "observers")}
    held = slrt.from_coo(
        cube.directory / "held", cube.indices[:, :50], cube.values[:50], cube.shape,
        weights=cube.weights[:50],
    )  # fmt: skip
    here = slrt.complete(store, cube.ranks, validation=held, **options)
    there = slrt.complete(store, cube.ranks, validation=held, client=process_client, **options)
    agree(here, there, 1e-8)
    errors = [[record.validation_rmse for record in done.records] for done in (here, there)]
    np.testing.assert_allclose(*errors, rtol=1e-8)


@pytest.mark.parametrize("kind", ["plain", "Huber", "bounds"])
def test_a_resumed_run_equals_an_uninterrupted_one(cube, kind):
    class Interrupting:
        def on_record(self, record, state):
            if record.iteration == 3:
                raise KeyboardInterrupt

    dense = np.full(cube.shape, np.nan)
    weights = np.ones(cube.shape)
    dense[tuple(cube.indices)], weights[tuple(cube.indices)] = cube.values, cube.weights
    options = {**QUICK, **KINDS[kind], "weights": weights}
    whole = slrt.complete(dense, cube.ranks, **options)
    run = cube.directory / "run"
    options |= {"run_directory": run, "observers": [Interrupting()]}
    stopped = slrt.complete(dense, cube.ranks, **options)
    assert stopped.stop_reason is StopReason.INTERRUPTED
    agree(slrt.resume(run, threads=2, observers=None), whole)
    from_store = slrt.complete(cube.store(cube.weights), cube.ranks, **{**QUICK, **KINDS[kind]})
    agree(from_store, whole)


def test_errors_on_weighted_held_out_observations_are_weighted(cube):
    train, held = cube.store(cube.weights).split(0.3)
    done = slrt.complete(train, cube.ranks, validation=held, center=True, **QUICK)
    indices, values, weights = (
        column.compute() for column in (held.indices(), held.values(), held.weights())
    )
    missed = done.predict(indices) - values
    expected = np.sqrt(np.average(missed**2, weights=weights))
    assert done.records[-1].validation_rmse == pytest.approx(expected, rel=1e-4)
    scores = slrt.evaluate(done, held)
    assert scores.rmse == pytest.approx(expected)
    assert scores.mae == pytest.approx(np.average(np.abs(missed), weights=weights))
    norm = np.sqrt(np.average(values**2, weights=weights))
    assert scores.relative_error == pytest.approx(expected / norm)
    assert done.offset.mean == train.mean


def test_a_search_finds_the_same_settings_for_scaled_weights(cube):
    found = [
        slrt.tune(
            cube.store(scale * cube.weights), cube.ranks, lambdas=(1.0,) * 3, observers=None
        ).settings.C
        for scale in (1.0, 1024.0)
    ]
    assert found[0] == pytest.approx(1024.0 * found[1])


def test_more_memory_is_planned_for_weights(cube):
    planned = [slrt.plan(cube.store(weights), cube.ranks) for weights in (None, cube.weights)]
    bytes_needed = [plan.largest.total for plan in planned]
    assert bytes_needed[1] >= bytes_needed[0] + 2 * 8 * cube.values.size


def test_weights_beside_a_store_and_with_hankel_are_refused(cube):
    store = cube.store(cube.weights)
    with pytest.raises(InvalidInput, match="from_array"):
        slrt.complete(store, cube.ranks, weights=np.ones(cube.shape))
    with pytest.raises(NotYetAvailable, match="Hankel"):
        slrt.complete(store, (2, 2, 2), C=1.0, constraint=slrt.Hankel((3, 1, 1)))
