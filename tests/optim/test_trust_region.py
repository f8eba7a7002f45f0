"""The model problem and the radius policy, each by itself."""

from __future__ import annotations

import numpy as np
import pytest

from slrt_dask.optim import RadiusPolicy, SpectrahedronProduct
from slrt_dask.optim.manifold import combine
from slrt_dask.optim.truncated_cg import truncated_cg


@pytest.fixture
def model(rng):
    """A symmetric map on the horizontal space of one point, and a gradient there."""
    manifold = SpectrahedronProduct(((6, 2), (5, 1)))
    point = manifold.random_point(rng)
    gradient = manifold.random_tangent_vector(point, rng)
    weights = tuple(rng.uniform(1.0, 3.0, shape) for shape in manifold.shapes)

    def hessian_with(shift):
        def hessian(vector):
            bent = tuple((w + shift) * v for w, v in zip(weights, vector, strict=True))
            return manifold.projection(point, bent)

        return hessian

    return manifold, point, gradient, hessian_with


def test_without_a_boundary_the_model_is_solved_to_its_tolerance(model):
    manifold, point, gradient, hessian_with = model
    hessian = hessian_with(0.0)
    step = truncated_cg(manifold, point, gradient, hessian, radius=1e3, rtol=1e-9, max_products=100)
    left = combine(1.0, hessian(step.move), 1.0, gradient)
    assert manifold.norm(point, left) <= 1.1e-9 * manifold.norm(point, gradient)
    assert not step.on_boundary
    assert step.predicted == pytest.approx(
        -0.5 * manifold.inner_product(point, gradient, step.move)
    )


@pytest.mark.parametrize("shift", [0.0, -2.0, -10.0], ids=["convex", "saddle", "concave"])
def test_a_small_radius_is_reached_and_the_model_still_falls(model, shift):
    manifold, point, gradient, hessian_with = model
    step = truncated_cg(
        manifold, point, gradient, hessian_with(shift), radius=0.05, rtol=1e-9, max_products=100
    )
    assert step.on_boundary
    assert manifold.norm(point, step.move) == pytest.approx(0.05)
    assert step.predicted >= 0.4 * 0.05 * manifold.norm(point, gradient)


def test_products_are_limited(model):
    manifold, point, gradient, hessian_with = model
    step = truncated_cg(
        manifold, point, gradient, hessian_with(0.0), radius=1e3, rtol=1e-15, max_products=2
    )
    assert step.products == 2
    assert step.predicted > 0.0


def test_no_gradient_makes_no_step(model):
    manifold, point, _, hessian_with = model
    zero = manifold.zero_vector(point)
    step = truncated_cg(
        manifold, point, zero, hessian_with(0.0), radius=1.0, rtol=0.1, max_products=5
    )
    assert step.products == 0
    assert step.predicted == 0.0


def test_the_radius_shrinks_grows_and_stays():
    policy = RadiusPolicy()
    assert policy.after(0.4, 0.0, on_boundary=True, factors=3) == pytest.approx(0.1)
    assert policy.after(0.4, 0.5, on_boundary=True, factors=3) == 0.4
    assert policy.after(0.4, 0.9, on_boundary=False, factors=3) == 0.4
    assert policy.after(0.4, 0.9, on_boundary=True, factors=3) == 0.8
    assert policy.after(1.5, 0.9, on_boundary=True, factors=3) == pytest.approx(np.sqrt(3))
