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

    def take_turns(self, counters, turns_before=0, offer=None):
        claims, away = (new_counters(), np.empty(0, np.int64)) if offer is None else offer.claimed
        rooms = self._rooms()
        local.local_turns(
            counters, turns_before, self.pieces, *self._told(rooms), self.energies, claims, away
        )

    def help(self, offer, opening, naps=0):
        """What another process would do, here with the very same memory for what it needs."""
        rooms, pieces = self._rooms(), self.pieces[-offer.away.size :]
        return local.help_turns(
            offer.claims, opening, naps, pieces, *self._told(rooms), offer.energies
        )

    def _rooms(self):
        index = self.tensor.index
        shapes = ((index.buffer_rows[k], self.padded[k].shape[1]) for k in index.local_modes)
        return [np.full(shape, np.inf) for shape in shapes]

    def _told(self, rooms):
        weights = self.weights[list(self.tensor.index.local_modes)]
        buffers = np.array([room.ctypes.data for room in rooms])
        return self.blocks, self.numbering, self.modes, buffers, weights, SHIFT

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


class Offer:
    """The last pieces of a product, offered to others."""

    def __init__(self, pieces):
        self.claims = new_counters(local.claims_for(pieces))
        self.away, self.energies = np.zeros(pieces, np.int64), np.full(pieces, np.nan)
        # The results are where they belong already: there is nothing to copy.
        self.nothing = np.zeros(pieces, np.int64)

    @property
    def claimed(self):
        return self.claims, self.away

    def open(self, opening):
        local.open_offer(self.claims, opening, *[self.nothing] * 3, np.empty(0))

    def fetch(self, energies, naps=0):
        return local.fetch_pieces(
            self.claims, self.away, naps, *[self.nothing] * 3, np.empty(0), self.energies, energies
        )


@pytest.mark.parametrize("order", ORDERS)
def test_whoever_does_an_offered_piece_the_product_is_the_same_to_the_last_bit(order):
    alone, product = Product(order), Product(order)
    alone.take_turns(new_counters())
    offer = Offer(len(product.pieces) - 1)
    offer.open(3)
    taken = [1, len(offer.away) - 1]
    offer.claims[local.FIRST_CLAIM :][: len(offer.away), 0] = 1
    offer.claims[local.FIRST_CLAIM + np.array(taken), 0] = 0
    assert product.help(offer, 3)  # gets just those, which nobody else has
    offer.claims[local.FIRST_CLAIM :][: len(offer.away), 0] = 0
    offer.claims[local.FIRST_CLAIM + np.array(taken), 0] = 1
    product.take_turns(new_counters(), offer=offer)
    assert np.flatnonzero(offer.away).tolist() == sorted(set(taken))
    assert np.isnan(product.energies).sum() == len(set(taken))
    assert offer.fetch(product.energies)
    assert not offer.away.any()
    np.testing.assert_array_equal(product.energies, alone.energies)
    np.testing.assert_array_equal(product.out, alone.out)


def test_every_offered_piece_is_done_once_by_owner_or_helper_at_the_same_time():
    alone = Product(3)
    alone.take_turns(new_counters())
    for _ in range(30):
        product = Product(3)
        offer = Offer(len(product.pieces))
        helping = begun(product.help, offer, 1, -1)
        offer.open(1)
        product.take_turns(new_counters(), offer=offer)
        assert helping.result(PATIENCE)
        done = offer.claims[local.FIRST_CLAIM + len(offer.away) :, 0]
        np.testing.assert_array_equal(done, offer.away)
        assert offer.fetch(product.energies)
        np.testing.assert_array_equal(product.energies, alone.energies)
        np.testing.assert_array_equal(product.out, alone.out)


def test_an_offer_that_is_not_open_yet_is_left_alone_and_not_over():
    product = Product(3)
    offer = Offer(2)
    offer.open(1)
    assert not product.help(offer, 2)
    assert np.isnan(product.out).all()
    offer.claims[GIVEN_UP, 0] = 1
    assert product.help(offer, 2)
    offer.open(2)
    assert product.help(offer, 2)
    assert np.isnan(product.out).all()


def test_a_piece_that_is_not_done_yet_is_not_fetched():
    offer, energies = Offer(2), np.zeros(5)
    offer.away[:] = 1
    offer.claims[local.FIRST_CLAIM + 2, 0] = 1
    offer.energies[:] = 7.0, 8.0
    assert not offer.fetch(energies)
    assert energies.tolist() == [0.0, 0.0, 0.0, 7.0, 0.0]
    offer.claims[local.FIRST_CLAIM + 3, 0] = 1
    assert offer.fetch(energies)
    assert energies.tolist() == [0.0, 0.0, 0.0, 7.0, 8.0]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_vectors_are_copied_to_an_offer_and_from_it(dtype):
    rng = np.random.default_rng(0)
    own, offered = rng.random(20).astype(dtype), np.zeros(9, dtype)
    lengths, there, here = np.array([4, 5]), np.array([3, 12]), np.array([0, 4])
    places = own.itemsize * there + own.ctypes.data, own.itemsize * here + offered.ctypes.data
    offer, wanted = Offer(2), np.concatenate([own[3:7], own[12:17]])
    local.open_offer(offer.claims, 5, lengths, *places, own)
    np.testing.assert_array_equal(offered, wanted)
    assert offer.claims[local.OPENED, 0] == 5
    offered[:], offer.away[:] = -1.0, (0, 1)
    offer.claims[local.FIRST_CLAIM + 3, 0] = 1
    assert local.fetch_pieces(
        offer.claims, offer.away, 0, lengths, *places[::-1], own, offer.energies, np.zeros(2)
    )
    assert np.flatnonzero(own < 0.0).tolist() == list(range(12, 17))


def test_every_width_and_form_has_a_kernel_of_its_own():
    kinds = (np.dtype(np.int32), np.dtype(np.int32), np.dtype(np.float64))
    kernels = [
        local.mode_kernel(width, in_runs, *kinds) for width in (2, 4) for in_runs in (False, True)
    ]
    assert len({kernel.address for kernel in kernels}) == 4
    assert len({kernel.native_name for kernel in kernels}) == 4
