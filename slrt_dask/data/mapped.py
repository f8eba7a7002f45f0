"""Arrays in files as dask arrays that read a block when it is needed, and nothing before.

dask copies whatever has a method `copy`, and so would read the whole of a mapped file into memory;
numpy pickles a mapped file as all that it holds, which would then travel with every task. This
changes when their habits do.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.libraries import load
from slrt_dask.errors import InvalidInput

HERE = "slrt-here"
"""In the names of what only this process has: it has no file, or one without a name."""


@dataclass(frozen=True)
class Place:
    """Where in a file an array is, for another process; a scheduler need not see the file."""

    path: str
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    by_columns: bool

    @classmethod
    def of(cls, array: Any) -> Place:
        by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
        return cls(str(array.filename), array.dtype, array.offset, array.shape, by_columns)

    def opened(self) -> NDArray[Any]:
        order: Any = "F" if self.by_columns else "C"
        try:
            return np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"{self.path} cannot be read where a block of it is needed ({error}); put it "
                "where all workers see it, or make a store of it with from_file."
            ) from error


class InFile:
    """An array that can be sliced, and cannot be copied; elsewhere its file is opened again."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self.ndim = len(self.shape)

    def __getitem__(self, region: Any) -> NDArray[Any]:
        if isinstance(self._array, Place):
            self._array = self._array.opened()
        return np.array(self._array[region])

    def __reduce__(self) -> tuple[Any, ...]:
        array = self._array
        return InFile, (Place.of(array) if _has_name(array) else array,)


def lazy_array(array: Any, chunks: Any) -> Any:
    """A dask array of blocks of these sizes, each read from the array when it is computed."""
    # A name is made of what an array holds, if none is given: all of it would be read.
    is_here = isinstance(array, np.ndarray) and not _has_name(array)
    name = f"{HERE}-{uuid.uuid4().hex}" if is_here else False
    return load("dask.array").from_array(InFile(array), chunks=chunks, name=name)


def scheduler_for(array: Any) -> str | None:
    """Threads for a dask array all of whose sources only this process has; else dask's choice.

    A cluster would have to be sent the whole of them.
    """
    graph = array.__dask_graph__()
    sources = [name for name, needed in graph.dependencies.items() if not needed]
    return "threads" if all(HERE in str(name) for name in sources) else None


def _has_name(array: Any) -> bool:
    """Whether it is all of what was mapped of a file that others can open; a part has no offset."""
    return (
        isinstance(array, np.memmap)
        and array.filename is not None
        and not isinstance(array.base, np.ndarray)
    )
