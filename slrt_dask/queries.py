"""Values at some places of a completed tensor, computed partition by partition.

Questions are sorted by the slab mode, so that each partition of the dual is read by one task and
asked all its questions while it is there. A graph carries only so many questions to a scheduler; a
partition with more of them is kept where it was read until the last.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
from numpy.typing import ArrayLike, NDArray

from slrt_dask.dual.sampling import predict_slab
from slrt_dask.errors import InvalidInput
from slrt_dask.model_files import ModelHeader
from slrt_dask.model_reads import Partition, cut_slices, dual_partition, opened_model

QUERIES_AT_ONCE = 50_000
"""Answered by one task."""
GRAPH_BYTES = 2**23
"""Of the questions in one graph; schedulers warn of graphs beyond 10 MB."""


@dataclass(frozen=True)
class Piece:
    """Questions first to stop, in the order of the slab mode, all of one partition."""

    first: int
    stop: int
    partition: int


def checked_places(
    indices: ArrayLike | Sequence[ArrayLike], shape: tuple[int, ...]
) -> NDArray[np.integer[Any]]:
    """The questions as an array (K, m), or InvalidInput that names the first bad one."""
    order = len(shape)
    try:
        places = np.asarray(indices)
    except ValueError as error:
        raise InvalidInput(f"indices must be {order} rows of equal length: {error}") from error
    if places.ndim != 2 or places.shape[0] != order:
        raise InvalidInput(
            f"indices must have shape ({order}, m), one row per mode, not {places.shape}"
        )
    if places.size == 0:
        return places.astype(np.int64)
    if places.dtype.kind not in "iu":
        raise InvalidInput(f"indices must be whole numbers, not {places.dtype}")
    outside = np.zeros(places.shape[1], dtype=np.bool_)
    for row, length in zip(places, shape, strict=True):
        outside |= (row < 0) | (row >= length)
    if outside.any():
        raise _out_of_range(places, int(np.argmax(outside)), shape)
    return places


def predicted(
    path: str, header: ModelHeader, places: NDArray[np.integer[Any]]
) -> NDArray[np.float64]:
    """Values (m,) of the model at a path, at places (K, m), by the current dask scheduler."""
    values = np.empty(places.shape[1])
    answer_all(path, header, places, dual_partition, _answer, values, "predict")
    return values


def answer_all(
    path: str,
    header: ModelHeader,
    places: NDArray[np.integer[Any]],
    read: Callable[[str, str, int], Any],
    answers: Callable[[str, str, Any, NDArray[Any]], NDArray[Any]],
    found: NDArray[Any],
    label: str,
) -> None:
    """Have every question answered beside the partition that it belongs to.

    read : reads a partition, given path, digest and number
    answers : path, digest, what was read, and places (K, n) sorted by the slab mode, to (…, n)
    found : (…, m), filled here;  label : how tasks are called on a dashboard
    """
    order = np.argsort(places[header.slab_mode], kind="stable")
    load, answer = dask.delayed(read), dask.delayed(answers)
    digest, call = header.digest, uuid.uuid4().hex[:12]
    partitions: dict[int, Any] = {}
    waves = list(_waves(query_pieces(header, places[header.slab_mode][order]), header))
    for wave, following in itertools.zip_longest(waves, waves[1:]):
        for number in {piece.partition for piece in wave} - partitions.keys():
            name = f"slrt-dual-{call}-{number}"
            partitions[number] = load(path, digest, number, dask_key_name=name)
        unfinished = following[0].partition if following else None
        if unfinished in partitions:
            (partitions[unfinished],) = dask.persist(partitions[unfinished])
        chosen = [order[piece.first : piece.stop] for piece in wave]
        tasks = [
            answer(
                path,
                digest,
                partitions[piece.partition],
                places[:, these].astype(header.dual.index_dtype),
                dask_key_name=f"slrt-{label}-{call}-{piece.first}",
            )
            for piece, these in zip(wave, chosen, strict=True)
        ]
        for these, part in zip(chosen, dask.compute(*tasks), strict=True):
            found[..., these] = part
        partitions = {n: kept for n, kept in partitions.items() if n == unfinished}


def query_pieces(header: ModelHeader, slab: NDArray[np.integer[Any]]) -> list[Piece]:
    """Runs of sorted slab indices, each in one partition and none too long."""
    borders = [part.first_slice for part in header.dual.partitions[1:]]
    edges = [0, *np.searchsorted(slab, borders).tolist(), len(slab)]
    return [
        Piece(first, min(first + QUERIES_AT_ONCE, high), number)
        for number, (low, high) in enumerate(itertools.pairwise(edges))
        for first in range(low, high, QUERIES_AT_ONCE)
    ]


def _waves(pieces: list[Piece], header: ModelHeader) -> Iterator[list[Piece]]:
    """The pieces, as many at a time as one graph may carry."""
    limit = GRAPH_BYTES // (len(header.shape) * header.dual.index_dtype.itemsize)
    wave: list[Piece] = []
    for piece in pieces:
        if wave and piece.stop - wave[0].first > limit:
            yield wave
            wave = []
        wave.append(piece)
    if wave:
        yield wave


def _answer(
    path: str, digest: str, partition: Partition, places: NDArray[Any]
) -> NDArray[np.float64]:
    model = opened_model(path, digest).model
    slab = places[model.slab_mode]
    slices = range(int(slab[0]), int(slab[-1]) + 1)
    columns, dual = cut_slices(partition, model.slab_mode, slices)
    return predict_slab(model, _usable(*columns), _usable(dual)[0], _usable(*places))


def _usable(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """As the kernels want them: what came from another worker is read-only, often unaligned."""
    return tuple(np.require(array, requirements=("C", "A", "W")) for array in arrays)


def _out_of_range(
    places: NDArray[np.integer[Any]], query: int, shape: tuple[int, ...]
) -> InvalidInput:
    index = tuple(places[:, query].tolist())
    mode = next(k for k, length in enumerate(shape) if not 0 <= index[k] < length)
    return InvalidInput(
        f"query {query} (the first is query 0) has index {index}, of which {index[mode]} in mode "
        f"{mode} is out of range for the shape {shape}; positions count from 0 to {shape[mode] - 1}"
    )
