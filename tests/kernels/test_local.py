"""Local products in pieces that threads share: the same as mode after mode, whoever takes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from slrt_dask.kernels import local
from slrt_dask.kernels.turns import DONE, GIVEN_UP, new_counters
from tests.kernels.helpers import ORDERS, factors_for, random_tensor
from tests.oracles.dense import mode_product
from tests.waiting import PATIENCE, begun

SHIFT = 0.3


class Product:
    """A tensor, factors, and what `local_turns` is told of them."""

    def __init__(self, order, dtype=np.float64, index_dtype=np.int32):
        self.tensor = random_tensor(order, index_dtype=index_dtype)
        index, shape = self.tensor.index, self.tensor.dense.shape
        ranks = tuple(range(1, order + 1))
        self.matrices, self.padded, _ = factors_for(shape, ranks)
        self.weights = np.linspace(0.5, 2.0, order)
        self.x = self.tensor.x.astype(dtype)
        self.out = np.full_like(self.x, np.nan)
        held = (index.starts, self.x, self.out)
        self.blocks = np.array([(index.entries, *(a.ctypes.data for a in held))])
        self.numbering = np.array([[self._numbered(mode) for mode in index.local_modes]])
        self.modes = np.array(
            [
                (self.padded[k].ctypes.data, len(self.padded[k]), index.buffer_rows[k])
                for k in index.local_modes
            ]
        )
        slices = np.arange(index.slices)
        self.pieces = np.stack([np.zeros_like(slices), slices, slices + 1], axis=1)
        self.energies = np.full(len(self.pieces), np.nan)

    def _numbered(self, mode):
        index = self.tensor.index
        rows, fibres = index.rows[mode], index.fibres[mode]
        kernel = local.mode_kernel(
            self.padded[mode].shape[1], mode == index.mode_in_runs, rows.dtype, fibres.dtype,
            self.x.dtype,
        )  # fmt: skip
        return kernel.address, rows.ctypes.data, fibres.ctypes.data

    def take_turns(self, counters, turns_before=0):
        index = self.tensor.index
        rooms = [
            np.full((index.buffer_rows[k], self.padded[k].shape[1]), np.inf)
            for k in index.local_modes
        ]
        local.local_turns(
            counters, turns_before, self.pieces, self.blocks, self.numbering, self.modes,
            np.array([room.ctypes.data for room in rooms]),
            self.weights[list(index.local_modes)], SHIFT, self.energies,
        )  # fmt: skip

    def wanted(self):
        parts = (
            self.weights[k] * mode_product(self.tensor.dense, U @ U.T, k)[self.tensor.indices]
            for k, U in enumerate(self.matrices)
            if k != self.tensor.index.slab_mode
        )
        return sum(parts)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ORDERS)
def test_turns_make_the_product_with_all_local_modes(order, dtype, threads):
    product, counters = Product(order, dtype), new_counters()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: product.take_turns(counters), range(threads)))
    wanted, close = product.wanted(), {"rtol": 1e-12, "atol": 1e-12}
    if dtype == np.float32:
        close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(product.out, wanted + SHIFT * product.x, **close)
    np.testing.assert_allclose(product.energies.sum(), wanted @ product.x, **close)


def test_rows_may_be_long_numbers():
    product = Product(4, index_dtype=np.int64)
    product.take_turns(new_counters())
    np.testing.assert_allclose(product.out, product.wanted() + SHIFT * product.x, rtol=1e-12)


def test_turns_begin_when_what_came_before_is_done():
    product, counters = Product(3), new_counters()
    Product(3).take_turns(new_counters())  # so that nothing has to be compiled
    taking = begun(product.take_turns, counters, 2)
    with pytest.raises(TimeoutError):
        taking.result(0.05)
    assert np.isnan(product.out).all()
    counters[DONE, 0] = 2
    taking.result(PATIENCE)
    assert np.isfinite(product.out).all()


def test_work_that_was_given_up_is_not_waited_for():
    product, counters = Product(3), new_counters()
    counters[GIVEN_UP, 0] = 1
    product.take_turns(counters, turns_before=1)
    product.take_turns(counters, turns_before=0)
    assert np.isnan(product.out).all()


def test_every_width_and_form_has_a_kernel_of_its_own():
    kinds = (np.dtype(np.int32), np.dtype(np.int32), np.dtype(np.float64))
    kernels = [
        local.mode_kernel(width, in_runs, *kinds) for width in (2, 4) for in_runs in (False, True)
    ]
    assert len({kernel.address for kernel in kernels}) == 4
    assert len({kernel.native_name for kernel in kernels}) == 4
