"""Effects of the modes are those of a dense ridge regression, wherever the observations are."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.data.holding_out import SINGLY
from slrt_dask.dual import mode_effects
from slrt_dask.dual.mode_effects import (
    Fitted,
    NormalEquations,
    estimated,
    held_out_errors,
    subtract_effects,
)
from slrt_dask.dual.writing import partition_vector
from slrt_dask.engine.block import VALUES
from tests.engine.helpers import local_engine

SHAPES = {2: (30, 25), 3: (14, 11, 9), 4: (8, 7, 6, 5)}
NOISE = 0.5


def additive(shape, *, noise=NOISE, seed=0, sizes=(1.0, 2.0, 0.7, 1.5)):
    """A tensor of main effects, and the effects."""
    rng = np.random.default_rng(seed)
    effects = [size * rng.standard_normal(n) for size, n in zip(sizes, shape, strict=False)]
    tensor = 3.0 + sum(np.meshgrid(*effects, indexing="ij"))
    return tensor + noise * rng.standard_normal(shape)


def observed(shape, fraction=0.3, seed=1):
    return np.random.default_rng(seed).random(shape) < fraction


@pytest.fixture(params=SHAPES, ids=lambda order: f"order {order}")
def shape(request):
    return SHAPES[request.param]


def design(mask):
    """The dense X of μ and all effects, and where each mode's begin."""
    places = np.array(np.nonzero(mask))
    columns = [np.ones((places.shape[1], 1))]
    columns += [np.eye(n)[row] for row, n in zip(places, mask.shape, strict=True)]
    return np.hstack(columns)


def dense_ridge(mask, values, shrinkage):
    X = design(mask)
    ridge = np.concatenate([[0.0], np.repeat(shrinkage, mask.shape)])
    return np.linalg.solve(X.T @ X + np.diag(ridge), X.T @ values[mask])


def flat(offset):
    return np.concatenate([[offset.mean], *offset.effects])


def test_a_solution_is_that_of_the_dense_ridge_regression(shape, store_of):
    mask, values = observed(shape), additive(shape)
    shrinkage = np.linspace(0.3, 20.0, len(shape))
    with local_engine(store_of(mask, values, parts=2)) as engine:
        normal = NormalEquations.of(engine)
        nothing = np.zeros(normal.layout.size)
        found = normal.solved(shrinkage, Fitted(nothing, nothing), 1e-12).unknowns
    np.testing.assert_allclose(found, dense_ridge(mask, values, shrinkage), rtol=1e-8, atol=1e-9)


def test_what_is_estimated_solves_the_ridge_regression_of_its_own_variances(
    shape, store_of, monkeypatch
):
    mask, values = observed(shape), additive(shape)
    used = []
    solved = NormalEquations.solved

    def noted(self, shrinkage, *rest):
        used.append(shrinkage)
        return solved(self, shrinkage, *rest)

    monkeypatch.setattr(NormalEquations, "solved", noted)
    with local_engine(store_of(mask, values)) as engine:
        found = estimated(engine)
    np.testing.assert_allclose(found, dense_ridge(mask, values, used[-1]), rtol=1e-6, atol=1e-7)
    # Of effects that were drawn with these variances: σ²/τ², to what so few of them can tell.
    true = NOISE**2 / np.array([1.0, 2.0, 0.7, 1.5][: len(shape)]) ** 2
    assert np.all(np.abs(np.log(used[-1] / true)) < 1.5)
    assert len(used) < mode_effects.MOST_ROUNDS


def values_of(share):
    parts = range(len(share.assignment.store.partitions))
    return np.concatenate([partition_vector(share, part, VALUES) for part in parts])


def test_observations_and_those_held_out_are_left_without_the_offset(store_of):
    shape = SHAPES[3]
    values, seen, other = additive(shape), observed(shape), observed(shape, seed=5)
    store, held_out = store_of(seen, values, parts=3), store_of(other & ~seen, values)
    with local_engine(store, offset=store.mean, validation=held_out) as engine:
        before = held_out_errors(engine, SINGLY).rmse
        offset = subtract_effects(engine, store.mean)
        after = held_out_errors(engine, SINGLY).rmse
        (left,) = engine.on_shares(values_of)
    at = offset.at(store.indices())
    np.testing.assert_allclose(left, store.values() - at, atol=1e-12)
    values_left = np.asarray(held_out.values())
    wanted = values_left - offset.at(held_out.indices())
    assert after == pytest.approx(np.sqrt(np.mean(wanted**2)))
    assert before == pytest.approx(np.sqrt(np.mean((values_left - store.mean) ** 2)))
    assert after < 0.4 * before


