"""How many observations stand behind an entry of a completed tensor: those of its fibres.

    W[i] = offset + Σ_k λ_k ⟨U_k[i_k], T_k[fibre of i in mode k]⟩

Without a constraint a mode has a part in it only if its fibre holds observations, and its factor a
row for the index, which it has not where the whole slice was never observed. Multipliers of a
constraint are in fibres and slices as well, and have a part in what nothing was observed about.
Observations are counted from what the model keeps: dual entries, of which it is known which are
none. This changes when models do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.layout import Columns
from slrt_dask.dual.writing import COUNTS_ARRAY, EXTRA_ARRAY, SLICES_ARRAY, read_array
from slrt_dask.errors import InvalidInput
from slrt_dask.kernels.blocks import FibreNumbering, fibre_keys
from slrt_dask.model_files import ModelHeader
from slrt_dask.model_reads import dual_partition, opened_model
from slrt_dask.queries import answer_all


def check_support(header: ModelHeader) -> None:
    """Refuse models that do not tell where they were observed."""
    if header.dense:
        raise InvalidInput(
            "a Hankel completion keeps the tensor and not where it was observed; count in the "
            "store of its observations"
        )
    if COUNTS_ARRAY not in header.checksums:
        raise InvalidInput(
            "this completion was written before the observations behind its entries were kept; "
            "fit again"
        )


def supported(
    path: str, header: ModelHeader, places: NDArray[np.integer[Any]]
) -> NDArray[np.int64]:
    """Observations in the fibre of each mode through some places (K, m), as (K, m)."""
    check_support(header)
    counts = np.zeros(places.shape, dtype=np.int64)
    answer_all(path, header, places, observed_partition, _counted, counts, "support")
    slab = header.slab_mode
    keys = fibre_keys(tuple(row.astype(np.int64) for row in places), header.shape, (slab,))
    counts[slab] = _crossing(path, header, keys)
    return counts


def rests_on_nothing(
    path: str,
    header: ModelHeader,
    places: NDArray[np.integer[Any]],
    counts: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Which places (K, m) nothing was observed about, (m,), given the counts at them (K, m).

    In every mode their fibre or their slice has no observation.
    """
    nothing = np.ones(len(places[0]), dtype=np.bool_)
    for row, count, filled in zip(places, counts, slice_counts(path, header), strict=True):
        nothing &= (count == 0) | (filled[row] == 0)
    return nothing


def slice_counts(path: str, header: ModelHeader) -> tuple[NDArray[np.int64], ...]:
    """How many observations have each index, K arrays (n_k,)."""
    check_support(header)
    names = [f"{SLICES_ARRAY}{mode}" for mode in range(len(header.shape))]
    return tuple(read_array(f"{path}/model", name, header.checksums[name]) for name in names)


def observed_partition(path: str, digest: str, number: int) -> Columns:
    """The indices of the observations in one partition, K arrays."""
    header, (columns, _) = opened_model(path, digest).header, dual_partition(path, digest, number)
    name = f"{EXTRA_ARRAY}{number:05d}"
    if name not in header.checksums:
        return columns
    bits = read_array(f"{path}/model", name, header.checksums[name])
    seen = np.unpackbits(bits, count=len(columns[0])) == 0
    return tuple(column[seen] for column in columns)


def support_chunk(
    path: str, digest: str, ranges: tuple[range, ...], mode: int
) -> NDArray[np.int64]:
    """Observations in the fibres of one mode, on a box of indices."""
    header = opened_model(path, digest).header
    sizes = tuple(len(box) for box in ranges)
    others = tuple(size for k, size in enumerate(sizes) if k != mode)
    if mode == header.slab_mode:
        starts = [0 if k == mode else box.start for k, box in enumerate(ranges)]
        grid = np.indices([1 if k == mode else n for k, n in enumerate(sizes)]).reshape(
            len(sizes), -1
        )
        columns = tuple(row + start for row, start in zip(grid, starts, strict=True))
        flat = _crossing(path, header, fibre_keys(columns, header.shape, (mode,)))
    else:
        flat = np.zeros(math.prod(others), dtype=np.int64)
        for number, part in enumerate(header.dual.partitions):
            slab = ranges[header.slab_mode]
            if part.first_slice < slab.stop and part.stop_slice > slab.start:
                columns = observed_partition(path, digest, number)
                flat += _in_box(columns, ranges, mode, len(flat))
    shaped = np.expand_dims(flat.reshape(others), mode)
    return np.ascontiguousarray(np.broadcast_to(shaped, sizes))


def _in_box(
    columns: Columns, ranges: tuple[range, ...], mode: int, fibres: int
) -> NDArray[np.int64]:
    """Entries in each fibre of a mode that goes through a box."""
    inside = np.ones(len(columns[0]), dtype=np.bool_)
    for k, (column, box) in enumerate(zip(columns, ranges, strict=True)):
        if k != mode:
            inside &= (column >= box.start) & (column < box.stop)
    shifted = tuple(
        column[inside].astype(np.int64) - box.start
        for column, box in zip(columns, ranges, strict=True)
    )
    keys = fibre_keys(shifted, tuple(len(box) for box in ranges), (mode,))
    return np.bincount(keys, minlength=fibres).astype(np.int64)


def _crossing(path: str, header: ModelHeader, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Observations in fibres of the slab mode, given their keys."""
    opened = opened_model(path, header.digest)
    counts = read_array(f"{path}/model", COUNTS_ARRAY, header.checksums[COUNTS_ARRAY])
    numbering: FibreNumbering = opened.model.numbering
    found: NDArray[np.int64] = np.append(counts, 0)[numbering.numbers(keys)]
    return found


def _counted(path: str, digest: str, columns: Columns, places: NDArray[Any]) -> NDArray[np.int64]:
    """Observations in the fibres that do not leave a slice; those of the slab mode stay zero."""
    header = opened_model(path, digest).header
    slab = header.slab_mode
    first, stop = int(places[slab][0]), int(places[slab][-1]) + 1
    inside = (columns[slab] >= first) & (columns[slab] < stop)
    near = [column[inside].astype(np.int64) for column in columns]
    wanted = [row.astype(np.int64) for row in places]
    near[slab], wanted[slab] = near[slab] - first, wanted[slab] - first
    shape = (*header.shape[:slab], stop - first, *header.shape[slab + 1 :])
    found = np.zeros(places.shape, dtype=np.int64)
    for mode in range(len(shape)):
        if mode != slab:
            keys, counts = np.unique(fibre_keys(tuple(near), shape, (mode,)), return_counts=True)
            numbering = FibreNumbering(len(keys), keys)
            if len(keys):
                asked = fibre_keys(tuple(wanted), shape, (mode,))
                found[mode] = np.append(counts, 0)[numbering.numbers(asked)]
    return found
