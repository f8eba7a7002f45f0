"""A small tensor with linear conditions that it satisfies, for tests of the public interface."""

from __future__ import annotations

import numpy as np

import slrt_dask as slrt

SHAPE = (7, 6, 5)
SIZE = 210
RANKS = (3, 3, 3)
PLACES = np.arange(SIZE).reshape(SHAPE)


def exact_tensor():
    """Nonnegative, of rank two, rising along mode 0."""
    rng = np.random.default_rng(1)
    parts = [[np.sort(rng.random(7)), *(rng.random(n) ** 2 for n in (6, 5))] for _ in range(2)]
    exact = sum(np.einsum("i,j,k->ijk", *vectors) for vectors in parts)
    return exact / exact.max()


def noisy_tensor():
    """The observed values, and where they are."""
    rng = np.random.default_rng(2)
    return exact_tensor() + 0.1 * rng.standard_normal(SHAPE), rng.random(SHAPE) < 0.5


def totals():
    """Sums along mode 1: A (35, entries) and what they are."""
    A = np.zeros((35, SIZE))
    for number, places in enumerate(PLACES.transpose(0, 2, 1).reshape(35, 6)):
        A[number, places] = 1.0
    return A, A @ exact_tensor().reshape(-1)


def rising():
    """Differences along mode 0, which are not negative."""
    low, high = PLACES[:-1].reshape(-1), PLACES[1:].reshape(-1)
    A = np.zeros((len(low), SIZE))
    A[np.arange(len(low)), low], A[np.arange(len(low)), high] = -1.0, 1.0
    return A


def rows_store(path, A, shape=SHAPE, **options):
    """Rows in a store of order K + 1."""
    tensor = A.reshape(len(A), *shape)
    return slrt.from_coo(
        path, np.stack(np.nonzero(tensor)), tensor[tensor != 0.0], tensor.shape, **options
    )


def bound_store(path, b):
    numbers = np.arange(len(b))
    return slrt.from_coo(path, [numbers, 0 * numbers], b, (len(b), 1))


def completed(store, constraint, **options):
    options = {"C": 1.0, "threads": 1, "max_iterations": 3, **options}
    options = {"gap_tolerance": 0.0, "gradient_tolerance": 0.0, **options}
    return slrt.complete(store, RANKS, constraint=constraint, **options)


def values_of(fit, **options):
    return fit.to_dask((3, 4, 5), **options).compute(scheduler="synchronous")
