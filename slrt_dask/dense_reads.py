"""Entries of a completed tensor that is kept as it is, chunk by chunk."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import NDArray

from slrt_dask.dual.hankel.answers import TENSOR_ARRAY
from slrt_dask.errors import StoreCorrupt

QUERIES_AT_ONCE = 1_000_000


def dense_values(path: str, places: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Values (m,) at places (K, m), asked for in the order of the first mode."""
    array, values = _opened(path), np.empty(places.shape[1])
    order = np.argsort(places[0], kind="stable")
    for first in range(0, len(order), QUERIES_AT_ONCE):
        these = order[first : first + QUERIES_AT_ONCE]
        values[these] = _read(path, lambda these=these: array.vindex[tuple(places[:, these])])
    return values


def read_tensor(
    *, path: str, held: object, block_info: dict[Any, Any] | None = None
) -> NDArray[np.float64]:
    """One block of a dask array of the tensor."""
    assert block_info is not None
    box = tuple(slice(first, stop) for first, stop in block_info[None]["array-location"])
    array = _opened(path)
    chunk: NDArray[np.float64] = _read(path, lambda: array[box])
    return chunk


def _opened(path: str) -> zarr.Array[Any]:
    place = f"{path}/model/{TENSOR_ARRAY}"
    return cast("zarr.Array[Any]", _read(path, lambda: zarr.open_array(place, mode="r")))


def _read(path: str, read: Any) -> Any:
    trouble = ""
    try:
        found = read()
    except Exception as error:  # whatever zarr makes of metadata or chunks that are not its own
        trouble = str(error)
    # Raised here so that zarr's error is in the text and not in the chain: some of them cannot
    # travel from a worker.
    if trouble:
        raise StoreCorrupt(f"{path}/model/{TENSOR_ARRAY} was altered or lost ({trouble}).")
    return found
