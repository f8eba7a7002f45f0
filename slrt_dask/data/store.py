"""A finished store of observations, opened for reading.

The object is a path and a header: cheap to make, safe to pickle and to send to workers. Columns
are read when asked for, a partition at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data import coordinates
from slrt_dask.data.holding_out import Kind, KindLike
from slrt_dask.data.ingest import Progress
from slrt_dask.data.layout import (
    Columns,
    PartitionInfo,
    StoreHeader,
    read_header,
    read_partition,
    read_weighted,
)
from slrt_dask.data.libraries import load
from slrt_dask.data.location import StorePath, normal_path
from slrt_dask.data.split import split_store
from slrt_dask.errors import InvalidInput, UnsupportedFormat


def open_store(path: StorePath) -> ObservationStore:
    """Open a store of observations; anything unfinished, torn or altered is refused.

    path : a directory or a URL, as one of the `from_…` functions or `slrt-dask ingest` made it.
    Only its header is read.
    """
    place = normal_path(path)
    header = read_header(place)
    if header.kind != "observations":
        raise UnsupportedFormat(
            f"{place} holds a store of kind {header.kind!r}, not observations; check the path."
        )
    return ObservationStore(place, header)


@dataclass(frozen=True, repr=False)
class ObservationStore:
    """Observations of a tensor, at rest. Made by `open_store` and the `from_…` functions."""

    path: str
    header: StoreHeader

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the modes."""
        return self.header.shape

    @property
    def order(self) -> int:
        """How many modes there are."""
        return self.header.order

    @property
    def nnz(self) -> int:
        """How many entries were observed."""
        return self.header.nnz

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values: float32 or float64."""
        return np.dtype(self.header.dtype)

    @property
    def mean(self) -> float:
        """The mean of the observed values, weighted where they have weights."""
        return self.header.mean

    @property
    def weighted(self) -> bool:
        """Whether observations have weights."""
        return self.header.weighted

    @property
    def mean_weight(self) -> float:
        """The mean of the observations' weights; 1 if they have none."""
        return 1.0 if self.header.mean_weight is None else self.header.mean_weight

    @property
    def slab_mode(self) -> int:
        """The mode along which partitions are cut."""
        return self.header.slab_mode

    @property
    def digest(self) -> str:
        """A name for the content: equal digests mean equal observations in equal partitions."""
        return self.header.digest

    @property
    def partitions(self) -> tuple[PartitionInfo, ...]:
        """What each partition holds: its name, how many entries, of which slices."""
        return self.header.partitions

    def slices_of(self, number: int) -> tuple[int, int]:
        """The slices that belong to a partition, those without entries included."""
        return self.header.slices_of(number)

    @property
    def dimension_names(self) -> tuple[str, ...] | None:
        """Names of the modes, where the input had some."""
        return self.header.dimension_names

    @property
    def coordinates(self) -> dict[str, NDArray[Any]] | None:
        """Labels (n_k,) by dimension name, for those dimensions whose labels were kept."""
        return coordinates.decode(self.header.coordinates)

    def read_partition(self, index: int) -> tuple[Columns, NDArray[Any]]:
        """K index arrays (count,) and values (count,) of one partition, checksum verified."""
        return read_partition(self.path, self.header, index)

    def read_weighted(self, index: int) -> tuple[Columns, NDArray[Any], NDArray[Any] | None]:
        """The same with the weights (count,); None if the store has none."""
        return read_weighted(self.path, self.header, index)

    def indices(self) -> Any:
        """All indices as a lazy dask array (K, nnz), one chunk per partition."""
        da, dask = load("dask.array"), load("dask")
        stack = dask.delayed(np.stack, pure=True)
        blocks = [
            da.from_delayed(stack(part[0]), (self.order, info.count), self.header.index_dtype)
            for part, info in zip(self._delayed_partitions(), self.partitions, strict=True)
        ]
        return da.concatenate(blocks, axis=1)

    def values(self) -> Any:
        """All values as a lazy dask array (nnz,), in the order of `indices()`."""
        return self._column(1)

    def weights(self) -> Any:
        """All weights as a lazy dask array (nnz,), in the order of `indices()`; None without."""
        return self._column(2) if self.weighted else None

    def _column(self, number: int) -> Any:
        da = load("dask.array")
        blocks = [
            da.from_delayed(part[number], (info.count,), self.header.value_dtype)
            for part, info in zip(self._delayed_partitions(), self.partitions, strict=True)
        ]
        return da.concatenate(blocks)

    def to_dask(self) -> Any:
        """The tensor as a lazy dask array: a `sparse.COO` for every slab, 0 where unobserved."""
        return self._slabs(self.dtype)

    def mask(self) -> Any:
        """Which entries were observed: a lazy dask array of bools, chunked like `to_dask()`."""
        return self._slabs(np.dtype(bool))

    def unfold(self, mode: int) -> Any:
        """The unfolding along a mode, (n_mode, product of the others): a lazy sparse dask matrix.

        Its columns run over the other modes in their order, except that the slab mode comes first:
        so every slab is a run of columns, or of rows where the mode is the slab mode itself.
        """
        if not 0 <= mode < self.order:
            raise InvalidInput(f"mode is {mode}; the store has modes 0 to {self.order - 1}")
        columns = math.prod(self.shape) // self.shape[mode]
        if columns >= 2**63:
            raise InvalidInput(f"the unfolding along mode {mode} would have {columns} columns")
        return self._slabs(self.dtype, mode)

    def _slabs(self, dtype: np.dtype[Any], mode: int | None = None) -> Any:
        """A `sparse.COO` of every slab, or its unfolding along a mode."""
        da, dask, sparse = load("dask.array"), load("dask"), load("sparse")
        meta = sparse.zeros((0,) * (self.order if mode is None else 2), dtype=dtype)
        make = dask.delayed(_slab, pure=True)
        blocks = []
        for number, part in enumerate(self._delayed_partitions()):
            first, stop = self.slices_of(number)
            shape = (*self.shape[: self.slab_mode], stop - first, *self.shape[self.slab_mode + 1 :])
            block = make(part, shape, self.slab_mode, first, dtype.kind == "b", mode)
            if mode is not None:
                shape = (shape[mode], math.prod(shape) // shape[mode])
            blocks.append(da.from_delayed(block, shape, meta=meta, name=f"{block.key}-slab"))
        axis = self.slab_mode if mode is None else int(mode != self.slab_mode)
        return da.concatenate(blocks, axis=axis)

    def to_coo(self) -> Any:
        """Everything in memory, as a `sparse.COO` whose unstored entries are 0."""
        sparse = load("sparse")

        parts = [self.read_partition(number) for number in range(len(self.partitions))]
        coords = np.concatenate([np.stack(columns) for columns, _ in parts], axis=1)
        values = np.concatenate([numbers for _, numbers in parts])
        return sparse.COO(coords, values, shape=self.shape, has_duplicates=False)

    def to_array(self, fill: float = float("nan")) -> NDArray[Any]:
        """Everything in memory, as a dense array with `fill` where nothing was observed."""
        dense = np.full(self.shape, fill, dtype=self.dtype)
        for number in range(len(self.partitions)):
            columns, numbers = self.read_partition(number)
            dense[columns] = numbers
        return dense

    def verify(self) -> None:
        """Read every partition and check it; raises StoreCorrupt naming the first bad one."""
        for number in range(len(self.partitions)):
            self.read_partition(number)

    def split(
        self,
        test: float = 0.1,
        seed: int = 0,
        train_path: StorePath | None = None,
        test_path: StorePath | None = None,
        kind: KindLike | Kind = "entries",
        *,
        progress: Progress | None = None,
    ) -> tuple[ObservationStore, ObservationStore]:
        """Two new stores: about 1 − test of the observations, and the rest, held out.

        kind : what is held out: single "entries"; whole fibres, as ("fibres", mode) or
            "fibres:2"; whole slices, as ("slices", mode); or "auto", what most of the gaps are
        progress : called with a stage, how much of it is done, and how much there is

        Which part an observation goes to depends on its index and the seed only (of slices, on
        how many observations each has too). The paths are `<path>-train` and `<path>-test` if left
        out.
        """
        places = split_store(
            self.path, self.header, test, seed, train_path, test_path, kind, progress
        )
        return open_store(places[0]), open_store(places[1])

    def __repr__(self) -> str:
        lengths = " × ".join(str(length) for length in self.shape)
        parts, weighted = len(self.partitions), "weighted, " if self.weighted else ""
        return (
            f"ObservationStore({self.path!r}: {lengths}, {self.nnz:,} observed "
            f"({self._density():.3g} %), {self.dtype}, {weighted}"
            f"{parts} partition{'s' * (parts > 1)} along mode {self.slab_mode})"
        )

    def _repr_html_(self) -> str:
        from slrt_dask.show.html import store_html

        return store_html(self)

    def _density(self) -> float:
        density = 100.0 * self.nnz
        for length in self.shape:
            density /= length
        return density

    def _delayed_partitions(self) -> list[Any]:
        """One task per partition, named by content, so that all its columns share the read."""
        dask = load("dask")
        token = load("dask.base").tokenize(self.path, self.digest)
        read = dask.delayed(read_weighted, nout=3)
        return [
            read(self.path, self.header, number, dask_key_name=f"slrt-read-{token}-{number}")
            for number in range(len(self.partitions))
        ]


def _slab(
    part: Any, shape: tuple[int, ...], slab_mode: int, first: int, ones: bool, mode: int | None
) -> Any:
    """A partition as the `sparse.COO` of its slices from `first` on, or its unfolding."""
    columns, values, _ = part
    places = np.stack(columns).astype(np.int64)
    places[slab_mode] -= first
    data = np.ones(len(values), dtype=bool) if ones else values
    slab = load("sparse").COO(places, data, shape=shape, has_duplicates=False)
    if mode is None:
        return slab
    others = [k for k in range(len(shape)) if k not in (mode, slab_mode)]
    rows = [mode] if mode == slab_mode else [mode, slab_mode]
    return slab.transpose((*rows, *others)).reshape((shape[mode], -1))
