"""A store as lazy sparse dask arrays, and what they say of the kernels: they are an oracle."""

from __future__ import annotations

import shutil

import dask
import dask.array as da
import numpy as np
import pytest
import sparse

import slrt_dask as slrt
from slrt_dask.dual.certificate import Measure
from slrt_dask.dual.numbering import number_fibres
from slrt_dask.dual.problem import DualProblem
from slrt_dask.dual.start import spectral_start
from slrt_dask.engine.base import LocalEngine
from slrt_dask.engine.share import Assignment
from slrt_dask.errors import InvalidInput

SHAPES = {1: (9,), 2: (9, 8), 3: (8, 6, 5), 4: (7, 4, 3, 4)}
# A series is completed with Hankel structure, by another operator.
TENSORS = pytest.mark.parametrize("case", [2, 3, 4], indirect=True)


@pytest.fixture(params=SHAPES, ids=lambda order: f"order {order}")
def case(request, tmp_path):
    """A dense tensor with zeros where nothing is observed, its mask, and a store in four slabs."""
    shape, rng = SHAPES[request.param], np.random.default_rng(request.param)
    mask = rng.random(shape) < 0.4
    mask.flat[0] = True
    dense = np.where(mask, rng.standard_normal(shape), 0.0)
    places = np.array(np.nonzero(mask))
    entries = places.shape[1] // 4 + 1
    path = tmp_path / "store"
    store = slrt.from_coo(path, places, dense[mask], shape, partition_entries=entries)
    return dense, mask, store


def test_views_are_the_tensor_its_mask_and_its_unfoldings(case):
    dense, mask, store = case
    assert store.to_dask().numblocks[store.slab_mode] == len(store.partitions) > 1
    np.testing.assert_array_equal(store.to_dask().compute().todense(), dense)
    np.testing.assert_array_equal(store.mask().compute().todense(), mask)
    for mode in range(store.order):
        others = sorted(set(range(store.order)) - {mode}, key=lambda k: (k != store.slab_mode, k))
        expected = dense.transpose(mode, *others).reshape(store.shape[mode], -1)
        np.testing.assert_array_equal(store.unfold(mode).compute().todense(), expected)


def test_views_are_lazy_and_stay_sparse(case):
    _, _, store = case
    views = [store.to_dask(), store.mask(), store.unfold(0)]
    for chunk in dask.compute(*(view.blocks[(0,) * view.ndim] for view in views)):
        assert isinstance(chunk, sparse.COO)
    shutil.rmtree(store.path)
    again = [store.to_dask(), store.mask(), store.unfold(0)]
    assert [view.chunks for view in again] == [view.chunks for view in views]


def test_sums_along_a_mode_are_those_of_the_dense_tensor(case):
    dense, mask, store = case
    total, count = dask.compute(store.to_dask().sum(axis=0), store.mask().sum(axis=0))
    np.testing.assert_allclose(np.asarray(total.todense()), dense.sum(axis=0), atol=1e-12)
    np.testing.assert_array_equal(np.asarray(count.todense()), mask.sum(axis=0))


@pytest.mark.parametrize("mode", [-1, 4])
def test_an_unfolding_along_no_mode_is_refused(case, mode):
    with pytest.raises(InvalidInput, match=str(mode)):
        case[2].unfold(mode)


@pytest.fixture
def problem(case):
    """The package's problem on an engine of two threads, and a point."""
    store = case[2]
    with LocalEngine(Assignment(store, tuple(range(len(store.partitions))), 2)) as engine:
        number_fibres(engine)
        weights = tuple(1.0 + k for k in range(store.order))
        problem = DualProblem(engine, store.shape, cost_weight=2.0, weights=weights)
        yield problem, problem.manifold.random_point(np.random.default_rng(5))


@TENSORS
def test_row_sums_are_two_products_with_the_unfolding(case, problem):
    store, (problem, point) = case[2], problem
    for mode, sums in enumerate(problem.row_sums(None, point)):
        X, U = store.unfold(mode), point[mode]
        np.testing.assert_allclose(sums, (X @ (X.T @ U)).compute(), rtol=1e-12, atol=1e-12)


@TENSORS
def test_the_operator_is_a_sum_of_products_with_the_tensor_where_it_is_observed(case, problem):
    store, (problem, U) = case[2], problem
    Y, image = store.to_dask(), 0 * store.to_dask()
    for mode, (weight, u) in enumerate(zip(problem.weights, U, strict=True)):
        image += store.mask() * da.moveaxis(weight * da.tensordot(u @ u.T, Y, (1, mode)), 0, mode)
    expected = [((image - Y) ** 2).sum(), (Y**2).sum() / (2 * problem.cost_weight), (Y**2).sum()]
    found = problem.engine.run(Measure(problem.operator(U), problem.model, "values"))
    found = found.misfit, found.energy, found.overlap
    np.testing.assert_allclose(found, [float(one.compute()) for one in expected], rtol=1e-12)


@TENSORS
def test_the_start_is_the_root_of_the_corrected_gram_matrix(case, problem):
    store, (problem, _) = case[2], problem
    for mode, U in enumerate(spectral_start(problem, seed=0)):
        X = store.unfold(mode)
        M = (X != 0).astype(float)
        counts, n = np.asarray(M.sum(axis=1).compute().todense()), store.shape[mode]
        meetings = np.asarray((M @ (M.T @ np.ones(n))).compute())
        chance = (meetings - counts) / np.maximum(counts * (n - 1), 1.0)
        squares = np.asarray((X**2).sum(axis=1).compute().todense())
        gram = (X @ X.T).compute().todense() - np.diag((1.0 - chance) * squares)
        values, vectors = np.linalg.eigh(gram)
        root = vectors * np.sqrt(np.maximum(values / values[-1], 1e-8)) @ vectors.T
        np.testing.assert_allclose(U @ U.T, root / np.trace(root), atol=1e-9)
