"""An iteration's part that crosses slabs: the same whether it is made in one go or in strips."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slrt_dask.kernels import crossing, sweeps, vectors
from tests.kernels.helpers import close, random_tensor


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("strips", [1, 2, 50, None])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_crossing_step_is_sampling_then_a_conjugate_step_then_fibre_sums(order, strips, dtype):
    """In strips of fibres; or, if they are None, where entries are not sorted by fibre."""
    tensor, rng = random_tensor(order, fraction=0.9), np.random.default_rng(7)
    _, factor, lanes = tensor.factor(0, 4)
    fibres, count = tensor.fibres(0)
    starts, rows = tensor.index.starts, tensor.indices[0]
    borders = np.unique(np.linspace(0, count, (strips or 1) + 1).astype(np.int64))
    if strips is None:
        fibres = rng.permutation(count).astype(fibres.dtype)[fibres]
        assert not len(crossing.strip_bounds(starts, fibres, np.arange(count + 1)))
        bounds = np.stack([starts[:-1], starts[1:]])
    else:
        bounds = crossing.strip_bounds(starts, fibres, borders)
    sums, new = rng.standard_normal((2, count, 4))
    wanted_new = new.copy()
    x, r, p, s, w = (rng.standard_normal(len(rows)).astype(dtype) for _ in range(5))
    wanted = [vector.copy() for vector in (x, r, p, s, w)]
    rr = crossing.crossing_step(
        borders, bounds, rows, fibres, sums, factor, lanes, 0.7, x, r, p, s, w, 0.3, 0.8, new
    )
    sweeps.sample(rows, fibres, sums, factor, lanes, 0.7, wanted[4])
    wanted_rr = vectors.conjugate_step(*wanted, 0.3, 0.8)
    sweeps.fibre_sums(rows, fibres, wanted[1], factor, lanes, wanted_new)
    for found, value in zip((x, r, p, s), wanted, strict=False):
        close(found, value, dtype, 10)
    close(rr, wanted_rr, dtype, 100)
    close(new, wanted_new, dtype, 10)


def test_bounds_of_strips_are_where_their_fibres_are():
    starts = np.array([0, 4, 4, 6])
    fibres = np.array([0, 2, 2, 5, 1, 3], dtype=np.int32)
    bounds = crossing.strip_bounds(starts, fibres, np.array([0, 2, 3, 6]))
    np.testing.assert_array_equal(bounds, [[0, 4, 4], [1, 4, 5], [3, 4, 5], [4, 4, 6]])
    for place in (1, 3, 5):
        mixed = fibres.copy()
        mixed[[place - 1, place]] = mixed[[place, place - 1]]
        assert len(crossing.strip_bounds(starts, mixed, np.array([0, 2, 3, 6]))) == 0


def test_strips_cover_every_fibre_once_and_are_neither_too_large_nor_too_short():
    sizes = itertools.product(
        [0, 1, 2, 7, 29_000, 10**6], [2, 10, 64], [0, 1, 1000, 10**7], [0, 1, 145, 10**5]
    )
    for fibres, width, entries, slices in sizes:
        borders = crossing.strip_borders(fibres, width, entries, slices)
        lengths = np.diff(borders)
        assert (borders[0], borders[-1]) == (0, fibres)
        if len(lengths) > 1:  # one strip is always allowed
            assert (lengths > 0).all()
            assert entries / len(lengths) >= crossing.SHORTEST * slices
        if entries / (len(lengths) + 1) >= crossing.SHORTEST * max(slices, 1):
            assert lengths.max() * width * 8 <= crossing.STRIP_BYTES + width * 8
