"""Low-rank tensors to try things on, whole or as observations that are never formed whole.

Factors are smooth random curves and the core is Gaussian, so the result looks like a signal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from slrt_dask.data.holding_out import scattered
from slrt_dask.data.ingest import check_shape
from slrt_dask.errors import InvalidInput

# Entries evaluated together: the partial products of these rows with the core stay small.
ROWS_TOGETHER = 32_768


def low_rank_tensor(
    shape: Sequence[int], ranks: Sequence[int], *, seed: int, noise: float = 0.0
) -> NDArray[np.float64]:
    """A dense tensor of these multilinear ranks and unit standard deviation, plus noise.

    shape, ranks : one number per mode
    seed : of all that is random
    noise : the standard deviation of the Gaussian noise added
    """
    lengths = check_shape(shape)
    random = np.random.default_rng(seed)
    core, factors = _model(lengths, ranks, random)
    tensor = core
    for factor in factors:
        # Contracting the first mode and appending the new one leaves the modes in order.
        tensor = np.tensordot(tensor, factor, axes=(0, 1))
    tensor /= _deviation(tensor)
    if noise:
        tensor += noise * random.standard_normal(lengths)
    return tensor


def sample_entries(
    tensor: NDArray[np.float64], fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices (K, m) and values (m,) of a random share of the entries, at least one."""
    if not 0.0 < fraction <= 1.0:
        raise InvalidInput(f"fraction={fraction} is not a share; give a number in (0, 1].")
    count = max(1, round(fraction * tensor.size))
    chosen = np.random.default_rng(seed).choice(tensor.size, size=count, replace=False)
    chosen.sort()
    indices = np.array(np.unravel_index(chosen, tensor.shape), dtype=np.int64)
    return indices, tensor.reshape(-1)[chosen]


def low_rank_observations(
    shape: Sequence[int],
    ranks: Sequence[int],
    count: int,
    seed: int,
    *,
    noise: float = 0.0,
    batch_entries: int = 1_000_000,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """`count` distinct observations of a low-rank tensor too large to form, batch by batch.

    Yields (indices (K, m), values (m,)), fit for `from_batches`. The same arguments give the same
    observations in the same order, whatever the batch size.
    """
    lengths = check_shape(shape)
    cells = math.prod(lengths)
    if not 1 <= count <= cells or cells >= 2**62:
        raise InvalidInput(
            f"count={count} distinct entries of shape {lengths} with {cells} cells; give between "
            "1 and that many, of fewer than 2**62 cells."
        )
    core, factors = _model(lengths, ranks, np.random.default_rng(seed))
    core /= _deviation(_evaluate(core, factors, _indices(0, min(count, 10_000), lengths, seed)))

    def observations() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        random = np.random.default_rng([seed, 1])
        for start in range(0, count, batch_entries):
            indices = _indices(start, min(start + batch_entries, count), lengths, seed)
            values = _evaluate(core, factors, indices)
            if noise:
                values += noise * random.standard_normal(values.shape[0])
            yield indices, values

    return observations()


def _model(
    shape: tuple[int, ...], ranks: Sequence[int], random: np.random.Generator
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """A Gaussian core and K factors (n_k, r_k)."""
    pairs = list(zip(shape, ranks, strict=False))
    if len(ranks) != len(shape) or not all(1 <= rank <= length for length, rank in pairs):
        raise InvalidInput(
            f"ranks {tuple(ranks)} do not fit shape {shape}; give one per mode, from 1 to its "
            "length."
        )
    factors = [_smooth_columns(length, rank, random) for length, rank in pairs]
    return random.standard_normal(tuple(ranks)), factors


def _smooth_columns(length: int, rank: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Columns (length, rank) of a few slow cosines each, with random phase and frequency."""
    place = np.linspace(0.0, 1.0, length)[:, None, None]
    frequency = random.uniform(0.0, 3.0 + rank, size=(1, rank, 4))
    phase = random.uniform(0.0, 2 * math.pi, size=(1, rank, 4))
    weight = random.standard_normal((1, rank, 4))
    columns: NDArray[np.float64] = np.sum(
        weight * np.cos(math.pi * frequency * place + phase), axis=2
    )
    return columns


def _evaluate(
    core: NDArray[np.float64], factors: list[NDArray[np.float64]], indices: NDArray[np.int64]
) -> NDArray[np.float64]:
    values = np.empty(indices.shape[1])
    for start in range(0, values.shape[0], ROWS_TOGETHER):
        stop = min(start + ROWS_TOGETHER, values.shape[0])
        rows = [f[i[start:stop]] for f, i in zip(factors, indices, strict=True)]
        partial = np.tensordot(rows[0], core, axes=(1, 0))
        for row in rows[1:]:
            partial = np.einsum("mr,mr...->m...", row, partial)
        values[start:stop] = partial
    return values


def _indices(start: int, stop: int, shape: tuple[int, ...], seed: int) -> NDArray[np.int64]:
    cells = scattered(np.arange(start, stop, dtype=np.int64), math.prod(shape), seed)
    return np.array(np.unravel_index(cells, shape), dtype=np.int64)


def _deviation(values: NDArray[np.float64]) -> float:
    return float(values.std()) or 1.0
