"""A start sees the tensor, not the pattern in which it was observed."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.dual.problem import DualProblem
from slrt_dask.dual.start import ObservedRows, spectral_start
from tests.engine.helpers import dense_problem, local_engine
from tests.oracles.dense import unfold


def rows_of(mask, tensor):
    """What the pattern does to the rows of every unfolding, by dense products."""
    values = np.where(mask, tensor, 0.0)
    masks = [unfold(mask.astype(float), mode) for mode in range(mask.ndim)]
    squares = [np.square(unfold(values, mode)).sum(axis=1) for mode in range(mask.ndim)]
    counts = tuple(mask.sum(axis=1) for mask in masks)
    return ObservedRows(counts, tuple(squares), tuple((m @ m.T).sum(axis=1) for m in masks))


@pytest.mark.parametrize("order", [2, 3, 4])
def test_rows_are_counted_as_dense_products_count_them(order, store_of):
    dense = dense_problem(order)
    tensor = np.zeros(dense.mask.shape)
    tensor[dense.mask] = dense.y
    with local_engine(store_of(dense.mask, tensor, parts=3), threads=2) as engine:
        problem = DualProblem(engine, (2,) * order, cost_weight=1.0, weights=(1.0,) * order)
        found, wanted = problem.observed_rows(), rows_of(dense.mask, tensor)
    for name in ("counts", "squares", "meetings"):
        for one, other in zip(getattr(found, name), getattr(wanted, name), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_nothing_is_taken_off_where_all_is_observed():
    tensor = np.random.default_rng(0).standard_normal((5, 4, 3))
    for excess in rows_of(np.ones(tensor.shape, dtype=bool), tensor).diagonal_excess():
        np.testing.assert_allclose(excess, 0.0, atol=1e-12)


def test_rows_that_are_always_observed_together_have_nothing_taken_off():
    rng = np.random.default_rng(0)
    tensor = rng.standard_normal((12, 10, 3))
    mask = np.repeat(rng.random((12, 10, 1)) < 0.2, 3, axis=2)  # pixels with all their colours
    pixels, _, colours = rows_of(mask, tensor).diagonal_excess()
    np.testing.assert_allclose(colours, 0.0, atol=1e-12)
    assert (pixels > 0.0).any()


def test_a_mode_of_one_row_keeps_its_only_entry():
    tensor = np.random.default_rng(0).standard_normal((6, 1, 5))
    mask = np.random.default_rng(1).random(tensor.shape) < 0.5
    assert rows_of(mask, tensor).diagonal_excess()[1] == 0.0


def test_without_the_excess_products_are_in_proportion_to_those_of_the_whole_tensor():
    rng = np.random.default_rng(0)
    tensor = rng.uniform(1.0, 2.0, (6, 5, 4))
    whole, mean = unfold(tensor, 0) @ unfold(tensor, 0).T, np.zeros((6, 6))
    draws = 4000
    for _ in range(draws):
        mask = rng.random(tensor.shape) < 0.3
        observed = unfold(np.where(mask, tensor, 0.0), 0)
        mean += (
            observed @ observed.T - np.diag(rows_of(mask, tensor).diagonal_excess()[0])
        ) / draws
    np.testing.assert_allclose(mean / 0.3**2, whole, rtol=0.05)


@pytest.mark.parametrize("observed", [0.05, 0.3])
def test_a_start_is_nearer_to_the_tensor_than_the_observed_unfoldings_are(observed, store_of):
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((length, 3)) for length in (60, 50, 40)]
    # Rows of very different size, as bands and pixels have, are what misleads eigenvectors.
    factors[0] *= np.linspace(0.2, 3.0, 60)[:, None]
    tensor = np.einsum("ir,jr,kr->ijk", *factors)
    mask = np.random.default_rng(1).random(tensor.shape) < observed
    with local_engine(store_of(mask, tensor)) as engine:
        problem = DualProblem(engine, (3, 3, 3), cost_weight=1.0, weights=(1.0, 1.0, 1.0))
        start = spectral_start(problem, 0)
        problem.manifold.validate(start)
    for mode, factor in enumerate(start):
        truth = np.linalg.svd(unfold(tensor, mode), full_matrices=False)[0][:, :3]
        seen = np.linalg.svd(unfold(np.where(mask, tensor, 0.0), mode), full_matrices=False)[0]
        missed = [
            np.linalg.norm(truth - basis @ (basis.T @ truth))
            for basis in (np.linalg.qr(factor)[0], seen[:, :3])
        ]
        assert missed[0] < missed[1]


def test_a_start_has_full_ranks_where_the_observations_have_not(store_of):
    tensor = np.ones((4, 3, 2))
    mask = np.zeros(tensor.shape, dtype=bool)
    mask[0, 0, 0] = mask[1, 1, 1] = True
    with local_engine(store_of(mask, tensor)) as engine:
        problem = DualProblem(engine, (4, 3, 2), cost_weight=1.0, weights=(1.0, 1.0, 1.0))
        start = spectral_start(problem, 0)
    for factor in start:
        assert np.linalg.matrix_rank(factor) == factor.shape[1]
