"""What the tests of the kernels share: sparse tensors of every order, sorted as a block is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from slrt_dask.kernels.rows import lanes_for, pad_columns

from slrt_dask.kernels.blocks import (
    BlockIndex,
    FibreNumbering,
    build_block,
    fibre_keys,
    possible_fibres,
)

SHAPES = {2: (6, 5), 3: (5, 4, 6), 4: (4, 3, 5, 2), 5: (3, 4, 2, 3, 2)}
ORDERS = tuple(SHAPES)


@dataclass(frozen=True)
class SparseTensor:
    """Entries sorted by the slab mode, their dense form, and their numbering."""

    indices: tuple[np.ndarray, ...]
    x: np.ndarray
    dense: np.ndarray
    index: BlockIndex
    numbering: FibreNumbering


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
        rest = [np.asarray(row, dtype=np.int64) for row in indices]
        rest[slab_mode] = np.zeros_like(rest[slab_mode])
        shortened = tuple(1 if k == slab_mode else n for k, n in enumerate(shape))
        keys = np.unique(np.ravel_multi_index(rest, shortened)).astype(np.int64)
        numbering = FibreNumbering(len(keys), keys)
    return SparseTensor(
        indices, x, dense, build_block(indices, shape, slab_mode, numbering), numbering
    )


def random_tensor(order, *, seed=0, fraction=0.4, dtype=np.float64, shape=None, **options):
    rng = np.random.default_rng(seed)
    shape = shape or SHAPES[order]
    places = np.array(np.nonzero(rng.random(shape) < fraction))
    x = rng.standard_normal(places.shape[1]).astype(dtype)
    return sparse_tensor(shape, places, x, **options)


def factors_for(shape, ranks, seed=1):
    """K matrices (n_k, r_k), the same padded, and what tells the kernels their width."""
    rng = np.random.default_rng(seed)
    matrices = tuple(rng.standard_normal((n, r)) for n, r in zip(shape, ranks, strict=True))
    padded = tuple(pad_columns(matrix) for matrix in matrices)
    return matrices, padded, tuple(lanes_for(matrix.shape[1]) for matrix in padded)


def whole_fibres(tensor, mode):
    """Numbers of a mode's fibres over the whole tensor, and how many there are.

    Of the rows' own type, for which kernels are compiled anyway.
    """
    shape = tensor.dense.shape
    fibres = fibre_keys(tensor.indices, shape, (mode,)).astype(tensor.indices[mode].dtype)
    return fibres, possible_fibres(shape, (mode,))
