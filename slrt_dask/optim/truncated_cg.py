"""Steihaug–Toint truncated conjugate gradients: the model problem of a trust region.

Minimises ⟨g, η⟩ + ½⟨η, Hη⟩ over ‖η‖ ≤ radius well enough for an outer step. Pure linear algebra in
one tangent space: it knows Hessian products, not problems. This file changes when the way the
model is minimised does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from slrt_dask.optim.manifold import Point, SpectrahedronProduct, combine, scale


@dataclass(frozen=True)
class ModelStep:
    """A step within the radius."""

    move: Point
    """η, K arrays (n_k, r_k)."""
    predicted: float
    """How far the model falls, ≥ 0."""
    on_boundary: bool
    products: int


def forcing(relative_gradient: float, *, kappa: float, theta: float) -> float:
    """Relative residual at which the model is solved well enough: linear, then superlinear.

    relative_gradient is ‖grad‖/|g|, so that the rule does not depend on units.
    """
    return float(min(kappa, relative_gradient**theta))


def truncated_cg(
    manifold: SpectrahedronProduct,
    point: Point,
    gradient: Point,
    hessian: Callable[[Point], Point],
    *,
    radius: float,
    rtol: float,
    max_products: int,
) -> ModelStep:
    """Conjugate gradients on Hη = −g, left at the boundary or where curvature is not positive."""

    def dot(a: Point, b: Point) -> float:
        return manifold.inner_product(point, a, b)

    move = bent = manifold.zero_vector(point)  # η and Hη
    residual = gradient
    direction = scale(-1.0, residual)
    size = first_size = dot(residual, residual)
    products = 0
    on_boundary = False
    while products < max_products and size > rtol**2 * first_size:
        product = hessian(direction)
        products += 1
        curvature = dot(direction, product)
        length = size / curvature if curvature > 0.0 else math.inf
        limit = _to_boundary(
            dot(move, move), dot(move, direction), dot(direction, direction), radius
        )
        on_boundary = length >= limit
        length = min(length, limit)
        move = combine(1.0, move, length, direction)
        bent = combine(1.0, bent, length, product)
        if on_boundary:
            break
        # projecting again keeps rounding from leaving the horizontal space
        residual = manifold.projection(point, combine(1.0, residual, length, product))
        size, last_size = dot(residual, residual), size
        direction = combine(-1.0, residual, size / last_size, direction)
    predicted = -(dot(gradient, move) + 0.5 * dot(move, bent))
    return ModelStep(move, predicted, on_boundary, products)


def _to_boundary(moved: float, along: float, direction: float, radius: float) -> float:
    """The t ≥ 0 with ‖η + t d‖ = radius, from ‖η‖², ⟨η, d⟩ and ‖d‖²."""
    inside = max(radius**2 - moved, 0.0)
    return inside / (along + math.sqrt(along**2 + direction * inside))
