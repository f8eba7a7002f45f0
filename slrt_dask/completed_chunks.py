"""The chunks of a completed tensor: how large they are, and the tasks that make them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask import model_reads
from slrt_dask.dual.sampling import dense_chunk
from slrt_dask.enforcing import Enforced

CHUNK_BYTES = 2**25
"""Size of a chunk of the dense tensor, unless the caller chooses."""
SUMS_BYTES = 2**25
"""Of the slab mode's fibre sums that such a chunk is made from, which are held beside it."""
SHORTEST = 8
"""Of a mode, if others can be shorter instead: the less of a mode is in a chunk, the more fibre
sums of that mode are made for it."""


def chunk_sizes(
    shape: tuple[int, ...], slab_mode: int, width: int | None = None
) -> tuple[int, ...]:
    """Whole slices of the slab mode; others are cut where a slice, or its fibre sums, do not fit.

    width : of the slab mode's fibre sums; None if chunks are not made from any
    """
    sizes = list(shape)
    others = [mode for mode in range(len(sizes)) if mode != slab_mode]
    if width is not None:
        # In the order of fibre numbers, so that those of a chunk are few runs of them.
        sizes[slab_mode] = 1
        for shortest in (SHORTEST, 1):
            _cut(sizes, others, SUMS_BYTES // (8 * width), shortest)
        sizes[slab_mode] = shape[slab_mode]
    by_length = sorted(others, key=lambda mode: -sizes[mode])
    _cut(sizes, [slab_mode, *by_length], CHUNK_BYTES // 8, 1)
    return tuple(sizes)


def _cut(sizes: list[int], modes: list[int], entries: int, shortest: int) -> None:
    """Shorten one mode after the other until there are not more entries."""
    for mode in modes:
        others = math.prod(sizes) // sizes[mode]
        sizes[mode] = min(sizes[mode], max(shortest, entries // others))


def chunk_task(
    *,
    path: str,
    digest: str,
    enforced: Enforced | None,
    held: object,
    block_info: dict[Any, Any] | None = None,
) -> NDArray[np.float64]:
    """Entries of the tensor, where `block_info` says."""
    assert block_info is not None
    ranges = tuple(range(first, stop) for first, stop in block_info[None]["array-location"])
    model = model_reads.opened_model(path, digest).model
    columns, dual = model_reads.dual_slices(path, digest, ranges[model.slab_mode])
    chunk = dense_chunk(model, columns, dual, ranges)
    if enforced is not None:
        enforced.on_chunk(chunk, ranges, path, digest, columns)
    return chunk


def support_task(
    *, path: str, digest: str, mode: int, held: object, block_info: dict[Any, Any] | None = None
) -> NDArray[np.int64]:
    """How many observations the fibres of one mode have, where `block_info` says."""
    from slrt_dask.support import support_chunk

    assert block_info is not None
    ranges = tuple(range(first, stop) for first, stop in block_info[None]["array-location"])
    return support_chunk(path, digest, ranges, mode)
