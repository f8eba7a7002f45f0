"""Arrays in files as dask arrays that read a block when it is needed, and nothing before.

dask copies whatever has a method `copy`, and so would read the whole of a mapped file into memory.
This changes when dask's habits do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.libraries import load


class InFile:
    """An array that can be sliced, and cannot be copied."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self.ndim = len(self.shape)

    def __getitem__(self, region: Any) -> NDArray[Any]:
        return np.array(self._array[region])


def lazy_array(array: Any, chunks: Any) -> Any:
    """A dask array of blocks of these sizes, each read from the array when it is computed."""
    # A name is made of what an array holds, if none is given: all of it would be read.
    return load("dask.array").from_array(InFile(array), chunks=chunks, name=False)
