"""The passes over entries with Huber's loss do what their formulas say, entry by entry."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.kernels import huber

TWICE_C, MOST, LENGTH = 4.0, 1.5, 0.3


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def drawn(request):
    """y, z within the bounds (some at them), r, p and w."""
    rng = np.random.default_rng(0)
    y, z, r, p, w = rng.standard_normal((5, 200)).astype(request.param)
    return y, np.clip(2 * z, -MOST, MOST), r, np.where(np.abs(2 * z) < MOST, p, 0), w


def test_the_loss_is_a_square_that_goes_on_along_its_tangent():
    errors = np.linspace(-4, 4, 81)
    one_by_one = [huber.total_loss(np.array([error]), 1.0) for error in errors]
    expected = np.where(np.abs(errors) <= 1, errors**2, 2 * np.abs(errors) - 1)
    np.testing.assert_allclose(one_by_one, expected)
    assert huber.total_loss(errors, 1.0) == pytest.approx(expected.sum())


def test_directions_leave_held_entries_alone(drawn):
    _, z, r, p, w = drawn
    expected = np.where(np.abs(z) < MOST, r, 0) + 0.5 * p
    gain, energy = huber.turn(z, r, MOST, 0.5, p, 0.25, w)
    np.testing.assert_allclose(p, expected, rtol=1e-6)
    np.testing.assert_allclose(w, 0.25 * expected, rtol=1e-6)
    assert not p[np.abs(z) == MOST].any()
    assert gain == pytest.approx(np.vdot(r.astype(float), expected), rel=1e-5)
    assert energy == pytest.approx(0.25 * np.vdot(expected, expected), rel=1e-5)


def test_a_step_is_clipped_and_says_how_often(drawn):
    _, z, r, p, w = drawn
    wanted, left = z + 0.7 * p, r - 0.7 * w
    clipped = huber.move(z, r, p, w, 0.7, MOST)
    assert 0 < clipped == np.count_nonzero(np.abs(wanted) > MOST)
    np.testing.assert_allclose(z, np.clip(wanted, -MOST, MOST), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(r, left, rtol=1e-4, atol=1e-6)


def test_the_standing_is_that_of_the_formulas(drawn):
    y, z, r = (vector.astype(float) for vector in drawn[:3])
    found = huber.standing(*drawn[:3], TWICE_C, MOST, LENGTH)
    answers = np.clip(z + TWICE_C * r, -MOST, MOST)
    free = np.abs(z) < MOST
    step = np.clip(z + LENGTH * r, -MOST, MOST) - z
    expected = (
        np.sum((answers - z) ** 2) / TWICE_C**2,
        np.sum(r[free] ** 2),
        np.sum(r[~free & (z * r < 0)] ** 2),
        np.sum((r * step)[free]) / LENGTH,
        0.5 * np.sum(z * (y + r)),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
