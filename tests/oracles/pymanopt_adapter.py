"""Our manifold and problem in the shape that pymanopt's optimisers expect."""

from __future__ import annotations

import numpy as np
import pymanopt
from pymanopt.manifolds.manifold import Manifold
from pymanopt.manifolds.product import _ProductTangentVector as Tangent
from pymanopt.optimizers import ConjugateGradient, TrustRegions


class AdaptedManifold(Manifold):
    """Passes every question to a SpectrahedronProduct; only tuples become pymanopt's lists."""

    def __init__(self, manifold):
        self.ours = manifold
        super().__init__("spectrahedra", manifold.dim, point_layout=len(manifold.shapes))

    @property
    def typical_dist(self):
        return np.sqrt(len(self.ours.shapes))

    def inner_product(self, point, tangent_vector_a, tangent_vector_b):
        return self.ours.inner_product(point, tangent_vector_a, tangent_vector_b)

    def norm(self, point, tangent_vector):
        return self.ours.norm(point, tangent_vector)

    def projection(self, point, vector):
        return Tangent(self.ours.projection(point, vector))

    to_tangent_space = projection

    def retraction(self, point, tangent_vector):
        return list(self.ours.retraction(point, tangent_vector))

    def transport(self, point_a, point_b, tangent_vector_a):
        return Tangent(self.ours.transport(point_a, point_b, tangent_vector_a))

    def zero_vector(self, point):
        return Tangent(self.ours.zero_vector(point))

    def random_point(self):
        return list(self.ours.random_point(np.random.default_rng(0)))

    def random_tangent_vector(self, point):
        return Tangent(self.ours.random_tangent_vector(point, np.random.default_rng(0)))

    def euclidean_to_riemannian_gradient(self, point, euclidean_gradient):
        return Tangent(self.ours.euclidean_to_riemannian_gradient(point, euclidean_gradient))

    def euclidean_to_riemannian_hessian(
        self, point, euclidean_gradient, euclidean_hessian, tangent_vector
    ):
        return Tangent(
            self.ours.euclidean_to_riemannian_hessian(
                point, euclidean_gradient, euclidean_hessian, tangent_vector
            )
        )


def adapted_problem(problem):
    """A pymanopt.Problem that asks an exactly solved problem of ours for every value."""
    manifold = AdaptedManifold(problem.manifold)
    order = len(problem.manifold.shapes)

    @pymanopt.function.numpy(manifold)
    def cost(*point):
        return problem.evaluate(point, rtol=1e-13, warm=None).cost

    @pymanopt.function.numpy(manifold)
    def gradient(*point):
        return problem.gradient(problem.evaluate(point, rtol=1e-13, warm=None))

    @pymanopt.function.numpy(manifold)
    def hessian(*arguments):
        point, direction = arguments[:order], arguments[order:]
        evaluation = problem.evaluate(point, rtol=1e-13, warm=None)
        return problem.hessian(evaluation, direction, rtol=1e-13)

    return pymanopt.Problem(manifold, cost, euclidean_gradient=gradient, euclidean_hessian=hessian)


def minimise_with_pymanopt(problem, point, *, second_order, gradient_norm, max_iterations=500):
    """The cost that pymanopt's trust region or conjugate gradient reaches from point."""
    kind = TrustRegions if second_order else ConjugateGradient
    optimiser = kind(
        verbosity=0,
        max_iterations=max_iterations,
        min_gradient_norm=gradient_norm,
        max_time=60,
    )
    return optimiser.run(adapted_problem(problem), initial_point=list(point))
