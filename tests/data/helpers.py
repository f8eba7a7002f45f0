"""What the tests of the data room share: tensors with holes, and ways to compare stores."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slrt_dask.data import ObservationStore, open_store
from slrt_dask.data.arrays import coo_source
from slrt_dask.data.ingest import IngestOptions, Source, ingest

SHAPES = [(23, 17), (7, 19, 5), (4, 5, 11, 3), (3, 4, 2, 7, 5)]


def tensor_with_holes(shape, seed=0, observed=0.4):
    random = np.random.default_rng(seed)
    tensor = random.standard_normal(shape)
    tensor[random.random(shape) >= observed] = np.nan
    # Zero is a value like any other, and the one a lost chunk must not be mistaken for.
    tensor[(0,) * len(shape)] = 0.0
    return tensor


def entries(tensor):
    seen = ~np.isnan(tensor)
    return np.array(np.nonzero(seen)), tensor[seen]


def shuffled_entries(tensor, seed=1):
    indices, values = entries(tensor)
    order = np.random.default_rng(seed).permutation(values.size)
    return indices[:, order], values[order]


def ingested(path: Path, source: Source, **options) -> ObservationStore:
    ingest(path, source, IngestOptions(**options))
    return open_store(path)


def coo_store(path: Path, tensor, **options) -> ObservationStore:
    indices, values = shuffled_entries(tensor)
    return ingested(path, coo_source(indices, values, tensor.shape), **options)


def columns_of(store: ObservationStore):
    parts = [store.read_partition(number) for number in range(len(store.partitions))]
    indices = np.concatenate([np.stack(columns) for columns, _ in parts], axis=1)
    return indices, np.concatenate([values for _, values in parts])
