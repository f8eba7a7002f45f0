"""Laws of products on dense tiles: those of the sums over entries, whatever is observed."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.engine.block import Buffers
from slrt_dask.kernels import sweeps
from slrt_dask.kernels.rows import lanes_for
from slrt_dask.kernels.tiles import apply_tiles, tile_bytes
from tests.kernels.helpers import ORDERS, SHAPES, factors_for, random_tensor, sparse_tensor
from tests.oracles.dense import mode_product

RANKS = (3, 1, 2, 4, 5)


def dirty(key, shape, dtype):
    """Room whose content must not matter."""
    return np.full(shape, np.nan, dtype=dtype)


def on_tiles(tensor, gathers, scatters, weights, out, room=dirty, fresh=False, shift=np.nan):
    index = tensor.index
    local = index.local_modes
    return apply_tiles(
        index.starts, index.fibres[index.slab_mode], tensor.x,
        tuple(gathers[mode] for mode in local), tuple(scatters[mode] for mode in local),
        tuple(weights[mode] for mode in local), room, out, fresh, shift,
    )  # fmt: skip


def by_entries(tensor, gathers, scatters, weights, out):
    index, energy = tensor.index, 0.0
    for mode in index.local_modes:
        width = gathers[mode].shape[1]
        buffer = np.zeros((index.buffer_rows[mode], width))
        energy += sweeps.apply_slices(
            index.starts, index.rows[mode], index.fibres[mode], tensor.x, gathers[mode],
            scatters[mode], lanes_for(width), buffer, weights[mode], out, False, np.nan,
        )  # fmt: skip
    return energy


@pytest.mark.parametrize("order", [3, 4])
def test_a_fresh_product_on_tiles_begins_with_a_multiple_of_the_vector(order):
    tensor, gathers, scatters, weights = problem(order)
    out, wanted = np.full_like(tensor.x, np.nan), 0.7 * tensor.x
    energies = (
        on_tiles(tensor, gathers, scatters, weights, out, fresh=True, shift=0.7),
        on_tiles(tensor, gathers, scatters, weights, wanted),
    )
    np.testing.assert_allclose(out, wanted, rtol=1e-13)
    assert energies[0] == pytest.approx(energies[1], rel=1e-13)


def problem(order, slab_mode=0, **options):
    tensor = random_tensor(order, fraction=0.6, slab_mode=slab_mode, **options)
    shape = tensor.dense.shape
    _, gathers, _ = factors_for(shape, RANKS[:order], seed=1)
    _, scatters, _ = factors_for(shape, RANKS[:order], seed=2)
    weights = tuple(np.random.default_rng(3).uniform(0.5, 2.0, order))
    return tensor, gathers, scatters, weights


@pytest.mark.parametrize(("order", "slab_mode"), [(k, mode) for k in ORDERS for mode in (0, k - 1)])
def test_a_product_on_tiles_is_the_sum_of_the_mode_products_at_the_entries(order, slab_mode):
    tensor, gathers, scatters, weights = problem(order, slab_mode)
    out = np.ones_like(tensor.x)
    energy = on_tiles(tensor, gathers, scatters, weights, out)
    added = np.zeros_like(tensor.dense)
    for mode in tensor.index.local_modes:
        matrix = weights[mode] * scatters[mode] @ gathers[mode].T
        added += mode_product(tensor.dense, matrix, mode)
    np.testing.assert_allclose(out, 1.0 + added[tensor.indices], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(energy, (tensor.dense * added).sum(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ORDERS)
def test_tiles_and_entries_make_the_same_product_to_rounding(order, dtype):
    tensor, gathers, scatters, weights = problem(order, dtype=dtype)
    out, wanted = np.zeros_like(tensor.x), np.zeros_like(tensor.x)
    energy = on_tiles(tensor, gathers, scatters, weights, out)
    wanted_energy = by_entries(tensor, gathers, scatters, weights, wanted)
    assert out.dtype == dtype
    tolerance = 1e-12 if dtype == np.float64 else 2e-6
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(out, wanted, rtol=0, atol=tolerance * scale)
    # Both energies are made of numbers that were never rounded to the vector's precision.
    np.testing.assert_allclose(energy, wanted_energy, rtol=1e-12)


def test_short_vectors_are_summed_in_full_precision():
    tensor, gathers, scatters, weights = problem(3, dtype=np.float32, shape=(3, 40, 50))
    out = np.zeros_like(tensor.x)
    on_tiles(tensor, gathers, scatters, weights, out)
    wanted = np.zeros(len(tensor.x))
    for mode in tensor.index.local_modes:
        matrix = weights[mode] * scatters[mode] @ gathers[mode].T
        wanted += mode_product(tensor.dense, matrix, mode)[tensor.indices]
    np.testing.assert_array_equal(out, wanted.astype(np.float32))


@pytest.mark.parametrize("order", ORDERS)
def test_slices_without_entries_and_blocks_without_any_are_fine(order):
    shape = SHAPES[order]
    _, factors, _ = factors_for(shape, RANKS[:order])
    weights = (1.0,) * order
    full = np.argwhere(np.ones(shape)).T
    some = full[:, (full[0] == 0) | (full[0] == shape[0] - 1)]
    x = np.random.default_rng(0).standard_normal(some.shape[1])
    tensor = sparse_tensor(shape, some, x)
    out, wanted = np.zeros_like(x), np.zeros_like(x)
    on_tiles(tensor, factors, factors, weights, out)
    by_entries(tensor, factors, factors, weights, wanted)
    np.testing.assert_allclose(out, wanted, atol=1e-12)
    empty = sparse_tensor(shape, some[:, :0], x[:0])
    assert on_tiles(empty, factors, factors, weights, np.zeros(0)) == 0.0


@pytest.mark.parametrize("order", [3, 4])
def test_what_is_not_a_number_stays_none(order):
    tensor, gathers, scatters, weights = problem(order)
    tensor.x[len(tensor.x) // 2] = np.nan
    out = np.zeros_like(tensor.x)
    energy = on_tiles(tensor, gathers, scatters, weights, out)
    assert np.isnan(energy)
    wanted = np.zeros_like(tensor.x)
    by_entries(tensor, gathers, scatters, weights, wanted)
    assert np.isnan(out[np.isnan(wanted)]).all()


@pytest.mark.parametrize("order", ORDERS)
def test_the_room_that_tiles_take_is_as_it_was_said(order):
    tensor, gathers, scatters, weights = problem(order)
    buffers, local = Buffers(), tensor.index.local_modes
    for _ in range(2):
        on_tiles(tensor, gathers, scatters, weights, np.zeros_like(tensor.x), buffers.array)
    lengths = tuple(tensor.dense.shape[mode] for mode in local)
    widths = tuple(gathers[mode].shape[1] for mode in local)
    assert buffers.nbytes == tile_bytes(lengths, widths)


def test_factors_that_may_not_be_written_to_will_do():
    tensor, gathers, scatters, weights = problem(3)
    wanted = np.zeros_like(tensor.x)
    on_tiles(tensor, gathers, scatters, weights, wanted)
    gathers[1].flags.writeable = False
    out = np.zeros_like(tensor.x)
    on_tiles(tensor, gathers, scatters, weights, out)
    np.testing.assert_array_equal(out, wanted)
