"""Bounds of largest eigenvalues hold from both sides, for every spectrum and every start."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slrt_dask.dual.lanczos import WIDTH, TopEigenvalues
from slrt_dask.dual.solve import TimeLimit

SPECTRA = {
    "one": [3.0],
    "two equal": [2.0, 2.0],
    "three": [3.0, 1.0, 0.5],
    "zero": [0.0] * 12,
    "rank one": [5.0] + [0.0] * 30,
    "identity": [1.0] * 25,
    "clustered at the top": [1.0, 1.0 - 1e-3, 1.0 - 2e-3, 1.0 - 1e-6] + [0.5] * 40,
    "spread": np.geomspace(1.0, 1e-12, 50).tolist(),
    "even": np.linspace(0.0, 1.0, 80).tolist(),
    "many equal": [1.0] * 80,
    "many clustered": [1.0, 1.0 - 1e-3, 1.0 - 2e-3, 1.0 - 1e-6] + [0.5] * 100,
    "tiny": [1e-120, 1e-121] + [0.0] * 10,
    "huge": [1e120, 1e119] + [1.0] * 10,
}


def matrix_with(spectrum, seed=0):
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(spectrum),) * 2))[0]
    return (basis * spectrum) @ basis.T, basis


def bounds_of(matrix, factor, *, enough=None, top=None):
    """Lower and upper bound of the largest eigenvalue of one matrix; how many products it took."""
    products = []

    def multiply(vectors):
        products.append(1)
        return (matrix @ vectors[0],)

    def sharp(lower, upper):
        return upper[0] <= 1.001 * lower[0]

    top = top or TopEigenvalues()
    lower, upper = top.bounds(
        multiply, (factor,), (matrix @ factor,), enough or sharp, TimeLimit(math.inf)
    )
    return lower[0], upper[0], len(products)


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
@pytest.mark.parametrize("rank", [1, 2])
def test_bounds_enclose_the_largest_eigenvalue_closely(spectrum, rank):
    matrix, _ = matrix_with(spectrum)
    rank = min(rank, len(spectrum))
    factor = np.random.default_rng(1).standard_normal((len(spectrum), rank))
    lower, upper, _ = bounds_of(matrix, factor)
    largest = max(spectrum)
    assert lower <= largest * (1 + 1e-12)
    assert upper >= largest * (1 - 1e-12)
    assert upper <= 1.0011 * largest


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 10])
def test_bounds_hold_however_few_steps_are_made(steps):
    for seed in range(20):
        spectrum = [1.0, 0.999, 0.99, *np.random.default_rng(seed).random(90).tolist()]
        matrix, _ = matrix_with(spectrum, seed)
        factor = np.random.default_rng(seed).standard_normal((len(spectrum), 1))
        top = TopEigenvalues(max_iterations=steps)
        lower, upper, made = bounds_of(matrix, factor, top=top, enough=lambda *_: False)
        assert made == steps
        assert lower <= 1.0 + 1e-12
        assert upper >= 1.0 - 1e-12


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3, 1e-4])
def test_a_start_that_knows_only_the_second_direction_still_bounds_the_first(gap):
    spectrum = [1.0 + gap, 1.0] + [0.1] * 60
    matrix, basis = matrix_with(spectrum)
    top = TopEigenvalues()
    for _ in range(3):  # remembered directions must not hide it either
        lower, upper, _ = bounds_of(matrix, basis[:, 1:2], top=top)
        assert upper >= (1.0 + gap) * (1 - 1e-12)
        assert lower <= (1.0 + gap) * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=25),
    st.integers(0, 100),
    st.sampled_from([1e-100, 1e-3, 1.0, 1e80]),
)
def test_bounds_hold_for_any_spectrum_at_any_scale(spectrum, seed, scale):
    scaled = scale * np.array(spectrum)
    # Smaller ones underflow when squared; no observations that a fit accepts lead to them.
    scaled[scaled < 1e-100] = 0.0
    matrix, _ = matrix_with(scaled, seed)
    factor = np.random.default_rng(seed).standard_normal((len(spectrum), 1))
    lower, upper, products = bounds_of(matrix, factor)
    # Eigenvalues of the matrix as it was rounded, not as it was meant.
    largest = max(float(np.linalg.eigvalsh(matrix)[-1]), 0.0)
    slack = 1e-12 * np.linalg.norm(matrix)
    assert lower <= largest + slack
    assert upper >= largest - slack
    assert products <= -(-len(spectrum) // WIDTH)  # few rows are multiplied out


def test_all_modes_are_bounded_by_the_same_sweeps():
    matrices = [matrix_with(spectrum)[0] for spectrum in ([3.0], [2.0, 1.0], [7.0] + [0.5] * 9)]
    factors = tuple(np.ones((len(matrix), 1)) for matrix in matrices)
    sweeps = []

    def multiply(vectors):
        sweeps.append(1)
        return tuple(M @ v for M, v in zip(matrices, vectors, strict=True))

    images = tuple(M @ F for M, F in zip(matrices, factors, strict=True))
    lower, upper = TopEigenvalues().bounds(
        multiply,
        factors,
        images,
        lambda low, high: bool((np.divide(high, low) <= 1.01).all()),
        TimeLimit(math.inf),
    )
    for low, high, largest in zip(lower, upper, (3.0, 2.0, 7.0), strict=True):
        assert low <= largest * (1 + 1e-12)
        assert largest * (1 - 1e-12) <= high <= 1.011 * largest
    assert len(sweeps) == 2


def test_a_remembered_direction_saves_products():
    matrix, basis = matrix_with(np.linspace(0.0, 1.0, 200))
    factor = basis[:, :1]  # the worst direction to know
    top = TopEigenvalues()
    _, _, first = bounds_of(matrix, factor, top=top)
    _, _, second = bounds_of(matrix, factor, top=top)
    assert second <= first
