"""What the tests of the kernels share: sparse tensors of every order, sorted as a block is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slrt_dask.kernels.blocks import (
    BlockIndex,
    FibreNumbering,
    build_block,
    fibre_keys,
    possible_fibres,
)
from slrt_dask.kernels.simd import lanes_for, pad_columns

SHAPES = {2: (6, 5), 3: (5, 4, 6), 4: (4, 3, 5, 2)}
ORDERS = tuple(SHAPES)
TOLERANCE = {np.float64: 1e-13, np.float32: 1e-5}


def close(found, wanted, dtype=np.float64, factor=1.0):
    """The same up to the rounding of some operations in the precision of vectors."""
    tolerance = factor * TOLERANCE[np.dtype(dtype).type]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=10 * tolerance)


@dataclass(frozen=True)
class SparseTensor:
    """Entries sorted by the slab mode, their dense form, and their numbering."""

    indices: tuple[np.ndarray, ...]
    x: np.ndarray
    dense: np.ndarray
    index: BlockIndex
    numbering: FibreNumbering

    def factor(self, mode, rank, seed=0):
        """A matrix (n, rank), the same padded, and what tells the kernels its width."""
        U = np.random.default_rng(seed + mode).standard_normal((self.dense.shape[mode], rank))
        padded = pad_columns(U)
        return U, padded, lanes_for(padded.shape[1])

    def fibres(self, mode):
        """Numbers of a mode's fibres over the whole tensor, and how many there are.

        Of the rows' own type, for which kernels are compiled anyway.
        """
        keys = fibre_keys(self.indices, self.dense.shape, (mode,))
        return keys.astype(self.indices[mode].dtype), possible_fibres(self.dense.shape, (mode,))


def sparse_tensor(shape, places, x, *, slab_mode=0, index_dtype=np.int32, known=False):
    """places : (K, m), in any order.  x : (m,)."""
    places = np.asarray(places).reshape(len(shape), -1)
    order = np.argsort(places[slab_mode], kind="stable")
    indices = tuple(row.astype(index_dtype) for row in places[:, order])
    x = np.asarray(x)[order]
    dense = np.zeros(shape)
    dense[indices] = x
    numbering = FibreNumbering(possible_fibres(shape, (slab_mode,)))
    if known:
        keys = np.unique(fibre_keys(indices, shape, (slab_mode,)))
        numbering = FibreNumbering(len(keys), keys)
    index = build_block(indices, shape, slab_mode, numbering)
    return SparseTensor(indices, x, dense, index, numbering)


def random_tensor(order, *, seed=0, fraction=0.4, dtype=np.float64, shape=None, **options):
    rng = np.random.default_rng(seed)
    shape = shape or SHAPES[order]
    places = np.array(np.nonzero(rng.random(shape) < fraction))
    x = rng.standard_normal(places.shape[1]).astype(dtype)
    return sparse_tensor(shape, places, x, **options)
