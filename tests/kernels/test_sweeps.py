"""Laws of the three sums over observations and of their forms that go slice by slice."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from slrt_dask.kernels import crossing, sweeps, vectors
from slrt_dask.kernels.blocks import build_queries
from slrt_dask.kernels.simd import FAST_MATH, lanes_for, pad_columns, padded_width
from tests.kernels.helpers import ORDERS, SHAPES, close, random_tensor, sparse_tensor

# Every order, every rank up to 9, and so every way in which a row is cut into vectors.
ORDERS_AND_RANKS = [(2, 1), (3, 2), (4, 3), (3, 4), (2, 5), (3, 6), (4, 7), (2, 8), (3, 9)]


def along(tensor, matrix, mode):
    """tensor ×_mode matrix, by einsum."""
    letters = "abcd"[: tensor.ndim]
    return np.einsum(f"{letters},z{letters[mode]}->{letters.replace(letters[mode], 'z')}",
                     tensor, matrix)  # fmt: skip


def gram(one, other, mode):
    """Σ over the fibres' places of one and other: (n_mode, n_mode), by einsum."""
    letters = "abcd"[: one.ndim]
    return np.einsum(f"{letters},{letters.replace(letters[mode], 'z')}->{letters[mode]}z",
                     one, other)  # fmt: skip


def columns(tensor, mode):
    """A tensor's fibres of a mode as rows, in the order of their keys."""
    return np.moveaxis(tensor, mode, -1).reshape(-1, tensor.shape[mode])


def fibre_sums_of(tensor, mode, padded):
    fibres, count = tensor.fibres(mode)
    sums = np.zeros((count, padded.shape[1]))
    lanes = lanes_for(padded.shape[1])
    sweeps.fibre_sums(tensor.indices[mode], fibres, tensor.x, padded, lanes, sums)
    return sums


def buffer_for(tensor, mode, padded):
    """A buffer whose content must not matter."""
    return np.full((tensor.index.buffer_rows[mode], padded.shape[1]), np.inf)


def arguments(tensor, mode):
    index = tensor.index
    return index.starts, index.rows[mode], index.fibres[mode], tensor.x


def apply_by_slices(tensor, mode, gather, scatter, weight=1.0, out=None, shift=None):
    """`out` after the product, by each form that can make it; all have to agree."""
    before = np.zeros_like(tensor.x) if out is None else out
    made = []
    for apply in (sweeps.apply_slices, sweeps.apply_runs):
        if apply is sweeps.apply_slices or mode == tensor.index.mode_in_runs:
            made.append(before.copy() if shift is None else np.full_like(tensor.x, np.nan))
            energy = apply(
                *arguments(tensor, mode), gather, scatter, lanes_for(gather.shape[1]),
                buffer_for(tensor, mode, gather), weight, made[-1], shift is not None,
                np.nan if shift is None else shift,
            )  # fmt: skip
            close(made[-1], made[0], tensor.x.dtype)
            added = made[-1] - (before if shift is None else shift * tensor.x)
            close(energy, tensor.x @ added, tensor.x.dtype, 10 * (1 + np.abs(added).sum()))
    return made[-1]


def row_sums_by_slices(tensor, mode, padded):
    found = []
    for add_rows in (sweeps.row_sums_slices, sweeps.row_sums_runs):
        if add_rows is sweeps.row_sums_slices or mode == tensor.index.mode_in_runs:
            found.append(np.zeros_like(padded))
            add_rows(
                *arguments(tensor, mode), padded, lanes_for(padded.shape[1]),
                buffer_for(tensor, mode, padded), found[-1],
            )  # fmt: skip
            close(found[-1], found[0], tensor.x.dtype)
    return found[-1]


