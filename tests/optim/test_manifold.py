"""The laws of the geometry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slrt_dask.errors import InvalidInput
from slrt_dask.optim import SpectrahedronProduct
from slrt_dask.optim.manifold import combine, scale

SHAPES = [
    ((7, 3), (5, 2)),
    ((6, 1), (5, 4), (3, 3)),
    ((4, 4), (4, 1), (3, 2), (3, 3)),
]


def drawn(manifold, rng):
    return tuple(rng.standard_normal(shape) for shape in manifold.shapes)


def rank_deficient_point(manifold, rng, smallest=0.0):
    """Every factor has rank one but for columns of size smallest."""
    factors = []
    for n, r in manifold.shapes:
        U = np.outer(rng.standard_normal(n), rng.standard_normal(r))
        U = U / np.linalg.norm(U) + smallest * rng.standard_normal((n, r))
        factors.append(U / np.linalg.norm(U))
    return tuple(factors)


@pytest.fixture(params=SHAPES, ids=["order2", "order3", "order4"])
def manifold(request):
    return SpectrahedronProduct(request.param)


@pytest.fixture(params=["full", "deficient", "nearly"])
def point(request, manifold, rng):
    if request.param == "full":
        return manifold.random_point(rng)
    return rank_deficient_point(manifold, rng, 1e-5 if request.param == "nearly" else 0.0)


def assert_close(first, second, atol=1e-9):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


def test_projection_is_orthogonal_and_removes_what_the_cost_cannot_see(manifold, point, rng):
    a, b = drawn(manifold, rng), drawn(manifold, rng)
    once = manifold.projection(point, a)
    assert_close(manifold.projection(point, once), once)
    left = manifold.inner_product(point, once, b)
    right = manifold.inner_product(point, a, manifold.projection(point, b))
    assert left == pytest.approx(right, abs=1e-9)
    vertical = []
    for U, V in zip(point, once, strict=True):
        assert np.vdot(U, V) == pytest.approx(0.0, abs=1e-10)
        np.testing.assert_allclose(U.T @ V, V.T @ U, atol=1e-9)
        skew = rng.standard_normal((U.shape[1], U.shape[1]))
        vertical.append(U @ (skew - skew.T) + 2.0 * U)
    assert_close(manifold.projection(point, tuple(vertical)), manifold.zero_vector(point))


def test_retraction_stays_on_the_manifold_and_is_first_order(manifold, point, rng):
    vector = manifold.random_tangent_vector(point, rng)
    assert_close(manifold.retraction(point, manifold.zero_vector(point)), point, atol=1e-15)
    errors = []
    for t in (1e-2, 1e-3):
        moved = manifold.retraction(point, scale(t, vector))
        manifold.validate(moved)
        straight = combine(1.0, point, t, vector)
        errors.append(manifold.norm(point, combine(1.0, moved, -1.0, straight)))
    assert errors[0] / errors[1] == pytest.approx(100.0, rel=0.05)


def test_rotating_the_factors_rotates_vectors_and_changes_nothing_else(manifold, rng):
    point, vector = manifold.random_point(rng), drawn(manifold, rng)
    turns = [np.linalg.qr(rng.standard_normal((r, r)))[0] for _, r in manifold.shapes]

    def turned(x):
        return tuple(a @ Q for a, Q in zip(x, turns, strict=True))

    projected = manifold.projection(point, vector)
    assert_close(manifold.projection(turned(point), turned(vector)), turned(projected))
    assert_close(
        manifold.retraction(turned(point), turned(projected)),
        turned(manifold.retraction(point, projected)),
    )


def test_transport_gives_a_horizontal_vector_at_the_new_point(manifold, point, rng):
    vector = manifold.random_tangent_vector(point, rng)
    assert manifold.norm(point, vector) == pytest.approx(1.0)
    end = manifold.retraction(point, vector)
    carried = manifold.transport(point, end, vector)
    assert_close(manifold.projection(end, carried), carried)


def test_dimension_is_the_rank_of_the_projection(manifold, rng):
    point = manifold.random_point(rng)
    sizes = [n * r for n, r in manifold.shapes]
    images = []
    for basis in np.eye(sum(sizes)):
        pieces = np.split(basis, np.cumsum(sizes)[:-1])
        vector = tuple(p.reshape(s) for p, s in zip(pieces, manifold.shapes, strict=True))
        images.append(np.concatenate([p.ravel() for p in manifold.projection(point, vector)]))
    assert np.linalg.matrix_rank(np.array(images), tol=1e-9) == manifold.dim


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9),
    rank=st.integers(1, 9),
    exponent=st.integers(-17, 0),
    seed=st.integers(0, 2**31),
)
def test_projection_is_bounded_however_nearly_singular_the_factor(rows, rank, exponent, seed):
    rank = min(rank, rows)
    manifold = SpectrahedronProduct(((rows, rank),))
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((rows, rank)) * np.geomspace(1.0, 10.0**exponent, rank)
    point = (U / np.linalg.norm(U),)
    vector = (rng.standard_normal((rows, rank)),)
    projected = manifold.projection(point, vector)
    size = manifold.norm(point, vector)
    assert manifold.norm(point, projected) <= size * (1 + 1e-6)
    again = manifold.projection(point, projected)
    assert manifold.norm(point, combine(1.0, again, -1.0, projected)) <= 1e-6 * size


@pytest.mark.parametrize("shapes", [(), ((3, 4),), ((3, 0),)])
def test_impossible_shapes_are_refused(shapes):
    with pytest.raises(InvalidInput):
        SpectrahedronProduct(shapes)


def test_points_of_other_shapes_or_norms_are_refused(rng):
    manifold = SpectrahedronProduct(((4, 2), (3, 1)))
    point = manifold.random_point(rng)
    for wrong in (point[:1], scale(2.0, point), (point[0], np.full((3, 1), np.nan))):
        with pytest.raises(InvalidInput):
            manifold.validate(wrong)
