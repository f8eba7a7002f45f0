"""Laws of the three sums over observations and of their forms that go slice by slice."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from slrt_dask.kernels.rows import FAST_MATH, lanes_for, pad_columns, padded_width

from slrt_dask.kernels import crossing, local, sweeps, vectors
from slrt_dask.kernels.blocks import build_queries
from tests.kernels.helpers import (
    ORDERS,
    SHAPES,
    factors_for,
    random_tensor,
    sparse_tensor,
    whole_fibres,
)
from tests.oracles.dense import mode_product, unfold

# Every order, every rank up to 9, and so every way in which a row is cut into vectors.
ORDERS_AND_RANKS = [(2, 1), (3, 2), (4, 3), (5, 4), (2, 5), (3, 6), (4, 7), (5, 8), (3, 9)]


def close(actual, wanted, dtype=np.float64):
    tolerance = 1e-13 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance * 10)


def fibre_sums_of(tensor, mode, padded, x=None):
    fibres, count = whole_fibres(tensor, mode)
    width = padded.shape[1]
    sums = np.zeros((count, width))
    rows = tensor.indices[mode]
    x = tensor.x if x is None else x
    sweeps.fibre_sums(rows, fibres, x, padded, lanes_for(width), sums)
    return sums


@pytest.mark.parametrize(("order", "rank"), ORDERS_AND_RANKS)
def test_fibre_sums_are_the_columns_of_the_projected_unfolding(order, rank):
    tensor = random_tensor(order)
    for mode in range(order):
        U = np.random.default_rng(mode).standard_normal((tensor.dense.shape[mode], rank))
        sums = fibre_sums_of(tensor, mode, pad_columns(U))
        close(sums[:, :rank], (U.T @ unfold(tensor.dense, mode)).T)
        assert not sums[:, rank:].any()


@pytest.mark.parametrize(("order", "rank"), ORDERS_AND_RANKS)
def test_sampling_fibre_sums_is_a_mode_product_at_the_entries(order, rank):
    tensor = random_tensor(order)
    for mode in range(order):
        U = np.random.default_rng(mode).standard_normal((tensor.dense.shape[mode], rank))
        padded, (fibres, _) = pad_columns(U), whole_fibres(tensor, mode)
        sums = fibre_sums_of(tensor, mode, padded)
        out = np.ones(len(tensor.x))
        lanes = lanes_for(padded.shape[1])
        sweeps.sample(tensor.indices[mode], fibres, sums, padded, lanes, 0.7, out)
        close(out, 1.0 + 0.7 * mode_product(tensor.dense, U @ U.T, mode)[tensor.indices])


@pytest.mark.parametrize(("order", "rank"), ORDERS_AND_RANKS)
def test_row_sums_are_the_unfolding_times_its_fibre_sums(order, rank):
    tensor = random_tensor(order)
    for mode in range(order):
        U = np.random.default_rng(mode).standard_normal((tensor.dense.shape[mode], rank))
        padded, (fibres, _) = pad_columns(U), whole_fibres(tensor, mode)
        sums, totals = fibre_sums_of(tensor, mode, padded), np.zeros_like(padded)
        lanes = lanes_for(padded.shape[1])
        sweeps.row_sums(tensor.indices[mode], fibres, tensor.x, sums, lanes, totals)
        X = unfold(tensor.dense, mode)
        close(totals[:, :rank], X @ (X.T @ U))


def apply_by_slices(tensor, mode, gather, scatter, weight=1.0, out=None):
    index, width = tensor.index, gather.shape[1]
    out = np.zeros_like(tensor.x) if out is None else out
    buffer = np.full((index.buffer_rows[mode], width), np.inf)  # its content must not matter
    before = out.copy()
    tolerance = 1e-12 if tensor.x.dtype == np.float64 else 1e-5
    ways = {sweeps.apply_slices: out}
    if mode == index.mode_in_runs:
        ways[sweeps.apply_runs] = out.copy()
    for apply, made in ways.items():
        energy = apply(
            index.starts, index.rows[mode], index.fibres[mode], tensor.x,
            gather, scatter, lanes_for(width), buffer, weight, made, False, np.nan,
        )  # fmt: skip
        scale = 1.0 + np.nansum(np.abs(tensor.x * (made - before)))
        np.testing.assert_allclose(energy, tensor.x @ (made - before), atol=tolerance * scale)
        close(made, out, tensor.x.dtype)
    return out


def row_sums_by_slices(tensor, mode, padded):
    index, width = tensor.index, padded.shape[1]
    buffer = np.full((index.buffer_rows[mode], width), np.inf)
    in_runs = mode == index.mode_in_runs
    ways = (sweeps.row_sums_slices, sweeps.row_sums_runs) if in_runs else (sweeps.row_sums_slices,)
    found = []
    for add_rows in ways:
        totals = np.zeros_like(padded)
        add_rows(
            index.starts, index.rows[mode], index.fibres[mode], tensor.x,
            padded, lanes_for(width), buffer, totals,
        )  # fmt: skip
        found.append(totals)
    close(found[-1], found[0], tensor.x.dtype)
    return found[-1]


def derivative_by_slices(tensor, x_dot, mode, padded, padded_dot):
    index, width = tensor.index, padded.shape[1]
    rows = index.buffer_rows[mode]
    buffers = [np.full((rows, width), np.inf) for _ in range(2)]
    totals = np.zeros_like(padded)
    sweeps.derivative_row_sums_slices(
        index.starts, index.rows[mode], index.fibres[mode], tensor.x, x_dot,
        padded, padded_dot, lanes_for(width), *buffers, totals,
    )  # fmt: skip
    return totals


@pytest.mark.parametrize(("order", "rank"), ORDERS_AND_RANKS)
def test_products_by_slices_equal_mode_products(order, rank):
    for slab_mode in range(order):
        tensor = random_tensor(order, slab_mode=slab_mode)
        for mode in tensor.index.local_modes:
            rng = np.random.default_rng(mode)
            U, V = rng.standard_normal((2, tensor.dense.shape[mode], rank))
            out = np.ones_like(tensor.x)
            apply_by_slices(tensor, mode, pad_columns(U), pad_columns(V), -0.3, out)
            wanted = 1.0 - 0.3 * mode_product(tensor.dense, V @ U.T, mode)[tensor.indices]
            close(out, wanted)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("apply", [sweeps.apply_slices, sweeps.apply_runs])
def test_a_fresh_product_begins_with_a_multiple_of_the_vector(apply, dtype):
    tensor = random_tensor(3, dtype=dtype)
    mode, index = tensor.index.mode_in_runs, tensor.index
    U = pad_columns(np.random.default_rng(0).standard_normal((tensor.dense.shape[mode], 3)))
    made, wanted = np.full_like(tensor.x, np.nan), dtype(0.7) * tensor.x
    energies = []
    for out, fresh in ((made, True), (wanted, False)):
        buffer = np.full((index.buffer_rows[mode], U.shape[1]), np.inf)
        energies.append(
            apply(
                index.starts, index.rows[mode], index.fibres[mode], tensor.x, U, U,
                lanes_for(U.shape[1]), buffer, 1.5, out, fresh, 0.7,
            )
        )  # fmt: skip
    close(made, wanted, dtype)
    assert energies[0] == pytest.approx(energies[1], rel=1e-12)


@pytest.mark.parametrize(("order", "rank"), ORDERS_AND_RANKS)
def test_row_sums_by_slices_equal_the_gram_of_the_unfolding(order, rank):
    for slab_mode in range(order):
        tensor = random_tensor(order, slab_mode=slab_mode)
        for mode in tensor.index.local_modes:
            U = np.random.default_rng(mode).standard_normal((tensor.dense.shape[mode], rank))
            X = unfold(tensor.dense, mode)
            totals = row_sums_by_slices(tensor, mode, pad_columns(U))
            close(totals[:, :rank], X @ (X.T @ U))
            assert not totals[:, rank:].any()


@pytest.mark.parametrize("order", ORDERS)
def test_derivative_row_sums_equal_finite_differences(order):
    tensor = random_tensor(order)
    rng = np.random.default_rng(3)
    x_dot = rng.standard_normal(len(tensor.x))
    for mode in tensor.index.local_modes:
        U, V = rng.standard_normal((2, tensor.dense.shape[mode], 3))

        def at(t, mode=mode, U=U, V=V):
            moved = sparse_tensor(
                tensor.dense.shape, np.stack(tensor.indices), tensor.x + t * x_dot
            )
            return row_sums_by_slices(moved, mode, pad_columns(U + t * V))

        # The sums are cubic in t: central differences are right to the square of the step.
        difference = (at(1e-5) - at(-1e-5)) / 2e-5
        found = derivative_by_slices(tensor, x_dot, mode, pad_columns(U), pad_columns(V))
        np.testing.assert_allclose(found, difference, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("known", [False, True], ids=["every-fibre", "known-fibres"])
def test_sampling_at_other_places_equals_the_dense_tensor_everywhere(order, known):
    # Sparse, so that there are queries in slices and in fibres that hold no entry.
    shape = SHAPES[order]
    tensor = random_tensor(order, fraction=0.15, slab_mode=order - 1, known=known)
    matrices, padded, _ = factors_for(shape, (3,) * order)
    everywhere = np.indices(shape).reshape(order, -1)
    everywhere = everywhere[:, np.argsort(everywhere[-1], kind="stable")]
    queries = build_queries(tensor.index, tuple(everywhere), tensor.numbering)
    for mode in tensor.index.local_modes:
        width = padded[mode].shape[1]
        out = np.zeros(everywhere.shape[1])
        buffer = np.full((queries.buffer_rows[mode], width), np.inf)
        sweeps.sample_slices(
            queries.source_bounds, tensor.index.rows[mode], queries.source_fibres[mode], tensor.x,
            queries.starts, queries.rows[mode], queries.fibres[mode], padded[mode],
            lanes_for(width), buffer, 1.0, out,
        )  # fmt: skip
        W = mode_product(tensor.dense, matrices[mode] @ matrices[mode].T, mode)
        close(out, W[tuple(everywhere)])


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_types_of_vectors_and_indices_change_nothing_but_precision(dtype, index_dtype):
    tensor = random_tensor(3, dtype=dtype, index_dtype=index_dtype)
    shape = tensor.dense.shape
    (_, U, _), (_, padded, _), _ = factors_for(shape, (3, 3, 3))
    X = unfold(tensor.dense, 1)
    close(fibre_sums_of(tensor, 1, padded)[:, :3], (U.T @ X).T)  # sums are float64 always
    close(row_sums_by_slices(tensor, 1, padded)[:, :3], X @ (X.T @ U))
    out = apply_by_slices(tensor, 1, padded, padded)
    assert out.dtype == dtype
    close(out, mode_product(tensor.dense, U @ U.T, 1)[tensor.indices], dtype)


@pytest.mark.parametrize("order", ORDERS)
def test_sampling_is_the_adjoint_of_fibre_sums(order):
    tensor = random_tensor(order)
    for mode in range(order):
        rng = np.random.default_rng(mode)
        padded = pad_columns(rng.standard_normal((tensor.dense.shape[mode], 3)))
        fibres, count = whole_fibres(tensor, mode)
        other = pad_columns(rng.standard_normal((count, 3)))
        sampled = np.zeros_like(tensor.x)
        sweeps.sample(tensor.indices[mode], fibres, other, padded, lanes_for(4), 1.0, sampled)
        left = np.vdot(fibre_sums_of(tensor, mode, padded), other)
        assert left == pytest.approx(tensor.x @ sampled, rel=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_swapping_gather_and_scatter_transposes_a_product(order):
    tensor = random_tensor(order)
    rng = np.random.default_rng(5)
    y = rng.standard_normal(len(tensor.x))
    other = sparse_tensor(tensor.dense.shape, np.stack(tensor.indices), y)
    for mode in tensor.index.local_modes:
        U, V = (pad_columns(M) for M in rng.standard_normal((2, tensor.dense.shape[mode], 3)))
        left = y @ apply_by_slices(tensor, mode, U, V)
        assert left == pytest.approx(tensor.x @ apply_by_slices(other, mode, V, U), rel=1e-11)


SPECIAL_BLOCKS = {
    "empty": np.zeros((3, 0), dtype=int),
    "one entry": np.array([[4], [3], [5]]),
    "one slice": np.array([[2, 2, 2, 2], [0, 1, 1, 3], [0, 5, 2, 2]]),
    "one fibre of the slab mode": np.array([[0, 1, 3, 4], [2, 2, 2, 2], [1, 1, 1, 1]]),
    "one fibre of a local mode": np.array([[3, 3, 3], [0, 2, 3], [1, 1, 1]]),
}


@pytest.mark.parametrize("places", SPECIAL_BLOCKS.values(), ids=SPECIAL_BLOCKS.keys())
def test_special_blocks_obey_the_same_laws(places):
    shape = SHAPES[3]
    tensor = sparse_tensor(shape, places, np.arange(1.0, places.shape[1] + 1))
    matrices, padded, _ = factors_for(shape, (3, 3, 3))
    for mode, (U, P) in enumerate(zip(matrices, padded, strict=True)):
        X = unfold(tensor.dense, mode)
        close(fibre_sums_of(tensor, mode, P)[:, :3], (U.T @ X).T)
        if mode in tensor.index.local_modes:
            wanted = mode_product(tensor.dense, U @ U.T, mode)[tensor.indices]
            close(apply_by_slices(tensor, mode, P, P), wanted)
            close(row_sums_by_slices(tensor, mode, P)[:, :3], X @ (X.T @ U))


@pytest.mark.parametrize("order", ORDERS)
def test_in_a_sorted_block_the_last_local_mode_is_in_runs(order):
    for slab_mode in range(order):
        tensor = random_tensor(order, slab_mode=slab_mode)
        assert tensor.index.mode_in_runs == tensor.index.local_modes[-1]


def test_fibres_that_are_left_and_met_again_are_not_in_runs():
    places = np.array([[0, 0, 0, 1, 1], [0, 1, 0, 2, 0], [1, 2, 3, 0, 1]])
    tensor = sparse_tensor((2, 3, 4), places, np.ones(5))
    assert tensor.index.mode_in_runs is None
    (U, *_), (P, *_), _ = factors_for((4,), (3,))
    found = apply_by_slices(tensor, 2, P, P)
    close(found, mode_product(tensor.dense, U @ U.T, 2)[tensor.indices])


def test_a_nan_reaches_its_fibre_and_nothing_else():
    tensor = random_tensor(3)
    _, padded, _ = factors_for(tensor.dense.shape, (3, 3, 3))
    tensor.x[7] = np.nan
    for mode in range(3):
        fibres, _ = whole_fibres(tensor, mode)
        touched = np.isnan(fibre_sums_of(tensor, mode, padded[mode])[:, :3]).all(axis=1)
        assert touched.sum() == 1
        assert touched[fibres[7]]
        if mode in tensor.index.local_modes:
            out = apply_by_slices(tensor, mode, padded[mode], padded[mode])
            np.testing.assert_array_equal(np.isnan(out), fibres == fibres[7])
            assert np.isnan(row_sums_by_slices(tensor, mode, padded[mode])).any()


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_wider_padding_changes_nothing(rank):
    tensor = random_tensor(3)
    U = np.random.default_rng(0).standard_normal((tensor.dense.shape[1], rank))
    usual = pad_columns(U)
    wider = np.zeros((len(U), 8))
    wider[:, :rank] = U
    close(apply_by_slices(tensor, 1, wider, wider), apply_by_slices(tensor, 1, usual, usual))
    totals = [row_sums_by_slices(tensor, 1, padded) for padded in (wider, usual)]
    close(totals[0][:, :rank], totals[1][:, :rank])
    assert not totals[0][:, rank:].any()


@pytest.mark.parametrize("columns", range(1, 18))
def test_padding_is_the_smallest_even_width_and_keeps_the_columns(columns):
    matrix = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    padded = pad_columns(matrix)
    assert padded.shape == (3, padded_width(columns))
    assert columns <= padded_width(columns) <= columns + 1
    assert padded_width(columns) == 2 * len(lanes_for(padded_width(columns)))
    assert padded.dtype == np.float64
    assert padded.flags.c_contiguous
    np.testing.assert_array_equal(padded[:, :columns], matrix)
    assert not padded[:, columns:].any()


def test_every_kernel_releases_the_gil_and_lets_nan_survive():
    kernels = [
        thing
        for module in (crossing, local, sweeps, vectors)
        for thing in vars(module).values()
        if isinstance(thing, Dispatcher) and thing.py_func.__module__ == module.__name__
    ]
    assert len(kernels) >= 8
    assert all(kernel.targetoptions.get("nogil") for kernel in kernels)
    assert not FAST_MATH & {"nnan", "ninf", "fast"}
    assert all(kernel.targetoptions.get("fastmath") == FAST_MATH for kernel in kernels)