@pytest.mark.parametrize(("order", "rank"), ORDERS_AND_RANKS)
def test_sums_over_the_whole_tensor_are_einsums(order, rank):
    tensor = random_tensor(order)
    for mode in range(order):
        U, padded, lanes = tensor.factor(mode, rank)
        (fibres, _), X = tensor.fibres(mode), tensor.dense
        sums = fibre_sums_of(tensor, mode, padded)
        close(sums[:, :rank], columns(along(X, U.T, mode), mode))
        out, totals = np.ones(len(tensor.x)), np.zeros_like(padded)
        sweeps.sample(tensor.indices[mode], fibres, sums, padded, lanes, 0.7, out)
        close(out, 1.0 + 0.7 * along(X, U @ U.T, mode)[tensor.indices])
        sweeps.row_sums(tensor.indices[mode], fibres, tensor.x, sums, lanes, totals)
        close(totals[:, :rank], gram(X, X, mode) @ U)
        assert not sums[:, rank:].any()
        assert not totals[:, rank:].any()


@pytest.mark.parametrize(("order", "rank"), ORDERS_AND_RANKS)
def test_sums_by_slices_are_einsums(order, rank):
    for slab_mode in range(order):
        tensor = random_tensor(order, slab_mode=slab_mode)
        assert tensor.index.mode_in_runs == tensor.index.local_modes[-1]
        x_dot = np.random.default_rng(9).standard_normal(len(tensor.x))
        X, X_dot = tensor.dense, np.zeros_like(tensor.dense)
        X_dot[tensor.indices] = x_dot
        for mode in tensor.index.local_modes:
            U, padded, lanes = tensor.factor(mode, rank)
            V, padded_dot, _ = tensor.factor(mode, rank, seed=7)
            product = along(X, V @ U.T, mode)[tensor.indices]
            out = np.ones_like(tensor.x)
            found = apply_by_slices(tensor, mode, padded, padded_dot, -0.3, out)
            close(found, 1.0 - 0.3 * product)
            found = apply_by_slices(tensor, mode, padded, padded_dot, 1.5, shift=0.7)
            close(found, 0.7 * tensor.x + 1.5 * product)
            totals = row_sums_by_slices(tensor, mode, padded)
            close(totals[:, :rank], gram(X, X, mode) @ U)
            moving = np.zeros_like(padded)
            sweeps.derivative_row_sums_slices(
                *arguments(tensor, mode), x_dot, padded, padded_dot, lanes,
                buffer_for(tensor, mode, padded), buffer_for(tensor, mode, padded), moving,
            )  # fmt: skip
            both = gram(X_dot, X, mode) + gram(X, X_dot, mode)
            close(moving[:, :rank], gram(X, X, mode) @ V + both @ U, factor=10)
            assert not totals[:, rank:].any()
            assert not moving[:, rank:].any()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("known", [False, True], ids=["every-fibre", "known-fibres"])
def test_sampling_at_other_places_equals_the_dense_tensor_everywhere(order, known):
    # Sparse, so that there are queries in slices and in fibres that hold no entry.
    shape = SHAPES[order]
    tensor = random_tensor(order, fraction=0.15, slab_mode=order - 1, known=known)
    everywhere = np.indices(shape).reshape(order, -1)
    everywhere = everywhere[:, np.argsort(everywhere[-1], kind="stable")]
    queries = build_queries(tensor.index, tuple(everywhere), tensor.numbering)
    for mode in tensor.index.local_modes:
        U, padded, lanes = tensor.factor(mode, 3)
        out = np.zeros(everywhere.shape[1])
        buffer = np.full((queries.buffer_rows[mode], padded.shape[1]), np.inf)
        sweeps.sample_slices(
            queries.source_bounds, tensor.index.rows[mode], queries.source_fibres[mode], tensor.x,
            queries.starts, queries.rows[mode], queries.fibres[mode], padded, lanes, buffer,
            1.0, out,
        )  # fmt: skip
        close(out, along(tensor.dense, U @ U.T, mode)[tuple(everywhere)])