def test_an_offset_that_is_known_is_taken_and_not_estimated(store_of):
    mask, values = observed(SHAPES[3]), additive(SHAPES[3])
    store = store_of(mask, values, parts=2)
    known, left = None, []
    for _ in range(2):
        with local_engine(store, offset=store.mean) as engine:
            given, known = known, subtract_effects(engine, store.mean, known)
            assert given is None or given is known
            left += engine.on_shares(values_of)
    np.testing.assert_allclose(left[0], left[1], atol=1e-12)


def test_an_index_with_few_observations_stays_near_zero_and_one_with_none_is_zero(store_of):
    values = np.zeros((40, 12))
    values[:20] = 1.0  # of which nothing is known but what they share
    mask = np.ones_like(values, dtype=bool)
    mask[5, 1:] = False
    mask[7] = False
    noisy = values + 0.5 * np.random.default_rng(2).standard_normal(values.shape)
    store = store_of(mask, noisy)
    with local_engine(store, offset=store.mean) as engine:
        rows, _ = subtract_effects(engine, store.mean).effects
    assert rows[7] == 0.0
    alone = noisy[5, 0] - noisy[mask].mean()
    assert abs(rows[5]) < 0.6 * abs(alone)
    often = noisy[3].mean() - noisy[mask].mean()
    assert abs(rows[3]) > 0.8 * abs(often)


def test_noise_alone_has_hardly_any_effects(store_of):
    noise = np.random.default_rng(3).standard_normal((60, 50))
    mask = observed(noise.shape, 0.5)
    with local_engine(store_of(mask, noise)) as engine:
        offset = subtract_effects(engine, 0.0)
    raw = np.array([noise[row][mask[row]].mean() for row in range(60)])
    assert np.std(offset.effects[0]) < 0.5 * np.std(raw)


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_observations_that_are_all_the_same_have_no_effects(value, store_of):
    mask = observed((9, 8, 7))
    store = store_of(mask, np.full(mask.shape, value))
    with local_engine(store, offset=store.mean) as engine:
        offset = subtract_effects(engine, store.mean)
    assert offset.mean == pytest.approx(value)
    assert all(np.abs(effect).max() < 1e-9 for effect in offset.effects)


def test_with_a_limit_absurd_values_hardly_move_the_effects(shape, store_of):
    mask, values = observed(shape), additive(shape)
    absurd = observed(shape, 0.03, seed=8)
    found = []
    for tensor, limit in ((values, np.inf), (np.where(absurd, 1e6, values), 2.0)):
        store = store_of(mask, tensor, parts=2)
        middle = float(np.median(tensor[mask]))
        with local_engine(store, offset=middle) as engine:
            offset = subtract_effects(engine, middle, limit=limit)
        found.append(offset.on_box(tuple(map(range, shape))))
    assert np.sqrt(np.mean((found[1] - found[0]) ** 2)) < 0.3 * np.std(found[0])


def test_a_limit_that_nothing_exceeds_changes_nothing(store_of):
    store = store_of(observed(SHAPES[3]), additive(SHAPES[3]), parts=2)
    found = []
    for limit in (np.inf, 1e3):
        with local_engine(store, offset=store.mean) as engine:
            found.append(flat(subtract_effects(engine, store.mean, limit=limit)))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-7, atol=1e-8)


def test_errors_of_offsets_alone_are_those_of_the_loss(store_of):
    shape, delta = SHAPES[3], 0.7
    values, seen, other = additive(shape), observed(shape), observed(shape, seed=5)
    store, held_out = store_of(seen, values), store_of(other & ~seen, values)
    with local_engine(store, validation=held_out) as engine:
        found = held_out_errors(engine, SINGLY, delta).rmse
    sizes = np.abs(held_out.values())
    loss = np.where(sizes <= delta, sizes**2, delta * (2.0 * sizes - delta))
    assert found == pytest.approx(np.sqrt(np.mean(loss)))