SPECIAL_BLOCKS = {
    "empty": np.zeros((3, 0), dtype=int),
    "one entry": np.array([[4], [3], [5]]),
    "one slice": np.array([[2, 2, 2, 2], [0, 1, 1, 3], [0, 5, 2, 2]]),
    "one fibre of the slab mode": np.array([[0, 1, 3, 4], [2, 2, 2, 2], [1, 1, 1, 1]]),
    "one fibre of a local mode": np.array([[3, 3, 3], [0, 2, 3], [1, 1, 1]]),
    "fibres left and met again": np.array([[0, 0, 0, 1, 1], [0, 1, 0, 2, 0], [1, 2, 3, 0, 1]]),
}


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("places", SPECIAL_BLOCKS.values(), ids=SPECIAL_BLOCKS.keys())
def test_special_blocks_and_other_types_obey_the_same_laws(places, dtype, index_dtype):
    x = np.arange(1.0, places.shape[1] + 1).astype(dtype)
    tensor = sparse_tensor(SHAPES[3], places, x, index_dtype=index_dtype)
    X = tensor.dense
    for mode in range(3):
        U, padded, _ = tensor.factor(mode, 3)
        # Sums are float64 always.
        close(fibre_sums_of(tensor, mode, padded)[:, :3], columns(along(X, U.T, mode), mode))
        if mode in tensor.index.local_modes:
            out = apply_by_slices(tensor, mode, padded, padded)
            assert out.dtype == dtype
            close(out, along(X, U @ U.T, mode)[tensor.indices], dtype)
            close(row_sums_by_slices(tensor, mode, padded)[:, :3], gram(X, X, mode) @ U)
            wider = np.zeros((len(U), 8))  # more padding than is needed changes nothing
            wider[:, :3] = U
            close(apply_by_slices(tensor, mode, wider, wider), out, dtype)


def test_entries_that_leave_a_fibre_and_meet_it_again_are_not_in_runs():
    places = SPECIAL_BLOCKS["fibres left and met again"]
    assert sparse_tensor(SHAPES[3], places, np.ones(5)).index.mode_in_runs is None


def test_a_nan_reaches_its_fibre_and_nothing_else():
    tensor = random_tensor(3)
    tensor.x[7] = np.nan
    for mode in range(3):
        _, padded, _ = tensor.factor(mode, 3)
        fibres, _ = tensor.fibres(mode)
        touched = np.isnan(fibre_sums_of(tensor, mode, padded)[:, :3]).all(axis=1)
        assert touched.sum() == 1
        assert touched[fibres[7]]
        if mode in tensor.index.local_modes:
            out = np.zeros_like(tensor.x)
            sweeps.apply_slices(
                *arguments(tensor, mode), padded, padded, lanes_for(4),
                buffer_for(tensor, mode, padded), 1.0, out, False, 0.0,
            )  # fmt: skip
            np.testing.assert_array_equal(np.isnan(out), fibres == fibres[7])


@pytest.mark.parametrize("count", range(1, 18))
def test_padding_is_the_smallest_even_width_and_keeps_the_columns(count):
    matrix = np.random.default_rng(0).standard_normal((3, count)).astype(np.float32)
    padded = pad_columns(matrix)
    assert padded.shape == (3, padded_width(count))
    assert count <= padded_width(count) <= count + 1
    assert padded_width(count) == 2 * len(lanes_for(padded_width(count)))
    assert padded.dtype == np.float64
    assert padded.flags.c_contiguous
    np.testing.assert_array_equal(padded[:, :count], matrix)
    assert not padded[:, count:].any()


def test_every_kernel_of_a_solve_releases_the_gil_and_lets_nan_survive():
    kernels = [
        thing
        for module in (crossing, sweeps, vectors)
        for thing in vars(module).values()
        if isinstance(thing, Dispatcher) and thing.py_func.__module__ == module.__name__
    ]
    assert len(kernels) >= 8
    assert all(kernel.targetoptions.get("nogil") for kernel in kernels)
    assert not FAST_MATH & {"nnan", "ninf", "fast"}
    flags = [kernel.targetoptions.get("fastmath") for kernel in kernels]
    assert all(chosen in (FAST_MATH, None) for chosen in flags)
